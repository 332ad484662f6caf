"""The mode of fake tensors: results of operators are remembered by the layouts of their arguments."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import fake_tensor

from switchgear_core.nesting import tensors_in
from switchgear_core.patches import replaced
from switchgear_core.torch_private.common_fakes import common_fake
from switchgear_core.torch_private.fakes import (
    FakeMode,
    Layout,
    OpOverload,
    enable_python_dispatcher,
    fake_of_layout,
    is_fake,
    layout_of,
)
from switchgear_core.torch_private.functionalize import storage_key
from switchgear_core.torch_private.imports import import_aside
from switchgear_core.torch_private.layouts import (
    KEEP_PLACE,
    LAID_OUT_AS,
    TAKE_NUMBERS,
    VIEWS,
    iterated,
    laid_out,
    with_dtypes,
)
from switchgear_core.torch_private.modes import TorchDispatchMode
from switchgear_core.torch_private.pytree import tree_flatten
from switchgear_core.torch_private.sizes import SYMBOLIC


def new_fake_mode(shape_env: Any = None) -> FakeMode:
    """Return a mode in which operators compute metadata only; sizes are static unless a shape environment is given."""
    return _FakeMode(shape_env)


def asks_device(func: Any, args: tuple[Any, ...]) -> bool:
    """Check whether a call reads the device of a fake tensor, the most frequent call of all."""
    return func is torch.ops.prim.device.default and is_fake(args[0])


def _viewed(fake: torch.Tensor, viewed: torch.Tensor) -> torch.Tensor:
    """Return a view with other sizes and the kernel's strides, or its error; fakes differ next to sizes of 1."""
    view = torch.empty_strided(viewed.shape, viewed.stride(), device="meta").view(fake.shape)
    is_alike = view.stride() == fake.stride()
    return fake if is_alike else fake.as_strided(fake.shape, view.stride())


class _FakeMode(FakeMode):
    """Mode of fake tensors, with separate fakes where PyTorch's are stricter or laxer than their kernels.

    PyTorch's constructor imports TorchDynamo for its settings: it runs when a setting is first read.
    """

    def __init__(self, shape_env: Any) -> None:
        TorchDispatchMode.__init__(self)
        self.shape_env = shape_env
        self.static_shapes = shape_env is None
        self.enter_stack = []
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self._allow_unsafe_data_ptr_access = self.allow_meta = True
        self._is_complete = False
        if shape_env is not None:
            self._complete()

    def _complete(self) -> None:
        if not self._is_complete:
            import_aside("torch._dynamo")
            settings = {**self.__dict__, "_is_complete": True}
            FakeMode.__init__(self, allow_non_fake_inputs=False, shape_env=self.shape_env)
            self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        if name not in FakeMode.__init__.__code__.co_names or self._is_complete:
            raise AttributeError(name)
        self._complete()
        return getattr(self, name)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if asks_device(func, args):
            return args[0].fake_device
        if func is torch.ops.aten._grouped_mm.default and args[0].device.type == "cpu":
            return _grouped_mm_fake(self, *args, **(kwargs or {}))
        if func in _SUBTRACTIONS and any(map(_is_boolean, args[:2])):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported: use `^`, `~` or logical_not()"
            )
        if self.shape_env is None:
            key = _call_key(self, func, args, kwargs)
            entry = _RESULTS.get(key) if key is not None else None
            if entry is not None:
                return _result(self, entry, args)
            result: Any = None
            if key is not None or func is torch.ops.aten.as_strided.default:
                result = common_fake(self, func, args, kwargs or {})
            if result is None:
                self._complete()
                result = self._by_formula(func, types, args, kwargs)
            if func in VIEWS and 1 in args[0].shape:
                result = _viewed(result, args[0])
            if func in KEEP_PLACE and result.storage_offset() != args[0].storage_offset():
                room = args[0].untyped_storage().nbytes() // args[0].itemsize
                result = (
                    args[0]
                    .new_empty(room)
                    .as_strided(result.shape, result.stride(), args[0].storage_offset())
                )
            if func in LAID_OUT_AS:
                result = laid_out(self, LAID_OUT_AS[func], result, args, kwargs or {})
            elif func in TAKE_NUMBERS and not is_fake(args[1]) and 1 in result.shape:
                result = laid_out(self, (slice(2), iterated), result, args, kwargs or {})
            if key is not None and key not in _RESULTS:
                if len(_RESULTS) >= _RESULTS_LIMIT:
                    _RESULTS.clear()
                _RESULTS[key] = _Result.of(self, result, args, kwargs or {})
            return result
        # kernels in C++ accept numbers only; the dispatched and recorded operator stays
        with enable_python_dispatcher():
            return self._by_formula(func, types, args, kwargs)

    def _by_formula(self, func: Any, types: Any, args: Any, kwargs: Any) -> object:
        """Return PyTorch's own fake; formulas of loss derivatives in 2.13 divide by the number of elements, maybe 0."""
        with replaced(_FAKE_LOGGER, "disabled", True):
            try:
                result = super().__torch_dispatch__(func, types, args, kwargs)
                return with_dtypes(self, func, result, args)
            except ZeroDivisionError as error:
                leaves, structure = tree_flatten((args, kwargs or {}))
                refused = RuntimeError(str(error))
                return fake_tensor.run_fallback_kernel(self, func, leaves, structure, refused)


@dataclass(frozen=True, slots=True)
class _Result:
    """Results of an operator: `kind` is None for a single tensor; `items` hold layouts and viewed arguments."""

    kind: type | None
    items: tuple[tuple[Layout, int | None] | None, ...]

    @classmethod
    def of(cls, mode: FakeMode, result: Any, args: tuple[Any, ...], kwargs: Any) -> _Result | None:
        """Return the results of a call; None if the tensors cannot be rebuilt from layouts."""
        kind = type(result) if isinstance(result, (tuple, list)) else None
        homes = [storage_key(other) for other in tensors_in((args, kwargs))]
        items: list[tuple[Layout, int | None] | None] = []
        for fake in result if kind else (result,):
            if fake is None and kind:
                items.append(None)
                continue
            layout = (
                layout_of(mode, fake)
                if is_fake(fake)
                and not fake.requires_grad
                and not any(fake is other for other in args)
                else None
            )
            if layout is None:
                return None
            key = storage_key(fake)
            place = next(
                (i for i, other in enumerate(args) if is_fake(other) and storage_key(other) == key),
                None,
            )
            # in the memory of one of several arguments, of one inside a list, or of another result
            if homes.count(key) != (place is not None):
                return None
            copy = fake_of_layout(mode, layout, None if place is None else args[place])
            alike = torch._C._dispatch_key_set(copy) == torch._C._dispatch_key_set(fake)
            if not alike or copy.untyped_storage().nbytes() != fake.untyped_storage().nbytes():
                return None
            if place is None:
                homes.append(key)
            items.append((layout, place))
        return cls(kind, tuple(items))


def _result(mode: FakeMode, entry: _Result, args: tuple[object, ...]) -> object:
    """Return fresh fake tensors, as an operator creates them from the given arguments."""
    fakes = [
        item and fake_of_layout(mode, item[0], None if item[1] is None else args[item[1]])
        for item in entry.items
    ]
    if entry.kind is None:
        return fakes[0]
    return entry.kind(*fakes) if hasattr(entry.kind, "_fields") else entry.kind(fakes)


#: Results of operators by their arguments; None if they must not be remembered. A lookup in PyTorch's own cache takes
#: several times as long.
_RESULTS: dict[object, _Result | None] = {}
_RESULTS_LIMIT = 10_000
_DATA_TAGS = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
)


def clear_fake_results() -> None:
    """Clear the remembered results of operators."""
    _RESULTS.clear()


class _NotPlain(Exception):
    """Error for an argument that cannot be part of a key."""


def _call_key(mode: FakeMode, func: object, args: tuple[object, ...], kwargs: object) -> object:
    """Return a key for the layouts of an operator's results; None if they depend on more."""
    if not _is_regular(func) or torch.is_inference_mode_enabled():
        return None
    try:
        defaults = torch.get_default_dtype(), torch._C._get_default_device()
        key = (func, defaults, _part(mode, args), _part(mode, kwargs or {}))
        hash(key)
    except (_NotPlain, TypeError):
        return None
    return key


@functools.cache
def _is_regular(func: object) -> bool:
    """Check whether an operator is PyTorch's, writes nothing, and needs neither data nor bounds of memory."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return False
    is_special = any(
        part in func._opname for part in ("as_strided", "lift", "resize", "zerotensor")
    )
    return not is_special and _DATA_TAGS.isdisjoint(func.tags)


def _part(mode: FakeMode, value: object) -> object:
    if isinstance(value, fake_tensor.FakeTensor):
        layout = layout_of(mode, value)
        if layout is None:
            raise _NotPlain
        return layout
    if isinstance(value, (tuple, list)):
        return (type(value), *[_part(mode, item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _part(mode, item)) for name, item in value.items()])
    if isinstance(value, (torch.Tensor, torch.Generator, *SYMBOLIC)):
        raise _NotPlain
    return (type(value), value)


#: Logger of kernels that accept numbers only, and of failing calls; both are handled elsewhere.
_FAKE_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
_SUBTRACTIONS = frozenset(
    getattr(packet, name)
    for packet in (torch.ops.aten.sub, torch.ops.aten.rsub)
    for name in ("Tensor", "Scalar")
)


def _is_boolean(operand: object) -> bool:
    return (
        operand.dtype is torch.bool
        if isinstance(operand, torch.Tensor)
        else isinstance(operand, bool)
    )


def _grouped_mm_fake(
    mode: FakeMode, a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> object:
    """Return the fake of a grouped product: groups are dimension 0, or cut by `offs`; rows are 16-byte aligned."""
    groups = (offs if a.dim() == 2 else a).shape[:1] if a.dim() == b.dim() else ()
    shape = (*groups, a.shape[-2], b.shape[-1])
    alignment = 16 // a.element_size()
    row = -(-shape[-1] // alignment) * alignment
    stride = (shape[-2] * row, row, 1)[-len(shape) :]
    with mode:
        return torch.empty_strided(shape, stride, dtype=out_dtype or a.dtype, device=a.device)

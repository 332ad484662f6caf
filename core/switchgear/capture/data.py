"""Data: Python values and shapes that depend on what is in the tensors of a call, and the checks that guard them.

A capture knows metadata alone. What a read needs beyond that is computed from the tensors of the call itself, by the
lines that it depends on, which must draw nothing; the trace gets a check in its place, and is from then on for those
calls alone that pass it. Indexing by a mask becomes `nonzero` and indexing by integers, so that derivatives read no
data. Checks stay out of composites and are no dead code; one that fails raises `OtherData` before anything is drawn
or written. Without `specialize_on_data=True` such a read is `DataDependent`, but for branches on masks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.active import ACTIVE
from switchgear.capture.gradients_inside import AUTOGRAD_GRAD
from switchgear.capture.sizes import Computed, concrete, depends_on_sizes, has_numbers, map_numbers
from switchgear.errors import DataDependent
from switchgear.ir.composites import bind_outputs, leaves_of
from switchgear.ir.proxy import hint_of
from switchgear.ir.symbol import CHECK, BoundSymbol, Symbol, map_proxies, proxies
from switchgear.nesting import map_tensors
from switchgear.patches import replaced

if TYPE_CHECKING:
    from switchgear.capture.recorder import Recorder
    from switchgear.ir.proxy import TensorProxy

_aten = torch.ops.aten

_REMEDY = (
    "a trace holds no data. Compute it outside the jitted function and pass it in, rewrite it with masks "
    "(torch.where), or let sg.jit(..., specialize_on_data=True) compile for what the data are"
)


class OtherData(Exception):
    """A check failed: the entry is for calls with other data. Nothing has been written or drawn."""


def check_result(expected: Any, function: Callable[..., Any], *args: Any) -> None:
    """Raise `OtherData` unless `function` gives the Python value that it gave at capture."""
    if _recorded(CHECK_RESULT, (expected, function, *args)):
        return
    found = function(*args)
    if repr(found) != repr(expected):  # nan is nan, and 0.0 is not -0.0
        raise OtherData(
            f"{getattr(function, '__name__', function)} gave {expected}, and gives {found}"
        )


def check_layout(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raise `OtherData` unless a tensor has the shape and strides that it had at capture."""
    if not _recorded(CHECK_LAYOUT, (tensor, shape, stride)) and (tensor.shape, tensor.stride()) != (
        shape,
        stride,
    ):
        raise OtherData(f"a result had shape {list(shape)}, and has {list(tensor.shape)}")


CHECK_RESULT = Symbol("switchgear.check_result", check_result)
CHECK_LAYOUT = Symbol("switchgear.check_layout", check_layout)


def _recorded(symbol: Symbol, args: tuple[Any, ...]) -> bool:
    """Whether this is a capture, which a check is then part of."""
    recorder = ACTIVE.recorder
    if recorder is None:
        return False
    with torch._C.DisableTorchFunction():
        given = map_tensors(
            lambda tensor: recorder.tracker.proxy_of(recorder.adopted(tensor)), args
        )
    recorder.record(symbol, given, None, CHECK)
    return True


class Data:
    """What is in the tensors of a program under capture, computed as far as somebody asks.

    Unless `of_inputs`, that is what comes from constants alone; where it is None, also what is true or false of
    integers and masks, which is exact whoever computes it.
    """

    def __init__(self, recorder: Recorder, of_inputs: bool | None) -> None:
        self.of_inputs = of_inputs
        self._recorder = recorder
        self._values: dict[str, torch.Tensor] = {}
        self._from_inputs: set[str] = set()

    def call(
        self, function: Callable[..., Any], args: Any, kwargs: Any, need: str
    ) -> tuple[Any, bool]:
        """What a call on proxies gives, and whether that depends on an input.

        Raises `DataDependent`, which says that there is a `need`, where that cannot be known.
        """
        if function is _aten.masked_select.default:
            # the mask says how much is selected, and the shape how often
            function, args = _select_zeros, (args[0].dtype, args[0].device, args[0].shape, args[1])
        with _real():
            from_inputs = self._compute(proxies((args, kwargs)), need)
            given = map_proxies(lambda proxy: self._values[proxy.name], (args, kwargs))
            given = map_numbers(hint_of, given)
            result = function(*given[0], **given[1])
        if from_inputs and self.of_inputs is None and not isinstance(result, bool):
            raise DataDependent(f"{need}: {_REMEDY}")
        if ACTIVE.sizes is not None and not from_inputs:
            self._note_sizes(function, args, kwargs, result, need)
        return result, from_inputs

    def _note_sizes(
        self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any, need: str
    ) -> None:
        """Hold other calls to a result that constants and symbolic sizes decide."""
        assert ACTIVE.sizes is not None
        needed = {proxy.name for proxy in proxies((args, kwargs))}
        program: list[BoundSymbol] = []
        for item in reversed([*self._lines()]):
            if not needed.isdisjoint(proxy.name for proxy in item.outputs):
                needed.update(proxy.name for proxy in item.inputs)
                program.append(item)
        if not has_numbers((args, kwargs)) and not any(map(depends_on_sizes, program)):
            return
        made = {proxy.name for item in program for proxy in item.outputs}
        if not needed <= made | self._recorder.constants.keys():
            raise DataDependent(f"{need}: sizes decide it, by calls that are not at hand any more")
        lines, constants = tuple(reversed(program)), dict(self._recorder.constants)
        expected = _described(result)

        def holds(binding: Mapping[str, int]) -> bool:
            values: dict[str, Any] = dict(constants)
            with _real():
                for item in concrete(lines, binding):
                    given = map_proxies(
                        lambda proxy: values[proxy.name], (item.args, dict(item.kwargs))
                    )
                    bind_outputs(item.output, item.symbol.fn(*given[0], **given[1]), values)
                given = map_proxies(
                    lambda proxy: values[proxy.name], concrete((args, kwargs), binding)
                )
                return bool(_described(function(*given[0], **given[1])) == expected)

        ACTIVE.sizes.computed.append(Computed(holds, need))

    def _compute(self, wanted: Iterable[TensorProxy], need: str) -> bool:
        """Know these values; whether one of them depends on an input."""
        names = {proxy.name for proxy in wanted}
        missing, program = names - self._values.keys(), list[BoundSymbol]()
        lines = [*self._lines()] if missing else []
        for item in reversed(lines):
            if missing.isdisjoint(proxy.name for proxy in item.outputs):
                continue
            if _is_never(item, lines):
                self._values[item.output.name] = torch.tensor(False)
                missing.remove(item.output.name)
                continue
            if item.is_random or item.symbol == AUTOGRAD_GRAD:
                what = (
                    "draws random numbers"
                    if item.is_random
                    else "is computed by a backward of its own"
                )
                raise DataDependent(
                    f"{need}; it depends on {item.symbol.name}, which {what} in the same call"
                )
            missing.difference_update(proxy.name for proxy in item.outputs)
            missing.update(proxy.name for proxy in item.inputs if proxy.name not in self._values)
            program.append(item)
        for name in missing:
            self._fetch(name, need)
        for item in reversed(program):
            given = map_proxies(
                lambda proxy: self._values[proxy.name], (item.args, dict(item.kwargs))
            )
            args, kwargs = map_numbers(hint_of, given)
            bind_outputs(item.output, item.symbol.fn(*args, **kwargs), self._values)
            if not self._from_inputs.isdisjoint(proxy.name for proxy in item.inputs):
                self._from_inputs.update(proxy.name for proxy in item.outputs)
        return not self._from_inputs.isdisjoint(names)

    def _lines(self) -> Iterator[BoundSymbol]:
        for recorded in self._recorder.open_lines():
            yield from leaves_of(recorded)

    def _fetch(self, name: str, need: str) -> None:
        """Know a value that no line makes: a constant or an input."""
        if name in self._recorder.constants:
            self._values[name] = self._recorder.constants[name]
            return
        tensor = next(
            (found.tensor for found in self._recorder.inputs if found.proxy.name == name), None
        )
        outer = self._recorder.enclosing
        if tensor is not None and internals.is_wrapper(tensor) and outer is not None:
            proxy = outer.tracker.proxy_of_fake(outer.tracker.last_fake(tensor))
            self._values[name], from_inputs = outer.data.call(_itself, (proxy,), {}, need)
        elif tensor is not None and (self.of_inputs or self._is_mask(tensor)):
            self._values[name], from_inputs = tensor.detach(), True
        elif not self._recorder.follow_autograd:
            raise DataDependent(
                f"{need}: a grad rule or a backward has no data while it is traced; use torch.where"
            )
        else:
            raise DataDependent(f"{need}: {_REMEDY}")
        if from_inputs:
            self._from_inputs.add(name)

    def _is_mask(self, tensor: torch.Tensor) -> bool:
        is_exact = not (tensor.is_floating_point() or tensor.is_complex())
        return self.of_inputs is None and is_exact


def _is_never(item: BoundSymbol, lines: list[BoundSymbol]) -> bool:
    """Whether it is `torch.rand([]) < p` for a p that is not positive: false, whatever is drawn."""
    if item.symbol.fn is not _aten.lt.Scalar or item.output.shape:
        return False
    drawn, bound = item.args
    if not isinstance(bound, (int, float)) or bound > 0:
        return False
    return any(line.symbol.fn is _aten.rand.default and line.output == drawn for line in lines)


def _select_zeros(
    dtype: torch.dtype, device: torch.device, shape: tuple[int, ...], mask: torch.Tensor
) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape).masked_select(mask)


def _described(result: Any) -> Any:
    """A result for comparison: of tensors, their layout."""
    return repr(map_tensors(lambda tensor: (tuple(tensor.shape), tensor.stride()), result))


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@contextlib.contextmanager
def _real() -> Iterator[None]:
    """Run on real tensors, as the trace will; the casts of autocast are lines of the program."""
    with internals.real_dispatch(), internals.autocast_off(), replaced(ACTIVE, "recorder", None):
        yield

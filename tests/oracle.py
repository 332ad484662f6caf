"""The oracle of the tests: says in words how two results differ, and holds a jitted function to eager.

Strict about types: values of a type that it has no rule for raise a TypeError, so no two of them are ever called equal.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
import functools
import pathlib
import pickle
import random
import re
import struct
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy
import torch
from torch.utils import _pytree as pytree

import switchgear as sg
from switchgear.errors import FallbackWarning
from tests import under_test
from tests.under_test import is_near


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far values may lie from eager's, and why they do; signs of zeros are free, and strides too if `strides`.

    `modes` names where, "" everywhere.
    """

    relative: float
    absolute: float
    cause: str
    strides: bool = False
    modes: str = ""


@dataclass(frozen=True, slots=True)
class Undefined:
    """Values that eager itself leaves to chance: metadata is compared, values are not."""

    cause: str


@dataclass(frozen=True, slots=True)
class Fused:
    """The results of a fusion executor, `is_near` to eager or within the tolerance that they have without one."""

    without: Tolerance | None = None


Exactness = Tolerance | Undefined | Fused | None  # None: bit for bit


def in_mode(exactness: Exactness, mode: str) -> Exactness:
    """The exactness of values in this mode of a database."""
    return None if isinstance(exactness, Tolerance) and exactness.modes not in mode else exactness


# --- how two values differ ---

#: Facts of a tensor that must agree, besides its values.
_FACTS: dict[str, Callable[[torch.Tensor], object]] = {
    "type": type,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "layout": lambda tensor: tensor.layout,
    "shape": lambda tensor: tuple(tensor.shape),
    # Strides of a tensor without elements lead nowhere.
    "stride": lambda tensor: tensor.stride() if tensor.layout is torch.strided and tensor.numel() else None,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "conjugate bit": lambda tensor: tensor.is_conj(),
    "negative bit": lambda tensor: tensor.is_neg(),
}

#: Immutable values that are equal if they have one type and `==` says so; those without an own `__eq__` are themselves.
_BY_EQUALITY = (
    *(type(None), type(...), type(NotImplemented), bool, int, str, bytes, bytearray, range, enum.Enum, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, Fraction, pathlib.PurePath, pytree.TreeSpec),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
#: Values that are equal only to themselves.
_BY_IDENTITY = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.ModuleType, functools._lru_cache_wrapper, torch._C.ScriptFunction),
)

_Pair: TypeAlias = tuple[object, object, object]  # expected, actual, and the first in float64 if there is such


def differences(
    expected: object, actual: object, where: str, exactness: Exactness = None, exact: object = None
) -> Iterator[str]:
    """Yield every way in which `actual` differs from eager's `expected`, or from `exact`, its value in float64.

    Raises:
        TypeError: there is no rule for a value of this type.
    """
    if not isinstance(exactness, (Fused, Undefined)) and under_test.EXECUTORS != ["torch"]:
        exactness = Fused(exactness)
    yield from _Comparison(exactness).differences(expected, actual, exact, where)


class _Comparison:
    """One comparison; pairs that were looked into are not looked into again, so circles end."""

    def __init__(self, exactness: Exactness) -> None:
        self._exactness = exactness
        self._seen: dict[tuple[int, int], _Pair] = {}  # holds the objects, so that their ids stay theirs

    def differences(self, expected: Any, actual: Any, exact: Any, where: str) -> Iterator[str]:
        """Yield the differences of two values of any known type."""
        if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
            yield from _tensor_differences(expected, actual, exact, where, self._exactness)
            expected, actual = _unmarked(expected), _unmarked(actual)
            if expected or actual:
                yield from self.differences(expected, actual, None, f"attributes of {where}")
        elif type(expected) is not type(actual):
            kinds = (dict, list, tuple, set, frozenset)
            word = "structure " * isinstance(expected, kinds) * isinstance(actual, kinds)
            yield f"{where}: {word}is {_brief(actual)}, eager's {_brief(expected)}"
        elif isinstance(expected, (float, complex)):
            if not _same_bits(expected, actual):
                yield f"{where}: is {actual!r}, eager's {expected!r}"
        elif isinstance(expected, _BY_EQUALITY):
            if expected != actual:
                yield f"{where}: is {actual!r}, eager's {expected!r}"
        elif isinstance(expected, _BY_IDENTITY):
            if expected is not actual:
                yield f"{where}: is {actual!r}, another than eager's {expected!r}"
        elif (id(expected), id(actual)) not in self._seen:
            self._seen[id(expected), id(actual)] = expected, actual, exact
            yield from self._part_differences(expected, actual, exact, where)

    def _part_differences(self, expected: Any, actual: Any, exact: Any, where: str) -> Iterator[str]:
        one, other, third = (_parts(value) for value in (expected, actual, exact))
        if one is None or other is None:
            raise TypeError(f"{where}: the oracle has no rule for values of {type(expected)}")
        if [*one] != [*other]:
            yield f"{where}: structure is {_brief([*other])}, eager's {_brief([*one])}"
            return
        for name, part in one.items():
            place = where if len(one) == 1 and name == "[0]" else where + name
            yield from self.differences(part, other[name], (third or {}).get(name), place)


def _unmarked(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes of a tensor but for PyTorch's marks for TorchDynamo, which no result depends on."""
    return {name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo_")}


def _parts(value: Any) -> dict[str, Any] | None:
    """Name the values that an object consists of, in its order; None if its type is unknown."""
    parts: dict[str, Any] = {}
    is_known = True
    if isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            if type(key) is str:
                parts[f"[{key!r}]"] = item
            else:
                parts |= {f", key {index}": key, f"[{_label(key, index)}]": item}
        if isinstance(value, collections.defaultdict):
            parts[".default_factory"] = value.default_factory
    elif isinstance(value, (list, tuple, collections.deque)):
        parts = {f"[{index}]": item for index, item in enumerate(value)}
        if isinstance(value, collections.deque):
            parts[".maxlen"] = value.maxlen
    elif isinstance(value, (set, frozenset)):
        parts = {f", element {index}": item for index, item in enumerate(sorted(value, key=repr))}
    elif isinstance(value, types.MappingProxyType):
        parts = {".mapping": dict(value)}
    elif isinstance(value, slice):
        parts = {".start": value.start, ".stop": value.stop, ".step": value.step}
    elif isinstance(value, (numpy.ndarray, numpy.generic)):
        parts = {".dtype": str(value.dtype), ".shape": value.shape, ".strides": value.strides}
        parts["'s values"] = value.tolist() if value.dtype.hasobject else value.tobytes()
    elif isinstance(value, torch.Generator):
        parts = {".device": value.device, ".state": value.get_state()}
    elif isinstance(value, random.Random):
        parts = {".state": pickle.dumps(value.getstate())}
    elif isinstance(value, functools.partial):
        parts = {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    elif isinstance(value, types.MethodType):
        parts = {".__func__": value.__func__, ".__self__": value.__self__}
    elif isinstance(value, types.CellType):
        parts = {".cell_contents": value.cell_contents}
    elif isinstance(value, BaseException):
        parts = {".args": value.args}
    else:
        is_known = False
    attributes = _attributes(value)
    if not is_known and (attributes is None or any(map(_is_written_in_c, type(value).__mro__[:-1]))):
        return None
    return parts | (attributes or {})


def _attributes(value: object) -> dict[str, Any] | None:
    """Name the attributes in an object's `__dict__` and slots; None if its type has neither."""
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = getattr(value, "__dict__", None)
    if held is None and not names:
        return None
    slots = {f".{name}": getattr(value, name) for name in names if hasattr(value, name)}
    return slots | {f".{name}": item for name, item in (held or {}).items()}


def _is_written_in_c(kind: type) -> bool:
    """Whether objects of a type may hold what no attribute shows."""
    new = kind.__dict__.get("__new__")
    return isinstance(new, types.BuiltinFunctionType) and new.__self__ is kind


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    private = kind.__name__.lstrip("_")
    mangled = [f"_{private}{name}" if name[:2] == "__" and name[-2:] != "__" else name for name in names]
    return [name for name in mangled if name not in ("__dict__", "__weakref__")]


def _label(key: object, index: int) -> str:
    return repr(key) if isinstance(key, (str, int, tuple)) else f"key {index}"


def _same_bits(one: float | complex, other: float | complex) -> bool:
    if isinstance(one, complex) and isinstance(other, complex):
        return _same_bits(one.real, other.real) and _same_bits(one.imag, other.imag)
    return struct.pack("d", one) == struct.pack("d", other)


def _tensor_differences(
    expected: torch.Tensor, actual: torch.Tensor, exact: object, where: str, exactness: Exactness
) -> Iterator[str]:
    fused = isinstance(exactness, Fused)
    exactness = exactness.without if isinstance(exactness, Fused) else exactness
    free = {"stride"} if isinstance(exactness, Tolerance) and exactness.strides else set()
    wrong = [name for name, fact in _FACTS.items() if name not in free and fact(expected) != fact(actual)]
    for name in wrong:
        yield f"{where}: {name} is {_FACTS[name](actual)}, eager's {_FACTS[name](expected)}"
    if {"dtype", "layout", "shape", "device"}.isdisjoint(wrong) and not isinstance(exactness, Undefined):
        for part, (one, other) in enumerate(zip(_plain_parts(expected), _plain_parts(actual), strict=True)):
            if fused and one.shape == other.shape and is_near(one, other, _wide(exact, one)):
                continue
            yield from _value_differences(one, other, where if part == 0 else f"{where}, part {part}", exactness)


def _value_differences(expected: torch.Tensor, actual: torch.Tensor, where: str, exactness: Exactness) -> Iterator[str]:
    if expected.shape != actual.shape:
        yield f"{where}: {tuple(actual.shape)} stored values, eager's {tuple(expected.shape)}"
        return
    same = _same(expected, actual)
    if isinstance(exactness, Tolerance):
        same |= torch.isclose(actual, expected, exactness.relative, exactness.absolute, equal_nan=True)
    if same.all():
        return
    if torch.equal(expected.nan_to_num(), actual.nan_to_num()) and torch.equal(expected.isnan(), actual.isnan()):
        yield f"{where}: sign of zero differs in {int((~same).sum())} of {same.numel()} values"
        return
    distance = (expected.to(torch.float64) - actual.to(torch.float64)).abs().nan_to_num(nan=float("inf"))[~same].max()
    yield f"{where}: {int((~same).sum())} of {same.numel()} values differ, by at most {distance:.3g}"


def _same(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Where values agree to the bit."""
    if expected.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
        expected, actual = expected.contiguous().view(bits), actual.contiguous().view(bits)
    return expected == actual


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense real tensors that hold the values of any tensor."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._values(), tensor._indices()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    else:
        parts = [tensor]
    return [_plain(part) for part in parts]


def _wide(exact: object, expected: torch.Tensor) -> torch.Tensor | None:
    """The dense tensor of float64 that `expected` is to be compared with, if there is one."""
    if not isinstance(exact, torch.Tensor) or exact.layout is not torch.strided:
        return None
    (plain,) = _plain_parts(exact)
    return plain.double() if plain.is_floating_point() and plain.shape == expected.shape else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    if tensor.is_complex():
        # Half the operators are missing for the smallest complex type.
        tensor = torch.view_as_real(tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.to(torch.float32)
    return tensor


def _brief(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.80}"


# --- holding a jitted function to eager ---


@contextlib.contextmanager
def fallbacks_recorded() -> Iterator[list[tuple[str, str]]]:
    """Fill the list with the kind and the text of the reason of every fallback inside; other warnings pass."""
    reasons: list[tuple[str, str]] = []
    show = warnings.showwarning

    def showwarning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if category is not FallbackWarning:
            show(message, category, *rest, **more)
            return
        assert isinstance(message, FallbackWarning)
        kind, _, reason = message.reason.partition(": ")
        reasons.append((kind, reason))

    with warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        warnings.showwarning = showwarning
        yield reasons


def seed(number: int) -> None:
    """Put every random stream at a point of its own."""
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def streams() -> dict[str, object]:
    """Return the points at which the random streams are, each as something that can be compared."""
    drawn = {"torch": under_test.random_state(), "numpy": numpy.random.get_state()}
    return {**drawn, "random": pickle.dumps(random.getstate())}


def own(value: Any) -> Any:
    """Copy the arguments of a call; a leaf's copy is a leaf of the same layout, and one object stays one object."""
    copies: dict[int, Any] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return pytree.tree_map(copy, value)


def step(
    function: Callable[..., Any], *args: Any, weigh: Callable[..., Any] | None = None
) -> tuple[Any, list[torch.Tensor | None]]:
    """Return the result of a call on copies, and the gradients of these after the backward of its outputs.

    Args:
        weigh: makes of the result the outputs that the backward starts from.
    """
    seen = _observed(function, args, weigh)
    return seen["result"], seen["gradients"]


def _observed(
    function: Callable[..., Any], args: tuple[Any, ...], weigh: Callable[..., Any] | None, number: int = 3
) -> dict[str, Any]:
    """Return all that a call and its backward leave behind."""
    args = own(args)
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    versions = [tensor._version for tensor in tensors]
    seed(number)
    result = function(*args)
    after_the_call = streams()
    seen = result if weigh is None else weigh(result)
    outputs = [leaf for leaf in pytree.tree_leaves(seen) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return {
        "result": result,
        "gradients": [leaf.grad for leaf in tensors],
        "arguments": args,
        "which arguments have a new version": [
            tensor._version > version for tensor, version in zip(tensors, versions, strict=True)
        ],
        "random streams": after_the_call,
        "random streams after the backward": streams(),
    }


def assert_same(actual: object, expected: object, *, where: str = "result", exactness: Exactness = None) -> None:
    """Fail if two values differ in anything."""
    faults = list(differences(expected, actual, where, exactness))
    assert not faults, "\n".join(faults[:20])


def assert_trains_as_eager(
    function: Callable[..., Any],
    *args: Any,
    weigh: Callable[..., Any] | None = None,
    falls_back: str = "",
    **options: Any,
) -> Any:
    """Hold the first and a cached call, and their backwards, to eager's, bit by bit; return the jitted function.

    Results, gradients, arguments and random streams are compared.

    Args:
        weigh: makes of the result the outputs that the backward starts from.
        falls_back: a pattern that the reason of the fallback matches; by default there may be none.
        options: of `sg.jit`.
    """
    options.setdefault("executors", ["torch"])
    jitted = sg.jit(function, **options)
    with fallbacks_recorded() as reasons:
        for number, call in enumerate(("first", "cached")):
            expected = _observed(function, args, weigh, number)
            assert_same(_observed(jitted, args, weigh, number), expected, where=f"{call} call")
    assert bool(reasons) == bool(falls_back), reasons or "no call fell back"
    assert all(re.search(falls_back, reason) for _, reason in reasons), reasons
    return jitted

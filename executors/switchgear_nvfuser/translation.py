"""From PyTorch's operators to nvFuser's: the table of translations, and the translator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

import switchgear as sg

from .definition import DTYPES, Definition, Value
from .internals import undisturbed

#: Function that writes a call into a definition: `translation(translator, *args, **kwargs)`, with the call's own
#: arguments, where tensors are proxies. Returns the call's results, as values.
Translation: TypeAlias = Callable[..., Any]
_Declared = TypeVar("_Declared", bound=Translation)

TRANSLATIONS: dict[Any, Translation] = {}
#: Operators with some form in nvFuser that are left to others, with the reason.
LEFT: dict[Any, str] = {}


class Untranslatable(Exception):
    """A call that nvFuser cannot run, or runs differently from PyTorch; its text is the reason."""


def overload(name: str) -> Any:
    """Return the PyTorch overload with a name such as `add.Tensor`; without a dot, the default one."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def translates(*names: str) -> Callable[[_Declared], _Declared]:
    """Return a decorator that declares the translation of PyTorch overloads."""

    def declare(translation: _Declared) -> _Declared:
        for name in names:
            if TRANSLATIONS.setdefault(overload(name), translation) is not translation:
                raise sg.errors.RegistrationError(f"executor nvfuser: two translations of {name}")
        return translation

    return declare


def leaves(reason: str, *names: str) -> None:
    """Declare that PyTorch overloads are left to other executors."""
    LEFT.update((overload(name), reason) for name in names)


leaves(
    "a product, for which there are libraries",
    *(
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "convolution",
        "convolution_backward",
        "_addmm_activation",
    ),
)


class Translator:
    """Writer of calls into `definition`; `values` are the values of the proxies so far.

    A value has its proxy's dtype. nvFuser computes 16-bit values in 32 bits and returns 32 bits, so a translation
    computes in `compute`, and its results are cast: they are rounded where PyTorch rounds them.
    """

    def __init__(self, definition: Definition, values: dict[str, Value], *, static: bool) -> None:
        self.definition = definition
        self.values = values
        self.static = static
        self.outputs: tuple[sg.TensorProxy, ...] = ()

    def translate(self, item: sg.BoundSymbol) -> None:
        """Write one call; raise `Untranslatable` with the reason if it cannot be written."""
        self.outputs = item.outputs
        translation = TRANSLATIONS[item.symbol.fn]
        result = translation(self, *item.args, **item.kwargs)
        results = result if isinstance(result, tuple) else (result,)
        for proxy, value in zip(item.outputs, results, strict=True):
            self.values[proxy.name] = self.cast(value, proxy.dtype)

    @property
    def output(self) -> sg.TensorProxy:
        """The proxy of the call's first result."""
        return self.outputs[0]

    @property
    def compute(self) -> torch.dtype:
        """The dtype in which the result is computed."""
        return widened(self.output.dtype)

    @property
    def rank(self) -> int:
        """The number of dimensions of the result."""
        return len(self.output.shape)

    def call(self, operator: str, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Value:
        """Return the result of an nvFuser operator, of `dtype`, by default the dtype of the first tensor."""
        if dtype is None:
            dtype = next(arg.dtype for arg in args if isinstance(arg, Value))
        return self.definition.call(operator, *args, dtype=dtype, **kwargs)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Return a value in another dtype."""
        if value.dtype == dtype:
            return value
        # as in PyTorch, nonzero is True, also nan
        if dtype == torch.bool:
            return self.call("ne", value, 0, dtype=torch.bool)
        return self.definition.call("cast", value, dtype, dtype=dtype)

    def tensor(self, proxy: Any, dtype: torch.dtype | None = None) -> Value:
        """Return the value of a proxy, in `compute` or another dtype."""
        if not isinstance(proxy, sg.TensorProxy):
            raise Untranslatable(f"{proxy!r} is no tensor")
        return self.cast(self.values[proxy.name], self.compute if dtype is None else dtype)

    def operand(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """Return a tensor of the result's rank, or a number, for element-wise computation."""
        target_dtype = self.compute if dtype is None else dtype
        if isinstance(value, sg.TensorProxy):
            return self.raised(self.tensor(value, target_dtype), len(value.shape), self.rank)
        return self.constant(value, target_dtype, self.rank)

    def constant(self, literal: Any, dtype: torch.dtype, rank: int) -> Any:
        """Return a Python number as an operand; for booleans as a tensor, because nvFuser treats it as an integer."""
        value = number(literal, dtype)
        return self.full([1] * rank, value, dtype) if dtype == torch.bool else value

    def raised(self, value: Value, rank: int, target_rank: int) -> Value:
        """Return a value with leading dimensions of size 1 up to a rank: explicit dimensions cannot be misread."""
        if rank == target_rank:
            return value
        return self.call("broadcast", value, [True] * (target_rank - rank) + [False] * rank)

    def reshaped(self, value: Value, old: Sequence[int], new: Sequence[int]) -> Value:
        """Return a value in another shape, with dimensions of size 1 made by `broadcast`.

        A dimension from `reshape` counts as any other while sizes are unknown, and is not broadcast.
        """
        ones, sizes = [dim for dim, size in enumerate(old) if size == 1], [size for size in new if size != 1]
        if ones:
            # a dimension of size 1 that was expanded concerns PyTorch alone
            value = self.call("squeeze", value, ones, True)
        if sizes != [size for size in old if size != 1]:
            value = self.call("reshape", value, sizes)
        if len(sizes) < len(new):
            value = self.call("broadcast", value, [size == 1 for size in new])
        return value

    def size(self, proxy: sg.TensorProxy, dim: int) -> Any:
        """Return the size of a dimension, read from the tensor at run time, so that other sizes run the same code."""
        if self.static or proxy.shape[dim] == 1:
            return proxy.shape[dim]
        return self.definition.call("size", self.values[proxy.name], dim, dtype=None)

    def shape(self, proxy: sg.TensorProxy) -> list[Any]:
        """Return all sizes."""
        return [self.size(proxy, dim) for dim in range(len(proxy.shape))]

    def count(self, proxy: sg.TensorProxy, dims: Sequence[int]) -> Any:
        """Return the number of elements along some dimensions."""
        total: Any = 1
        for dim in dims:
            size = self.size(proxy, dim)
            if isinstance(total, int) and (total == 1 or isinstance(size, int)):
                total = size if total == 1 else total * size
            elif size != 1:
                total = self.definition.call("mul", total, size, dtype=None)
        return total

    def full(self, shape: Sequence[Any], fill: Any, dtype: torch.dtype) -> Value:
        """Return a tensor filled with one number."""
        return self.definition.call("full", list(shape), number(fill, dtype), dtype, dtype=dtype)

    def iota(self, shape: Sequence[Any], dim: int) -> Value:
        """Return each element's index in a dimension, as a tensor with other dimensions of size 1."""
        row = self.definition.call("iota", shape[dim], 0, 1, dtype=torch.int64)
        return self.call("broadcast", row, [other != dim for other in range(len(shape))])


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which PyTorch's kernels compute a dtype."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def number(literal: Any, dtype: torch.dtype) -> float:
    """Return a Python number as an operand of a dtype."""
    if not isinstance(literal, (bool, int, float)):
        raise Untranslatable(f"{literal!r} is no number that nvFuser computes with")
    if dtype.is_floating_point:
        return float(literal)
    if isinstance(literal, float) and not literal.is_integer():
        raise Untranslatable(f"{literal!r} among {DTYPES[dtype]}")
    return bool(literal) if dtype == torch.bool else int(literal)


def promoted(*operands: Any) -> torch.dtype:
    """Return the dtype in which PyTorch compares two operands; a Python number counts less than a tensor."""
    with undisturbed():
        first, second = map(_stand_in, operands)
        return widened(torch.result_type(first, second))


def _stand_in(operand: Any) -> Any:
    """Return a tensor of a proxy's kind, with dimensions only if the proxy has some."""
    if isinstance(operand, sg.TensorProxy):
        return torch.empty((1,) * len(operand.shape), dtype=operand.dtype, device="meta")
    return operand


def dims_of(argument: Any, rank: int) -> list[int]:
    """Return dimensions as a sorted list of numbers from 0; None or an empty list means all."""
    if argument is None or argument == [] or argument == ():
        return list(range(rank))
    dims = [argument] if isinstance(argument, int) else argument
    return sorted({dim % max(rank, 1) for dim in dims}) if rank else []


def plain(values: Mapping[str, Any]) -> None:
    """Refuse arguments that are set and change an operator's effect."""
    for name, value in values.items():
        if value is not None and value is not False:
            raise Untranslatable(f"with {name}={value!r}")

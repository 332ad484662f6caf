"""Definitions for nvFuser as values: made, compared and printed without nvFuser, and defined where it exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import switchgear as sg

#: PyTorch dtypes for computation in nvFuser, by nvFuser's names. nvFuser has no 8-bit and 16-bit integers.
DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Int",
    torch.int32: "Int32",
    torch.bool: "Bool",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a definition, or, without a dtype, a size."""

    number: int
    dtype: torch.dtype | None

    def __repr__(self) -> str:
        return f"{'n' if self.dtype is None else 'T'}{self.number}"


@dataclass(frozen=True, slots=True)
class Layout:
    """An input: its sizes (-1 is any, 1 is broadcast), and known properties of its strides.

    `contiguity` tells for each dimension, the slowest first, whether it is dense over the next one; None if broadcast.
    `stride_order` is the rank of each dimension, with 0 as the fastest.
    """

    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    stride_order: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Line:
    """A call of an nvFuser operator."""

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value, ...]

    def __str__(self) -> str:
        arguments = [_text(arg) for arg in self.args] + [f"{name}={_text(arg)}" for name, arg in self.kwargs.items()]
        return f"{', '.join(map(str, self.results))} = {self.operator}({', '.join(arguments)})"


@dataclass(slots=True)
class Definition:
    """A fusion under construction, and later the source of an nvFuser `FusionDefinition`.

    Equal keys mean equal fusions: the key holds everything that `define` reads, and the device if no input tells.
    """

    device: torch.device | None = None
    inputs: list[tuple[Value, Layout]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    _count: int = 0

    def input(self, layout: Layout) -> Value:
        """Add an input tensor.

        Args:
            layout: its layout.

        Returns:
            Its value.
        """
        value = self._new(layout.dtype)
        self.inputs.append((value, layout))
        return value

    def call(self, operator: str, *args: Any, dtype: torch.dtype | None, **kwargs: Any) -> Value:
        """Add an operator with one result.

        Args:
            operator: its name in `fusion.ops`.
            args: its arguments by position: values, dtypes, numbers, or lists of these.
            dtype: the dtype of the result; None for any.
            kwargs: its arguments by name.

        Returns:
            The result, in nvFuser's result dtype.
        """
        return self.calls(operator, *args, dtypes=(dtype,), **kwargs)[0]

    def calls(
        self, operator: str, *args: Any, dtypes: Sequence[torch.dtype | None], **kwargs: Any
    ) -> tuple[Value, ...]:
        """Add an operator with several results.

        Args:
            operator: its name in `fusion.ops`.
            args: its arguments by position: values, dtypes, numbers, or lists of these.
            dtypes: the dtype of each result; None for any.
            kwargs: its arguments by name.

        Returns:
            The results, in nvFuser's result dtypes.
        """
        results = tuple([self._new(dtype) for dtype in dtypes])
        self.lines.append(Line(operator, args, kwargs, results))
        return results

    def _new(self, dtype: torch.dtype | None) -> Value:
        self._count += 1
        return Value(self._count - 1, dtype)

    @property
    def key(self) -> Any:
        """The key of all definitions of one fusion."""
        return frozen(
            (
                [(value.number, layout) for value, layout in self.inputs],
                [(line.operator, line.args, line.kwargs, line.results) for line in self.lines],
                self.outputs,
                self.device,
            )
        )

    def __str__(self) -> str:
        inputs = [f"{value} = {DTYPES[layout.dtype]}{list(layout.shape)}" for value, layout in self.inputs]
        return "\n".join([*inputs, *map(str, self.lines), f"return {', '.join(map(str, self.outputs))}"])

    def define(self, fusion: Any, types: Mapping[torch.dtype, Any]) -> None:
        """Make the calls on an nvFuser fusion.

        A result with another dtype than expected of nvFuser is an error, not a wrong result.

        Args:
            fusion: an nvFuser `FusionDefinition`, or a similar object.
            types: its dtypes, by PyTorch's.

        Raises:
            ExecutorFailed: an operator gives another dtype than expected.
        """
        handles: dict[int, Any] = {}
        for value, layout in self.inputs:
            rows = tuple(reversed(range(len(layout.shape))))
            handles[value.number] = fusion.define_tensor(
                shape=list(layout.shape),
                contiguity=list(layout.contiguity),
                dtype=types[layout.dtype],
                **({} if layout.stride_order == rows else {"stride_order": list(layout.stride_order)}),
            )

        def handle_of(value: Any) -> Any:
            if isinstance(value, Value):
                return handles[value.number]
            if isinstance(value, torch.dtype):
                return types[value]
            if isinstance(value, (tuple, list)):
                return [handle_of(item) for item in value]
            return value

        for line in self.lines:
            kwargs = {name: handle_of(arg) for name, arg in line.kwargs.items()}
            result = getattr(fusion.ops, line.operator)(*map(handle_of, line.args), **kwargs)
            results = (result,) if len(line.results) == 1 else result
            for value, handle in zip(line.results, results, strict=True):
                handles[value.number] = handle
                if value.dtype is not None and handle.dtype() != types[value.dtype]:
                    raise sg.errors.ExecutorFailed(
                        f"nvFuser's {line.operator} gives {handle.dtype()}, and {types[value.dtype]} is expected: "
                        f"{line}. This is a fault of the executor nvfuser; leave it out of executors"
                    )
        for value in self.outputs:
            fusion.add_output(handles[value.number])


def layout_of(proxy: sg.TensorProxy, *, static: bool) -> Layout:
    """Return nvFuser's description of an input; with its sizes only if they are static."""
    rank = len(proxy.shape)
    broadcast = [size == 1 or stride == 0 for size, stride in zip(proxy.shape, proxy.stride, strict=True)]
    # a broadcast dimension keeps its place among the others
    places = list(proxy.stride)
    for dim in reversed(range(rank)):
        if broadcast[dim]:
            places[dim] = places[dim + 1] if dim + 1 < rank else 0
    slowest_first = sorted(range(rank), key=lambda dim: -places[dim])
    order = [0] * rank
    contiguity: list[bool | None] = []
    expected = 1
    for rank_of, dim in enumerate(reversed(slowest_first)):
        order[dim] = rank_of
        if broadcast[dim]:
            contiguity.append(None)
        else:
            contiguity.append(proxy.stride[dim] == expected)
            expected = proxy.stride[dim] * proxy.shape[dim]
    shape = tuple([size if static or size == 1 else -1 for size in proxy.shape])
    return Layout(shape, tuple(reversed(contiguity)), tuple(order), proxy.dtype)


def frozen(value: Any) -> Any:
    """Return nested plain values as a dictionary key: numbers also by type, as 1 differs from 1.0, 0.0 from -0.0."""
    if isinstance(value, (tuple, list)):
        return tuple([frozen(item) for item in value])
    if isinstance(value, Mapping):
        return tuple([(name, frozen(item)) for name, item in value.items()])
    return (type(value), repr(value)) if isinstance(value, (bool, int, float, complex)) else value


def mapped(function: Callable[[Any], Any], value: Any, kind: type) -> Any:
    """Return `value` with each object of a kind in nested tuples, lists and dicts replaced by `function` of it."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(function, item, kind) for item in value])
    if isinstance(value, Mapping):
        return {name: mapped(function, item, kind) for name, item in value.items()}
    return value


def _text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, (tuple, list)) else repr(value)

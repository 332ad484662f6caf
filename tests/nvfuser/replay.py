"""nvFuser's operators by PyTorch's on the CPU, after what nvFuser says of them: two runners for `NvfuserExecutor`.

`recorded` runs a definition as the executor wrote it, and needs no nvFuser; `reprinted` has nvFuser make a
`FusionDefinition` of it, with all its checks, and runs the Python that this prints. Neither says anything of nvFuser's
kernels: their order of summation, strides, memory, speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from switchgear_nvfuser import Definition
from switchgear_nvfuser.definition import DTYPES

Run = Callable[[Sequence[Tensor]], list[Tensor]]

#: Called alike, with tensors and numbers.
SAME = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp"),
    *("exp2", "expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "logical_not", "bitwise_not", "neg"),
    *("reciprocal", "round", "rsqrt", "sigmoid", "sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    *("isfinite", "isinf", "isnan", "isneginf", "isposinf", "add", "sub", "mul", "atan2", "fmod", "nextafter", "pow"),
    *("remainder", "minimum", "maximum", "eq", "ge", "gt", "le", "lt", "ne", "logical_and", "logical_or"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lerp"),
)


class _Value:
    """A tensor that tells its dtype as nvFuser's do, by a call."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


def _alike(name: str) -> Callable[..., Any]:
    function = getattr(torch, name)

    def operator(*args: Any) -> Any:
        tensor = next((arg for arg in args if isinstance(arg, Tensor)), None)
        if tensor is None:
            return function(*map(torch.tensor, args)).item()
        # a number counts less than a tensor, and some of PyTorch's operators take none
        numbers = [arg if isinstance(arg, Tensor) else torch.tensor(arg, dtype=tensor.dtype) for arg in args]
        return function(*numbers)

    return operator


def _summed(name: str) -> Callable[..., Any]:
    def operator(x: Tensor, dims: Sequence[int], keepdim: bool = False, dtype: Any = None) -> Tensor:
        found: Tensor = getattr(torch, name)(x, dim=tuple(dims), keepdim=keepdim)
        return found

    return operator


def _prod(x: Tensor, dims: Sequence[int], keepdim: bool = False, dtype: Any = None) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, keepdim=keepdim)
    return x


def _where(condition: Any, x: Any, y: Any) -> Any:
    tensor = next((value for value in (x, y, condition) if isinstance(value, Tensor)), None)
    if tensor is None:
        return x if condition else y
    one, other = (v if isinstance(v, Tensor) else torch.tensor(v, dtype=tensor.dtype) for v in (x, y))
    return torch.where(condition, one, other)


def _broadcast(x: Tensor, is_broadcast_dim: Sequence[bool]) -> Tensor:
    for dim, inserted in enumerate(is_broadcast_dim):
        x = x.unsqueeze(dim) if inserted else x
    return x


def _slice(
    x: Tensor, start_indices: Sequence[int], end_indices: Sequence[int], strides: Any = None, **ignored: Any
) -> Tensor:
    assert strides is None or set(strides) <= {1}
    return x[tuple(slice(start, end) for start, end in zip(start_indices, end_indices, strict=True))]


def _stride_order(x: Tensor, stride_order: Sequence[int]) -> Tensor:
    # nvFuser prints none for the usual one
    order = stride_order or list(reversed(range(x.dim())))
    slowest_first = sorted(range(x.dim()), key=lambda dim: -order[dim])
    back = [slowest_first.index(dim) for dim in range(x.dim())]
    return x.permute(slowest_first).contiguous().permute(back)


def _welford(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, int]:
    count = math.prod(x.shape[dim] for dim in dims)
    spread, mean = torch.var_mean(x, list(dims), correction=0)
    return mean, spread * count, count


def _truediv(x: Any, y: Any) -> Any:
    return torch.true_divide(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else x / y


def _div(x: Any, y: Any) -> Any:
    values = [value for value in (x, y) if isinstance(value, Tensor)]
    integral = not any(v.is_floating_point() for v in values) and not any(isinstance(v, float) for v in (x, y))
    if values:
        return torch.div(x, y, rounding_mode="trunc" if integral else None)
    return int(x / y) if integral else x / y


def _operators(dtypes: Mapping[Any, torch.dtype]) -> dict[str, Callable[..., Any]]:
    def cast(x: Any, dtype: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(dtypes[dtype])
        return float(x) if dtypes[dtype].is_floating_point else int(x)

    def iota(length: int, start: Any = 0, step: Any = 1, dtype: Any = None) -> Tensor:
        made = torch.arange(length) * (1 if step is None else step) + (0 if start is None else start)
        return made if dtype is None else made.to(dtypes[dtype])

    def var(x: Tensor, dims: Sequence[int], correction: int = 1, keepdim: bool = False) -> Tensor:
        return torch.var(x, list(dims), correction=correction, keepdim=keepdim)

    def var_mean(x: Tensor, dims: Sequence[int], correction: int = 1, keepdim: bool = False) -> Any:
        return torch.var_mean(x, list(dims), correction=correction, keepdim=keepdim)

    def cat(tensors: Sequence[Tensor], dim: int = 0, manual_padding: bool = False) -> Tensor:
        return sum(tensors[1:], tensors[0]) if manual_padding else torch.cat(list(tensors), dim)

    def pad(x: Tensor, pad_widths: Sequence[int], value: Any = None) -> Tensor:
        return F.pad(x, list(pad_widths), value=0 if value is None else value)

    return {name: _alike(name) for name in SAME} | {
        "amax": _summed("amax"),
        "broadcast": _broadcast,
        "cast": cast,
        "cat": cat,
        "cumprod": lambda x, dim: x.cumprod(dim),
        "cumsum": lambda x, dim: x.cumsum(dim),
        "div": _div,
        "expand": lambda x, shape: x.expand(shape),
        "full": lambda shape, fill_value, dtype: torch.full(shape, fill_value, dtype=dtypes[dtype]),
        "gather": lambda x, index, dim: x.gather(dim, index),
        "index_select": lambda x, index, dim: x.index_select(dim, index.flatten()),
        "iota": iota,
        "max": _summed("amax"),
        "min": _summed("amin"),
        "pad": pad,
        "permute": lambda x, dims: x.permute(dims),
        "prod": _prod,
        "reshape": lambda x, new_shape: x.reshape(new_shape),
        "scatter": lambda x, index, src, dim: x.scatter(dim, index, src),
        "set": lambda x: x.clone() if isinstance(x, Tensor) else x,
        "silu": F.silu,
        "size": lambda x, dim: x.shape[dim],
        "slice": _slice,
        "squeeze": lambda x, dims, squeeze_expanded=False: x.squeeze(dims),
        "stride_order": _stride_order,
        "sum": _summed("sum"),
        "truediv": _truediv,
        "var": var,
        "var_mean": var_mean,
        "welford": _welford,
        "where": _where,
    }


class _Fusion:
    """What behaves as nvFuser's `FusionDefinition` does while it is defined, and computes."""

    def __init__(self, inputs: Sequence[Tensor], dtypes: Mapping[Any, torch.dtype], *, wrapped: bool) -> None:
        self.inputs = iter(inputs)
        self.dtypes = dtypes
        self.wrapped = wrapped
        self.outputs: list[Tensor] = []
        self.ops = SimpleNamespace(**{name: self._bound(fn) for name, fn in _operators(dtypes).items()})

    def _bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def bare(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return [bare(item) for item in value]
            return value.tensor if isinstance(value, _Value) else value

        def dressed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(dressed, value))
            return _Value(value) if isinstance(value, Tensor) and self.wrapped else value

        def operator(*args: Any, **kwargs: Any) -> Any:
            return dressed(function(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()}))

        return operator

    def define_tensor(
        self, shape: Sequence[int], contiguity: Any, dtype: Any, is_cpu: bool = False, stride_order: Any = None
    ) -> Any:
        tensor = next(self.inputs)
        assert tensor.dtype == self.dtypes[dtype]
        assert tensor.dim() == len(shape)
        assert all(wanted in (-1, size) for wanted, size in zip(shape, tensor.shape, strict=True))
        return _Value(tensor) if self.wrapped else tensor

    def define_scalar(self, value: Any, dtype: Any = None) -> Any:
        return value

    def define_vector(self, values: Any) -> Any:
        return list(values)

    def add_output(self, value: Any) -> None:
        self.outputs.append(value.tensor if isinstance(value, _Value) else value)


def recorded(definition: Definition) -> Run:
    """A runner that runs what is recorded."""
    own = {dtype: dtype for dtype in DTYPES}

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        fusion = _Fusion(inputs, own, wrapped=True)
        definition.define(fusion, own)
        return fusion.outputs

    return run


def reprinted(definition: Definition) -> Run:
    """A runner that runs what nvFuser prints of what it made of the definition."""
    from switchgear_nvfuser.availability import load
    from switchgear_nvfuser.execution import fusion, types

    nvfuser = load()
    made = fusion(definition)
    dtypes = {own: dtype for dtype, own in types(nvfuser).items()} | {nvfuser.DataType.Index: torch.int64}
    names: dict[str, Any] = {"DataType": nvfuser.DataType, "FusionDefinition": object, "torch": torch}
    names |= {"inf": math.inf, "nan": math.nan}
    exec(repr(made), names)

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        replayed = _Fusion(inputs, dtypes, wrapped=False)
        names["nvfuser_fusion"](replayed)
        return replayed.outputs

    return run

"""Numbers as tensors: PyTorch converts a number to a tensor in each call; a constant is created once.

The constant has the dtype of the computation, so kernel and operands are the same.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import torch

import switchgear as sg

_aten = torch.ops.aten
_ARITHMETIC = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor),
    *(torch.add, torch.sub, torch.mul, torch.div),
)
#: Kernels for other dtypes compute with the number as written, in another dtype than their own.
_DTYPES = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})


def hold_numbers(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace the number in arithmetic with a CPU tensor by a tensor without dimensions."""
    names = {proxy.name for line in trace.bound_symbols for proxy in (*line.inputs, *line.outputs)}
    names.update(trace.tensors, (proxy.name for proxy in trace.inputs))
    free = (name for name in map("n{}".format, count()) if name not in names)
    pairs: dict[object, tuple[sg.TensorProxy, torch.Tensor]] = {}
    body = []
    for line in trace.bound_symbols:
        if _takes_number(line):
            x, number, *rest = line.args
            key = repr(number), x.dtype
            if key not in pairs:
                pairs[key] = _tensor_of(number, x.dtype, next(free))
            line = replace(line, args=(x, pairs[key][0], *rest))
        body.append(line)
    if not pairs:
        return trace
    constants = {proxy.name: tensor for proxy, tensor in pairs.values()}
    return replace(trace, bound_symbols=tuple(body), tensors={**trace.tensors, **constants})


def _takes_number(line: sg.BoundSymbol) -> bool:
    implementation = line.implementation
    if implementation is None or not any(implementation.fn is fn for fn in _ARITHMETIC):
        return False
    if not line.kwargs.keys() <= {"alpha"}:
        return False
    x, number = line.args[:2]
    if not isinstance(x, sg.TensorProxy) or type(number) not in (int, float):
        return False
    return x.device.type == "cpu" and x.dtype in _DTYPES and line.output.dtype == x.dtype


def _tensor_of(number: Any, dtype: torch.dtype, name: str) -> tuple[sg.TensorProxy, torch.Tensor]:
    with sg.capture.real_dispatch():
        tensor = torch.tensor(number, dtype=torch.int64 if type(number) is int else torch.float64, device="cpu")
        return sg.TensorProxy(name, (), (), dtype, tensor.device), tensor.to(dtype)

"""A trial of a trace on fake DTensors: operators of its gradients that DTensor lacks fall back before they run."""

from __future__ import annotations

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, map_proxies
from switchgear_core.ir.trace import Trace
from switchgear_core.nesting import tensors_in
from switchgear_dtensors import torch_private as internals
from switchgear_dtensors.marks import SHARDED
from switchgear_dtensors.placed import MESHES, MOVE, MOVE_BACK


def run_on_replicas(trace: Trace, count: int | None) -> None:
    """Run the lines with DTensors on fakes, all of them replicas: whether an operator exists depends on no placement.

    Args:
        trace: a joint trace, or one without gradients.
        count: the number of results in a joint trace, before the gradients.

    Raises:
        Unsupported: PyTorch has no such operator for DTensors, or a gradient of one would be a plain tensor.
    """
    names = {
        proxy.name
        for line in trace.bound_symbols
        if SHARDED in line.tags and line.symbol != MOVE
        for proxy in (*line.inputs, *line.outputs)
    }
    values: dict[str, torch.Tensor] = {}

    def define(proxy: TensorProxy, is_whole: bool) -> None:
        local = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
        values[proxy.name] = internals.replica(local, MESHES[0]) if is_whole else local

    with internals.outside(), internals.new_local_mode():
        for proxy in trace.inputs:
            define(proxy, proxy.name.removeprefix("g_") in names)
        for line in trace.bound_symbols:
            for proxy in line.inputs:
                if proxy.name not in values:  # a constant
                    define(proxy, is_whole=False)
            is_whole = any(_is_whole(values[proxy.name]) for proxy in line.inputs)
            if line.symbol in (MOVE, MOVE_BACK):
                is_whole = line.args[1].is_whole(line.symbol)
            elif is_whole:
                _run(line, values)
                continue
            for proxy in line.outputs:
                define(proxy, is_whole)
    gradients = () if count is None else trace.outputs[count:]
    for argument, gradient in zip(trace.inputs, gradients, strict=False):
        if gradient is not None and argument.name in names and not _is_whole(values[gradient.name]):
            raise Unsupported("the gradient of a DTensor would be a plain tensor; call eager mode", splits=False)


def _is_whole(tensor: torch.Tensor) -> bool:
    return type(tensor) is internals.DTensor


#: Part of the gradients of `max(dim)`, `gather` and the like, whose placements differ from eager's.
_PLACED_OTHERWISE = torch.ops.aten.new_zeros.default


def _run(line: BoundSymbol, values: dict[str, torch.Tensor]) -> None:
    args, kwargs = map_proxies(lambda proxy: values[proxy.name], (line.args, dict(line.kwargs)))
    if line.symbol.fn is _PLACED_OTHERWISE:
        reason = "a gradient made of zeros has other placements in eager mode"
        raise Unsupported(
            f"{reason}, at {line.source}; call max(), gather() and the like on a local tensor", splits=False
        )
    try:
        results = line.symbol.fn(*args, **kwargs)
    except Exception as error:
        reason = f"{line.symbol.name} of DTensors fails, at {line.source}: {error}"
        raise Unsupported(reason, splits=False) from error
    values |= {proxy.name: result for proxy, result in zip(line.outputs, tensors_in(results), strict=True)}

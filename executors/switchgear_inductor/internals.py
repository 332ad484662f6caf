"""Every private API of Inductor and its surroundings that this executor leans on, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._inductor.kernel.bmm
import torch._inductor.kernel.conv
import torch._inductor.kernel.mm
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import switchgear as sg

#: The traces guard for shapes and strides already.
_OPTIONS = {"size_asserts": False}


@functools.cache
def is_lowered(fn: Any) -> bool:
    """Whether Inductor has more for an overload than a call of PyTorch's kernel."""
    return fn not in fallbacks and (fn in lowerings or fn in select_decomp_table())


def compile_region(region: sg.Trace, options: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of the region's inputs that returns its outputs, in their proxies' strides."""
    mode = FakeTensorMode()
    with mode:
        inputs = [_empty(proxy) for proxy in region.inputs]
    function = region.function()

    def restrided(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([_restride(value, stride) for value, stride in zip(function(*args), strides, strict=True)])

    strides = [proxy.stride for proxy in region.outputs if proxy is not None]
    with config.patch({**_OPTIONS, **options}), tracing(TracingContext(mode)):
        with mode:
            graph = make_fx(restrided, decomposition_table=select_decomp_table())(*inputs)
        (end,) = graph.graph.find_nodes(op="output")
        end.meta["user_visible_output_idxs"] = list(range(len(strides)))
        compiled: Any = compile_fx_inner(graph, inputs)
    run = getattr(compiled, "current_callable", None) or compiled
    return lambda *args: run(list(args))


def _empty(proxy: sg.TensorProxy) -> torch.Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def _restride(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """`value` in strides that a decomposition does not keep."""
    if value.stride() == tuple(stride):
        return value
    order = sorted(range(value.dim()), key=lambda dim: (-stride[dim], dim))
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

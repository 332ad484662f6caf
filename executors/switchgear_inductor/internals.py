"""Every private API of Inductor and its surroundings that this executor leans on, and nothing else."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
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
    function = region.function()
    strides = [proxy.stride for proxy in region.outputs if proxy is not None]

    def permuted(*args: torch.Tensor) -> list[torch.Tensor]:
        return [_permuted(value, stride) for value, stride in zip(function(*args), strides, strict=True)]

    with config.patch({**_OPTIONS, **options}), tracing(TracingContext(mode)), warnings.catch_warnings():
        # that it does not vectorize them, which no user can change
        warnings.filterwarnings("ignore", "bf16 and fp16 are mixed", UserWarning)
        with mode:
            inputs = [_empty(proxy) for proxy in region.inputs]
            graph = make_fx(permuted, decomposition_table=select_decomp_table())(*inputs)
        (end,) = graph.graph.find_nodes(op="output")
        # without this, the strides of outputs are Inductor's choice
        end.meta["user_visible_output_idxs"] = list(range(len(strides)))
        compiled: Any = compile_fx_inner(graph, inputs)
    run = getattr(compiled, "current_callable", None) or compiled
    # in strides with gaps, or of a dimension of one, Inductor writes nothing
    known = getattr(compiled, "output_strides", None) or [value.meta["val"].stride() for value in end.args[0]]
    made = [tuple(map(int, stride)) for stride in known]
    odd = [index for index, stride in enumerate(strides) if made[index] != stride]
    if not odd:
        return lambda *args: run(list(args))

    def laid_out(*args: torch.Tensor) -> list[torch.Tensor]:
        results = list(run(list(args)))
        for index in odd:
            value = results[index]
            results[index] = torch.empty_strided(
                value.shape, strides[index], dtype=value.dtype, device=value.device
            ).copy_(value)
        return results

    return laid_out


def _empty(proxy: sg.TensorProxy) -> torch.Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def _permuted(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """`value` in PyTorch's order of strides, which a decomposition need not keep; traced, it is part of the region."""
    if value.stride() == stride:
        return value
    order = sorted(range(value.dim()), key=lambda dim: (-stride[dim], -value.shape[dim]))
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

"""Regions marked by `torch.utils.checkpoint`: recorded with a tag of their own, for the backward to run them again.

Values that a selective policy saves have another tag. A region with reentrance runs under autograd as any other, its
inputs under names of their own, for PyTorch sums up their gradients in the region first. A region inside of another
is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import check_backward_validity

from switchgear import torch_private as internals
from switchgear.capture.handler import Handler
from switchgear.capture.recorder import active_recorder
from switchgear.errors import Unsupported
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import BoundSymbol, renamed
from switchgear.ir.trace import Names
from switchgear.ir.writes import IDENTITY
from switchgear.nesting import tensors_in


class Checkpointing(Handler):
    """A region is recorded with a tag, and made again in the backward."""

    def around(self) -> AbstractContextManager[None]:
        """PyTorch's two ways to run a region are redirected."""
        return internals.checkpoint_regions(_region, _run_reentrant)


def _region(context_fn: Callable[[], Any]) -> AbstractContextManager[None]:
    """What runs inside is recorded as one region; `context_fn` is the argument of `checkpoint`."""
    recorder = active_recorder()
    if recorder is None or not torch.is_grad_enabled():
        return contextlib.nullcontext()
    if recorder.inside_region:
        raise Unsupported(
            f"a region of torch.utils.checkpoint inside another, in {recorder.here()}; mark one of them alone",
            splits=False,
        )
    saves = internals.selective_policy(context_fn)
    if saves is NotImplemented:
        raise Unsupported(
            f"torch.utils.checkpoint with a context_fn of its own, in {recorder.here()}: the recomputation is "
            "compiled, so no context could act on it; use create_selective_checkpoint_contexts, or none",
            splits=False,
        )
    return recorder.region(saves)


def _run_reentrant(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What `checkpoint(function, *args, use_reentrant=True)` does: differentiable if an argument requires grad."""
    check_backward_validity(args)
    wanted = [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]
    if not any(wanted) or not torch.is_grad_enabled():
        with torch.no_grad():
            return function(*args)
    recorder = active_recorder()
    alone = recorder.rewritten(_summed_inside) if recorder is not None else contextlib.nullcontext()
    with alone, _region(internals.NO_CONTEXT):
        # its gradients inside the region are summed up first
        inner = [
            torch.ops.aten.alias(arg) if want else arg
            for arg, want in zip(args, wanted, strict=True)
        ]
        result = function(*inner)
    direct = [
        part
        for part in (result if isinstance(result, tuple) else (result,))
        if isinstance(part, torch.Tensor)
    ]
    for tensor in tensors_in(result):
        is_direct = any(tensor is part for part in direct)
        if tensor.requires_grad != (
            is_direct and (tensor.is_floating_point() or tensor.is_complex())
        ):
            raise Unsupported(
                "a region of torch.utils.checkpoint with use_reentrant=True returns a tensor that PyTorch "
                f"{'makes' if is_direct else 'does not make'} differentiable, unlike the function; "
                "use_reentrant=False does not have that flaw"
            )
    return result


def _summed_inside(recorded: list[BoundSymbol], names: Names) -> list[BoundSymbol]:
    """Give each differentiable value from outside a name of its own: its gradients are summed up by themselves.

    PyTorch's backward of the region adds those to a leaf's `.grad` at once. (A leaf that is read outside several times,
    before and after the region, may get the same sum in another order.)
    """
    made: set[str] = set()
    inner: dict[str, TensorProxy] = {}
    result: list[BoundSymbol] = []
    for item in recorded:
        for proxy in item.inputs if item.symbol != IDENTITY else ():
            if proxy.requires_grad and proxy.name not in made and proxy.name not in inner:
                inner[proxy.name] = replace(proxy, name=names.fresh())
                result.append(
                    BoundSymbol(
                        IDENTITY, (proxy,), {}, inner[proxy.name], (), item.source, tags=item.tags
                    )
                )
        result.append(renamed(item, inner) if item.symbol != IDENTITY else item)
        made.update(proxy.name for proxy in item.outputs)
    return result

"""The epilogue: mutated inputs get their data, and the return value is put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear.capture import Mutation
from switchgear.signature import Returned
from switchgear.structure import Structure

#: From the trace's outputs and inputs to what the function returns.
Epilogue = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]


def make_epilogue(returned: tuple[Returned, ...], spec: Structure, mutations: tuple[Mutation, ...]) -> Epilogue:
    """The epilogue for a trace whose outputs and inputs `returned` and `mutations` index."""
    if not mutations and spec.is_leaf and returned[0].kind == "output":
        return _first
    return lambda outputs, inputs: _finish(outputs, inputs, returned, spec, mutations)


def _first(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    return outputs[0]


def _finish(
    outputs: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    returned: tuple[Returned, ...],
    spec: Structure,
    mutations: tuple[Mutation, ...],
) -> Any:
    for mutation in mutations:
        write_back(inputs[mutation.input], outputs[mutation.output], mutation.tracked)
    leaves = [
        item.value if item.kind == "value" else (inputs if item.kind == "input" else outputs)[item.index]
        for item in returned
    ]
    return spec.unflatten(leaves)


def write_back(target: torch.Tensor, value: torch.Tensor, tracked: bool) -> None:
    """Copy into an input what the function wrote to it, seen by autograd only if the function's write was."""
    with torch.set_grad_enabled(tracked and torch.is_grad_enabled()):
        target.copy_(value)

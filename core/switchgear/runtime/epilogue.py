"""The epilogue: inputs are left as the function leaves them, and the return value is put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.evaluation import evaluate
from switchgear.outputs import Outputs
from switchgear.sizes import Sizes, concrete, has_numbers


def finisher(outputs: Outputs, sizes: Sizes | None = None) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
    """What finishes a call, from results and inputs: `finish`, or where nothing is to be done a generated function."""
    if sizes is not None and _has_sizes(outputs):
        return _finisher_by_sizes(outputs, sizes)
    scope = {f"value{number}": item.value for number, item in enumerate(outputs.returned) if item.kind == "value"}
    leaves = [
        f"value{number}" if item.kind == "value" else f"{item.kind}[{item.place}]"
        for number, item in enumerate(outputs.returned)
    ]
    expression = outputs.spec.expression(leaves)
    if outputs.metadata or outputs.mutations or outputs.views or expression is None:
        return partial(finish, outputs)
    assemble: Callable[[Sequence[Any], Sequence[torch.Tensor]], Any] = eval(
        f"lambda output, input: {expression}", scope
    )
    return assemble


def _has_sizes(outputs: Outputs) -> bool:
    calls = (*outputs.metadata, *outputs.views)
    return has_numbers((*[(c.args, dict(c.kwargs)) for c in calls], *[item.value for item in outputs.returned]))


def _finisher_by_sizes(outputs: Outputs, sizes: Sizes) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
    @lru_cache(maxsize=64)
    def finisher_at(values: tuple[int, ...]) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]:
        binding = sizes.binding(values)
        parts = concrete((outputs.returned, outputs.metadata, outputs.views), binding)
        return finisher(replace(outputs, **dict(zip(("returned", "metadata", "views"), parts, strict=True))))

    return lambda results, inputs: finisher_at(sizes.measure(inputs))(results, inputs)


def finish(outputs: Outputs, results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    """What the function returns, from what its trace gave; what it wrote to inputs is copied into them.

    Autograd sees the copy only if it saw the function's write.
    """
    held: dict[str, Any] = {"input": inputs, "output": results}
    values = {name: held[kind][index] for name, kind, index in outputs.roots}
    evaluate(outputs.metadata, values)
    for mutation in outputs.mutations:
        target, tracked = inputs[mutation.input], mutation.tracked and not torch.is_inference_mode_enabled()
        kept = target.is_leaf or target._is_view() or internals.is_wrapper(target)
        if tracked and not kept:
            # the history of what is overwritten would get a gradient of zeros; a complex one eager gives that too
            target.detach_()
        with torch.set_grad_enabled(tracked):
            target.copy_(results[mutation.output])
    evaluate(outputs.views, values)
    held["view"] = values
    leaves = [item.value if item.kind == "value" else held[item.kind][item.place] for item in outputs.returned]
    return outputs.spec.unflatten(leaves)

"""The epilogue: inputs are left as the function leaves them, and the return value is put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from switchgear.composites import bind_outputs
from switchgear.outputs import Outputs
from switchgear.symbol import BoundSymbol, map_proxies


def finish(outputs: Outputs, results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    """What the function returns, from what its trace gave; what it wrote to inputs is copied into them.

    Autograd sees the copy only if it saw the function's write.
    """
    held: dict[str, Any] = {"input": inputs, "output": results}
    values = {name: held[kind][index] for name, kind, index in outputs.roots}
    _run(outputs.metadata, values)
    for mutation in outputs.mutations:
        with torch.set_grad_enabled(mutation.tracked and torch.is_grad_enabled()):
            inputs[mutation.input].copy_(results[mutation.output])
    _run(outputs.views, values)
    held["view"] = values
    leaves = [item.value if item.kind == "value" else held[item.kind][item.place] for item in outputs.returned]
    return outputs.spec.unflatten(leaves)


def _run(calls: Iterable[BoundSymbol], values: dict[str, Any]) -> None:
    for call in calls:
        args, kwargs = map_proxies(lambda proxy: values[proxy.name], (call.args, dict(call.kwargs)))
        with torch.set_grad_enabled(call.grad_enabled):
            bind_outputs(call.output, call.symbol.fn(*args, **kwargs), values)

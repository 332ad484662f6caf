"""The epilogue: mutated inputs get their data, and the return value is put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from switchgear.capture import Captured


def finish(captured: Captured, outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    """What the function returns, from the trace's outputs and inputs; what it wrote to inputs is copied into them.

    Autograd sees the copy only if it saw the function's write.
    """
    for mutation in captured.mutations:
        with torch.set_grad_enabled(mutation.tracked and torch.is_grad_enabled()):
            inputs[mutation.input].copy_(outputs[mutation.output])
    places = {"input": inputs, "output": outputs}
    leaves = [item.value if item.kind == "value" else places[item.kind][item.index] for item in captured.returned]
    return captured.spec.unflatten(leaves)

"""Inputs that share memory with a written input: detected after a capture, and captured again differently."""

from __future__ import annotations

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.shared_memory import (
    Home,
    home_of,
    is_view_of_constant,
    overlaps_itself,
    sharing,
)
from switchgear_core.record.signature import InputSource
from switchgear_frontend.outputs import Outputs
from switchgear_frontend.sources import Sources


def refuse_views_of_constants(recorder: Recorder) -> None:
    """Refuse inputs that require grad and are views of constants: eager loses their history at a write."""
    with internals.DisableTorchFunction():  # for the tensors themselves, not their wrappers
        views = [entry for entry in recorder.inputs if is_view_of_constant(entry.tensor)]
    for entry in views[:1]:
        raise Unsupported(
            f"{entry.proxy.name} is a view that requires_grad_() was called on, and the function writes to an input, "
            "or makes views under no_grad; pass it as view.detach().requires_grad_()"
        )


class SharedMemory(Exception):
    """The function writes to inputs with shared memory: the capture is repeated with them as views of a base."""

    def __init__(self, homes: dict[int, Home]) -> None:
        self.homes = homes


def find_shared(recorder: Recorder, sources: Sources, outputs: Outputs) -> None:
    """Raise `SharedMemory` if the function writes to memory that overlaps another input."""
    mutations = outputs.mutations
    positions = [index for index, entry in enumerate(recorder.inputs) if not entry.is_view]
    tensors = [recorder.inputs[index].tensor for index in positions]
    for mutation in mutations:
        entry = recorder.inputs[mutation.input]
        if overlaps_itself(entry.tensor):
            raise Unsupported(
                f"the function writes to {entry.proxy.name}, several elements of which are in one place (as after "
                "expand); pass a clone"
            )
    keys = [internals.storage_key(tensor) for tensor in tensors]
    pairs = [*sharing(tensors, [positions.index(mutation.input) for mutation in mutations])]
    shared = {keys[index] for index, _, concerned in pairs if concerned}
    if shared and sources.differentiable is not None:
        reason = "a function inside sg.grad writes to an argument that shares memory with another"
        raise Unsupported(f"{reason}; pass a clone of one")
    members = zip(tensors, (sources.sources[index] for index in positions), keys, strict=True)
    together: dict[int, list[tuple[torch.Tensor, InputSource]]] = {key: [] for key in shared}
    for tensor, source, key in members:
        if key in shared:
            together[key].append((tensor, source))
    if together:
        raise SharedMemory({key: home_of(inputs) for key, inputs in together.items()})

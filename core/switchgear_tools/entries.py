"""Entries: turn the compiled programs of an entry into facts."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from switchgear_core import torch_private as internals
from switchgear_core.grad.partition import partition
from switchgear_core.ir.choice import Saved
from switchgear_core.passes import programs
from switchgear_core.passes.pipeline import Program
from switchgear_core.record.attempts import compiles
from switchgear_core.record.signature import HeldNumber
from switchgear_core.registry.selection import Selection
from switchgear_runtime.entry import Entry
from switchgear_runtime.saved import recomputed_lines, saved_values
from switchgear_tools.facts import ExplainedProgram, regions_of
from switchgear_tools.lifetimes import peak


def programs_of(entry: Entry, selection: Selection, graph: str = "") -> Iterator[ExplainedProgram]:
    """Yield the facts of the forward, and of the last backward, or else of the next."""
    inputs = {proxy.name for proxy in entry.captured.trace.inputs}
    yield _explained("forward", entry.forward, inputs, selection, graph)
    if entry.bridge is not None:
        alive = {value.name for value in saved_by(entry) if value.alive}
        yield _explained("backward", entry.bridge.backwards.last_backward, alive, selection, graph)


def _explained(
    kind: str, program: Program, live_inputs: Collection[str], selection: Selection, graph: str
) -> ExplainedProgram:
    trace = program.stages[-1]
    return ExplainedProgram(
        kind,
        program.stages,
        program.choices,
        tuple(regions_of(trace, selection.fusion)),
        peak(program.stages[-2], live_inputs),
        program.job is not None and not program.job.is_done,
        graph,
        frozenset(live_inputs),
    )


def saved_by(entry: Entry) -> tuple[Saved, ...]:
    """Return the tensors that the forward saves for the backward."""
    return () if entry.bridge is None else saved_values(entry.bridge.training.parts)


def recomputed_by(entry: Entry) -> tuple[str, ...]:
    """Return the operators that the backward runs again, with the reasons."""
    return () if entry.bridge is None else recomputed_lines(entry.bridge.training.parts)


def bytes_in_eager(entry: Entry, selection: Selection) -> int:
    """Return the bytes saved by eager mode for the same backward, without inputs."""
    if entry.bridge is None:
        return 0
    training = entry.bridge.training
    joint, overwritten = training.joint, training.parts.overwritten
    if joint.trace.numbers:  # symbolic sizes are active during compilation alone
        return partition(joint, overwritten).saved_bytes
    with torch.no_grad(), internals.autocast_off():
        return compiles(programs.bytes_in_eager)(
            (training.prepared,), joint, selection, overwritten
        )


def sizes_of(entry: Entry) -> Iterator[str]:
    """Yield the symbolic sizes of an entry with their constraints, or the reason why there are none."""
    if entry.fixed:
        yield f"dynamic sizes: fixed, for with symbolic ones there was {entry.fixed}"
    sizes = entry.captured.sizes
    if sizes is None:
        return
    inputs = zip(entry.captured.sources, entry.captured.trace.inputs, strict=True)
    numbers = {proxy.name: str(place) for place, proxy in inputs if isinstance(place, HeldNumber)}
    for number in sizes.numbers:
        path = numbers.get(number.tensor, number.source)
        yield f"dynamic sizes: {number.name} is {path}"
    for constraint in sizes.constraints:
        yield f"  only if {constraint}"

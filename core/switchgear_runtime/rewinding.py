"""Random streams of programs with late checks: a check that raises restores the streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear_core.grad.redraw import default_stream
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.symbol import LATE
from switchgear_core.ir.trace import Trace
from switchgear_core.record.guards import OtherData

Run = Callable[[Sequence[torch.Tensor]], Any]


def streams_before_late_checks(trace: Trace) -> list[torch.Generator]:
    """Return the streams that a trace draws from, if a later check cannot be moved to the start."""
    lines = [*leaves_of(trace.bound_symbols)]
    if not any(LATE in line.tags for line in lines):
        return []
    random = [line for line in lines if line.is_random]
    streams = (
        line.kwargs.get("generator") or default_stream(line.outputs[0].device) for line in random
    )
    return list({id(stream): stream for stream in streams}.values())


def rewinding(run: Run, streams: Sequence[torch.Generator]) -> Run:
    """Return a program that restores the streams when a check raises."""

    def run_rewinding(inputs: Sequence[torch.Tensor]) -> Any:
        states = [stream.get_state() for stream in streams]
        try:
            return run(inputs)
        except OtherData:
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)
            raise

    return run_rewinding

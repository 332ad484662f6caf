"""The order of the passes: at each stage a plugin's pass sees the trace, and its answers are among the choices."""

from __future__ import annotations

from typing import Any

import torch

import switchgear as sg
from tests.core.training import executor, leaf
from tests.in_turn import in_turn

#: The traces that a pass sees of a function with and without gradients.
STAGES: dict[str, tuple[list[str], list[str]]] = {
    "before_grad": (["computation"], ["computation"]),
    "after_grad": (["joint"], []),
    "before_claim": (["forward", "backward"], ["computation"]),
    "before_fusion": (["forward", "backward"], ["computation"]),
    "after_claim": (["forward", "backward"], ["computation"]),
}


@in_turn(stage=STAGES)
def test_a_pass_sees_each_trace_of_its_stage_and_its_answers_are_kept(stage: Any) -> None:
    seen: list[str] = []

    def decline(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
        seen.append(trace.name)
        for line in trace.bound_symbols:
            if "sin" in line.symbol.name:
                context.decline("mine", line, f"not {stage}")
        return trace

    passes = [sg.passes.PassPlacement("decline", stage, decline)]
    mine = executor("mine", {torch.cos: lambda x: torch.cos(x)})
    for x, expected in zip((leaf(3), torch.ones(3)), STAGES[stage], strict=True):
        seen.clear()
        jitted = sg.jit(lambda x: x.sin().exp(), executors=[mine, "torch"], passes=passes, strict=True)
        result = jitted(x)
        if x.requires_grad:
            result.sum().backward()
        jitted(x)
        assert [*dict.fromkeys(seen)] == expected
        said = [reason for choice in sg.last_choices(jitted) for _, reason in choice.declined]
        assert (f"not {stage}" in said) is bool(expected)

"""The executor `inductor`: regions compiled by PyTorch's Inductor, entered below AOTAutograd and Dynamo.

A region is traced with PyTorch's operators on fakes, simplified by torch.compile's own patterns, and passed to
Inductor. Inductor finds its files on disk by the traced graph. For fixed sizes, an additional file avoids the tracing:
it stores the key of a region by its options, versions, processor and threads, for other processes.

A region of symbolic sizes is compiled in its first call, in a separate `ShapeEnv`. Inductor's decisions are conditions
on the numbers, checked in each call. If a condition fails, the region is compiled once more (`variants`), at most eight
times, and PyTorch runs the rest.

Results are not bit-identical with eager. The tests hold each value to the tolerance of Inductor's own tests, or to
three times eager's worst distance from float64 (`is_near` in `tests/under_test.py`). `--executors inductor,torch` runs
them so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import switchgear as sg

from .executor import InductorExecutor

if TYPE_CHECKING:
    from switchgear.testing import Sample

__all__ = ["InductorExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return the executor `inductor`; by its priority it comes after `torch`, which claims everything."""
    return (InductorExecutor(),)


@sg.hookimpl
def switchgear_samples() -> dict[object, list[Sample]]:
    """Return sample calls with results large enough for a rule; PyTorch's samples are too small."""
    from switchgear.testing import Sample  # noqa: PLC0415 - `switchgear test` alone needs it

    logits = torch.linspace(-2, 2, 9000).sin().reshape(300, 30)
    target = (torch.arange(300) % 30).masked_fill(torch.arange(300) % 7 == 0, -100)
    log_softmax, nll_loss = torch.ops.aten._log_softmax.default, torch.ops.aten.nll_loss_forward.default
    return {
        log_softmax: [Sample(log_softmax, (logits, dim, False)) for dim in (0, 1)],
        nll_loss: [
            Sample(nll_loss, (logits.log_softmax(1), target, weight, reduction, -100))
            for reduction, weight in ((0, None), (1, torch.linspace(0.5, 2, 30)), (2, None))
        ],
    }

"""The executor `inductor`: regions compiled by PyTorch's Inductor, entered below AOTAutograd and Dynamo.

A region is traced with PyTorch's operators on fakes, simplified by torch.compile's own patterns, and handed to
Inductor. What it keeps on disk it finds by the graph, which has to be traced for that; so for fixed sizes a file beside
it says which key a region had under which options, versions, processor and threads, and another process traces nothing.

A region of symbolic sizes is compiled when it is first called, in a `ShapeEnv` of its own. What was decided there is a
condition on the numbers, checked in each call: where it does not hold, the region is compiled once more (`variants`),
eight times at most, and PyTorch runs the rest.

Results are not eager's to the bit: the tests hold each value to the tolerance of Inductor's own, or to three times
eager's worst distance from float64 (`is_near` in `tests/under_test.py`). `--executors inductor,torch` runs them so.
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .executor import InductorExecutor

__all__ = ["InductorExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `inductor`; by declared priority it comes after `torch`, which takes everything."""
    return (InductorExecutor(),)

"""The executor `inductor`: regions compiled by PyTorch's Inductor, entered below AOTAutograd and Dynamo."""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .executor import InductorExecutor

__all__ = ["InductorExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `inductor`; by declared priority it comes after `torch`, which takes everything."""
    return (InductorExecutor(),)

"""The option `memory` of `jit`: the backward recomputes values in place of saving them.

Without this plugin, the values that eager mode saves are saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchgear_core.registry.hookspecs import hookimpl
from switchgear_core.registry.options import Option
from switchgear_core.registry.savings import AS_EAGER, Savings
from switchgear_memory.automatic import ByOption, extra
from switchgear_memory.option import MEMORY, MemoryOption, budget_of, memory_in

__all__ = ["MEMORY", "ByOption", "MemoryOption", "budget_of", "extra", "memory_in", "savings", "switchgear_savings"]


def savings(memory: MemoryOption) -> Savings:
    """Return the choice of saved tensors for a value of the option `memory`.

    Raises:
        InvalidInput: the value is none of the option's.
    """
    budget_of(memory)
    return AS_EAGER if memory == "eager" else ByOption(memory)


@hookimpl
def switchgear_options() -> list[Option]:
    """Declare the option `memory`."""
    return [
        Option(
            "memory",
            "auto",
            'bytes saved for the backward, which recomputes the rest. "auto": recompute only operators that cost '
            'almost nothing. "eager": save as eager mode does. "balanced": save matrix products and other expensive '
            'results. "lean": half of the bytes of "balanced" or "auto". A budget, 0.5 of eager\'s bytes or "2GB", is '
            "met by each program; else the first call raises. `sg.plan` shows the costs. Random numbers and "
            "operators from outside of PyTorch are never recomputed.",
            "Decide first",
            fits=_is_memory,
            variable="SWITCHGEAR_MEMORY",
            parse=memory_in,
        )
    ]


def _is_memory(value: object) -> bool:
    budget_of(value)
    return True


@hookimpl
def switchgear_savings(settings: Mapping[str, Any]) -> Savings:
    """Return the choice of saved tensors for the options of one call of `jit`, by their names."""
    return savings(settings["memory"])

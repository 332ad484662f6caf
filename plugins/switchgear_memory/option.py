"""The `memory` option of `jit`: how much the backward recomputes instead of saving."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

from switchgear_core.errors import InvalidInput, did_you_mean

#: "auto" recomputes where time hardly grows; "eager" to "lean" go from eager's saved bytes to recomputing all cheap
#: values.
Memory: TypeAlias = Literal["auto", "eager", "balanced", "lean"]
MEMORY: tuple[Memory, ...] = get_args(Memory)
#: A word, or a budget: a fraction of eager's saved bytes, or bytes with their unit.
MemoryOption: TypeAlias = Memory | float | str
_BYTES = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt])(i?))?b", re.IGNORECASE)


def budget_of(memory: object) -> float | int | None:
    """Return a budget: a float as a fraction of eager's saved bytes, an int as bytes; None for the other words."""
    if isinstance(memory, str):
        if memory in MEMORY:
            return None
        if match := _BYTES.fullmatch(memory.strip()):
            number, prefix, binary = match.groups()
            power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
            return int(float(number) * (1024 if binary else 1000) ** power)
    elif isinstance(memory, (int, float)) and not isinstance(memory, bool) and 0 < memory <= 1:
        return float(memory)
    words = ", ".join(map(repr, MEMORY))
    hint = did_you_mean(memory, MEMORY) if isinstance(memory, str) else ""
    raise InvalidInput(
        f"memory={memory!r} is not one of {words}; it may also be a fraction of eager's saved bytes (over 0, up to "
        f"1), or bytes with their unit ('2GB', '500 MiB'){hint}"
    )


def memory_in(text: str) -> MemoryOption:
    """Return the option from text outside Python: a fraction without a unit is a number."""
    try:
        memory: MemoryOption = float(text)
    except ValueError:
        memory = text
    budget_of(memory)
    return memory

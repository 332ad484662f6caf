"""Who took which operator, what is saved, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from switchgear.jit import compiler_of, last_choices, last_entry, last_saved


def explain(jitted: Any) -> str:
    """A report on the entry last run: executors, those skipped, every choice and every saved value, with reasons."""
    selection = compiler_of(jitted).selection
    lines = [f"executors: {', '.join(executor.name for executor in selection.executors)}"]
    lines += [f"skipped: {name}: {reason}" for name, reason in selection.skipped]
    entry = last_entry(jitted)
    sizes = entry.captured.sizes
    if entry.fixed:
        lines.append(f"dynamic sizes: fixed, for with symbolic ones there was {entry.fixed}")
    for number in sizes.numbers if sizes is not None else ():
        lines.append(f"dynamic sizes: {number.name} is the size of {number.tensor} in dimension {number.dim}")
    for constraint in sizes.constraints if sizes is not None else ():
        lines.append(f"  only if {constraint}")
    counts = Counter(map(str, last_choices(jitted)))
    lines += [f"{count:4} x {text}" for text, count in counts.items()]
    saved = last_saved(jitted)
    if saved:
        alive = [value.bytes for value in saved if value.alive]
        own = sum(value.bytes for value in saved) - sum(alive)
        lines.append(
            f"saved for the backward, memory={selection.memory!r}: {own} bytes in {len(saved) - len(alive)} values, "
            f"and {len(alive)} inputs, which live anyway, of {sum(alive)} bytes"
        )
        lines += [f"  {value}" for value in sorted(saved, key=lambda value: (value.alive, -value.bytes))]
    return "\n".join(lines)

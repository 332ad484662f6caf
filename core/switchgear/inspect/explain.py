"""Who took which operator, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from switchgear.jit import compiler_of, last_choices


def explain(jitted: Any) -> str:
    """A report on the entry last run: the executors, those skipped, and every choice with its reasons."""
    selection = compiler_of(jitted).selection
    lines = [f"executors: {', '.join(executor.name for executor in selection.executors)}"]
    lines += [f"skipped: {name}: {reason}" for name, reason in selection.skipped]
    counts = Counter(map(str, last_choices(jitted)))
    lines += [f"{count:4} x {text}" for text, count in counts.items()]
    return "\n".join(lines)

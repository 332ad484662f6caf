"""Who took which operator, and why."""

from __future__ import annotations

from collections import Counter
from typing import Any

from switchgear.choice import Choice
from switchgear.jit import compiler_of, last_choices


def explain(jitted: Any) -> str:
    """A report on the entry last run: the executors, those skipped, and every choice with its reasons."""
    selection = compiler_of(jitted).selection
    lines = [f"executors: {', '.join(executor.name for executor in selection.executors)}"]
    lines += [f"skipped: {name}: {reason}" for name, reason in selection.skipped]
    counts = Counter(last_choices_by_text(jitted))
    lines += [f"{count:4} x {text}" for text, count in counts.items()]
    return "\n".join(lines)


def last_choices_by_text(jitted: Any) -> list[str]:
    """The choices of the entry last run as lines."""
    return [_line(choice) for choice in last_choices(jitted)]


def _line(choice: Choice) -> str:
    return str(choice)

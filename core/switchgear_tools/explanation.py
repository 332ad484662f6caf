"""The result of `sg.explain`."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from switchgear_core.ir.choice import Choice, Saved
from switchgear_core.showing import Shown, limited, wrapped
from switchgear_tools.facts import (
    Facts,
    by_executor,
    grouped,
    not_fused,
    rule_packages,
    who_takes_part,
)
from switchgear_tools.page import write_page
from switchgear_tools.summary import summary

#: The number of the JSON schema, docs/explain.schema.json: a changed or removed field increments the number.
SCHEMA = 1
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Details(Shown, Generic[Record]):
    """One part of an explanation: prints as its `lines`; `records` are the objects that the lines describe."""

    records: tuple[Record, ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return limited([part for line in self.lines for part in wrapped(line)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explanation(Shown):
    """Account of a call: prints as a summary, with details as methods.

    Attributes:
        facts: the records behind the summary.
    """

    facts: Facts

    def operators(self) -> Details[Choice]:
        """Return the executor of each operator, with the reasons of the executors that declined."""
        facts = self.facts
        choices = tuple([choice for choice in facts.choices if choice.kind != "gradient"])
        regions = Counter(
            f"{program.kind}: {region}" for program in facts.programs for region in program.regions
        )
        lines = [
            *who_takes_part(facts.selection),
            *[f"{count:4} x {region}" for region, count in regions.items()],
            *grouped(choices, facts.selection.skipped),
        ]
        return Details(choices, tuple(lines))

    def gradients(self) -> Details[Choice]:
        """Return the rule that differentiates each operator, with the reasons of the rules that declined."""
        choices = tuple([choice for choice in self.facts.choices if choice.kind == "gradient"])
        lines = grouped(choices, self.facts.selection.skipped)
        return Details(choices, tuple(lines or ["no operator is differentiated"]))

    def saved(self) -> Details[Saved]:
        """Return the tensors saved for the backward, the largest first, then inputs (alive anyway).

        The lines that print end with the operators that the backward runs again.
        """
        facts = self.facts
        ordered = sorted(facts.saved, key=lambda value: (value.alive, -value.bytes))
        alive = [value.bytes for value in ordered if value.alive]
        heading = (
            f"saved for the backward, memory={facts.memory!r}: {facts.saved_bytes} bytes "
            f"in {len(ordered) - len(alive)} values, and {len(alive)} inputs, which live anyway, "
            f"of {sum(alive)} bytes"
        )
        lines = [heading, *[f"  {value}" for value in ordered]] if ordered else ["nothing is saved"]
        if facts.recomputed:
            lines += ["recomputed by the backward", *[f"  {line}" for line in facts.recomputed]]
        return Details(tuple(ordered), tuple(lines))

    def guards(self) -> Details[str]:
        """Return the conditions under which a call runs the program: guards, and symbolic sizes."""
        lines = (*self.facts.sizes, *self.facts.guards)
        return Details(lines, lines or ("no guards: nothing is compiled",))

    def recompilations(self) -> Details[str]:
        """Return the reason of each compilation, in their order."""
        reasons = self.facts.recompilations
        lines = [f"{number:4}. {reason}" for number, reason in enumerate(reasons, 1)]
        return Details(reasons, tuple(lines or ["nothing was compiled"]))

    def fallbacks(self) -> Details[str]:
        """Return the reasons of fallbacks, and the graphs that TorchDynamo split off."""
        calls = self.facts.calls
        lines = [self.facts.fallback] * bool(self.facts.fallback)
        if calls is not None:
            lines += [
                f"{fallback.calls:4} x {fallback.reason} ({fallback.split} split by TorchDynamo)"
                for fallback in calls.fallbacks
            ]
            lines += [line for split in calls.splits for line in split.lines()]
        return Details(tuple(lines), tuple(lines or ["no call fell back"]))

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as names and numbers, as docs/explain.schema.json describes."""
        facts = self.facts
        selection = facts.selection
        return {
            "schema": SCHEMA,
            "function": facts.name,
            "calls": None if facts.calls is None else asdict(facts.calls),
            "fallback": facts.fallback,
            "executors": [claimant.label for claimant in selection.claimants],
            "choosers": [chooser.label for chooser in selection.choosers],
            "rule_packages": rule_packages(selection),
            "skipped": dict(selection.skipped),
            "not_asked": list(selection.passed_over),
            "notes": list(facts.notes),
            "programs": [
                {
                    "kind": program.kind,
                    "graph": program.graph,
                    "is_pending": program.is_pending,
                    "peak_bytes": program.peak,
                    "regions": [asdict(region) for region in program.regions],
                }
                for program in facts.programs
            ],
            "by_executor": [asdict(row) for row in by_executor(facts)],
            "not_fused": [
                {"reason": row.reason, "count": row.count, "operators": dict(row.operators)}
                for row in not_fused(facts)
            ],
            "memory": facts.memory,
            "saved_bytes": facts.saved_bytes,
            "eager_saved_bytes": facts.eager_bytes,
            "saved": [asdict(value) for value in facts.saved],
            "choices": [asdict(choice) for choice in facts.choices],
            "sizes": list(facts.sizes),
            "guards": list(facts.guards),
            "recompilations": list(facts.recompilations),
        }

    def html(self, path: str | os.PathLike[str] = "trace.html") -> Path:
        """Write a page that shows forward and backward line by line, for a browser without network.

        Args:
            path: the file, which is overwritten.

        Returns:
            The path.

        Raises:
            InvalidInput: the file cannot be written.
        """
        return write_page(self.facts, self.text(80), path)

    def text(self, width: int | None = None, detail: str = ".{}()") -> str:
        """Summarise the explanation.

        Args:
            width: the most columns of a line, between 40 and 80; by default the width of the terminal.
            detail: how the text refers to a detail, by default as a method.

        Returns:
            The summary, of several lines.
        """
        columns = shutil.get_terminal_size().columns if width is None else width
        return "\n".join(summary(self.facts, min(max(columns, 40), 80), detail))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

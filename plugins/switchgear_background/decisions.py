"""Decisions: the choices of executors, recorded in a file by one process and repeated exactly by others.

A program is identified by its computation and the executors of the call. The first process that names a missing file
records for each program its machine, the executor of each region, and the executor of each line. If the file exists,
programs are built in the same way, or `OtherDecisions` tells the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from switchgear.disk_cache import write
from switchgear.machine import surroundings
from switchgear_core.errors import InvalidInput, OtherDecisions
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.answers import Answer, Answers, as_json, from_json
from switchgear_core.registry.plugin import Chooser
from switchgear_core.registry.region import Region, RegionChoice
from switchgear_core.registry.selection import Selection

_FORMAT = 1
#: Characters shown from where two programs differ.
_SHOWN = 160


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The decision about one program; `lines` are its operators, each with its executor."""

    program: str
    computes: str
    executors: list[str]
    surroundings: dict[str, str]
    regions: dict[str, Any]
    lines: list[list[str]]


def _file(selection: Selection) -> Any:
    return selection.settings.get("decisions")


class Decisions:
    """The content of one file, either repeated (`repeats`) or written by this process."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.repeats = file.exists()
        self.entries = _read(file) if self.repeats else []

    def of(self, trace: Trace, selection: Selection) -> Decision | None:
        """Return the decision about a program; None for a decision still to be recorded.

        Raises:
            OtherDecisions: the file has no decision for this program, or was written on a different machine.
        """
        computes, executors = trace.canonical(), _executors(selection)
        alike = [item for item in self.entries if item.computes == computes]
        decision = next((item for item in alike if item.executors == executors), None)
        if decision is None and not self.repeats:
            return None
        if decision is None:
            subject = (
                f"the executors are {', '.join(executors)}, and were {', '.join(alike[0].executors)}"
                if alike
                else self._other_program(trace.name, computes)
            )
            raise self.differ(trace.name, subject)
        here = _surroundings(trace, selection)
        for subject, value in decision.surroundings.items():
            if here.get(subject) != value:
                raise self.differ(trace.name, f"{subject} is {here.get(subject)}, and was {value}")
        return decision

    def add(self, decision: Decision) -> None:
        """Record a decision."""
        self.entries.append(decision)
        fields = [{name: getattr(item, name) for name in Decision.__slots__} for item in self.entries]
        text = json.dumps({"format": _FORMAT, "programs": fields}, indent=1)
        try:
            write(self.file, text.encode())
        except OSError as error:
            raise InvalidInput(f"decisions={str(self.file)!r} cannot be written: {error}") from error

    def differ(self, program: str, subject: str) -> OtherDecisions:
        """Return the error for a difference."""
        return OtherDecisions(
            f"decisions={str(self.file)!r} does not fit the {program}: {subject}. Delete the file to decide anew"
        )

    def _other_program(self, name: str, computes: str) -> str:
        alike = [item.computes for item in self.entries if item.program == name]
        if not alike:
            return "there was none"
        same, other = max((_parting(computes, text), text) for text in alike)
        start = max(computes.rfind("('", 0, same), same - _SHOWN // 2, 0)
        here, there = (text[start : start + _SHOWN] for text in (computes, other))
        return f"it, or executors= or memory=, differs: here it has {here!r}, there {there!r}"


def _parting(first: str, second: str) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


_OPENED: dict[Path, Decisions] = {}


def opened(file: str | os.PathLike[str]) -> Decisions:
    """Return the decisions of a file, one object per process.

    Raises:
        InvalidInput: the file holds other content.
    """
    path = Path(file).absolute()
    if path not in _OPENED:
        _OPENED[path] = Decisions(path)
    return _OPENED[path]


def decided(trace: Trace, selection: Selection) -> tuple[Selection, Decision | None]:
    """Return the selection that repeats or records the decision about a program, and the decision."""
    if _file(selection) is None:
        return selection, None
    decisions = opened(_file(selection))
    decision = decisions.of(trace, selection)
    if decision is None:
        return replace(selection, record=Answers()), None
    answers = from_json(decision.regions) or Answers()
    label = f"decisions={str(decisions.file)!r}"
    chooser = Chooser(partial(_repeated, decisions, trace.name, answers), _repeated, label, "")
    return replace(selection, choosers=(chooser,)), decision


def note_lines(trace: Trace, result: Trace, selection: Selection, decision: Decision | None) -> None:
    """Record the executors of the lines of `result`.

    Raises:
        OtherDecisions: an existing decision has other lines.
    """
    if _file(selection) is None:
        return
    decisions = opened(_file(selection))
    labels = {item.name: item.label for item in selection.claimants}
    owned = [(line.symbol.name, by.owner) for line in result.bound_symbols if (by := line.implementation)]
    lines = [[symbol, labels.get(owner, owner)] for symbol, owner in owned]
    if decision is None:
        regions, where = as_json(selection.record or Answers()), _surroundings(trace, selection)
        computes, executors = trace.canonical(), _executors(selection)
        decisions.add(Decision(trace.name, computes, executors, where, regions, lines))
        return
    for here, there in zip(lines, decision.lines, strict=False):
        if here != there:
            raise decisions.differ(trace.name, f"{here[0]} is run by {here[1]}, and {there[0]} was by {there[1]}")
    if len(lines) != len(decision.lines):
        raise decisions.differ(trace.name, f"there are {len(lines)} lines, and were {len(decision.lines)}")


def _executors(selection: Selection) -> list[str]:
    return [claimant.label for claimant in selection.claimants]


def _surroundings(trace: Trace, selection: Selection) -> dict[str, str]:
    fusion = selection.fusion.items()
    options = {f"the settings of executor {name}": executor.fingerprint() for name, executor in fusion}
    return {**surroundings(trace.devices), **options}


def _repeated(
    decisions: Decisions, program: str, answers: Answers, regions: Sequence[Region], context: object
) -> list[RegionChoice]:
    """Return the recorded choices."""
    choices = []
    for region in regions:
        answer: Answer | None = answers.by_computation.get(region.trace.canonical())
        executor = next(
            (candidate for candidate in region.candidates if answer is not None and candidate.name == answer.executor),
            None,
        )
        if answer is None or (executor is None and answer.executor is not None):
            calls = ", ".join(dict.fromkeys(call.symbol.name for call in region.trace.bound_symbols))
            was = "there was no such region" if answer is None else f"it was run by {answer.executor}"
            raise decisions.differ(program, f"a region of {calls} goes to nobody, and {was}")
        choices.append(RegionChoice(executor, answer.reason, answer.gain))
    return choices


def _read(file: Path) -> list[Decision]:
    try:
        content = json.loads(file.read_text())
        if not isinstance(content, Mapping) or content.get("format") != _FORMAT:
            raise ValueError(f"no decisions of format {_FORMAT}")
        return [Decision(**fields) for fields in content["programs"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            f"decisions={str(file)!r} is no file of decisions ({type(error).__name__}: {error}); name one that "
            "is not there to have it written"
        ) from error

"""Answers: the results for regions compiled and measured by another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from switchgear_core.registry.region import Region


class Answer(NamedTuple):
    """The executor of a region by name, or None for its operators; the reason, and the seconds gained per call."""

    executor: str | None
    reason: str
    gain: float


@dataclass(slots=True, eq=False)
class Answers:
    """The answers for a program's regions, by computation.

    `default` is the reason for regions without an answer; `in_use` are the answers of compiled regions. `missing` names
    missing compiled code; `failure` names the program whose compilation failed, with the error. `last`:
    whether other processes may use the answers.
    """

    by_computation: dict[str, Answer] = field(default_factory=dict)
    default: str = "it was not among the regions compiled in the background"
    in_use: list[Answer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failure: str = ""
    last: bool = True
    #: Whether code that is not on disk stays uncompiled.
    only_load: bool = False

    def of(self, region: Region) -> Answer:
        """Return the answer for a region."""
        return self.by_computation.get(region.trace.canonical()) or Answer(None, self.default, 0.0)

    @property
    def fused(self) -> int:
        """The number of region kinds run by a fusion executor."""
        return sum(answer.executor is not None for answer in self.by_computation.values())


def as_json(answers: Answers) -> dict[str, Any]:
    """Return answers as JSON data."""
    return {key: list(answer) for key, answer in answers.by_computation.items()}


def from_json(value: object) -> Answers | None:
    """Return answers from the result of `as_json`; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    try:
        return Answers({str(key): _answer(*item) for key, item in value.items()})
    except (TypeError, ValueError):
        return None


def _answer(executor: Any, reason: Any, gain: Any) -> Answer:
    return Answer(executor if executor is None else str(executor), str(reason), float(gain))

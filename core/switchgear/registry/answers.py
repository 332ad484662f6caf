"""Answers: what became of regions that another process compiled and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from switchgear.registry.region import Region


class Answer(NamedTuple):
    """Who runs a region, by name, or None for its operators; why, and the seconds that it gains a call."""

    executor: str | None
    reason: str
    gain: float


@dataclass(slots=True, eq=False)
class Answers:
    """The answers for a program's regions, by what they compute.

    `default` is the reason of those that there is no answer for. `taken` are those by which regions are run; `missing`
    names what was compiled and is not found; `failure` says of which program the compilation failed, and why. Those
    that do not `last` are for this process alone.
    """

    known: dict[str, Answer] = field(default_factory=dict)
    default: str = "it was not among the regions compiled in the background"
    taken: list[Answer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    failure: str = ""
    last: bool = True

    def of(self, region: Region) -> Answer:
        """The answer for a region."""
        return self.known.get(region.trace.canonical()) or Answer(None, self.default, 0.0)

    @property
    def fused(self) -> int:
        """How many kinds of regions are run by an executor that fuses."""
        return sum(answer.executor is not None for answer in self.known.values())


def as_json(answers: Answers) -> dict[str, Any]:
    """Answers as what JSON holds."""
    return {key: list(answer) for key, answer in answers.known.items()}


def from_json(value: object) -> Answers | None:
    """Answers from what `as_json` gave; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    try:
        return Answers({str(key): _answer(*item) for key, item in value.items()})
    except (TypeError, ValueError):
        return None


def _answer(executor: Any, reason: Any, gain: Any) -> Answer:
    return Answer(executor if executor is None else str(executor), str(reason), float(gain))

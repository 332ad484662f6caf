"""Draws programs, judges them, and shrinks one that differs; the same seed draws the same programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.fuzz.compare import TORCH, Jit, Outcome, Verdict, judge
from tests.fuzz.programs import Program, programs
from tests.fuzz.source import write_script

Part = TypeVar("Part")
#: A shrunk program is a help, not a proof: after so many attempts what is smallest so far is taken.
SHRINK_ATTEMPTS = 150


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one drawn program; the text of the program if it differs."""

    verdict: Verdict
    steps: int
    text: str = ""


def examine(seed: int, count: int, jit: Jit = TORCH) -> list[Finding]:
    """Judge `count` programs."""
    findings: list[Finding] = []

    def note(program: Program) -> None:
        script = write_script(program)
        verdict = judge(script, jit)
        findings.append(Finding(verdict, script.steps, str(script) if verdict.outcome is Outcome.DIFFERENT else ""))

    _draw(seed, count, note, (Phase.generate,))
    return findings


def shrink(seed: int, count: int, kind: str, jit: Jit = TORCH) -> Finding | None:
    """A small program of that kind of difference: hypothesis begins with the first that the seed draws."""
    found: dict[Program, Finding] = {}
    attempts = 0

    def differs(program: Program) -> bool:
        if program not in found:
            script = write_script(program)
            verdict = judge(script, jit)
            if verdict.kind == kind and verdict.outcome is Outcome.DIFFERENT:
                found[program] = Finding(verdict, script.steps, str(script))
        return program in found

    def fail(program: Program) -> None:
        nonlocal attempts
        attempts += bool(found)
        if attempts > SHRINK_ATTEMPTS:
            raise _Enough
        if differs(program):
            raise _Differs

    with contextlib.suppress(_Differs, _Enough):
        _draw(seed, count, fail, (Phase.generate, Phase.shrink))
    if not found:
        return None
    smallest = min(found, key=lambda program: len(found[program].text))
    return found[_without_needless_parts(smallest, differs)]


def _without_needless_parts(program: Program, differs: Callable[[Program], bool]) -> Program:
    """What hypothesis had no attempts left for: whatever a program can do without, taken away one by one."""
    while smaller := next(filter(differs, _smaller(program)), None):
        program = smaller
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for place, region in enumerate(program.regions):
        for rest in _without_one(region.steps):
            others = (replace(region, steps=rest),) if rest else ()
            fewer = replace(program, regions=program.regions[:place] + others + program.regions[place + 1 :])
            # Outputs are counted from the newest tensor, which may have been what the step made.
            for made in range(3):
                yield replace(fewer, outputs=tuple(max(slot - made, 0) for slot in program.outputs))
        if region.mode:
            yield replace(
                program,
                regions=(*program.regions[:place], replace(region, mode=""), *program.regions[place + 1 :]),
            )
    yield from (replace(program, arguments=rest) for rest in _without_one(program.arguments) if rest)
    yield from (replace(program, numbers=rest) for rest in _without_one(program.numbers))
    yield from (replace(program, outputs=rest) for rest in _without_one(program.outputs) if rest)
    yield from (replace(program, calls=rest) for rest in _without_one(program.calls) if rest)
    if program.write:
        yield replace(program, write=None)


def _without_one(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    return (parts[:place] + parts[place + 1 :] for place in reversed(range(len(parts))))


class _Differs(Exception):
    """Tells hypothesis that a program is one of those looked for."""


class _Enough(BaseException):
    """Ends a search; hypothesis would take an `Exception` for another failure."""


def _draw(seed: int, count: int, use: Callable[[Program], None], phases: tuple[Phase, ...]) -> None:
    @seeded(seed)
    @settings(
        max_examples=count,
        phases=phases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(program: Program) -> None:
        use(program)

    run()

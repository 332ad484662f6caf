"""Draws programs, judges them in shuffled order, and looks closer at those that differ."""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz.compare import Outcome, Verdict, judge
from tests.fuzz.processes import over_processes, within
from tests.fuzz.programs import Program, write_program
from tests.fuzz.shrink import shrink
from tests.under_test import UnderTest

#: So many programs share a process: what one leaves behind there is the history of the next.
SHARED = 250
#: Longer than any program takes.
SECONDS = 600

Jit = UnderTest | Callable[[Callable[..., Any]], Callable[..., Any]] | None


@dataclass(frozen=True, slots=True)
class Setup:
    """The jit under test, templates that are not drawn, and texts of facts that are not compared."""

    jit: Jit = None
    without: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def program(self, seed: str) -> Program:
        """The program of a seed."""
        return write_program(seed, frozenset(self.without))

    def judge(self, program: Program) -> Verdict:
        """What comes of it."""
        return judge(program, self.jit, self.ignored)


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of the program of a seed."""

    seed: str
    verdict: Verdict


def seeds(seed: int, programs: int) -> list[tuple[str, ...]]:
    """Seeds of programs in shuffled order, in groups that share a process."""
    every = [f"{seed}:{number}" for number in range(programs)]
    random.Random(seed).shuffle(every)
    return [tuple(every[first : first + SHARED]) for first in range(0, programs, SHARED)]


def examine(group: Sequence[str], setup: Setup) -> list[Finding]:
    """Judge the programs one after the other in this process."""
    findings = []
    for seed in group:
        with within(SECONDS):
            findings.append(Finding(seed, setup.judge(setup.program(seed))))
    return findings


def examine_all(groups: Sequence[tuple[str, ...]], jobs: int, setup: Setup) -> Iterator[list[Finding]]:
    """The findings of each group as they come; of a group whose process dies, those of each program alone."""
    lost: list[str] = []
    for (group, *_), findings in over_processes(examine, [(group, setup) for group in groups], jobs):
        if findings is None:
            lost += group
        else:
            yield findings
    for ((seed,), *_), findings in over_processes(examine, [((seed,), setup) for seed in lost], jobs):
        yield findings or [Finding(seed, Verdict(Outcome.DIFFERENT, kind="a process died or hung"))]


def differs_alone(seed: str, setup: Setup) -> bool:
    """Whether the program differs in this process, which should have no history."""
    return setup.judge(setup.program(seed)).outcome is Outcome.DIFFERENT


def smallest(seed: str, kind: str, setup: Setup) -> tuple[Program, Verdict]:
    """A small program that differs as the one of the seed does, and its verdict."""
    program = setup.program(seed)

    def differs(smaller: Program) -> bool:
        with contextlib.suppress(Exception), within(SECONDS):  # a smaller one may be no program any more
            verdict = setup.judge(smaller)
            return verdict.outcome is Outcome.DIFFERENT and verdict.kind == kind and not _is_broken(verdict)
        return False

    program = shrink(program, differs)
    return program, setup.judge(program)


def _is_broken(verdict: Verdict) -> bool:
    return "NameError" in verdict.detail or "SyntaxError" in verdict.detail


def skeleton(program: Program) -> str:
    """What is left of a program without names, numbers and arguments: programs of one cause look alike."""
    text = program.function.partition("def forward")[2] or program.function
    text = ast.unparse(ast.parse(program.function)) if text == program.function else text
    text = re.sub(r"\b[atgpmn]\d+\b|self\.\w+", "x", text)
    return re.sub(r"-?\d+(\.\d+)?", "0", text)

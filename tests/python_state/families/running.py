"""Running random programs: the world of each plainly and compiled, what their calls show compared."""

from __future__ import annotations

import collections
import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from switchgear.errors import FallbackWarning
from tests.python_state.families.program import FAMILIES, Program
from tests.python_state.records import record
from tests.python_state.running import shortest, switchgear

for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
    importlib.import_module(f"tests.python_state.families.{found.name}")

#: How a program ends.
COMPILED, FELL_BACK, WRONG, SILENT = "compiled", "fell back", "wrong, after a warning", "silently wrong"


@dataclass(frozen=True)
class Ending:
    """How a program ended, and what shows it."""

    family: str
    seed: str
    outcome: str
    detail: str = ""

    @property
    def is_right(self) -> bool:
        """Whether its calls are as in eager."""
        return self.outcome in (COMPILED, FELL_BACK)


def rounds(program: Program, call: Any) -> Iterator[Any]:
    """What each round of calls shows; errors by their type."""
    for change in (None, *program.change):
        if change is not None:
            change()
        for _ in range(2):
            try:
                yield record(program.calls(call))
            except Exception as error:
                yield type(error).__name__


def examine(name: str, seed: str) -> Ending:
    """The program of a family and a seed, compiled beside eager."""
    plain, ours = (FAMILIES[name](Random(seed)) for _ in range(2))
    expected = [*rounds(plain, plain.target)]
    compiled = switchgear(ours.target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = [*rounds(ours, compiled)]
    reasons = [str(one.message) for one in caught if issubclass(one.category, FallbackWarning)]
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        if one != other:
            what = f"{ours.about}; round {number}: {shortest(one, other)}; {'; '.join(reasons)}"
            return Ending(name, seed, WRONG if reasons else SILENT, what)
    return Ending(name, seed, FELL_BACK if reasons else COMPILED, "; ".join(reasons))


def examine_all(programs: int, seed: int, part: str = "") -> Iterator[Ending]:
    """So many programs, the families whose names hold `part` in turn."""
    names = [name for name in FAMILIES if part in name]
    for number in range(programs):
        name = names[number % len(names)]
        yield examine(name, f"{seed}:{name}:{number // len(names)}")


def print_all(programs: int, seed: int, part: str = "", details: bool = False) -> int:
    """Print the endings by family, and each wrong program; 1 if there is one."""
    counts: collections.defaultdict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for ending in examine_all(programs, seed, part):
        counts[ending.family][ending.outcome] += 1
        if not ending.is_right or (details and ending.detail):
            print(f"{ending.outcome}: {ending.seed}\n    {ending.detail[:600]}", flush=True)
    for name, of_family in counts.items():
        print(f"{name:48} " + ", ".join(f"{count} {outcome}" for outcome, count in of_family.most_common()))
    total = sum(counts.values(), collections.Counter())
    shares = ", ".join(f"{count} {outcome} ({count / programs:.0%})" for outcome, count in total.most_common())
    print(f"\n{programs} programs, seed {seed}: {shares}")
    return int(bool(total[SILENT] + total[WRONG]))

"""Running a case: its world driven plainly and compiled, the two compared."""

from __future__ import annotations

import contextlib
import enum
import io
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import FallbackWarning
from tests.python_state.records import record, wrappers
from tests.python_state.scenario import Call, Case


class Outcome(enum.Enum):
    """How a case ends; only RIGHT and FELL_BACK are as they should be."""

    RIGHT = "right"
    FELL_BACK = "fell back, as marked"
    WRONG = "wrong: stale or lost"
    POISONED = "right, then poisoned"
    RECOMPILES = "right, too many entries"
    REFUSED = "right, fell back unmarked"
    STALE_MARK = "right, marked as falling back"
    RAISED = "raised"


@dataclass(frozen=True)
class Finding:
    """The outcome of a case, and what shows it."""

    case: Case
    outcome: Outcome
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the case passes."""
        return self.outcome in (Outcome.RIGHT, Outcome.FELL_BACK)


@dataclass
class Run:
    """What one run of a case's world observed."""

    steps: list[Any] = field(default_factory=list)
    later: Any = None
    error: str = ""
    wrappers: list[str] = field(default_factory=list)
    calls: int = 0
    fallbacks: list[str] = field(default_factory=list)
    compiled: Any = None


def switchgear(target: Callable[..., Any]) -> Any:
    """Our compiled form of a callable."""
    return sg.jit(target, executors=["torch"])


def dynamo(target: Callable[..., Any]) -> Any:
    """The form that `torch.compile` makes of a callable."""
    torch.compiler.reset()
    return torch.compile(target, backend="eager")


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def run(case: Case, form: Callable[[Callable[..., Any]], Any] | None = None) -> Run:
    """Drive a fresh world of the case by its callable, or by a compiled form of that."""
    _seed()
    scenario = case.build()
    seen = Run()
    seen.compiled = scenario.target if form is None else form(scenario.target)
    last: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        seen.calls += 1
        last[:] = args, kwargs
        return seen.compiled(*args, **kwargs)

    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        _seed()
        _drive(scenario.drive, call, seen)
        seen.steps.append(record(printed.getvalue()))
        if last and scenario.settled:
            _seed()
            seen.later = _again(scenario.target, *last)
    seen.fallbacks = [str(one.message) for one in caught if one.category is FallbackWarning]
    seen.steps.append([str(one.message) for one in caught if str(one.message).startswith("case: ")])
    seen.wrappers = wrappers(scenario.target, scenario.drive, *last)
    return seen


def _drive(drive: Any, call: Call, seen: Run) -> None:
    try:
        for observed in drive(call):
            seen.steps.append(record(observed))
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}"


def _again(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What plain eager makes of other numbers after the calls."""
    others = [arg.detach() + 0.5 if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args]
    try:
        return record(target(*others, **kwargs))
    except Exception as error:
        return type(error).__name__, str(error)


def _plain(case: Case) -> Run:
    """The run that others are held to; what its calls raise a case observes by itself."""
    plain = run(case)
    assert not plain.error, f"the case itself is at fault: {plain.error}"
    assert not plain.wrappers
    return plain


def examine(case: Case) -> Finding:
    """Compare the plain run with ours."""
    plain, ours = _plain(case), run(case, switchgear)
    difference = _compared(plain, ours)
    if difference is not None:
        return Finding(case, *difference)
    compiler = ours.compiled._switchgear
    in_eager = sum(fallback.calls for fallback in compiler.fallbacks.reasons.values())
    said = bool(ours.fallbacks) and any(
        how in str(sg.explain(ours.compiled)) for how in ("ran in eager, not", "were split by")
    )
    reasons = " | ".join(str(reason) for reason in compiler.fallbacks.reasons.values())
    if bool(in_eager) != said:
        return Finding(case, Outcome.WRONG, f"{in_eager} calls ran in eager, and that was said: {said}")
    if case.falls_back:
        return Finding(case, Outcome.FELL_BACK if in_eager else Outcome.STALE_MARK, reasons)
    if in_eager:
        return Finding(case, Outcome.REFUSED, reasons)
    entries, most = compiler.cache._compilations, case.entries or max(1, ours.calls - 1)
    if not 1 <= entries <= most:
        return Finding(case, Outcome.RECOMPILES, f"{entries} entries for {ours.calls} calls, at most {most}")
    return Finding(case, Outcome.RIGHT)


def examine_peer(case: Case) -> Finding:
    """Compare the plain run with that of `torch.compile`."""
    difference = _compared(_plain(case), run(case, dynamo))
    return Finding(case, *difference) if difference is not None else Finding(case, Outcome.RIGHT)


def _compared(plain: Run, compiled: Run) -> tuple[Outcome, str] | None:
    """How a compiled run differs from the plain one."""
    if compiled.error:
        return Outcome.RAISED, compiled.error
    for number, (expected, actual) in enumerate(zip(plain.steps, compiled.steps, strict=False)):
        if expected != actual:
            return Outcome.WRONG, f"step {number}: {shortest(expected, actual)}"
    if len(plain.steps) != len(compiled.steps):
        return Outcome.WRONG, f"{len(compiled.steps)} steps, not {len(plain.steps)}"
    if compiled.wrappers:
        return Outcome.POISONED, f"tensors of the capture are reachable: {', '.join(compiled.wrappers[:3])}"
    if compiled.later != plain.later:
        return Outcome.POISONED, f"plain eager afterwards: {shortest(plain.later, compiled.later)}"
    return None


def shortest(expected: Any, actual: Any) -> str:
    """The innermost place where two records differ."""
    while isinstance(expected, (tuple, list)) and isinstance(actual, (tuple, list)) and len(expected) == len(actual):
        pairs = [(left, right) for left, right in zip(expected, actual, strict=True) if left != right]
        expected, actual = pairs[0]
    return f"{str(actual)[:100]} for {str(expected)[:100]}"

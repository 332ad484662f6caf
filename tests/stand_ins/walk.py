"""Runs cases in children of this process, so that one that ends its process is noticed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

import switchgear as sg
from tests.stand_ins.alike import differ
from tests.stand_ins.calls import Case

#: Seconds of processor time that one function may take.
_LIMIT = 60
#: Of one function, this many calls that eager takes are tried, and this many that it refuses.
_TAKEN, _REFUSED = 6, 1


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of the calls of one function: what is wrong, if something is, and how many ran compiled."""

    name: str
    wrong: tuple[str, ...] = ()
    compiled: int = 0
    fell_back: int = 0
    raised: int = 0


Fallback: TypeAlias = Literal["eager", "split"]


def walk(groups: Iterable[tuple[str, list[Case]]], fallback: Fallback, size: int = 40) -> Iterator[Finding]:
    """Examine each group in a child of this process, which is another one after a crash."""
    waiting = [*groups]
    while waiting:
        done = 0
        for finding in _in_child(waiting[:size], fallback):
            yield finding
            done += 1
        waiting = waiting[done:]


def _in_child(groups: list[tuple[str, list[Case]]], fallback: Fallback) -> Iterator[Finding]:
    """The findings of a child; the last one is of the group that ended it, where that is so."""
    ours, its = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        _run(groups, fallback, its)
    os.close(its)
    done = 0
    with os.fdopen(ours) as lines:
        for line in lines:
            name, wrong, *counts = json.loads(line)
            yield Finding(name, tuple(wrong), *counts)
            done += 1
    _, status = os.waitpid(child, 0)
    if status and done < len(groups):
        number = os.waitstatus_to_exitcode(status)
        yield Finding(groups[done][0], (f"{groups[done][0]}: the process ended with {number}",))


def _run(groups: list[tuple[str, list[Case]]], fallback: Fallback, pipe: int) -> None:
    code = 1
    try:
        with os.fdopen(pipe, "w") as out, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            for name, cases in groups:
                signal.setitimer(signal.ITIMER_PROF, _LIMIT)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    finding = examine(name, cases, fallback)
                out.write(json.dumps([name, finding.wrong, finding.compiled, finding.fell_back, finding.raised]) + "\n")
                out.flush()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def examine(name: str, cases: list[Case], fallback: Fallback) -> Finding:
    """Compare calls of one function in eager and jitted, each twice, with other data."""
    wrong: list[str] = []
    taken = compiled = fell_back = raised = 0
    for case in cases:
        if taken == _TAKEN:
            break
        expected = [_outcome(case, case.function, index) for index in range(2)]
        if isinstance(expected[0][0], Exception):
            if raised == _REFUSED:
                continue
            raised += 1
        else:
            taken += 1
        jitted: Any = sg.jit(case.function, executors=["torch"], fallback=fallback)
        for index, (result, after) in enumerate(expected):
            ours, ours_after = _outcome(case, jitted, index)
            # of a call that raises for its data, how much was written before is no matter
            difference = differ(result, ours) or (not isinstance(result, Exception) and differ(after, ours_after))
            if difference:
                wrong.append(f"{case.name}, call {index}: {difference}"[:300])
        info = sg.cache_info(jitted)
        compiled += not info.fallbacks
        fell_back += bool(info.fallbacks)
    return Finding(name, tuple(wrong), compiled, fell_back, raised)


def _outcome(case: Case, function: Any, index: int) -> tuple[Any, Any]:
    """The result, or the error, and the argument afterwards."""
    torch.manual_seed(0)
    np.random.seed(0)
    x = case.make(index)
    # freed memory that holds numbers, for what reads memory that nobody wrote
    junk = [torch.full((4,), 1e3) for _ in range(8)]
    del junk
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return function(x), x
        except Exception as error:
            return error, x

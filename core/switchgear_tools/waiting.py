"""Waiting for compilations in the background."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from switchgear.progress import Progress
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.entry import Entry
from switchgear_runtime.last_call import compiler_of


def wait(jitted: object, timeout: float | None = None) -> str:
    """Block until the regions of a jitted function that compile in the background are in use.

    Only regions of calls that have run are waited for; regions of a backward start to compile when the backward first
    runs.

    Args:
        jitted: the result of `sg.jit`.
        timeout: seconds to wait at most; None waits without a limit.

    Returns:
        A text on the compiled regions and the time gained.

    Raises:
        TimeoutError: the time is over.
        TypeError: `jitted` is not the result of `sg.jit`.
    """
    entries = list(_entries(compiler_of(jitted)))
    jobs: set[Any] = {
        job for entry in entries for program in entry.programs() if (job := program.job)
    }
    end = None if timeout is None else time.monotonic() + timeout
    with Progress(len(jobs), "compiling", is_shown=True, unit="programs") as progress:
        for job in jobs:
            if not job.finished.wait(None if end is None else end - time.monotonic()):
                raise TimeoutError(f"the {job.name} of a function is still being compiled")
            progress.after(job)
    for entry in entries:
        entry.exchange_all()
    programs = [program for entry in entries for program in entry.programs()]
    answers = [program.answers for program in programs if program.answers]
    answers_taken = [answer for group in answers for answer in group.in_use]
    gain = sum(answer.gain for answer in answers_taken)
    failures = [f"\n  {group.failure}" for group in answers if group.failure]
    is_never = any(group.only_load for group in answers)
    when = "before (compile='never' compiles none)" if is_never else "in the background"
    return (
        f"{len(programs)} programs: {len(answers_taken)} regions compiled {when} run as one, "
        f"{1e3 * gain:.2f} ms less than by operators, as measured region by region{''.join(failures)}"
    )


def _entries(compiler: Compiler) -> Iterator[Entry]:
    yield from compiler.cache.entries()
    for split in compiler.splits.values():
        for graph in split.graphs:
            if isinstance(graph.compiler, Compiler):
                yield from _entries(graph.compiler)


def progress_of(entry: Entry) -> Iterator[str]:
    """Yield for each program of an entry since when its compiled regions run, or that the regions still compile."""
    for index, program in enumerate(entry.programs()):
        name, job = "backward" if index else "forward", program.job
        if job is not None and not job.is_done:
            seconds = time.monotonic() - job.start
            yield f"{name}: runs operator by operator while its regions are compiled, for {seconds:.0f} s so far"
        elif program.answers is not None:
            since = (
                f" since call {entry.calls_before + 1}" if entry.calls_before and not index else ""
            )
            yield f"{name}: runs {len(program.answers.in_use)} regions compiled in the background{since}"

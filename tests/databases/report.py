"""Runs a database over worker processes and prints what came of it."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import multiprocessing
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from tests import under_test
from tests.databases.refused import Refusal
from tests.databases.verdict import Jit, Outcome, Verdict
from tests.under_test import UnderTest, fraction, is_exact, part

Examine = Callable[[str, Jit], list[Verdict]]

#: One entry of a database that takes longer than this hangs.
SECONDS_PER_ENTRY = 120.0
#: And this where regions are compiled, each of which takes a second or more.
SECONDS_PER_ENTRY_FUSED = 1200.0


def unexpected(verdicts: Iterable[Verdict], refusal: Refusal | None) -> list[str]:
    """What in the verdicts on one entry and mode is neither compiled and equal nor a fallback that is written down."""
    called = [verdict for verdict in verdicts if verdict.outcome is not Outcome.SKIPPED]
    expected = {Outcome.EQUAL} if refusal is None else {Outcome.FELL_BACK}
    if refusal is not None and refusal.partly:
        expected.add(Outcome.EQUAL)
    faults = [describe(verdict) for verdict in called if verdict.outcome not in expected]
    if refusal is None or not called:
        return faults
    kinds = {verdict.error for verdict in called if verdict.outcome is Outcome.FELL_BACK}
    if kinds != {refusal.error.__name__}:
        faults.append(f"refused.py says {refusal.error.__name__}, but the reason is {sorted(kinds) or 'nothing'}")
    if refusal.partly and all(verdict.outcome is Outcome.FELL_BACK for verdict in called):
        faults.append("refused.py says that it falls back partly, but every sample does")
    return faults


def applies(refusal: Refusal | None, mode: str) -> Refusal | None:
    """The refusal, where it speaks of this mode."""
    return refusal if refusal is not None and refusal.modes in mode else None


def describe(verdict: Verdict) -> str:
    """The verdict in a few lines."""
    head = f"{verdict.name} [{verdict.mode}] {verdict.outcome}"
    kind = f" {verdict.error}" if verdict.error else ""
    return f"{head}{kind}, {verdict.sample}\n" + "\n".join(f"    {line}" for line in verdict.detail.splitlines()[:6])


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    name: str = ""
    deadline: float = 0.0


def examine_all(
    names: Sequence[str], examine: Examine, jit: Jit, jobs: int, seconds: float | None = None
) -> list[Verdict]:
    """Examine every name; one that takes longer than `seconds`, or takes its process down, is a crash."""
    seconds = seconds or (SECONDS_PER_ENTRY if is_exact(jit) else SECONDS_PER_ENTRY_FUSED)
    waiting = collections.deque(names)
    found: dict[str, list[Verdict]] = {}
    workers = [_start(examine, jit) for _ in range(max(1, min(jobs, len(names))))]
    while len(found) < len(names):
        for place, worker in enumerate(workers):
            if not worker.name and waiting:
                _give(worker, waiting.popleft(), seconds)
            elif worker.name and _is_lost(worker):
                found[worker.name] = [_lost(worker)]
                _stop(worker)
                workers[place] = _start(examine, jit)
        for ready in wait([worker.pipe for worker in workers if worker.name], timeout=1.0):
            worker = next(worker for worker in workers if worker.pipe is ready)
            try:
                verdicts = found[worker.name] = worker.pipe.recv()
                worker.name = ""
                if any(verdict.outcome is Outcome.CRASH for verdict in verdicts):  # an error of CUDA's stays
                    _stop(worker)
                    workers[workers.index(worker)] = _start(examine, jit)
            except EOFError:  # the process died; it is found lost above
                worker.process.join()
    for worker in workers:
        _stop(worker)
    return [verdict for name in names for verdict in found[name]]


def _start(examine: Examine, jit: Jit) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, examine, jit), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _work(pipe: Connection, examine: Examine, jit: Jit) -> None:
    torch.set_num_threads(1)  # a sum split among threads is not bit-equal
    if under_test.device().type == "cuda":
        under_test.run_on(str(under_test.device()))
        torch.use_deterministic_algorithms(True)  # what eager adds up in another order at each call raises
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        try:
            verdicts = examine(name, jit)
            if under_test.device().type == "cuda":
                torch.cuda.synchronize()  # what a kernel did wrong is said here
        except Exception as error:
            verdicts = [Verdict(Outcome.CRASH, name, "any", "the samples", type(error).__name__, str(error))]
        pipe.send(verdicts)


def _give(worker: _Worker, name: str, seconds: float) -> None:
    worker.name, worker.deadline = name, time.monotonic() + seconds
    worker.pipe.send(name)


def _is_lost(worker: _Worker) -> bool:
    # a pipe can be read from where the other end is gone, too
    return not worker.process.is_alive() or (not worker.pipe.poll() and time.monotonic() > worker.deadline)


def _lost(worker: _Worker) -> Verdict:
    cause = "hangs" if worker.process.is_alive() else f"the process died with code {worker.process.exitcode}"
    return Verdict(Outcome.CRASH, worker.name, "any", "any sample", "Lost", cause)


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def summary(verdicts: Sequence[Verdict]) -> str:
    """A table: per mode, how many entries and how many calls had which outcome; an entry counts by its worst call."""
    order = list(Outcome)
    worst: dict[tuple[str, str], int] = {}
    calls: collections.Counter[tuple[str, Outcome]] = collections.Counter()
    for verdict in verdicts:
        key = (verdict.mode, verdict.name)
        worst[key] = max(worst.get(key, 0), order.index(verdict.outcome))
        calls[verdict.mode, verdict.outcome] += 1
    lines = [f"{'mode':<16}" + "".join(f"{outcome:>16}" for outcome in order) + "   entries (calls)"]
    for mode in sorted({verdict.mode for verdict in verdicts}):
        entries = collections.Counter(order[value] for (of_mode, _), value in worst.items() if of_mode == mode)
        cells = (f"{entries[outcome]} ({calls[mode, outcome]})" for outcome in order)
        lines.append(f"{mode:<16}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def fusion(verdicts: Sequence[Verdict]) -> str:
    """How many entries have a region that was fused, and how many regions there are."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for verdict in verdicts:
        counts[verdict.name, verdict.mode] += verdict.fused
    fused = sum(map(bool, counts.values()))
    return f"{fused} of {len(counts)} entries, by mode, have regions that were fused: {counts.total()} regions"


def run_command(
    arguments: Sequence[str] | None,
    description: str,
    names: Sequence[str],
    examine: Examine,
    refused: dict[str, Refusal],
) -> int:
    """The command line of a database; the exit status says whether all is as `refused.py` has it."""
    options = _parser(description).parse_args(arguments)
    chosen = [name for name in names if re.search(options.filter, name)]
    k, parts = options.fraction
    chosen = [name for name in chosen if part(name, parts) == k]
    begin = time.monotonic()
    verdicts = examine_all(chosen, examine, UnderTest(options.executors), options.jobs)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts], indent=1))
    for verdict in verdicts:
        if verdict.outcome not in (Outcome.EQUAL, Outcome.SKIPPED):
            print(describe(verdict))
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.name, verdict.mode), []).append(verdict)
    faults = [name for (name, mode), group in groups.items() if unexpected(group, applies(refused.get(name), mode))]
    print(f"\n{len(chosen)} of {len(names)} entries in {time.monotonic() - begin:.0f} s\n{summary(verdicts)}")
    if not is_exact(UnderTest(options.executors)):
        print(fusion(verdicts))
    called = [group for group in groups.values() if {verdict.outcome for verdict in group} != {Outcome.SKIPPED}]
    whole = [group for group in called if not any(verdict.outcome is Outcome.FELL_BACK for verdict in group)]
    print(f"compiled without a fallback: {len(whole)} of {len(called)} entries by mode, {len(whole) / len(called):.1%}")
    print(f"not as refused.py has it: {len(set(faults))} entries {sorted(set(faults)) or ''}")
    return 1 if faults else 0


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only entries whose name matches")
    parser.add_argument(
        "--fraction", type=fraction, default=(0, 1), metavar="K/N", help="only part K, from 0, of N; CI runs 0/8"
    )
    parser.add_argument(
        "--executors",
        type=under_test.names,
        default=("torch",),
        metavar="NAMES",
        help="whom to run the database on, such as inductor,torch, or auto, whom jit asks by default (default: torch, "
        "which has to be exact)",
    )
    parser.add_argument("--device", type=under_test.run_on, metavar="NAME", help="such as cuda (default: cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict there")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    return parser

"""Compiling in the background: a worker process compiles and measures programs while operators run.

A program with uncompiled regions is sent to the worker, and runs without regions meanwhile. The worker compiles and
measures as this process would, and leaves on disk the files for `FusionExecutor.load`, and the executor of each
region (`Answers`). Then the outdated program (`Job.is_done`) is rebuilt without compilation, and exchanged
between two calls (`runtime/entry.py`, `runtime/autograd_bridge.py`).

A worker that dies, hangs or cannot write costs only speed: `Job.failure` tells why.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, Any

import torch

from switchgear import disk_cache
from switchgear.machine import surroundings
from switchgear_background.modes import COMPILE_VARIABLE, mode_of
from switchgear_background.parcel import pack
from switchgear_core import torch_private as internals
from switchgear_core.ir.trace import Trace
from switchgear_core.regions.fuse import may_have_regions
from switchgear_core.registry.answers import Answers, from_json
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.hookspecs import OF_THE_CALL
from switchgear_core.registry.selection import Selection

LOG = logging.getLogger("switchgear.background")
#: Seconds after which an idle worker ends.
IDLE = 60.0
#: The limit on a worker's time for one program, in seconds.
PATIENCE = 1800.0
#: The number of attempts at a program if its worker dies.
ATTEMPTS = 2
#: The start of a worker, given `sys.path`: in PYTHONPATH no folder name can have a colon.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from switchgear_background.worker import main; main()"
)


class Job:
    """A program for a worker to compile; once the job is `done`, a rebuilt program finds the results."""

    def __init__(self, key: str, name: str, task: bytes) -> None:
        self.key = key
        self.name = name
        self.task = task
        self.is_done = False
        #: Why there are no results; empty if there are.
        self.failure = ""
        #: The warnings of the worker.
        self.warnings: list[str] = []
        self._is_told = False
        self.finished = threading.Event()
        self.start = time.monotonic()

    def told(self, function: str) -> list[str]:
        """Return the messages for the user of a function, once."""
        messages, self.warnings = self.warnings, []
        if self.failure and not self._is_told:
            self._is_told = True
            messages.append(
                f"the {self.name} of {function} runs operator by operator: {self.failure}; "
                "compile='now' compiles in this process"
            )
        return messages

    def finish(self, answers: Answers, failure: str = "") -> None:
        """Publish the results for later builds."""
        self.failure = failure
        answers.failure = failure and f"{self.name}: {failure}"
        _ANSWERS[self.key] = answers
        _JOBS.pop(self.key, None)
        self.task = b""
        self.is_done = True
        self.finished.set()
        seconds = time.monotonic() - self.start
        outcome = failure or f"{answers.fused} of {len(answers.by_computation)} kinds of regions are fused"
        LOG.log(
            logging.WARNING if failure else logging.INFO,
            "%s: %s, after %.1f s",
            self.name,
            outcome,
            seconds,
        )


_ANSWERS: dict[str, Answers] = {}
_JOBS: dict[str, Job] = {}


def settle(trace: Trace, selection: Selection, boxed: bool) -> tuple[Selection, Job | None]:
    """Return the selection for building a program now, and the job of a rebuild."""
    mode = mode_of(selection)
    if mode == "now" or not may_have_regions(trace, selection):
        return selection, None
    if objection(selection):
        return (selection if mode == "background" else selection.without_fusion()), None
    key = _key(trace, selection, boxed)
    answers = _ANSWERS.get(key) or from_json(disk_cache.load(key))
    if answers is not None:
        answers = replace(answers, in_use=[], missing=[], only_load=mode == "never")
        return replace(selection, answers=answers), None
    if mode == "never":
        nothing = Answers(default="not compiled: compile='never', and nothing is in the cache", only_load=True)
        return replace(selection, answers=nothing), None
    return selection.without_fusion(), _submitted(key, trace, selection, boxed)


def resettled(trace: Trace, selection: Selection, boxed: bool, answers: Answers) -> Job | None:
    """Resubmit a job if the compiled code that its answers refer to has vanished from disk."""
    key = _key(trace, selection, boxed)
    if not answers.missing or mode_of(selection) != "background" or key in _ANSWERS:
        return None
    return _submitted(key, trace, selection, boxed)


def objection(selection: Selection) -> str:
    """Return the objection to compilation in another process, or an empty text."""
    if selection.fuel.left is not None:
        return "fuel is counted in this process"
    for claimant in selection.claimants:
        if claimant.code is None or (claimant.name not in selection.team and not _travels(claimant.executor)):
            return f"executor {claimant.name} is an object that another process cannot make"
    if any(placement.owner == OF_THE_CALL for placement in selection.passes):
        return "the call has passes of its own"
    if disk_cache.entries() is None:
        return "there is no cache on disk to leave the results in"
    if not sys.executable:
        return "this Python does not say which program it is (sys.executable)"
    return ""


def _travels(executor: Executor) -> bool:
    try:
        pickle.dumps(executor)
    except Exception:
        return False
    return True


def _key(trace: Trace, selection: Selection, boxed: bool) -> str:
    """Return the key of all facts that determine a program's regions."""
    executors = [
        (
            (claimant.label, claimant.code),
            claimant.name in selection.fusion
            and (type(claimant.executor).__qualname__, selection.fusion[claimant.name].fingerprint()),
        )
        for claimant in selection.claimants
    ]
    choosers = [chooser.label for chooser in selection.choosers]
    single = selection.preferences.prefer, selection.preferences.avoid
    passes = [placement.name for placement in selection.passes]
    team = executors, choosers, single, passes, boxed
    return repr((trace.canonical(), team, surroundings(trace.devices)))


def _submitted(key: str, trace: Trace, selection: Selection, boxed: bool) -> Job:
    job = _JOBS.get(key)
    if job is None:
        task = {
            "key": key,
            "trace": pack(trace),
            "boxed": boxed,
            "team": pickle.dumps(selection.team),
            "fingerprints": {name: executor.fingerprint() for name, executor in selection.fusion.items()},
            "is_measured": bool(selection.choosers),
            "passes": [placement.name for placement in selection.passes],
            "preferences": selection.preferences,
            "threads": torch.get_num_threads(),
            "precision": internals.float32_precision(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "dtype": torch.get_default_dtype(),
            "variables": dict(os.environ),
        }
        job = _JOBS[key] = Job(key, trace.name, pickle.dumps(task))
        _POOL.submit(job)
    return job


class Pool:
    """A worker process and its thread in this process, both started on demand.

    Both end after `IDLE` seconds without jobs, and with this process.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job after earlier ones."""
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                atexit.unregister(self.close)
                atexit.register(self.close)
                self._thread = threading.Thread(target=self._serve, name="switchgear", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        self.end()
                        return
                continue
            try:
                self._run(job)
            except Exception as error:
                self.end()
                job.finish(Answers(default=_failed(str(error))), f"{type(error).__name__}: {error}")

    def _run(self, job: Job) -> None:
        fault = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                return
            process = self._started()
            late = threading.Timer(PATIENCE, kill, (process,))
            late.daemon = True
            late.start()
            try:
                reply = _ask(process, job.task)
            except (OSError, EOFError, ValueError):
                fault = self._fault(process, late.finished.is_set())
                self.end()
                continue
            finally:
                late.cancel()
            job.warnings = reply["warnings"]
            failure = reply["failure"]
            job.finish(from_json(reply["answers"]) or Answers(default=_failed(failure)), failure)
            return
        job.finish(Answers(default=_failed(fault)), fault)

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.end()
            paths: Sequence[object] = sys.path  # Python ignores entries other than strings
            places = [path or os.getcwd() for path in paths if isinstance(path, str)]
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(places)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, COMPILE_VARIABLE: "now"},
                # a group, no session: Linux may schedule by sessions, and niceness would have no effect
                process_group=0,
                bufsize=0,
            )
        return self.process

    def _fault(self, process: subprocess.Popen[bytes], late: bool) -> str:
        """Describe the fate of a worker that did not answer."""
        if late:
            return f"the worker took more than {PATIENCE:.0f} s, and was ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        status = process.returncode
        how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        detail = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            detail = f": {lines[-1]}" if lines else ""
        return f"the worker process ended {how}{detail}"

    def end(self) -> None:
        """End the worker and its child processes."""
        process, self.process = self.process, None
        if process is not None:
            kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            _close(process)
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def close(self) -> None:
        """End the worker, and start no other."""
        self._closed = True
        self.end()

    def forget(self) -> None:
        """Release the pool in a forked process: worker, thread and pipe ends belong to the parent."""
        atexit.unregister(self.close)
        if self.process is not None:
            _close(self.process)
            self.process.returncode = 0  # only the parent process can wait for the worker


def _failed(failure: str) -> str:
    return f"not compiled in the background: {failure}"


def _ask(process: subprocess.Popen[bytes], task: bytes) -> dict[str, Any]:
    """Return a worker's reply to a task."""
    assert process.stdin is not None
    assert process.stdout is not None
    send(process.stdin, task)
    reply: dict[str, object] = json.loads(receive(process.stdout))
    return reply


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message and its length."""
    rest = memoryview(len(message).to_bytes(8, "little") + message)
    while rest:
        rest = rest[pipe.write(rest) :]


def receive(pipe: IO[bytes]) -> bytes:
    """Read a message from `send`.

    Raises:
        EOFError: the pipe has ended.
    """
    return _read(pipe, int.from_bytes(_read(pipe, 8), "little"))


def _read(pipe: IO[bytes], count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = pipe.read(count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the process group of a worker: the worker and all its child processes."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


_POOL = Pool()


def pool() -> Pool:
    """Return the pool of this process."""
    return _POOL


def _after_fork() -> None:
    """Mark jobs of the parent's worker as done; each is submitted again when needed."""
    global _POOL
    lost: Sequence[Job] = [*_JOBS.values()]
    _JOBS.clear()
    _POOL.forget()
    _POOL = Pool()
    for job in lost:
        job.is_done = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

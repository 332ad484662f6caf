"""The worker process: compiles and measures the regions of programs from another process.

The worker reads tasks from its standard input and answers on its standard output (`background.send`). It runs at low
priority, and ends with its child processes when the sending process does: then the pipe ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import queue
import signal
import threading
import time
import warnings
from dataclasses import replace
from typing import Any

import torch

from switchgear import disk_cache
from switchgear_background.jobs import receive, send
from switchgear_background.parcel import unpack
from switchgear_core import torch_private as internals
from switchgear_core.errors import SwitchgearError
from switchgear_core.passes.pipeline import fused
from switchgear_core.record.attempts import compiles
from switchgear_core.record.sizes import symbolic
from switchgear_core.registry.answers import Answers, as_json
from switchgear_core.registry.options import in_force
from switchgear_core.registry.order import select
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.selection import Selection

#: The niceness added to the worker's.
NICENESS = 10


def main() -> None:
    """Answer tasks until the pipe ends."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # plugins must not print into the replies
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    torch.set_grad_enabled(False)
    while True:
        send(replies, json.dumps(reply(tasks.get())).encode())


def _read(tasks: queue.SimpleQueue[bytes]) -> None:
    """Receive tasks on a thread, so that the end of the pipe is noticed during a task."""
    pipe = io.FileIO(0, closefd=False)
    try:
        while True:
            tasks.put(receive(pipe))
    except (EOFError, OSError):
        _end()


def _watch(parent: int) -> None:
    """End with the parent process, even if a fork holds the pipe open."""
    while os.getppid() == parent:
        time.sleep(2)
    _end()


def _end() -> None:
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def reply(message: bytes) -> dict[str, Any]:
    """Return the answers about the regions of a program."""
    answers, failure = Answers(), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            failure = _compile(pickle.loads(message), answers)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    if torch.accelerator.is_available():
        with contextlib.suppress(RuntimeError):
            torch.accelerator.empty_cache()  # leaves the memory to the user's process
    messages = [str(warning.message) for warning in caught if warning.category.__module__ == SwitchgearError.__module__]
    return {"answers": None if failure else as_json(answers), "failure": failure, "warnings": messages}


def _compile(task: dict[str, Any], answers: Answers) -> str:
    """Compile and measure; return why that is impossible, empty if done."""
    os.environ.clear()
    os.environ.update(task["variables"])
    torch.set_num_threads(task["threads"])
    internals.set_float32_precision(task["precision"])
    if torch.are_deterministic_algorithms_enabled() != task["deterministic"]:
        torch.use_deterministic_algorithms(task["deterministic"])
    torch.set_default_dtype(task["dtype"])
    selection = _selection(task, answers)
    for name, fingerprint in task["fingerprints"].items():
        if name not in selection.fusion:
            return f"executor {name} is {dict(selection.skipped).get(name, 'missing')} in the worker"
        actual = selection.fusion[name].fingerprint()
        if actual != fingerprint:
            return f"executor {name} is {actual} in the worker, not {fingerprint}"
    trace, sizes = unpack(task["trace"])
    with torch.no_grad(), internals.autocast_off(), symbolic(sizes):
        compiles(fused)(trace, selection, task["boxed"])
    if answers.last:
        disk_cache.store(task["key"], as_json(answers))
    return ""


def _selection(task: dict[str, Any], answers: Answers) -> Selection:
    """Return the selection of the sending process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unavailable executors are reported elsewhere
        team = pickle.loads(task["team"])
        parts = installed_parts()
        settings = in_force(parts.options, {"compile": "now"}, {})
        selection = select(installed(team), team, settings, parts)
    return replace(
        selection,
        choosers=selection.choosers if task["is_measured"] else (),
        passes=tuple([placement for placement in selection.passes if placement.name in task["passes"]]),
        preferences=task["preferences"],
        record=answers,
    )

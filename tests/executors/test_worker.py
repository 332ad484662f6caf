"""The worker process ends with the process that it works for, whatever else holds its pipe open."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

#: Starts a worker, and ends once a fork of its own holds the worker's pipe.
PARENT = """
import os, subprocess, sys, time
code = "from switchgear_background.worker import main; main()"
worker = subprocess.Popen(
    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
)
own = os.getpriority(os.PRIO_PROCESS, 0)
while worker.poll() is None and os.getpriority(os.PRIO_PROCESS, worker.pid) == own:  # it has not begun
    time.sleep(0.05)
time.sleep(0.5)
fork = os.fork()
if not fork:
    time.sleep(60)
    os._exit(0)
print(worker.poll() is None, worker.pid, fork, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(
    not hasattr(os, "nice") or os.getpriority(os.PRIO_PROCESS, 0) > 18, reason="needs forks, and a lower priority"
)
def test_a_worker_ends_where_a_fork_holds_its_pipe() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        is_alive, *processes = told.readline().split()
    worker, fork = map(int, processes)
    try:
        assert is_alive == "True"
        assert parent.wait(10) == 0
        end = time.monotonic() + 30
        while time.monotonic() < end and _runs(worker):
            time.sleep(0.1)
        assert not _runs(worker)
    finally:
        for process in (worker, fork):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True

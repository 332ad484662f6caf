"""Compiling in the background: what runs when, and what becomes of it when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear import disk_cache
from switchgear.errors import PluginWarning
from switchgear_background import jobs as background
from switchgear_runtime.entry import Entry
from tests.executors.patient import Patient

ROOT = Path(__file__).parents[2]


def chain(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin(x * 2) @ w + torch.cos(torch.sin(w))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(background, "_ANSWERS", {})
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    background.pool().end()


@pytest.fixture
def new_worker() -> Iterator[None]:
    """For tests that end it, or change what it sees."""
    background.pool().end()
    yield
    background.pool().end()


def jit(folder: Path, function: Callable[..., Any] = chain, **options: Any) -> Callable[..., Any]:
    options = {"compile": "background", "dynamic": False, **options}
    jitted: Callable[..., Any] = sg.jit(function, executors=[Patient(str(folder)), "torch"], **options)
    return jitted


def regions(jitted: Any) -> int:
    lines = sg.last_traces(jitted)[-1].bound_symbols
    return sum(line.implementation is not None and line.implementation.owner == "patient" for line in lines)


def inputs(*, grad: bool = True) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 4), torch.randn(4, 4, requires_grad=grad)


def gradient(function: Callable[..., Any], x: Tensor, w: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(function(x, w).sum(), w)
    return found


def test_operators_run_first_and_regions_once_they_are_compiled(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs()
    (folder / "slow").touch()
    first = gradient(jitted, x, w)
    assert regions(jitted) == 0
    assert "forward: runs operator by operator while its regions are compiled" in str(sg.explain(jitted))
    assert torch.equal(gradient(jitted, x, w), first)
    (folder / "slow").unlink()
    said = sg.wait(jitted, timeout=120)
    assert "regions compiled in the background run as one" in said
    row = re.search(r"^patient +\d+ +\d+", str(sg.explain(jitted)), re.MULTILINE)
    assert row, "both programs that run next are shown, before they have run"
    assert torch.equal(gradient(jitted, x, w), first)
    assert regions(jitted) == 2
    assert "forward: runs 2 regions compiled in the background since call 3" in str(sg.explain(jitted))
    assert any("patient" in str(choice) for choice in sg.last_choices(jitted) if "cos" in choice.symbol)
    assert torch.equal(first, gradient(chain, x, w))


def test_a_call_exchanges_the_program_by_itself(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    expected = jitted(x, w)
    end = time.monotonic() + 120
    while regions(jitted) == 0 and time.monotonic() < end:
        time.sleep(0.1)
        assert torch.equal(jitted(x, w), expected)
    assert regions(jitted) == 2


def test_a_graph_made_before_the_exchange_keeps_its_backward(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs()
    before = jitted(x, w).sum()
    sg.wait(jitted, timeout=120)
    after = jitted(x, w).sum()
    assert regions(jitted) == 2
    for result in (before, after):
        assert torch.equal(torch.autograd.grad(result, w)[0], gradient(chain, x, w))


def test_another_process_finds_what_was_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    expected = jitted(x, w)
    sg.wait(jitted, timeout=120)
    background._ANSWERS.clear()  # as in another process
    monkeypatch.setattr(background, "_submitted", None)
    for mode in ("background", "never"):
        again = jit(folder, compile=mode)
        assert torch.equal(again(x, w), expected)
        assert regions(again) == 2


def test_never_compiles_nothing(folder: Path) -> None:
    jitted = jit(folder, compile="never")
    jitted(*inputs())
    assert regions(jitted) == 0
    assert "not compiled: compile='never', and nothing is in the cache" in str(sg.explain(jitted).operators())
    assert "0 regions compiled before (compile='never' compiles none) run as one" in sg.wait(jitted)


def test_an_executor_that_finds_nothing_again_holds_nobody_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "load", sg.FusionExecutor.load)
    (folder / "slow").touch()
    jitted, (x, w) = jit(folder), inputs(grad=False)
    expected = jitted(x, w)
    assert regions(jitted) == 0
    (folder / "slow").unlink()
    sg.wait(jitted, timeout=120)
    assert torch.equal(jitted(x, w), expected)
    assert regions(jitted) == 2
    assert {file.read_text().split()[0] for file in folder.glob("?" * 64)} == {str(os.getpid())}
    never = jit(folder, compile="never")
    assert torch.equal(never(x, w), expected)
    assert regions(never) == 0


def test_symbolic_sizes(folder: Path) -> None:
    jitted = jit(folder, dynamic=True)
    for size in (4, 5):
        x, w = torch.randn(size, size), torch.randn(size, size, requires_grad=True)
        assert torch.equal(gradient(jitted, x, w), gradient(chain, x, w))
    sg.wait(jitted, timeout=120)
    for size in (4, 6):
        x, w = torch.randn(size, size), torch.randn(size, size, requires_grad=True)
        assert torch.equal(gradient(jitted, x, w), gradient(chain, x, w))
    assert regions(jitted) == 2
    assert sg.cache_info(jitted).entries == 1


def test_threads_call_while_the_program_is_exchanged(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs()
    expected = gradient(jitted, x, w)
    wrong: list[object] = []
    stop = threading.Event()

    def call() -> None:
        try:
            while not stop.is_set():
                if not torch.equal(gradient(jitted, x, w), expected):
                    wrong.append("another result")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    sg.wait(jitted, timeout=120)
    time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert regions(jitted) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [("dies", "ended by signal 9"), ("full", "No space left on device"), ("gone", "its compiler is gone")],
)
def test_a_worker_that_fails_costs_speed_alone(folder: Path, fault: str, said: str) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    (folder / fault).touch()
    with pytest.warns(PluginWarning, match="runs operator by operator"):
        # a worker that is there already may have failed by the end of the first call
        expected, told = jitted(x, w), sg.wait(jitted, timeout=120)
    assert said in told
    assert torch.equal(jitted(x, w), expected)
    assert regions(jitted) == 0
    assert said in str(sg.explain(jitted).operators())


def test_a_worker_that_has_failed_before_the_first_call_ends_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    (folder / "gone").touch()
    finish = Entry._finish

    def finishing(entry: Entry) -> None:
        job = entry.forward.job
        if job is not None:
            assert isinstance(job, background.Job)
            job.finished.wait(120)
        finish(entry)

    monkeypatch.setattr(Entry, "_finish", finishing)
    with pytest.warns(PluginWarning, match="runs operator by operator"):
        jitted(x, w)
    assert "its compiler is gone" in sg.wait(jitted, timeout=120)


def test_a_worker_that_is_killed_once_is_started_again(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    (folder / "dies_once").touch()
    jitted(x, w)
    sg.wait(jitted, timeout=120)
    assert regions(jitted) == 2


@pytest.mark.usefixtures("new_worker")
def test_a_worker_that_hangs_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PATIENCE", 0.5)
    jitted, (x, w) = jit(folder), inputs(grad=False)
    (folder / "slow").touch()
    expected = jitted(x, w)
    with pytest.warns(PluginWarning, match="took more than"):
        sg.wait(jitted, timeout=120)
    assert torch.equal(jitted(x, w), expected)


def test_regions_beside_an_operator_that_the_worker_does_not_know(folder: Path) -> None:
    @torch.library.custom_op("test_background::triple", mutates_args=())
    def triple(x: Tensor) -> Tensor:
        return x * 3

    triple.register_fake(torch.empty_like)
    triple.register_autograd(lambda _, grad: grad * 3)

    def around(x: Tensor, w: Tensor) -> Tensor:
        tripled: Tensor = triple(torch.cos(x * w) * 2)
        return torch.sin(tripled * 2) + 1

    jitted, (x, w) = jit(folder, around), inputs()
    first = gradient(jitted, x, w)
    assert "AttributeError" not in sg.wait(jitted, timeout=120)
    assert torch.equal(gradient(jitted, x, w), first)
    assert regions(jitted) == 2
    assert torch.equal(first, gradient(around, x, w))


def test_the_worker_has_the_default_dtype(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        jitted, (x, w) = jit(folder), inputs(grad=False)
        jitted(x, w)
        sg.wait(jitted, timeout=120)
    finally:
        torch.set_default_dtype(torch.float32)
    compiled = [file.read_text() for file in folder.iterdir() if file.is_file()]
    assert compiled
    assert all(text.endswith("torch.float64") for text in compiled)


def test_a_corrupt_cache_is_compiled_anew(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    expected = jitted(x, w)
    sg.wait(jitted, timeout=120)
    for file in disk_cache.everything():
        file.write_text('{"key": 1')
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    background._ANSWERS.clear()
    again = jit(folder)
    assert torch.equal(again(x, w), expected)
    sg.wait(again, timeout=120)
    assert regions(again) == 2


@pytest.mark.usefixtures("new_worker")
def test_python_s_path_may_hold_what_python_ignores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # once: with a pathlib.Path in sys.path, nothing was compiled
    monkeypatch.setattr(sys, "path", [*sys.path, folder, str(folder / "12:30")])
    jitted, (x, w) = jit(folder), inputs(grad=False)
    expected = jitted(x, w)
    sg.wait(jitted, timeout=120)
    assert torch.equal(jitted(x, w), expected)
    assert regions(jitted) == 2


def test_what_is_gone_from_the_disk_is_compiled_anew(folder: Path) -> None:
    jitted, (x, w) = jit(folder), inputs(grad=False)
    jitted(x, w)
    sg.wait(jitted, timeout=120)
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    background._ANSWERS.clear()
    again = jit(folder)
    again(x, w)
    assert regions(again) == 0
    sg.wait(again, timeout=120)
    assert regions(again) == 2


def test_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match="compile='later' is not one of 'background', 'now', 'never', None"):
        sg.jit(chain, compile="later")  # type: ignore[call-overload]


SCRIPT = """
import os, sys, time, torch
import switchgear as sg
from switchgear_background import jobs as background
from tests.executors.patient import Patient
assert background.pool().process is None  # nothing is started by importing
def chain(x):
    return torch.sin(x * 2) + torch.cos(x)
jitted = sg.jit(chain, executors=[Patient({folder!r}), "torch"], compile="background")
x = torch.randn(4)
expected = chain(x)
assert torch.equal(jitted(x), expected)
"""
STARTED = """
while background.pool().process is None:
    time.sleep(0.05)
print(background.pool().process.pid, flush=True)
"""


def script(folder: Path, *more: str) -> subprocess.Popen[str]:
    code = SCRIPT.format(folder=str(folder)) + "".join(map(textwrap.dedent, more))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SWITCHGEAR_CACHE_DIR": str(folder / "cache")}
    call = [sys.executable, "-W", "error", "-c", code]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, cwd=folder)


def is_gone(process: int) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_a_process_that_ends_leaves_no_worker(folder: Path, how: str) -> None:
    (folder / "slow").touch()
    parent = script(folder, STARTED, "time.sleep(100)" if how == "is killed" else "")
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    if how == "is killed":
        parent.send_signal(signal.SIGKILL)
    _, errors = parent.communicate(timeout=60)
    assert not errors
    assert is_gone(worker)


def test_a_forked_process_compiles_by_itself(folder: Path) -> None:
    (folder / "slow").touch()
    parent = script(
        folder,
        STARTED,
        """
        child = os.fork()
        if child == 0:
            os.unlink(os.path.join({folder!r}, "slow"))
            assert torch.equal(jitted(x), expected)
            said = sg.wait(jitted, timeout=100)
            assert torch.equal(jitted(x), expected)
            assert "1 regions compiled in the background run as one" in said, said
            background.pool().end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        sg.wait(jitted, timeout=100)
        """.replace("{folder!r}", repr(str(folder))),
    )
    _, errors = parent.communicate(timeout=200)
    assert parent.returncode == 0, errors


def test_two_processes_share_a_cache(folder: Path) -> None:
    both = [
        script(folder, "print(sg.wait(jitted, timeout=100)); assert torch.equal(jitted(x), expected)") for _ in "ab"
    ]
    for process in both:
        said, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert "1 regions compiled in the background run as one" in said

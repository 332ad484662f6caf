"""Around Inductor: a compiler, folders, a home. What is missing makes the executor unavailable, with a reason."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from switchgear import disk_cache
from switchgear_core.errors import warn_once
from switchgear_inductor import InductorExecutor, environment

#: Spaces, quotes of both kinds, letters outside of ASCII.
ODD = "a b/ü'c\"d"

unix = pytest.mark.skipif(sys.platform == "win32", reason="its compilers are no shell scripts")
compiles = pytest.mark.skipif(
    InductorExecutor().unavailable() is not None, reason="Inductor is unavailable here, with which this compares"
)


@pytest.fixture(autouse=True)
def asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of the surroundings, and the folder for compiled code is empty."""
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    environment._fault.cache_clear()
    warn_once.cache_clear()
    yield
    environment._fault.cache_clear()
    warn_once.cache_clear()


def compiler(place: Path, script: str) -> str:
    """A C++ compiler that does what a shell script says."""
    file = place / "compiler"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = "no C++ compiler: no-such-compiler is not on the path; install one, or name it in the variable CXX"
    assert InductorExecutor().unavailable() == reason


@unix
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Python.h:1: fatal error: no such file' >&2; exit 1", "fatal error: no such file"),
        ("exit 3", "it ended with status 3"),
        ('while [ "$1" != -o ]; do shift; done; echo text > "$2"', "its libraries cannot be loaded"),
        ("exit 0", "its libraries cannot be loaded"),
        ("sleep 60", "timed out"),
    ],
    ids=["an error", "silent", "no library", "nothing", "hangs"],
)
def test_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    if script.startswith("sleep"):
        monkeypatch.setattr(environment, "_PATIENCE", 0.5)
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    unavailable = InductorExecutor().unavailable()
    assert unavailable is not None
    assert unavailable.startswith(f"the C++ compiler {tmp_path}/compiler fails: ")
    assert reason in unavailable


@unix
def test_compiler_that_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "compiler"
    file.write_bytes(b"\0")
    file.chmod(0o755)
    monkeypatch.setenv("CXX", str(file))
    assert "Exec format error" in (InductorExecutor().unavailable() or "")


@unix
@compiles
def test_compiler_that_works_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", compiler(tmp_path, f"echo called >> '{log}'; exec g++ \"$@\""))
    for _ in range(2):
        assert InductorExecutor().unavailable() is None
        environment._fault.cache_clear()  # as in another process
    assert log.read_text() == "called\n"
    compiler(tmp_path, "exit 3")  # it changes
    assert "status 3" in (InductorExecutor().unavailable() or "")


@pytest.mark.filterwarnings("ignore:nothing is kept on disk")
def test_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gettempdir() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    (tmp_path / "file").touch()
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    disk_cache._workplace.cache_clear()  # a test before this one may have made a folder without a cache
    reason = InductorExecutor().unavailable() or ""
    assert reason.startswith("no folder for compiled code can be written to (No usable temporary directory found)")
    assert reason.endswith("name one in the variable SWITCHGEAR_CACHE_DIR or TMPDIR")


#: Compiles a region of its own with Inductor, forward and backward, without a warning.
PROGRAM = """
import sys, warnings, torch, switchgear as sg
warnings.filterwarnings("error", "executor inductor", sg.errors.PluginWarning)
f = sg.jit(lambda a: (a.sin() * {number} + 1).exp() @ a, executors=["inductor", "torch"])
x = torch.randn(40, 40, requires_grad=True)
f(x).sum().backward()
assert "inductor" in {{choice.owner for choice in sg.last_choices(f)}}, sg.explain(f)
"""

#: As a user meets it where Inductor cannot be used: values are eager's, and there is one warning.
FALLS_BACK = """
import warnings, torch, switchgear as sg
def f(a):
    for _ in range(64):
        a = a * 1.01
    return a
x = torch.randn(8, 8)
with warnings.catch_warnings(record=True) as caught:
    warnings.filterwarnings("always", "executor inductor", sg.errors.PluginWarning)
    warnings.filterwarnings("ignore", "plugin", sg.errors.PluginWarning)
    for _ in range(2):
        jitted = sg.jit(f)
        assert torch.equal(jitted(x), f(x))
        assert "skipped: inductor: unavailable: " in str(sg.explain(jitted).operators())
print([str(one.message) for one in caught if one.category is sg.errors.PluginWarning])
"""


#: A process forked from one that has compiled, which compiles something else.
FORKS = """
import faulthandler, os, torch, switchgear as sg
f = sg.jit(lambda x: (torch.sin(x) * {number}).exp(), executors=["inductor", "torch"], dynamic=False)
f(torch.ones(8, 8))
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    f(torch.ones(3, 5))
    os._exit("inductor" not in {{choice.owner for choice in sg.last_choices(f)}})
assert os.waitpid(child, 0)[1] == 0
"""


def run(program: str, variables: Mapping[str, str | None], preexec: Callable[[], None] | None = None) -> str:
    """What a program prints in a process of its own, with these variables; None removes one."""
    changed = {**os.environ, **variables}
    environ = {name: value for name, value in changed.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, preexec_fn=preexec
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@compiles
def test_default_call_runs_without_it_and_says_so_once() -> None:
    (warned,) = eval(run(FALLS_BACK, {"CXX": "no-such-compiler"}))
    assert warned.startswith(
        "executor inductor cannot run here, regions are left to others: no C++ compiler: no-such-compiler"
    )


@unix
@compiles
def test_a_full_disk() -> None:
    def none_may_be_written() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    (warned,) = eval(run(FALLS_BACK, {}, none_may_be_written))
    assert "no folder for compiled code can be written to" in warned


@unix
@compiles
@pytest.mark.parametrize("home", [None, "/dev/null/home", "/proc"], ids=["none", "none to be made", "read-only"])
def test_home(home: str | None) -> None:
    variables: dict[str, str | None] = {"HOME": home, "XDG_CACHE_HOME": None, "SWITCHGEAR_CACHE_DIR": None}
    run(PROGRAM.format(number=len(home or "") + 2), variables)


@unix
@compiles
def test_folders_with_odd_names(tmp_path: Path) -> None:
    """Those of PyTorch, of temporary files and of compiled code."""
    folder = tmp_path / ODD
    folder.mkdir(parents=True)
    (folder / "torch").symlink_to(Path(torch.__file__).parent)
    surroundings: dict[str, str | None] = {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(folder),
        "SWITCHGEAR_CACHE_DIR": str(folder / "cache"),
    }
    place = run("import torch; print(torch.__file__)", surroundings)
    assert place.strip() == str(folder / "torch" / "__init__.py")
    run(PROGRAM.format(number=5), surroundings)
    assert [*(folder / "cache" / "entries").glob("*.file")]
    assert not [*folder.glob("torchinductor_*/**/*.main.so")]


@unix
@compiles
def test_a_forked_process_compiles() -> None:
    run(FORKS.format(number=random.random()), {"TORCHINDUCTOR_COMPILE_THREADS": "2"})

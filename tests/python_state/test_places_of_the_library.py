"""State that lies in objects of the standard library and of modules that are not called."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import ctypes
import functools
import hashlib
import importlib
import logging
import mmap
import multiprocessing
import os
import queue
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.falling_back import fallback_told, falls_back

X = torch.ones(2)
VARIABLE = contextvars.ContextVar("VARIABLE", default=1.0)
LOGGER = logging.getLogger("tests.python_state.debugged")


class OfThread(threading.local):
    """Each thread has its own scale."""

    scale = 1.0


class Leveled(type):
    """A class of classes."""

    level = 1.0


class OfLevel(metaclass=Leveled):
    """Has the level of its class's class."""


class Point(ctypes.Structure):
    """Its numbers lie in memory of C."""

    _fields_: ClassVar[list[tuple[str, type]]] = [("x", ctypes.c_int)]


class Counting(nn.Module):
    """Counts its calls, one thread at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.calls = threading.Lock(), 0

    def forward(self, x: Tensor) -> Tensor:
        """Twice of it."""
        with self.lock:
            self.calls += 1
        return x * 2


class Registered(type):
    """Lists the classes it makes."""

    made: ClassVar[list[str]] = []

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> type:
        """Make and list one."""
        cls.made.append(name)
        return super().__new__(cls, name, bases, attrs)


class OfRegistry(metaclass=Registered):
    """Has a level of its own."""

    level = 1.0


class Key:
    """Can be referred to weakly."""


Case = tuple[Callable[[Tensor], Any], Callable[[], object]]


def cases() -> dict[str, Case]:
    options, key, held = argparse.Namespace(rate=1.0), Key(), {"rate": 1.0}
    words = ConfigParser()
    words["a"] = {"b": "1"}
    by_key = weakref.WeakKeyDictionary({key: 1.0})
    view = types.MappingProxyType(held)
    chain: Any = collections.ChainMap({}, {"rate": 1.0})
    net = nn.Sequential(nn.Linear(2, 2))
    return {
        "a namespace": (lambda x: x * options.rate, lambda: setattr(options, "rate", 2.0)),
        "a variable of the context": (lambda x: x * VARIABLE.get(), lambda: VARIABLE.set(2.0)),
        "a weak dictionary": (lambda x: x * by_key[key], lambda: by_key.update({key: 2.0})),
        "a view of a dictionary": (lambda x: x * view["rate"], lambda: held.update(rate=2.0)),
        "a chain of dictionaries": (lambda x: x * chain["rate"], lambda: chain.update(rate=2.0)),
        "a configuration": (lambda x: x * int(words["a"]["b"]), lambda: words["a"].update(b="2")),
        "the parts of a module": (lambda x: x * len([*net.modules()]), lambda: net.append(nn.ReLU())),
        "a part of a module": (
            lambda x: x * isinstance(net[0], nn.Linear),
            lambda: net.__setitem__(0, nn.Identity()),
        ),
        "the parameters of a module": (
            lambda x: x + functools.reduce(torch.add, (one.sum() for one in net.parameters()), torch.zeros(())),
            lambda: net.append(nn.Linear(2, 2)),
        ),
        "the state of a module": (lambda x: x * len(net.state_dict()), lambda: net.append(nn.Linear(2, 2))),
    }


@pytest.mark.parametrize("name", [*cases()])
def test_what_is_changed_is_seen(name: str) -> None:
    function, change = cases()[name]
    jitted = sg.jit(function, executors=["torch"])
    for changes in (lambda: None, lambda: None, change, lambda: None):
        changes()
        assert torch.equal(jitted(X), function(X))
    info = sg.cache_info(jitted)
    assert (info.fallbacks, info.hits, len(info.reasons)) == (0, 2, 2), info.reasons


def test_a_variable_of_the_context_that_is_set_inside() -> None:
    def sets(x: Tensor) -> Tensor:
        VARIABLE.set(VARIABLE.get() + 1)
        return x * VARIABLE.get()

    jitted = sg.jit(sets, executors=["torch"])

    def both() -> tuple[Tensor, Tensor]:
        with fallback_told("uses .*VARIABLE"):
            return jitted(X), jitted(X)

    one, two = contextvars.copy_context().run(both)
    assert torch.equal(two, one + 1)


def test_what_is_not_come_by_does_not_matter() -> None:
    variable = contextvars.ContextVar("variable", default=1.0)

    def other(x: Tensor) -> Any:
        return x * variable.get()

    jitted = sg.jit(lambda x, flag=False: other(x) if flag else x, executors=["torch"])
    jitted(X)
    variable.set(2.0)
    jitted(X)
    assert sg.cache_info(jitted).hits == 1
    assert torch.equal(jitted(X, flag=True), X * 2)


@pytest.mark.parametrize(("kind", "holder"), [(OfLevel, Leveled), (OfRegistry, OfRegistry)])
def test_a_class_of_a_metaclass_falls_back(kind: Any, holder: type, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(lambda x: x * kind.level, executors=["torch"])
    with falls_back("a metaclass, .*read the values outside"):
        assert torch.equal(jitted(X), X)
    monkeypatch.setattr(holder, "level", 2.0)
    assert torch.equal(jitted(X), X * 2)


@pytest.mark.parametrize("kind", [threading.local, OfThread])
def test_what_a_thread_has_falls_back(kind: Any) -> None:
    local = kind()
    local.scale = 1.0
    jitted = sg.jit(lambda x: x * local.scale, executors=["torch"])
    with falls_back("reaches local, a .*use it outside of the function"):
        for local.scale in (1.0, 2.0):
            assert torch.equal(jitted(X), X * local.scale)


def test_a_logger_is_given_another_level(caplog: pytest.LogCaptureFixture) -> None:
    def logs(x: Tensor) -> Tensor:
        LOGGER.debug("called")
        return x * 2

    jitted = sg.jit(logs, executors=["torch"])
    with caplog.at_level(logging.INFO, LOGGER.name):
        jitted(X)
        jitted(X)
    assert sg.cache_info(jitted).hits == 1
    with caplog.at_level(logging.DEBUG, LOGGER.name), fallback_told("logs"):
        jitted(X)
    assert [record.message for record in caplog.records if record.name == LOGGER.name] == ["called"]


def test_the_text_of_a_tensor() -> None:
    jitted = sg.jit(lambda x: x * len(f"{x}"), executors=["torch"])
    with fallback_told("__format__"):
        assert torch.equal(jitted(X), X * len(f"{X}"))


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of the older interface
def test_precisions_of_backends_beside_the_old_one() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with pytest.raises(RuntimeError, match="precision"):
            torch.get_float32_matmul_precision()
        assert torch.equal(sg.jit(lambda x: x * 2 + 1)(X), X * 3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before[1]
        torch.set_float32_matmul_precision(before[0])


def test_what_changes_in_ways_that_no_guard_sees() -> None:
    stop, numbers, jobs = threading.Event(), array.array("d", [1.0]), queue.Queue[int]()
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "an Event": lambda x: x * (2 if stop.is_set() else 1),
        "an array": lambda x: x * numbers[0],
        "a Queue": lambda x: x * (1 + jobs.qsize()),
    }
    jitted = {kind: sg.jit(function, executors=["torch"]) for kind, function in functions.items()}
    for kind, one in jitted.items():
        with fallback_told(kind.rpartition(" ")[2]):
            assert torch.equal(one(X), X)
    stop.set()
    jobs.put(7)
    numbers[0] = 2.0
    for one in jitted.values():
        assert torch.equal(one(X), X * 2)


def _uses() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """What uses an object that lies in C or is shared with other threads, and what shows how often it was used."""
    jobs, base, (here, there) = queue.SimpleQueue[int](), sqlite3.connect(":memory:"), multiprocessing.Pipe()
    base.execute("create table calls (number)")
    shared, plain, point = multiprocessing.Value("i", 0), ctypes.c_int(0), Point()
    checksum, pages, count = hashlib.sha256(), mmap.mmap(-1, 8), threading.Semaphore(9)
    put, lock = queue.SimpleQueue[int](), threading.Lock()
    put_one = put.put

    def map_page() -> None:
        pages[0] += 1

    def add(to: Any, name: str) -> None:
        setattr(to, name, getattr(to, name) + 1)

    def received() -> int:
        return sum(1 for _ in iter(there.poll, False) if there.recv())

    return {
        "jobs, a SimpleQueue": (lambda: jobs.put(1), jobs.qsize),
        "put_one, a SimpleQueue": (lambda: put_one(1), put.qsize),
        "base, a Connection": (
            lambda: base.execute("insert into calls values (1)"),
            lambda: base.execute("select count(*) from calls").fetchone(),
        ),
        "here, a Connection": (lambda: here.send(1), received),
        "shared, a Synchronized": (lambda: add(shared, "value"), lambda: shared.value),
        "plain, a c_int": (lambda: add(plain, "value"), lambda: plain.value),
        "point, a Point": (lambda: add(point, "x"), lambda: point.x),
        "checksum, a HASH": (lambda: checksum.update(b"x"), checksum.hexdigest),
        "pages, a mmap": (map_page, lambda: pages[0]),
        "use, a Semaphore": (count.acquire, lambda: count._value),
        "lock, a lock": (lambda: lock.acquire(blocking=False), lambda: lock.locked()),
    }


@pytest.mark.parametrize("what", _uses())
def test_objects_that_lie_in_c(what: str) -> None:
    def run(jit: Callable[..., Any]) -> list[object]:
        use, observe = _uses()[what]

        def function(x: Tensor) -> Tensor:
            use()
            return x + 1

        called = jit(function)
        return [(called(X).tolist(), observe()) for _ in range(3)]

    with falls_back(f"reaches .*{what}, which the first call alone would (use|take); .* outside"):
        found = run(functools.partial(sg.jit, executors=["torch"]))
    assert found == run(lambda function: function)


def test_threads_do_not_lose_counts_under_a_lock() -> None:
    model = Counting()
    jitted = sg.jit(model, executors=["torch"])
    with falls_back(r"reaches Counting\.lock, a lock, .*; take it outside"), torch.no_grad():
        jitted(X)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(jitted, [X] * 40))
    assert model.calls == 41


def test_a_lock_of_an_installed_package_is_its_own_affair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    text = "import threading\nLOCK = threading.Lock()\n\ndef scale(x):\n    with LOCK:\n        return x * 2\n"
    (folder / "locking_package.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    scale = importlib.import_module("locking_package").scale
    jitted = sg.jit(lambda x: scale(x), executors=["torch"])
    assert torch.equal(jitted(X), X * 2)
    jitted(X)
    assert sg.cache_info(jitted).hits == 1


def test_a_file_that_comes_to_be(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    by_path, by_os = (
        sg.jit(function, executors=["torch"])
        for function in (lambda x: x * (1 + flag.exists()), lambda x: x * (1 + os.path.exists(flag)))
    )
    for one in (by_path, by_os):
        with fallback_told("asks the file system"):
            assert torch.equal(one(X), X)
    flag.touch()
    assert torch.equal(by_path(X), X * 2)
    assert torch.equal(by_os(X), X * 2)


def _send(socket_number: int) -> None:
    with socket.fromfd(socket_number, socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.sendall(b"x")


#: What reaches the world outside, of a file and the number of a socket.
OUTSIDE: dict[str, tuple[Callable[[Path, int], object], str]] = {
    "stdout": (lambda file, number: sys.stdout.write("out"), "uses a file or a stream"),
    "stderr": (lambda file, number: sys.stderr.write("err"), "uses a file or a stream"),
    "bytes": (lambda file, number: sys.stdout.buffer.write(b"out"), "uses a file or a stream"),
    "descriptor": (lambda file, number: os.write(number, b"x"), "writes to a file"),
    "socket": (lambda file, number: _send(number), "uses a socket"),
    "process": (lambda file, number: subprocess.run(["true"], check=True), "starts or ends a process"),
    "removed": (lambda file, number: os.remove(file), "writes to a file"),
    "tree": (lambda file, number: shutil.rmtree(file.parent / "none", ignore_errors=True), "the file system"),
    "saved": (lambda file, number: torch.save({"a": 1}, file), "saves a file"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_goes_outside(name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    do, message = OUTSIDE[name]
    pair, file = socket.socketpair(), tmp_path / "file"
    pair[1].setblocking(False)
    done, number = [], pair[0].fileno()

    def function(x: Tensor) -> Tensor:
        do(file, number)
        return x + 1

    with falls_back(message):
        jitted = sg.jit(function, executors=["torch"])
        for _ in range(3):
            file.write_text("")
            assert torch.equal(jitted(X), X + 1)
            done.append((file.exists(), file.exists() and file.stat().st_size > 0))
    sys.stdout.flush()
    written = capfdbinary.readouterr()
    if name in ("stdout", "bytes"):
        assert written.out == b"out" * 3
    if name == "stderr":
        assert b"errerrerr" in written.err
    if name in ("descriptor", "socket"):
        assert pair[1].recv(9) == b"xxx"
    if name in ("removed", "saved"):
        assert done == [(name == "saved", name == "saved")] * 3
    for end in pair:
        end.close()

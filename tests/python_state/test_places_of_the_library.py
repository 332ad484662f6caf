"""State that lies in objects of the standard library and of modules that are not called."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import functools
import logging
import os
import queue
import threading
import types
import weakref
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg

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


class Key:
    """Can be referred to weakly."""


Case = tuple[Callable[[Tensor], Any], Callable[[], object]]


def cases() -> dict[str, Case]:
    options, key, held = argparse.Namespace(rate=1.0), Key(), {"rate": 1.0}
    local, of_thread, words = threading.local(), OfThread(), ConfigParser()
    local.scale = 1.0
    words["a"] = {"b": "1"}
    by_key = weakref.WeakKeyDictionary({key: 1.0})
    view = types.MappingProxyType(held)
    chain: Any = collections.ChainMap({}, {"rate": 1.0})
    net = nn.Sequential(nn.Linear(2, 2))
    return {
        "a namespace": (lambda x: x * options.rate, lambda: setattr(options, "rate", 2.0)),
        "a variable of the context": (lambda x: x * VARIABLE.get(), lambda: VARIABLE.set(2.0)),
        "what a thread has": (lambda x: x * local.scale, lambda: setattr(local, "scale", 2.0)),
        "what a thread has, of a class": (lambda x: x * of_thread.scale, lambda: setattr(of_thread, "scale", 2.0)),
        "a weak dictionary": (lambda x: x * by_key[key], lambda: by_key.update({key: 2.0})),
        "a view of a dictionary": (lambda x: x * view["rate"], lambda: held.update(rate=2.0)),
        "a chain of dictionaries": (lambda x: x * chain["rate"], lambda: chain.update(rate=2.0)),
        "a configuration": (lambda x: x * int(words["a"]["b"]), lambda: words["a"].update(b="2")),
        "a class's class": (lambda x: x * OfLevel.level, lambda: setattr(Leveled, "level", 2.0)),
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
        with pytest.warns(sg.errors.FallbackWarning, match="uses .*VARIABLE"):
            return jitted(X), jitted(X)

    one, two = contextvars.copy_context().run(both)
    assert torch.equal(two, one + 1)


def test_what_is_not_come_by_does_not_matter() -> None:
    variable, local = contextvars.ContextVar("variable", default=1.0), threading.local()
    local.scale = 1.0

    def other(x: Tensor) -> Any:
        return x * variable.get() * local.scale

    jitted = sg.jit(lambda x, flag=False: other(x) if flag else x, executors=["torch"])
    jitted(X)
    variable.set(2.0)
    local.scale = 2.0
    jitted(X)
    assert sg.cache_info(jitted).hits == 1
    assert torch.equal(jitted(X, flag=True), X * 4)


def test_a_logger_is_given_another_level(caplog: pytest.LogCaptureFixture) -> None:
    def logs(x: Tensor) -> Tensor:
        LOGGER.debug("called")
        return x * 2

    jitted = sg.jit(logs, executors=["torch"])
    with caplog.at_level(logging.INFO, LOGGER.name):
        jitted(X)
        jitted(X)
    assert sg.cache_info(jitted).hits == 1
    with caplog.at_level(logging.DEBUG, LOGGER.name), pytest.warns(sg.errors.FallbackWarning, match="logs"):
        jitted(X)
    assert [record.message for record in caplog.records if record.name == LOGGER.name] == ["called"]


def test_the_text_of_a_tensor() -> None:
    jitted = sg.jit(lambda x: x * len(f"{x}"), executors=["torch"])
    with pytest.warns(sg.errors.FallbackWarning, match="__format__"):
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
        with pytest.warns(sg.errors.FallbackWarning, match=kind.rpartition(" ")[2]):
            assert torch.equal(one(X), X)
    stop.set()
    jobs.put(7)
    numbers[0] = 2.0
    for one in jitted.values():
        assert torch.equal(one(X), X * 2)


def test_a_file_that_comes_to_be(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    by_path, by_os = (
        sg.jit(function, executors=["torch"])
        for function in (lambda x: x * (1 + flag.exists()), lambda x: x * (1 + os.path.exists(flag)))
    )
    for one in (by_path, by_os):
        with pytest.warns(sg.errors.FallbackWarning, match="asks the file system"):
            assert torch.equal(one(X), X)
    flag.touch()
    assert torch.equal(by_path(X), X * 2)
    assert torch.equal(by_os(X), X * 2)

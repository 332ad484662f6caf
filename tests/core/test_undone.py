"""A capture that is given up leaves the random streams where they were."""

from __future__ import annotations

import random
import threading

import numpy
import pytest
import torch

from switchgear.capture.attempts import undone_on
from tests.oracle import assert_same, seed, streams


def draw_and_fail(error: type[Exception]) -> None:
    def draw() -> None:
        torch.rand(1), random.random(), numpy.random.rand()
        raise error("given up")

    with pytest.raises(error, match="given up"), undone_on((ValueError,)):
        draw()


def test_draws_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    seed(1)
    before = streams()
    draw_and_fail(ValueError)
    assert_same(streams(), before)


def test_draws_are_kept_after_another_error() -> None:
    seed(1)
    before = streams()
    draw_and_fail(TypeError)
    with pytest.raises(AssertionError, match="torch"):
        assert_same(streams(), before)


def test_what_another_thread_seeds_is_kept() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()

    def seed_and_fail() -> None:
        torch.manual_seed(5)
        raise ValueError("given up")

    with pytest.raises(ValueError, match="given up"), undone_on((ValueError,)):
        seed_and_fail()
    done.set()
    thread.join()
    expected = torch.Generator().manual_seed(5).get_state()
    assert_same(torch.get_rng_state(), expected)

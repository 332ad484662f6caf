"""A capture that is given up leaves the random streams where they were."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from switchgear_core.record.attempts import draws_undone
from tests.oracle import assert_same, seed, streams


def draw() -> None:
    torch.rand(1), random.random(), numpy.random.rand()


def draw_and_fail() -> None:
    draw()
    raise ValueError("given up")


def test_draws_are_undone_after_an_error() -> None:
    seed(1)
    before = streams()
    with pytest.raises(ValueError, match="given up"), draws_undone():
        draw_and_fail()
    assert_same(streams(), before)


def test_draws_are_kept_without_one() -> None:
    seed(1)
    before = streams()
    with draws_undone():
        draw()
    with pytest.raises(AssertionError, match="torch"):
        assert_same(streams(), before)

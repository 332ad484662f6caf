"""Attempts to compile: whatever ends one, modes, random streams and filters of warnings are as they were."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from switchgear.errors import Unsupported
from switchgear_core.record.attempts import draws_undone, leaves_nothing, modes_kept
from tests.in_turn import in_turn

MODES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "grad mode": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "the default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "the default device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "the float32 matmul precision": (
        torch.get_float32_matmul_precision,
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
    "the attention backends": (
        torch.backends.cuda.math_sdp_enabled,
        lambda: torch.backends.cuda.enable_math_sdp(False),
    ),
    "deterministic mode": (
        torch.get_deterministic_debug_mode,
        lambda: torch.set_deterministic_debug_mode("warn"),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
}
STREAMS: dict[str, tuple[Callable[[], Any], Callable[[], object]]] = {
    "Python's": (random.getstate, random.random),
    "NumPy's": (lambda: str(np.random.get_state()), lambda: np.random.rand()),
    "PyTorch's": (lambda: torch.get_rng_state().tolist(), lambda: torch.rand(1)),
}
ENDS: list[Any] = [ValueError, KeyboardInterrupt]


def failing(change: Callable[[], object]) -> None:
    change()
    raise ValueError("its own")


@pytest.fixture(params=ENDS)
def ended(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run something in an attempt that ends by an exception."""

    @leaves_nothing
    def attempt(change: Callable[[], object]) -> None:
        change()
        raise request.param

    def run(change: Callable[[], object]) -> None:
        with pytest.raises(request.param):
            attempt(change)

    return run  # type: ignore[return-value]


@in_turn(name=[*MODES, *STREAMS])
def test_an_attempt_that_ends_early_leaves_nothing(name: str, ended: Callable[[Callable[[], object]], None]) -> None:
    ask, change = {**MODES, **STREAMS}[name]
    before = ask()
    ended(change)
    assert ask() == before


def test_filters_of_warnings_stay(ended: Callable[[Callable[[], object]], None]) -> None:
    filters, before = warnings.filters, [*warnings.filters]
    ended(lambda: warnings.simplefilter("error"))
    ended(warnings.resetwarnings)
    assert warnings.filters is filters
    assert warnings.filters == before


def test_what_a_whole_attempt_sets_stays() -> None:
    state = random.getstate()
    leaves_nothing(random.random)()
    assert random.getstate() != state


@in_turn(name=MODES)
def test_a_mode_that_a_function_leaves_changed_is_put_back_and_named(name: str) -> None:
    ask, change = MODES[name]
    before = ask()
    with pytest.raises(Unsupported, match=f"the function leaves {name} changed"), modes_kept():
        change()
    assert ask() == before
    with pytest.raises(ValueError, match="its own"), modes_kept():
        failing(change)
    assert ask() == before
    with modes_kept():
        pass


@in_turn(name=STREAMS)
def test_draws_are_undone_after_an_error_alone(name: str) -> None:
    ask, draw = STREAMS[name]
    before = ask()
    with pytest.raises(ValueError, match="its own"), draws_undone():
        failing(draw)
    assert ask() == before
    with draws_undone():
        draw()
    assert ask() != before

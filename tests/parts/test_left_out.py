"""Each shipped part left out in turn, and all of them: slower, never wrong."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import switchgear as sg
from conftest import shipped
from switchgear_core.registry import parts
from switchgear_core.registry.hookspecs import PARTS
from tests.parts.ordinary import CASES, compare

SHIPPED = [entry.name for entry in shipped(group=PARTS) if entry.dist and entry.dist.name == "switchgear"]
LEFT_OUT = {**{f"without {name}": {name} for name in SHIPPED}, "the core alone": {*SHIPPED}}


def without(names: set[str], *, group: str) -> list[EntryPoint]:
    return [entry for entry in shipped(group=group) if group != PARTS or entry.name not in names]


@pytest.fixture(params=LEFT_OUT)
def left_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    names = LEFT_OUT[request.param]
    monkeypatch.setattr(parts, "entry_points", lambda *, group: without(names, group=group))
    parts._loaded_once.cache_clear()
    yield names
    parts._loaded_once.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_models_are_as_in_eager(left_out: set[str], name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sg.errors.FallbackWarning)
        warnings.simplefilter("ignore", sg.errors.RecompileWarning)
        compare(name)
    assert left_out.isdisjoint(part.name for part in parts.installed_parts().all)


def by_python(x: Tensor) -> Tensor:
    return x * random.random()


def by_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand())


@pytest.mark.parametrize("function", [by_python, by_numpy])
def test_random_numbers_are_drawn_in_each_call(left_out: set[str], function: Any) -> None:
    jitted = sg.jit(function, executors=["torch"])
    outcomes = []
    for run in (jitted, function):
        random.seed(0)
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sg.errors.FallbackWarning)
            outcomes.append([run(torch.ones(())).item() for _ in range(4)])
    assert outcomes[0] == outcomes[1]


def test_with_all_parts_state_is_compiled() -> None:
    for name in ("a counter on self", "a list on self", "rows of a buffer", "a closure"):
        assert not compare(name)._switchgear.fallbacks.reasons, name


def test_an_option_of_a_part_that_is_left_out(left_out: set[str]) -> None:
    if "memory" in left_out:
        with pytest.raises(TypeError, match=r"sg\.jit has no option memory"):
            sg.jit(lambda x: x, memory="lean")

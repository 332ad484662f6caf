"""Python values among the arguments that are others in every call: integers, numbers of a schedule, names."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.falling_back import falls_back
from tests.oracle import differences

CALLS = 24


def test_an_index_that_is_not_used_is_captured_for_all() -> None:
    model = nn.Linear(3, 3)

    def training_step(batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return model(batch["x"]).square().mean()  # type: ignore[no-any-return]

    jitted = sg.jit(training_step, executors=["torch"], strict=True)
    for index in range(CALLS):
        batch = {"x": torch.randn(2, 3)}
        assert torch.equal(jitted(batch, index), training_step(batch, index))
    assert sg.cache_info(jitted).misses == 1


def _arithmetic(x: Tensor, n: int) -> Any:
    return x * n, x[:, : n % 3], n + 1


def _branch(x: Tensor, n: int) -> Any:
    return x + 1 if n % 10 == 0 else x * 2


def _keyword(x: Tensor, *, n: int) -> Any:
    return {"n": n, "text": f"step {n}", "x": x.sum() / n}


def _kept(x: Tensor, n: int) -> Any:
    LAST["n"] = n
    return x, LAST["n"]


def _loop(x: Tensor, n: int) -> Any:
    for step in range(n % 4):
        x = x + step
    return x


def _typed(x: Tensor, n: int) -> Any:
    return x, type(n).__name__


def _is(x: Tensor, n: int) -> Any:
    three = 3
    return x * 2 if n is three else x


def _numpy(x: Tensor, n: int) -> Any:
    return x * float(numpy.array([n]).sum()), str(numpy.array([n]).dtype)


def _key(x: Tensor, n: int) -> Any:
    return x * n, [{n: 1, (n, 2): 2, n > 3: 3, n / 2: 4}]


def _counted(x: Tensor, n: int) -> Any:
    LAST["n"] = Counter([n, n])[n]
    return x, {LAST["n"]: n}


LAST: dict[str, int] = {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "function",
    [*(_arithmetic, _branch, _keyword, _kept, _loop, _typed, _is), *(_numpy, _key, _counted)],
)
def test_what_is_made_of_it_is_eagers(function: Any) -> None:
    jitted = sg.jit(function, executors=["torch"])
    x = torch.randn(4, 4)
    LAST.clear()
    for n in (0, 1, 2, 7, 8, 10, 11, 20, 7, 1, 5, -3, 1 << 40):
        arguments = ((x,), {"n": n}) if function is _keyword else ((x, n), {})
        try:
            expected = function(*arguments[0], **arguments[1])
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                jitted(*arguments[0], **arguments[1])
            continue
        state = {**LAST}
        LAST.clear()
        found = jitted(*arguments[0], **arguments[1])
        assert not list(differences(expected, found, "call"))
        assert state == LAST
        assert str(found) == str(expected)
    assert sg.cache_info(jitted).entries


def test_what_cannot_be_symbolic_leaves_sizes_so() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        return x * 2 if type(n) is float else x + 1

    jitted = sg.jit(function, executors=["torch"], strict=True)
    for call, length in enumerate((2, 3, 4, 5, 6, 7, 8)):
        x = torch.randn(length, 2)
        assert torch.equal(jitted(x, 5 + (call > 2)), x + 1)
    assert sg.cache_info(jitted).misses <= 5


def test_a_bool_is_no_integer() -> None:
    jitted = sg.jit(lambda x, n: x * 2 if n is True else x + n, executors=["torch"], strict=True)
    x = torch.ones(2)
    for n in (2, 3, True, 1, 4, False):
        assert torch.equal(jitted(x, n), x * 2 if n is True else x + n)


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
def test_a_schedule_is_compiled_once_it_is_through() -> None:
    jitted = sg.jit(lambda x, scale: x * math.exp(scale), executors=["torch"])
    x = torch.ones(3)
    with falls_back(r"argument scale, a float, was another in 16 calls, each compiled by itself; pass a tensor"):
        for call in range(200):
            scale = min(1.0, call / 50)
            assert torch.equal(jitted(x, scale), x * math.exp(scale))
    info = sg.cache_info(jitted)
    assert (info.misses, info.fallbacks, info.hits) == (17, 64, 119)


def test_a_schedule_of_factors_is_compiled_twice() -> None:
    jitted = sg.jit(lambda x, scale: x * scale, executors=["torch"])
    x = torch.ones(3)
    for call in range(200):
        scale = min(1.0, call / 50)
        assert torch.equal(jitted(x, scale), x * scale)
    info = sg.cache_info(jitted)
    assert (info.misses, info.fallbacks) == (2, 0)
    assert info.reasons[1] == "argument scale changed from 0.0: one program is for every float from now on"


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
def test_names_of_samples() -> None:
    jitted = sg.jit(lambda batch: batch["x"] * 2, executors=["torch"])
    for call in range(CALLS):
        jitted({"x": torch.ones(2), "name": f"sample {call}"})
    assert sg.cache_info(jitted).misses == 1  # nothing reads them

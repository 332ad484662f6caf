"""The compiler of a function: which calls hit, miss and fall back, with the reasons, and guards in words."""

from __future__ import annotations

import math
import types
from unittest import mock

import pytest
import torch
from torch import nn

import switchgear as sg
from switchgear import errors
from switchgear_core.record.recorder import active_recorder
from tests.falling_back import falls_back


def test_hits_and_misses_with_reasons() -> None:
    config = types.SimpleNamespace(scale=2.0)
    jitted = sg.jit(lambda x: x * config.scale, executors=["torch"])
    x = torch.ones(3)
    jitted(x)
    jitted(x)
    config.scale = 3.0
    jitted(x)
    info = sg.cache_info(jitted)
    assert (info.calls, info.hits, info.misses, info.fallbacks, info.entries) == (3, 1, 2, 0, 2)
    assert info.reasons[0] == "the first call"
    assert "scale" in info.reasons[1]
    assert "2.0" in info.reasons[1]
    assert "3.0" in info.reasons[1]


def test_a_value_that_leads_to_the_same_trace_has_an_entry_of_its_own() -> None:
    class Config:
        tag, scale = "first", 2.0

    config = Config()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * config.scale if config.tag else x

    jitted = sg.jit(function, executors=["torch"])
    x = torch.ones(3)
    for tag in ("first", "second", "second"):
        config.tag = tag
        jitted(x)
    info = sg.cache_info(jitted)
    assert (info.calls, info.hits, info.misses, info.entries) == (3, 1, 2, 2)
    assert "tag (from 'first' to 'second')" in info.reasons[1]
    config.tag, config.scale = "second", 3.0
    jitted(x)
    reason = sg.cache_info(jitted).reasons[-1]  # by what was met last, not by the first call
    assert "scale" in reason
    assert "tag" not in reason


def test_what_stands_in_the_way_of_the_first_call_alone() -> None:
    class SetUp(torch.nn.Linear):
        is_new = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.is_new:
                self.scale, self.is_new = x.abs().max().item(), False
            return super().forward(x) * self.scale

    model = SetUp(3, 3)
    jitted = sg.jit(model, executors=["torch"])
    x = torch.ones(2, 3)
    with falls_back(kind="DataDependent"):
        for _ in range(10):
            assert torch.equal(jitted(x), model(x))
    info = sg.cache_info(jitted)
    assert (info.fallbacks, info.misses, info.hits) == (4, 1, 5)


def test_what_always_stands_in_the_way_is_tried_four_times() -> None:
    captures = []

    def function(x: torch.Tensor) -> torch.Tensor:
        captures.append(active_recorder() is not None)
        return x * x.sum().item()

    jitted = sg.jit(function, executors=["torch"])
    with falls_back(kind="DataDependent"):
        for _ in range(300):
            jitted(torch.ones(2))
    assert len(captures) == 300


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
@pytest.mark.parametrize("place", ["attribute", "argument"])
def test_a_module_that_is_made_anew_in_each_call(place: str) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.criterion: torch.nn.Module = torch.nn.MSELoss()

        def forward(self, x: torch.Tensor, criterion: torch.nn.Module | None = None) -> torch.Tensor:
            loss: torch.Tensor = (criterion or self.criterion)(x, x * 2)
            return loss

    model = Model()
    jitted = sg.jit(model, executors=["torch"])
    x = torch.ones(3)
    with falls_back("a module"):
        for _ in range(40):
            if place == "attribute":
                model.criterion = torch.nn.SmoothL1Loss()
            found = jitted(x, torch.nn.SmoothL1Loss()) if place == "argument" else jitted(x)
            assert torch.equal(found, torch.nn.SmoothL1Loss()(x, x * 2))
    assert sg.cache_info(jitted).fallbacks > 10


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
def test_sizes_that_cannot_be_symbolic_end_in_eager() -> None:
    jitted = sg.jit(lambda x: x[: int(x.shape[0] * 0.5)], executors=["torch"])
    with falls_back("argument x, by its sizes, was another in 16 calls.*sizes are fixed, for with symbolic ones"):
        for length in range(2, 40):
            x = torch.randn(length, 2)
            assert torch.equal(jitted(x), x[: length // 2])
    assert sg.cache_info(jitted).misses == 16  # another is tried after 64 calls


def test_a_call_that_raised_is_no_hit() -> None:
    # once: one hit; "the jitted function has not been called yet"
    jitted = sg.jit(lambda x: x @ torch.ones(7, 7), executors=["torch"])
    lazy = sg.jit(torch.nn.Sequential(torch.nn.LazyLinear(2)), executors=["torch"])
    strict = sg.jit(lambda x: print(x) or x, executors=["torch"], strict=True)
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        jitted(x)
    with pytest.raises(errors.Unsupported, match="prints"):
        strict(x)
    lazy(x)
    for function in (jitted, strict, lazy):
        info = sg.cache_info(function)
        assert (info.calls, info.hits, info.misses, info.fallbacks) == (1, 0, 0, 0)
        assert "nothing is compiled: its calls raised, or initialised the module" in str(sg.explain(function))
        for ask in (sg.last_traces, sg.last_choices, sg.last_saved):
            with pytest.raises(errors.SwitchgearError, match="its calls raised, or initialised the module"):
                ask(function)
    jitted(torch.ones(2, 7))
    assert sg.cache_info(jitted).hits == 0
    assert sg.last_traces(jitted)


def test_traces_of_calls_that_fell_back() -> None:
    jitted = sg.jit(lambda x: print("hi") or x, executors=["torch"], fallback="eager")
    with falls_back("prints"):
        jitted(torch.ones(3))
    for ask in (sg.last_traces, sg.last_choices, sg.last_saved):
        with pytest.raises(errors.SwitchgearError, match=r"all calls fell back.*the function prints"):
            ask(jitted)


def test_guards_in_words() -> None:
    class Scaled(torch.nn.Module):
        factor = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    jitted = sg.jit(Scaled(), executors=["torch"])
    jitted(torch.ones(3))
    text = str(sg.explain(jitted).guards())
    assert "Scaled.factor is 2.0" in text
    assert "Scaled.factor" not in str(sg.explain(jitted))


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
def test_a_number_that_every_call_finds_otherwise() -> None:
    class Counter:
        steps = 0.0

    counter = Counter()
    counter.steps = 0.0

    def function(x: torch.Tensor) -> torch.Tensor:
        counter.steps += 1.0
        return x * math.trunc(counter.steps)

    jitted = sg.jit(function, executors=["torch"])
    with falls_back(r"steps \(from 15.0 to 16.0\) changed, as for all entries before"):
        for step in range(1, 20):
            assert torch.equal(jitted(torch.ones(3)), torch.full((3,), float(step)))
    info = sg.cache_info(jitted)
    assert (info.entries, info.fallbacks) == (16, 3)
    assert info.reasons[3].count("steps") == 1


def test_what_is_not_tried_any_more_is_not_looked_at() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return x * 2

    jitted = sg.jit(function, executors=["torch"], fallback="eager", recompile_limit=2)
    with falls_back("prints"):
        for length in range(4):
            jitted(torch.ones(length))
    with mock.patch("switchgear_runtime.compiler.flatten_arguments", side_effect=AssertionError):
        assert torch.equal(jitted(torch.ones(9)), torch.full((9,), 2.0))
    assert sg.cache_info(jitted).fallbacks == 5


def test_an_error_that_eager_does_not_raise_is_told_and_eager_runs() -> None:
    calls = 0

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        assert active_recorder() is None
        return x * 2

    jitted = sg.jit(function, executors=["torch"])
    with falls_back("AssertionError: .*please report this"):
        assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))
    assert calls == 1


def test_kinds_of_calls_that_take_turns_need_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    jitted = sg.jit(module, executors=["torch"], strict=True, dynamic=False, recompile_limit=20)
    inputs = [torch.ones(rows, 2) for rows in (1, 2, 3)]
    for x in inputs:
        jitted(x)
    with monkeypatch.context() as patch:
        patch.delattr("switchgear_runtime.compiler.call_key")
        for x in inputs * 2:
            assert jitted(x).shape == x.shape
    jitted.eval()
    for x in inputs:
        assert torch.equal(jitted(x), module(x))
    assert sg.cache_info(jitted).misses == 6
    module.register_forward_hook(lambda *call: -call[2])
    hooks = dict(module._forward_hooks)
    for _ in range(2):  # entries with and without hooks take turns
        for own in (hooks, {}):
            module._forward_hooks.clear()
            module._forward_hooks.update(own)
            for x in inputs * 2:
                assert torch.equal(jitted(x), module(x))

"""What a call would become, told without running or compiling it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from benchmarks.memory import measure
from switchgear.errors import InvalidInput


class Fusing(sg.FusionExecutor):
    """Takes sines and products, and says who compiled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.compiled = 0

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        is_taken = bound_symbol.symbol.name in ("aten.sin.default", "aten.mul.Tensor", "aten.cos.default")
        return None if is_taken else sg.Declined("neither a sine nor a product")

    def compile(self, region: sg.Trace) -> Any:
        self.compiled += 1
        return region.function()


def wave(x: Tensor) -> Tensor:
    return torch.sin(x * 2) * 3


X = torch.linspace(-1, 1, 6)


def lines(trace: sg.Trace) -> list[str]:
    return [line for line in trace.python().splitlines() if line.startswith("    ")]


def test_it_is_what_the_call_does() -> None:
    x = X.clone().requires_grad_()
    jitted = sg.jit(lambda x: F.silu(wave(x)).sum(), executors=[Fusing("fusing"), "torch"])
    explanation = sg.explain(jitted, x)
    assert sg.cache_info(jitted).calls == 0
    jitted(x).backward()
    forward, backward = explanation.facts.programs
    assert lines(forward.trace) == lines(sg.last_traces(jitted)[-1])
    assert lines(backward.trace) == lines(sg.last_backward_traces(jitted)[-1])
    assert [str(one) for one in explanation.facts.choices] == [str(one) for one in sg.last_choices(jitted)]
    assert [str(one) for one in explanation.facts.saved] == [str(one) for one in sg.last_saved(jitted)]
    before, after = explanation.as_dict(), sg.explain(jitted).as_dict()
    changing = {"calls", "programs", "choices", "recompilations"}
    assert {name for name in after if before[name] != after[name]} <= changing
    assert [one["peak_bytes"] for one in before["programs"]] == [one["peak_bytes"] for one in after["programs"]]


def test_nothing_runs_and_nobody_compiles() -> None:
    fusing, before = Fusing("fusing"), torch.get_rng_state()
    state: list[int] = []
    module = nn.BatchNorm1d(6)

    def function(x: Tensor) -> Tensor:
        state.append(1)
        out: Tensor = module(wave(x))
        return out + torch.rand(6)

    explanation = sg.explain(sg.jit(function, executors=[fusing, "torch"]), X.expand(3, 6))
    (region,) = explanation.facts.programs[0].regions
    assert region.candidates == ("fusing",)
    assert region.operators == ("aten.mul.Tensor", "aten.sin.default", "aten.mul.Tensor")
    assert fusing.compiled == 0
    assert state == []
    assert module.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.discovery
def test_regions_that_would_be_measured() -> None:
    one, other = Fusing("one"), Fusing("other")
    found = sg.explain(sg.jit(wave, executors=[one, other, "torch", "contest"]), X)
    (region,) = found.facts.programs[0].regions
    assert region.candidates == ("one", "other")
    assert region.otherwise == (("torch", 3),)


def test_why_others_do_not() -> None:
    table = sg.Table("half")
    table.implementation(torch.sin, checker=lambda call: "half precision only")(torch.sin)
    text = str(sg.explain(sg.jit(wave, executors=[sg.Executor("half", table=table), "torch"]), X).operators())
    assert "torch.sin: execution by torch; half: half precision only" in text


def test_a_call_that_falls_back() -> None:
    def function(x: Tensor) -> Tensor:
        print("hello")
        return x

    found = sg.explain(function, X)
    assert found.facts.fallback.startswith("would not be compiled: Unsupported: the function prints")
    assert found.facts.fallback.endswith("(fallback='eager')")
    assert "would not be compiled: Unsupported" in str(found)
    assert found.operators().records == ()
    assert sg.explain(sg.jit(function, strict=True), X).facts.fallback


def test_a_function_is_examined_with_the_defaults() -> None:
    with sg.defaults(executors=["torch"], memory="lean"):
        found = sg.explain(lambda x: torch.sin(torch.exp(x)).sum(), X.clone().requires_grad_())
    assert found.facts.selection.savings.option == "lean"
    assert found.facts.saved_bytes == 0
    assert [program.kind for program in found.facts.programs] == ["forward", "backward"]


def test_a_lazy_module() -> None:
    with pytest.raises(InvalidInput, match="lazy parts"):
        sg.explain(nn.LazyLinear(3), X)


@pytest.mark.parametrize("memory", ["eager", "lean"])
def test_bytes(memory: Any) -> None:
    """What is saved, and the peak of each half, by the account of PyTorch's allocator."""
    # the norm's gradient, whose kernel uses some memory inside, is not where the peak is
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.randn(512, 64)
    jitted = sg.jit(model, executors=["torch"], memory=memory)
    found = sg.explain(jitted, x)
    jitted(x).backward(torch.ones(512, 64))
    jitted.zero_grad()

    def loss() -> Tensor:
        out: Tensor = jitted(x)
        return out.sum()

    held = measure("step", loss)
    number = 4  # the loss, and the gradient that its sum gives
    assert held.saved == found.facts.saved_bytes + number
    assert held.peak == max(program.peak for program in found.facts.programs) + 2 * number


def test_the_regions_that_executors_would_compile() -> None:
    jitted = sg.jit(wave, executors=[Fusing("fusing"), "torch"], memory="eager")
    text = str(sg.explain(jitted, X.clone().requires_grad_()).operators())
    assert "   1 x forward: 3 operators as one by fusing\n" in text


def test_a_function_without_arguments() -> None:
    assert str(sg.explain(lambda: torch.ones(3) * 2)).splitlines()[1] == "before a call: nothing ran or was compiled"
    with pytest.raises(TypeError, match=r"missing a required argument: 'x'"):
        sg.explain(wave)

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


def lines(trace: sg.Trace | None) -> list[str]:
    return [line for line in str(trace).splitlines() if line.startswith("    ")]


def test_it_is_what_the_call_does() -> None:
    x = X.clone().requires_grad_()
    jitted = sg.jit(lambda x: F.silu(wave(x)).sum(), executors=[Fusing("fusing"), "torch"])
    examination = sg.examine(jitted, x)
    assert sg.cache_info(jitted).calls == 0
    jitted(x).backward()
    assert lines(examination.forward) == lines(sg.last_traces(jitted)[-1])
    assert lines(examination.backward) == lines(sg.last_backward_traces(jitted)[-1])
    assert [str(one) for one in examination.choices] == [str(one) for one in sg.last_choices(jitted)]
    assert [str(one) for one in examination.saved] == [str(one) for one in sg.last_saved(jitted)]
    assert str(examination).splitlines()[0] == sg.explain(jitted).splitlines()[0]


def test_nothing_runs_and_nobody_compiles() -> None:
    fusing, before = Fusing("fusing"), torch.get_rng_state()
    state: list[int] = []
    module = nn.BatchNorm1d(6)

    def function(x: Tensor) -> Tensor:
        state.append(1)
        out: Tensor = module(wave(x))
        return out + torch.rand(6)

    examination = sg.examine(sg.jit(function, executors=[fusing, "torch"]), X.expand(3, 6))
    assert [one.candidates for one in examination.forward_regions] == [("fusing",)]
    assert examination.forward_regions[0].operators == ("aten.mul.Tensor", "aten.sin.default", "aten.mul.Tensor")
    assert fusing.compiled == 0
    assert state == []
    assert module.num_batches_tracked == 0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.discovery
def test_regions_that_would_be_measured() -> None:
    one, other = Fusing("one"), Fusing("other")
    found = sg.examine(sg.jit(wave, executors=[one, other, "torch", "contest"]), X)
    (region,) = found.forward_regions
    assert region.candidates == ("one", "other")
    assert region.otherwise == (("torch", 3),)


def test_why_others_do_not() -> None:
    table = sg.Table("half")
    table.implementation(torch.sin, checker=lambda call: "half precision only")(torch.sin)
    text = str(sg.examine(sg.jit(wave, executors=[sg.Executor("half", table=table), "torch"]), X))
    assert "torch.sin: execution by torch; half: half precision only" in text


def test_a_call_that_falls_back() -> None:
    def function(x: Tensor) -> Tensor:
        print("hello")
        return x

    found = sg.examine(function, X)
    assert found.fallback.startswith("Unsupported: the function prints")
    assert found.fallback.endswith("(fallback='eager')")
    assert "would not be compiled: Unsupported" in str(found)
    assert found.choices == ()
    assert sg.examine(sg.jit(function, strict=True), X).fallback


def test_a_function_is_examined_with_the_defaults() -> None:
    with sg.defaults(executors=["torch"], memory="lean"):
        found = sg.examine(lambda x: torch.sin(torch.exp(x)).sum(), X.clone().requires_grad_())
    assert found.selection.memory == "lean"
    assert found.saved_bytes == 0
    assert found.backward is not None


def test_a_lazy_module() -> None:
    with pytest.raises(InvalidInput, match="lazy parts"):
        sg.examine(nn.LazyLinear(3), X)


@pytest.mark.parametrize("memory", ["eager", "lean"])
def test_bytes(memory: Any) -> None:
    """What is saved, and the peak of each half, by the account of PyTorch's allocator."""
    # the norm's gradient, whose kernel uses some memory inside, is not where the peak is
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.randn(512, 64)
    jitted = sg.jit(model, executors=["torch"], memory=memory)
    found = sg.examine(jitted, x)
    jitted(x).backward(torch.ones(512, 64))
    jitted.zero_grad()

    def loss() -> Tensor:
        out: Tensor = jitted(x)
        return out.sum()

    held = measure("step", loss)
    number = 4  # the loss, and the gradient that its sum gives
    assert held.saved == found.saved_bytes + number
    assert held.peak == max(found.forward_peak, found.backward_peak) + 2 * number


def test_it_begins_with_the_sums() -> None:
    jitted = sg.jit(wave, executors=[Fusing("fusing"), "torch"], memory="eager")
    found = sg.examine(jitted, X.clone().requires_grad_())
    assert str(found).splitlines()[1:5] == [
        "calls run by fusing: 7",
        f"bytes at the peak of the forward, beside the inputs: {found.forward_peak}",
        f"bytes at the peak of the backward: {found.backward_peak}",
        "   1 x forward: 3 operators as one by fusing",
    ]

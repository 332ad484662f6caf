"""What the executor takes and why not, its regions, its cache, and what it does about layouts, memory and failures."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_nvfuser import Definition, NvfuserExecutor, lowering
from tests.core.training import forward, leaf
from tests.nvfuser.replay import Run, recorded
from tests.nvfuser.test_blocks import regions
from tests.oracle import step


def jit(function: Any, runner: Any = recorded, **options: Any) -> Any:
    return sg.jit(function, executors=[NvfuserExecutor(runner=runner, **options), "torch"], dynamic=False)


class Counted:
    """A runner that remembers what it was given."""

    def __init__(self) -> None:
        self.definitions: list[Definition] = []

    def __call__(self, definition: Definition) -> Run:
        self.definitions.append(definition)
        return recorded(definition)


def reasons(jitted: Any) -> set[tuple[str, str]]:
    return {(c.symbol, reason) for c in sg.last_choices(jitted) for who, reason in c.declined if who == "nvfuser"}


# What it takes.


def test_definition_of_a_region() -> None:
    runner = Counted()
    jitted = jit(lambda a, b: (a * b + 1).relu().sum(-1), runner)
    a, b = torch.randn(5, 7), torch.randn(7)
    torch.testing.assert_close(jitted(a, b), (a * b + 1).relu().sum(-1))
    (definition,) = runner.definitions
    assert str(definition) == (
        "T0 = Float[-1, -1]\n"
        "T1 = Float[-1]\n"
        "T2 = broadcast(T1, [True, False])\n"
        "T3 = mul(T0, T2)\n"
        "T4 = add(T3, 1.0)\n"
        "T5 = le(T4, 0.0)\n"
        "T6 = where(T5, 0.0, T4)\n"
        "T7 = sum(T6, [1], False)\n"
        "return T7"
    )


def test_reasons() -> None:
    jitted = jit(lambda a: (F.dropout(a, 0.5) @ a, a.sin(), a.t() + 1, a.short() + 1))
    jitted(leaf(4, 4))
    assert reasons(jitted) >= {
        ("switchgear.draw_bernoulli", "it draws random numbers, and nvFuser draws others than PyTorch"),
        ("aten.mm.default", "a product, for which there are libraries"),
        ("aten._to_copy.default", "nvFuser does not compute with int16 here"),
    }


def test_tensors_of_the_cpu_are_taken_with_a_runner_only() -> None:
    proxy = sg.TensorProxy("x", (3,), (1,), torch.float32, torch.device("cpu"))
    cuda, meta = (sg.TensorProxy("x", (3,), (1,), torch.float32, torch.device(name)) for name in ("cuda", "meta"))
    sin: Any = torch.ops.aten.sin.default
    runs, translates = NvfuserExecutor(), NvfuserExecutor(runner=recorded)

    def reason(executor: NvfuserExecutor, value: sg.TensorProxy) -> str | None:
        declined = executor.supports(sg.BoundSymbol(sg.Symbol("aten.sin.default", sin), (value,), {}, value))
        return None if declined is None else declined.reason

    assert reason(runs, proxy) == "a tensor on cpu, where nvFuser runs nothing"
    assert reason(translates, meta) == "a tensor on meta, where nvFuser runs nothing"
    assert reason(runs, cuda) is reason(translates, cuda) is reason(translates, proxy) is None


def test_what_cuda_would_dispatch_is_taken_apart_without_a_device() -> None:
    cuda = torch.device("cuda", 0)
    x = sg.TensorProxy("x", (3, 4), (4, 1), torch.bfloat16, cuda)
    grad = sg.TensorProxy("g", (3, 4), (4, 1), torch.bfloat16, cuda)
    fn: Any = torch.ops.aten.elu_backward.default
    out = sg.TensorProxy("y", (3, 4), (4, 1), torch.bfloat16, cuda)
    item = sg.BoundSymbol(sg.Symbol("aten.elu_backward.default", fn), (grad, 1.0, 1.0, 1.0, False, x), {}, out)
    calls = lowering.lowered(item)
    assert len(calls) > 3
    assert calls[-1].output == out
    assert {proxy.device for call in calls for proxy in call.outputs} == {cuda}


def test_small_regions_are_left() -> None:
    jitted = jit(lambda a: a.sin() @ a)
    jitted(torch.randn(3, 3))
    assert ("aten.sin.default", "a region of 1 operators, fewer than 2") in reasons(jitted)
    executor = NvfuserExecutor(runner=recorded)
    assert executor.supports_region(sg.Trace("region", (), (), ())) == sg.Declined("a region of views alone")
    assert not regions(forward(jitted))


def test_fuel() -> None:
    jitted = sg.jit(
        lambda a: ((a.sin() * 2) @ a).cos() * 3, executors=[NvfuserExecutor(runner=recorded), "torch"], fuel=1
    )
    a = torch.randn(3, 3)
    torch.testing.assert_close(jitted(a), ((a.sin() * 2) @ a).cos() * 3)
    assert len(regions(forward(jitted))) == 1


# The cache.


def test_other_sizes_run_the_same_definition() -> None:
    runner = Counted()
    jitted = jit(lambda a: ((a - a.mean(-1, keepdim=True)) * torch.ones_like(a)).tanh(), runner)
    kept = [torch.randn(size) for size in ((3, 5), (4, 9))]
    for a in kept:
        torch.testing.assert_close(jitted(a), (a - a.mean(-1, keepdim=True)).tanh())
    assert len(runner.definitions) == 1
    jitted(torch.randn(4, 1))
    jitted(torch.randn(5, 4).t())
    assert len(runner.definitions) == 3


def test_static_sizes_on_request() -> None:
    runner = Counted()
    jitted = jit(lambda a: (a.mean(-1) + 1).tanh(), runner, static_sizes=True)
    for size in ((3, 5), (4, 9)):
        a = torch.randn(size)
        torch.testing.assert_close(jitted(a), (a.mean(-1) + 1).tanh())
    assert [value.inputs[0][1].shape for value in runner.definitions] == [(3, 5), (4, 9)]


def test_what_spells_sizes_is_defined_anew() -> None:
    runner = Counted()
    jitted = jit(lambda a: (a.view(2, -1).sin() + 1).cos(), runner)
    for count in (4, 6):
        a = torch.randn(count)
        torch.testing.assert_close(jitted(a), (a.view(2, -1).sin() + 1).cos())
    assert len(runner.definitions) == 2


def test_other_numbers_are_other_definitions() -> None:
    runner = Counted()
    executor = NvfuserExecutor(runner=runner)
    a = torch.randn(3)
    kept = []
    for number in (2.0, 2.0000001, 2.0):
        kept.append(sg.jit(lambda a, n=number: (a * n).sin(), executors=[executor, "torch"]))
        torch.testing.assert_close(kept[-1](a), (a * number).sin())
    assert len(runner.definitions) == 2


def test_what_nobody_needs_any_more_is_let_go() -> None:
    executor = NvfuserExecutor(runner=recorded)
    jitted = sg.jit(lambda a: (a.sin() * 2).cos(), executors=[executor, "torch"])
    jitted(torch.randn(3))
    assert len(executor._alive) == 1
    del jitted
    gc.collect()
    assert not executor._alive


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_lowered", {})
    monkeypatch.setattr(lowering, "_LOWERED_MAX", 2)
    for size in (3, 4, 5, 6, 7):
        jit(lambda a: a.sin().cos())(torch.randn(size))
        assert len(lowering._lowered) <= 2


# Layouts and memory.


def check(function: Callable[..., Any], *args: Tensor) -> Any:
    """Twice, with eager's results and strides."""
    jitted = jit(function)
    for _ in range(2):
        torch.testing.assert_close(step(jitted, *args), step(function, *args), check_stride=True)
    assert regions(forward(jitted))
    return jitted


def test_inputs_in_any_layout() -> None:
    wide = torch.randn(6, 8)
    for value in (wide.t(), wide[::2, 1::3], wide[:, :1].expand(6, 8), wide.as_strided((3, 3), (1, 2), 4)):
        check(lambda a: (a.sin() + 1) * a.sum(0), value)


def test_strides_of_outputs() -> None:
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for value in (last, last.permute(2, 0, 3, 1), torch.randn(3, 1, 4).transpose(0, 1), torch.randn(1, 1, 5)):
        check(lambda a: ((a.sin() + 1) * 2, F.gelu(a).neg()), value)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a.clone(), a.sin() * 2),
        lambda a: ((b := a.sin() * 2), b.clone(), b * 1),
        lambda a: (a.sin() * 2, a.sin() * 2),
        lambda a: (torch.cat([a]), a.repeat(1, 1) * 1, a.sin()),
    ],
)
def test_results_share_no_memory(function: Callable[..., Any]) -> None:
    a = torch.randn(3, 4)
    results = check(function, a)(a)
    pointers = [value.untyped_storage().data_ptr() for value in (a, *results)]
    assert len(set(pointers)) == len(pointers)


def test_a_fusion_that_returns_views_is_made_to_copy() -> None:
    """nvFuser may return an input, or one memory twice, and lay out what it returns as it likes."""

    def aliasing(definition: Definition) -> Run:
        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            known = list(inputs)
            for value in recorded(definition)(inputs):
                known.append(next((one[:] for one in known if torch.equal(one, value)), value.t().contiguous().t()))
            return known[len(inputs) :]

        return run

    def function(a: Tensor) -> tuple[Tensor, ...]:
        b = a.sin() * 2
        return a + 0.0, b, b + 0.0

    a = torch.randn(4, 4)
    jitted = jit(function, aliasing)
    for _ in range(2):
        results = jitted(a)
        torch.testing.assert_close(results, function(a), check_stride=True)
        pointers = [value.untyped_storage().data_ptr() for value in (a, *results)]
        assert len(set(pointers)) == 4


def test_writes_reach_the_inputs() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2).add_(b)
        b[0] = a.sum()
        return a.sin() * b

    jitted = jit(function)
    found, wanted = (torch.ones(3), torch.arange(3.0)), (torch.ones(3), torch.arange(3.0))
    for _ in range(2):
        torch.testing.assert_close((jitted(*found), found), (function(*wanted), wanted))
    assert regions(forward(jitted))


def test_random_numbers_are_eagers() -> None:
    def function(a: Tensor) -> Tensor:
        return F.dropout((a * 2).sin() + 1, 0.5) * 3 + torch.rand_like(a)

    jitted, results = jit(function), []
    for call in (jitted, function):
        torch.manual_seed(1)
        results.append((step(call, torch.ones(50, requires_grad=True)), torch.get_rng_state()))
    torch.testing.assert_close(results[0], results[1])
    assert regions(forward(jitted))


# When nvFuser fails.


def failing_to_define(definition: Definition) -> Run:
    raise RuntimeError("INTERNAL ASSERT FAILED\nmuch more")


def failing_to_run(definition: Definition) -> Run:
    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        raise RuntimeError("INTERNAL ASSERT FAILED\nmuch more")

    return run


@pytest.mark.parametrize("runner", [failing_to_define, failing_to_run])
def test_region_that_nvfuser_fails_on(runner: Any) -> None:
    a = torch.randn(3)
    jitted = jit(lambda a: (a.sin() * 2).exp(), runner)
    with pytest.warns(sg.errors.PluginWarning) as caught:
        found = jitted(a)
    assert torch.equal(found, (a.sin() * 2).exp())
    (warning,) = caught
    for part in ("nvfuser", "aten.sin.default, aten.mul.Tensor, aten.exp.default", "RuntimeError: INTERNAL ASSERT"):
        assert part in str(warning.message)
    assert "much more" not in str(warning.message)
    assert torch.equal(jitted(a), found)
    assert not regions(forward(jitted))
    assert "nvFuser fails on its region: RuntimeError: INTERNAL ASSERT FAILED" in str(sg.explain(jitted).operators())


def test_region_that_nvfuser_fails_on_later() -> None:
    failing = False

    def sometimes(definition: Definition) -> Run:
        run = recorded(definition)

        def checked(inputs: Sequence[Tensor]) -> list[Tensor]:
            if failing:
                raise RuntimeError("INTERNAL ASSERT FAILED")
            return run(inputs)

        return checked

    a = torch.randn(3)
    jitted = jit(lambda a: (a.sin() * 2).exp(), sometimes)
    found = jitted(a)
    failing = True
    with pytest.warns(sg.errors.PluginWarning, match="which PyTorch runs instead"):
        assert torch.equal(jitted(a), found)
    assert torch.equal(jitted(a), found)


def test_too_little_memory_is_an_error() -> None:
    def running_out(definition: Definition) -> Run:
        def run(inputs: Sequence[Tensor]) -> list[Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return run

    with pytest.raises(sg.errors.ExecutorFailed, match="out of memory"):
        jit(lambda a: (a.sin() * 2).exp(), running_out)(torch.randn(3))

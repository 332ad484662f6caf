"""What plugins make is looked at: on the first run of an entry, and under `check=True` in every run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.errors import ExecutorFailed
from tests.core.training import leaf
from tests.oracle import assert_same, assert_trains_as_eager


def lying(silu: Callable[..., Any]) -> sg.Executor:
    table = sg.Table("lies")
    table.implementation(F.silu)(lambda x, inplace=False: silu(x))
    return sg.Executor("lies", table=table, version="1.5")


def function(x: Tensor) -> Tensor:
    return F.silu(x) * x  # the user's line


class Fusing(sg.FusionExecutor):
    """Compiles to what it is given."""

    def __init__(self, made: Callable[[sg.Trace], Any]) -> None:
        super().__init__("lies", version="1.5")
        self.made = made

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Any:
        return self.made(region)


def writes(x: Tensor) -> Tensor:
    y = F.silu(x)
    x.copy_(y)
    return y


def written_by_numpy(x: Tensor) -> Tensor:
    y = F.silu(x)
    x.detach().numpy()[:] = 3
    return y


def drifting() -> Callable[[Tensor], Tensor]:
    count = itertools.count(1)
    return lambda x: F.silu(x) * next(count)


def leaves(change: Callable[[Any], Any], mode: object) -> Callable[[Tensor], Tensor]:
    """An implementation that changes a mode of PyTorch's."""

    def silu(x: Tensor) -> Tensor:
        y = F.silu(x)
        change(mode)
        return y

    return silu


FIRST: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "writes": (writes, "it wrote to its tensor argument 0"),
    "in place": (lambda x: x.mul_(torch.sigmoid(x)), "it wrote to its tensor argument 0"),
    "argument": (lambda x: x, "result 0 shares memory with an argument"),
    "view": (lambda x: x.view(-1).view(x.shape), "result 0 shares memory with an argument"),
    "shape": (lambda x: F.silu(x)[:1], r"its result has shape \(1,\), expected \(4,\)"),
    "dtype": (lambda x: F.silu(x).double(), "its result has dtype torch.float64, expected torch.float32"),
    "layout": (lambda x: F.silu(x).to_sparse(), "its result has layout torch.sparse_coo, expected torch.strided"),
    "strides": (lambda x: F.silu(x).repeat_interleave(2)[::2], r"result 0 has strides \(2,\), expected \(1,\)"),
    "grad mode": (leaves(torch.set_grad_enabled, False), "it changed the grad mode, which was put back"),
    "default dtype": (
        leaves(torch.set_default_dtype, torch.float64),
        "it changed the default dtype, which was put back",
    ),
    "nothing": (lambda x: None, "its result is NoneType, not a tensor"),
}
EVERY: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    **FIRST,
    "value": (
        lambda x: F.silu(x) * 1.01,
        r"result 0 differs from PyTorch's operators by up to 0.0\d+, with 0.000\d+ allowed: expected .*, got",
    ),
    "nan": (lambda x: F.silu(x) / (x != x), "result 0 differs from PyTorch's operators"),
    "numpy": (written_by_numpy, "it wrote to its tensor argument 0"),
    "random": (lambda x: F.silu(x) + torch.rand(4) * 1e-5, "result 0 differs between two runs"),
    "state": (drifting(), "result 0 differs between two runs"),
}


def several(jitted: Callable[[Tensor], Tensor]) -> None:
    for _ in range(4):
        jitted(torch.rand(4))


WHERE = r"executor lies 1\.5 failed in torch\.nn\.functional\.silu, called at test_checking\.py:\d+: "


@pytest.mark.parametrize("lie", FIRST)
def test_first_run(lie: str) -> None:
    silu, message = FIRST[lie]
    jitted = sg.jit(function, executors=[lying(silu), "torch"])
    with pytest.raises(ExecutorFailed, match=WHERE + message) as raised:
        jitted(torch.rand(4))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert "To go on without it, leave lies out of executors; its author can correct it, or give it a checker" in str(
        raised.value
    )


@pytest.mark.parametrize("lie", EVERY)
def test_every_run(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silu, message = EVERY[lie]
    late = itertools.count()
    turns = lying(lambda x: silu(x) if next(late) > 3 else F.silu(x))
    options: list[dict[str, Any]] = [{"check": True}, {}]
    for option in options:
        late = itertools.count()
        monkeypatch.setenv("SWITCHGEAR_CHECK", "" if option else "1")
        jitted = sg.jit(function, executors=[turns, "torch"], **option)
        assert_same(jitted(torch.ones(4)), function(torch.ones(4)))
        with pytest.raises(ExecutorFailed, match=WHERE + message):
            several(jitted)


REGIONS: dict[str, tuple[Callable[[sg.Trace], Any], str]] = {
    "writes": (lambda region: lambda x: (x.mul_(2),), "it wrote to its tensor argument 0"),
    "argument": (lambda region: lambda x: (x,), "result 0 shares memory with an argument"),
    "count": (lambda region: lambda x: (x * 2, x), "its result has 2 parts, not the 1 of the operator"),
    "no tuple": (lambda region: lambda x: x * 2, "its result is Tensor, not the 1 results"),
}


@pytest.mark.parametrize("lie", REGIONS)
def test_regions(lie: str) -> None:
    made, message = REGIONS[lie]
    jitted = sg.jit(function, executors=[Fusing(made), "torch"])
    with pytest.raises(ExecutorFailed, match=f"executor lies 1.5 failed in lies_computation_0.*{message}") as raised:
        jitted(torch.rand(4))
    assert "its author can correct it, or have its `supports` decline" in str(raised.value)


def test_values_of_regions() -> None:
    right = sg.jit(function, executors=[Fusing(lambda region: region.function()), "torch"], check=True)
    wrong = sg.jit(function, executors=[Fusing(lambda region: lambda x: (x * 2,)), "torch"], check=True)
    assert_same(right(torch.ones(4)), function(torch.ones(4)))
    with pytest.raises(ExecutorFailed, match="result 0 differs from PyTorch's operators"):
        wrong(torch.ones(4))


@pytest.mark.parametrize("check", [False, True])
def test_what_operators_may_do(check: bool) -> None:
    """Return views and what they are given, draw random numbers, round otherwise, write where the trace says so."""
    table = sg.Table("fine")
    table.implementation(torch.Tensor.reshape)(lambda x, *shape: x.reshape(*shape))
    table.implementation(F.dropout)(lambda x, *args, **kwargs: F.dropout(x, *args, **kwargs))
    table.implementation(torch.sigmoid)(lambda x: 1 / (1 + torch.exp(-x)))
    table.implementation(torch.chunk)(lambda x, *args, **kwargs: torch.chunk(x, *args, **kwargs))
    fine = sg.Executor("fine", table=table)

    def mixed(x: Tensor) -> Tensor:
        first, second = torch.chunk(torch.sigmoid(x.reshape(-1)), 2)
        return F.dropout(first, 0.0) * F.dropout(second, 0.5, training=False)

    assert_trains_as_eager(mixed, leaf(2, 6), executors=[fine, "torch"], check=check)


@pytest.mark.parametrize("check", [False, True])
def test_operators_may_return_tensors_of_another_layout(check: bool) -> None:
    table = sg.Table("fine")
    table.implementation(torch.Tensor.to_sparse)(lambda x: x.to_sparse())
    options: dict[str, Any] = {"executors": [sg.Executor("fine", table=table), "torch"], "check": check}
    assert_trains_as_eager(lambda x: x.to_sparse(), torch.eye(3), **options)


def test_arguments_are_as_they_were_where_nothing_lies() -> None:
    jitted = sg.jit(function, executors=[lying(F.silu), "torch"], check=True)
    x = torch.rand(4)
    kept = x.clone()
    for _ in range(3):
        assert_same(jitted(x), function(x))
    assert_same(x, kept)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("shape", "strides"), [((1, 4), (9, 1)), ((3, 0), (5, 7)), ((1,), (8,)), ((), ())])
def test_strides_that_say_nothing(shape: tuple[int, ...], strides: tuple[int, ...], check: bool) -> None:
    odd = lying(lambda x: F.silu(x).clone().as_strided(shape, strides))
    jitted = sg.jit(function, executors=[odd, "torch"], check=check)
    assert_same(jitted(torch.ones(shape)), function(torch.ones(shape)))


def test_strides_of_symbolic_sizes() -> None:
    turned = lying(lambda x: F.silu(x).t().contiguous().t() if x.shape[0] == 5 else F.silu(x))
    jitted = sg.jit(function, executors=[turned, "torch"], dynamic=True, check=True)
    for rows in (3, 4):
        assert_same(jitted(torch.ones(rows, 4)), function(torch.ones(rows, 4)))
    with pytest.raises(ExecutorFailed, match=r"result 0 has strides \(1, 5\), expected \(4, 1\)"):
        jitted(torch.ones(5, 4))


@pytest.mark.parametrize("check", [False, True])
def test_strides_of_pytorchs_kernel_that_its_fake_gets_wrong(check: bool) -> None:
    table = sg.Table("fine")
    table.implementation(F.channel_shuffle)(lambda x, groups: F.channel_shuffle(x, groups))
    fine = sg.Executor("fine", table=table)
    x = torch.rand(1, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    jitted = sg.jit(lambda x: F.channel_shuffle(x, 2) * 2, executors=[fine, "torch"], check=check)
    assert_same(jitted(x), F.channel_shuffle(x, 2) * 2)
    assert "execution by fine" in str(sg.explain(jitted).operators())


def test_a_result_that_is_more_exact_than_pytorchs_is_no_fault() -> None:
    def summing(factor: float) -> Any:
        table = sg.Table("exact")
        table.implementation(torch.sum)(lambda input: (input.double().sum() * factor).to(input.dtype))
        return sg.jit(lambda x: torch.sum(x), executors=[sg.Executor("exact", table=table), "torch"], check=True)

    half = torch.randn(10000)
    cancelling = torch.cat([half, -half])[torch.randperm(20000)]
    assert summing(1)(cancelling) == 0 != cancelling.sum()
    summing(1)(cancelling + 1)
    with pytest.raises(ExecutorFailed, match="differs from PyTorch's operators"):
        summing(1.01)(cancelling + 1)

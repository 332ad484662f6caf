"""The examples that differentiate twice, and the whole step in one trace, train as eager does.

Bit for bit where the trace holds the derivatives; up to rounding where they are taken around a jitted function.
"""

from __future__ import annotations

import copy
import runpy
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw

import switchgear as sg
from examples import comparison, maml, pinn, wgan_gp, whole_step

EXAMPLES: dict[str, ModuleType] = {"pinn": pinn, "wgan_gp": wgan_gp, "maml": maml, "whole_step": whole_step}
STEPS = 4

Trained = tuple[list[Tensor], list[Tensor]]


def assert_bit_equal(found: Trained, expected: Trained) -> None:
    for what, ours, eagers in zip(("loss", "tensor"), found, expected, strict=True):
        assert len(ours) == len(eagers)
        for index, (one, other) in enumerate(zip(ours, eagers, strict=True)):
            assert other.isfinite().all()
            assert torch.equal(one, other), f"{what} {index} differs by up to {(one - other).abs().max()}"


def assert_eagers(way: str, found: Trained, expected: Trained) -> None:
    """Equal to the bit, or to the tolerance that the examples state, and give the cause of."""
    if way != "around":
        assert_bit_equal(found, expected)
        return
    for what, ours, eagers in zip(("loss", "tensor"), found, expected, strict=True):
        assert len(ours) == len(eagers)
        for index, (one, other) in enumerate(zip(ours, eagers, strict=True)):
            tolerance = comparison.TOLERANCE[other.dtype] * float(other.abs().max())
            assert (one - other).abs().max() <= tolerance, f"{what} {index}: {(one - other).abs().max()}"


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """In double precision what is rounding alone is smaller by as much."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def assert_moved(trained: Trained, start: Sequence[Tensor]) -> None:
    assert all(not torch.equal(tensor, before) for tensor, before in zip(trained[1], start, strict=True))
    assert len(set(map(float, trained[0]))) == len(trained[0])


@pytest.mark.parametrize("way", ["around", "inside"])
def test_physics_informed_network(way: str, default_dtype: torch.dtype) -> None:
    net = pinn.network()
    expected = pinn.train(pinn.eager, net, STEPS)
    assert_moved(expected, list(net.parameters()))
    assert expected[0][0].dtype == default_dtype
    assert_eagers(way, pinn.train(pinn.WAYS[way], net, STEPS), expected)


def test_physics_informed_network_learns() -> None:
    losses, _ = pinn.train(pinn.inside, pinn.network(), 150)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("way", ["around", "inside"])
def test_gradient_penalty(way: str, default_dtype: torch.dtype) -> None:
    networks = wgan_gp.networks()
    expected = wgan_gp.train(wgan_gp.eager, networks, STEPS)
    # All but the last bias: what is added to every value of the critic cancels, and so does its gradient.
    assert_moved((expected[0], expected[1][:-1]), list(networks[0].parameters())[:-1])
    assert expected[0][0].dtype == default_dtype
    assert_eagers(way, wgan_gp.train(wgan_gp.WAYS[way], networks, STEPS), expected)


@pytest.mark.parametrize("way", ["around", "nested"])
def test_inner_update(way: str, default_dtype: torch.dtype) -> None:
    parameters = maml.start()
    expected = maml.train(maml.eager, parameters, STEPS)
    assert_moved(expected, parameters)
    assert expected[0][0].dtype == default_dtype
    assert_eagers(way, maml.train(maml.WAYS[way], parameters, STEPS), expected)


def test_whole_step() -> None:
    state = whole_step.initial()
    expected = whole_step.train(whole_step.whole_step, state, 20)
    assert_moved(expected, state.tensors())
    jitted = sg.jit(whole_step.whole_step, executors=["torch"])
    assert_bit_equal(whole_step.train(jitted, state, 20), expected)


def test_whole_step_is_one_trace() -> None:
    state = whole_step.initial()
    jitted = sg.jit(whole_step.whole_step, executors=["torch"])
    before = [tensor.data_ptr() for tensor in state.tensors()]
    loss = jitted(state, *whole_step.batch(torch.Generator()))
    assert not loss.requires_grad
    assert [tensor.data_ptr() for tensor in state.tensors()] == before
    assert all(parameter.requires_grad and parameter.grad is None for parameter in state.parameters)
    assert {float(step) for step in state.steps} == {1.0}
    assert not sg.last_backward_traces(jitted)  # the backward is inside
    captured, *_, final = [trace.python() for trace in sg.last_traces(jitted)]
    assert "functional.cross_entropy(" in captured
    # nobody has a grad rule for it, so its gradient, and with it the whole, is that of its parts
    steps = ["nll_loss_forward", "nll_loss_backward", "gelu_backward", "addcdiv"]
    assert [final.index(step) for step in steps] == sorted(final.index(step) for step in steps)


def test_adamw_is_that_of_torch_optim() -> None:
    """With step counts as tensors, which PyTorch has for `differentiable` and, on accelerators, `capturable` steps."""
    generator = torch.Generator().manual_seed(0)
    ours = whole_step.initial()
    theirs = copy.deepcopy(ours)
    for _ in range(5):
        gradients = [torch.randn(parameter.shape, generator=generator) for parameter in ours.parameters]
        with torch.no_grad():
            whole_step.adamw(ours, gradients)
            adamw(
                theirs.parameters,
                gradients,
                theirs.exp_avgs,
                theirs.exp_avg_sqs,
                [],
                theirs.steps,
                foreach=False,
                differentiable=True,
                amsgrad=False,
                beta1=whole_step.BETA1,
                beta2=whole_step.BETA2,
                lr=whole_step.LR,
                weight_decay=whole_step.WEIGHT_DECAY,
                eps=whole_step.EPS,
                maximize=False,
            )
    assert_bit_equal(([], ours.tensors()), ([], theirs.tensors()))


def test_whole_step_beside_the_optimiser_class() -> None:
    """`torch.optim.AdamW` computes its bias corrections in double precision, so its last bits are others."""
    state = whole_step.initial()
    _, ours = whole_step.train(whole_step.whole_step, state, 20)
    parameters = copy.deepcopy(state.parameters)
    optimizer = torch.optim.AdamW(
        parameters,
        lr=whole_step.LR,
        betas=(whole_step.BETA1, whole_step.BETA2),
        eps=whole_step.EPS,
        weight_decay=whole_step.WEIGHT_DECAY,
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x, y = whole_step.batch(generator)
        optimizer.zero_grad()
        F.cross_entropy(whole_step.mlp(parameters, x), y).backward()
        optimizer.step()
    for one, other in zip(ours, parameters, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_scripts_print_losses_beside_eager(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLES[name].main(["--steps", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["step", "eager"]
    for index, line in enumerate(printed[1:3]):
        step, eager, *others = line.split()
        assert int(step) == index
        assert all(float(other) == pytest.approx(float(eager), rel=1e-5) for other in others)
    assert len(printed) > 3
    for line in printed[3:]:
        way, _, verdict = line.partition(": losses and trained parameters ")
        assert verdict in ["bit-equal to eager's", *(["equal to eager's to 1e-05"] if way == "around" else [])]


def test_report_fails_where_something_differs(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [torch.tensor(1.0), torch.tensor(0.5)]
    good: Any = (losses, [torch.ones(2)])
    for bad in (([losses[0], torch.tensor(0.25)], good[1]), (losses, [torch.tensor([1.0, 1.0 + 2**-23])])):
        assert comparison.report({"eager": good, "one": good, "other": bad}) == 1
        printed = capsys.readouterr().out
        assert "one: losses and trained parameters bit-equal" in printed
        assert "other: losses and trained parameters DIFFERENT" in printed


def test_report_tells_rounding_from_difference(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [torch.tensor(1.0)]
    for off, status, verdict in ((1e-6, 0, "equal to eager's to 1e-05"), (1e-4, 1, "DIFFERENT from eager's")):
        trained = {"eager": (losses, [torch.ones(2)]), "around": (losses, [torch.tensor([1.0, 1.0 + off])])}
        assert comparison.report(trained) == status
        assert capsys.readouterr().out.splitlines()[-1] == f"around: losses and trained parameters {verdict}"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", EXAMPLES)
def test_scripts_have_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as raised:
        runpy.run_module(f"examples.{name}", run_name="__main__")
    assert raised.value.code == 0
    assert "--steps" in capsys.readouterr().out

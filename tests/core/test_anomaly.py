"""Anomaly mode, PyTorch's own switch: the line that makes the first NaN of a backward is named."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.oracle import assert_trains_as_eager


class Block(nn.Module):
    def __init__(self, is_bad: bool) -> None:
        super().__init__()
        self.linear, self.is_bad = nn.Linear(4, 4), is_bad

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).relu()
        if self.is_bad:
            nothing = x - x
            x = x + torch.where(nothing > 1, torch.sqrt(nothing), x)  # a slope of 0 / 0
        return x


def model(bad: int = 6) -> nn.Module:
    return nn.Sequential(*[Block(number == bad) for number in range(9)])


class Region(sg.FusionExecutor):
    """A stranger's: runs operators one by one."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Any:
        def run(*inputs: Tensor) -> Any:
            values: dict[str, Any] = dict(zip((proxy.name for proxy in region.inputs), inputs, strict=True))
            values.update(region.tensors)
            for line in region.bound_symbols:
                args = [values[a.name] if isinstance(a, sg.TensorProxy) else a for a in line.args]
                values[line.output.name] = line.symbol.fn(*args, **line.kwargs)
            return tuple(values[proxy.name] for proxy in region.outputs if proxy is not None)

        return run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # PyTorch tells of the mode itself, and where the forward was called
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled|Error detected in")
        yield


def failure(function: Any, *arguments: Tensor, **options: Any) -> str:
    jitted = sg.jit(function, strict=True, compile="now", **options)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="NaN") as error:
        jitted(*arguments).sum().backward()
    return str(error.value)


EXECUTORS = {"torch": ["torch"], "a stranger's": [Region("mine"), "torch"]}


@pytest.mark.parametrize("executors", EXECUTORS.values(), ids=EXECUTORS)
def test_the_line_and_the_module_are_named(executors: Any) -> None:
    text = failure(model(), torch.randn(3, 4), executors=executors)
    code = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(code, 1) if "# a slope of 0 / 0" in text)
    assert f"gradient of torch.sqrt at test_anomaly.py:{line} 6" in text
    assert "aten.sqrt" in text
    assert "from 0 to 0" in text


def test_the_line_that_made_an_infinite_number_is_named_too() -> None:
    told = failure(lambda x: (x * 0).sqrt(), torch.ones(3, requires_grad=True), executors=["torch"])
    assert told.startswith("a gradient holds NaNs. The first come from the gradient of torch.mul at ")
    assert "infinite since the gradient of torch.sqrt at test_anomaly.py:" in told


def test_a_region_that_alone_makes_nans_is_named() -> None:
    class Broken(Region):
        def compile(self, region: sg.Trace) -> Any:
            run, is_backward = super().compile(region), any(line.links for line in region.bound_symbols)
            return (lambda *inputs: tuple(out * float("nan") for out in run(*inputs))) if is_backward else run

    text = failure(
        lambda x: x.sin().cos().tanh(), torch.randn(3).requires_grad_(), executors=[Broken("broken"), "torch"]
    )
    assert "none of which makes any where PyTorch runs it" in text
    assert "broken" in text


def test_what_the_forward_makes_is_named_by_the_forwards_line() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.log() * x).sin()

    text = failure(function, torch.tensor([-1.0, 2.0]).requires_grad_(), executors=["torch"])
    assert "holds NaNs before the backward begins" in text
    assert "test_anomaly.py" in text


def test_a_gradient_that_arrives_with_nans_is_told() -> None:
    x = torch.randn(3).requires_grad_()
    jitted = sg.jit(lambda x: x.sin().cos(), executors=["torch"], strict=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="which the backward was given"):
        jitted(x).backward(torch.full((3,), float("nan")))


def test_without_nans_gradients_are_eagers() -> None:
    with torch.autograd.detect_anomaly():
        assert_trains_as_eager(model(bad=-1), torch.randn(3, 4))


def test_nans_pass_where_they_are_not_looked_for() -> None:
    jitted = sg.jit(model(), executors=["torch"], strict=True)
    x = torch.randn(3, 4).requires_grad_()
    jitted(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().any()
    with torch.autograd.detect_anomaly(check_nan=False):
        jitted(x).sum().backward()

"""The installed plugin: discovered, chosen in the right calls, and correct."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest
import torch
import torch.nn.functional as F
from switchgear_example import fast_gelu, rounded
from torch import Tensor

import switchgear as sg

FIRST, LAST = ["example", "torch"], ["torch", "example"]


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x * 2, approximate="tanh").sum()


def exact_gelu(x: Tensor) -> Tensor:
    return F.gelu(x * 2).sum()


def silu(x: Tensor) -> Tensor:
    return (F.silu(x) * x).sum()


def own_operator(x: Tensor) -> Tensor:
    y: Tensor = fast_gelu(x * 2)
    return y.sum()


def times_rounded(x: Tensor, y: Tensor | None = None) -> Tensor:
    z: Tensor = rounded(x if y is None else y, 0.5)
    return (x * z).sum()


def owners(function: object, kind: str) -> dict[str, str]:
    """Return the owner of each operator in the last run."""
    return {choice.symbol: choice.owner for choice in sg.last_choices(function) if choice.kind == kind}


def run(function: Callable[[Tensor], Tensor], *, requires_grad: bool = True) -> tuple[Tensor, Tensor | None]:
    """Return the result for one input, and the gradient."""
    x = torch.linspace(-3, 3, 7, dtype=torch.float64).requires_grad_(requires_grad)
    result = function(x)
    if requires_grad:
        result.backward()
    return result.detach(), x.grad


def test_discovered() -> None:
    (status,) = [status for status in sg.plugin_report() if status.name == "example"]
    assert (status.status, status.error) == ("loaded", "")
    assert (status.distribution, status.version) == ("switchgear-example", version("switchgear-example"))
    assert status.executors == ("example",)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("executors", [None, FIRST])
def test_chosen_when_listed_first_and_by_default(executors: list[str] | None, requires_grad: bool) -> None:
    jitted = sg.jit(gelu, executors=executors)
    assert_close(run(jitted, requires_grad=requires_grad), run(gelu, requires_grad=requires_grad))
    assert owners(jitted, "execution")["torch.nn.functional.gelu"] == "example"
    if requires_grad:
        assert owners(jitted, "gradient")["torch.nn.functional.gelu"] == "example"


@pytest.mark.parametrize("requires_grad", [False, True])
def test_runs_nothing_when_listed_last(requires_grad: bool) -> None:
    jitted = sg.jit(gelu, executors=LAST)
    assert_close(run(jitted, requires_grad=requires_grad), run(gelu, requires_grad=requires_grad))
    assert "example" not in owners(jitted, "execution").values()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_not_chosen_when_not_listed(requires_grad: bool) -> None:
    jitted = sg.jit(gelu, executors=["torch"])
    run(jitted, requires_grad=requires_grad)
    assert "example" not in {choice.owner for choice in sg.last_choices(jitted)}


def test_call_that_the_checker_declines() -> None:
    jitted = sg.jit(exact_gelu, executors=FIRST)
    assert_close(run(jitted), run(exact_gelu))
    assert "example" not in {choice.owner for choice in sg.last_choices(jitted)}
    assert "only with approximate='tanh'" in str(sg.explain(jitted).gradients())


DISABLED = """
import torch
import switchgear as sg

f = sg.jit(lambda x: torch.nn.functional.gelu(x, approximate="tanh").sum())
f(torch.ones(3, requires_grad=True)).backward()
print({status.name: status.status for status in sg.plugin_report()}["example"])
print(*{choice.owner for choice in sg.last_choices(f)})
try:
    sg.jit(f, executors=["example"])
except sg.errors.UnknownExecutor as error:
    print(error)
"""


def test_not_chosen_when_disabled() -> None:
    environment = {**os.environ, "SWITCHGEAR_DISABLE": "example"}
    process = subprocess.run(
        [sys.executable, "-c", DISABLED], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    status, owners, error = process.stdout.splitlines()
    assert status == "disabled"
    assert "example" not in owners.split()
    assert "plugin example is disabled" in error


@pytest.mark.parametrize(
    ("function", "symbol", "form"),
    [
        (gelu, "torch.nn.functional.gelu", "pullback"),
        (own_operator, "switchgear_example.fast_gelu.default", "transform"),
        (silu, "torch.nn.functional.silu", "augmented"),
    ],
)
def test_each_form_of_grad_rule(function: Callable[[Tensor], Tensor], symbol: str, form: str) -> None:
    jitted = sg.jit(function, executors=FIRST)
    eager = gelu if function is own_operator else function
    assert_close(run(jitted), run(eager))
    assert owners(jitted, "gradient")[symbol] == "example"
    assert f"rule: example ({form})" in sg.last_backward_traces(jitted)[-1].python(link=True)


def test_skip_rule() -> None:
    jitted = sg.jit(times_rounded, executors=FIRST)
    assert_close(run(jitted), run(lambda x: times_rounded(x, x.detach())))
    assert owners(jitted, "gradient")["switchgear_example.rounded.default"] == "constant"
    assert "skip rule of example" in str(sg.explain(jitted).gradients())


def test_operators_are_well_formed() -> None:
    x = torch.randn(3)
    torch.library.opcheck(fast_gelu, (x,))
    torch.library.opcheck(rounded, (x, 0.5))


def assert_close(actual: tuple[Tensor, Tensor | None], expected: tuple[Tensor, Tensor | None]) -> None:
    """Check that results and gradients agree, None included."""
    torch.testing.assert_close(actual[0], expected[0])
    assert (actual[1] is None) == (expected[1] is None)
    if actual[1] is not None:
        torch.testing.assert_close(actual[1], expected[1])

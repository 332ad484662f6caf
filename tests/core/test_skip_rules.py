"""Skip rules: the forward stays, its outputs stay readable, and nothing behind them is differentiated."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.errors import RuleError
from switchgear_core.ir.symbol import BACKWARD
from switchgear_core.registry.plugins import load
from tests.core.made_up import Site, executor_plugin, rules_plugin
from tests.core.training import Kernel, backward, choice, joint, leaf, line_of, lines, operators, owners, rules
from tests.oracle import assert_same, step


class Skipping(sg.Executor):
    """Answers for the operators that it knows, and keeps a record of what it was asked."""

    def __init__(self, name: str, table: sg.Table | None = None, **answers: Any) -> None:
        super().__init__(name, table=table)
        self.answers = {symbol.replace("__", "."): answer for symbol, answer in answers.items()}
        self.asked: list[str] = []

    def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
        self.asked.append(bound_symbol.symbol.name)
        answer = self.answers.get(bound_symbol.symbol.name)
        if isinstance(answer, Exception):
            raise answer
        return answer


def skipped(*executors: sg.Executor, **options: Any) -> Callable[[Any], Any]:
    return lambda function: sg.jit(function, executors=[*executors, "torch"], **options)


def function(x: Tensor) -> Tensor:
    y = torch.sin(x)  # the user's line
    return y * x


def detached(x: Tensor) -> Tensor:
    return torch.sin(x).detach() * x


@pytest.fixture
def install(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these plugins, by name, all that is installed beside the torch executor."""

    def only(**plugins: str) -> None:
        core = importlib.import_module("switchgear_core.registry.plugins")
        found = load([*core.entry_points(group="switchgear"), *(site.add(n, s) for n, s in plugins.items())])
        monkeypatch.setattr(importlib.import_module("switchgear.jitting"), "installed", lambda *listed: found)

    return only


# once (this and most below): decomposed, the parts of a skipped composite still say requires_grad of their outputs
def test_forward_stays_and_is_constant() -> None:
    jitted = skipped(Skipping("mine", torch__sin=True))(function)
    x = leaf(4)
    assert_same(step(jitted, x), step(detached, x))
    found = choice(jitted, "gradient", "torch.sin")
    assert found.owner == "constant"
    assert found.reason.startswith("skip rule of mine: Skipping.is_constant_for_vjp (")
    assert "cos" not in " ".join(operators(backward(jitted)))


def test_skipped_output_is_read_and_returned() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x)
        return y, y * x

    x = leaf(4)
    y, product = skipped(Skipping("mine", torch__sin=True))(both)(x)
    assert_same(y, torch.sin(x.detach()))
    assert product.requires_grad


def test_whole_result_is_constant() -> None:
    y = skipped(Skipping("mine", torch__sin=True))(torch.sin)(leaf(3))
    assert not y.requires_grad
    assert y.grad_fn is None


def test_every_output_stays_readable() -> None:
    def several(x: Tensor) -> Any:
        values, indices = torch.topk(x, 2)
        return values, indices, values * x[:2], torch.unbind(x)[1] + x[0]

    jitted = skipped(Skipping("mine", torch__topk=True, torch__unbind=True))(several)
    x = leaf(5)
    got, wanted = jitted(x), several(x.detach())
    assert_same([tensor.detach() for tensor in got], list(wanted))
    assert [tensor.requires_grad for tensor in got] == [False, False, True, True]
    (grad,) = torch.autograd.grad(got[2].sum() + got[3], [x])
    expected = torch.zeros(5)
    expected[:2] = wanted[0]
    expected[0] += 1
    assert_same(grad, expected)


def test_some_outputs_differentiable_skipped_by_a_rule_for_the_leaf() -> None:
    mine = Skipping("mine", aten__topk__default=True)
    jitted = skipped(mine)(lambda x: torch.topk(x, 2).values * x[:2])
    x = leaf(5)
    assert_same(step(jitted, x), step(lambda x: torch.topk(x, 2).values.detach() * x[:2], x))
    assert owners(jitted, "gradient")["torch.topk"] == "decomposition"
    assert owners(jitted, "gradient")["aten.topk.default"] == "constant"


def test_what_follows_is_constant_too() -> None:
    def chain(x: Tensor) -> Tensor:
        y = torch.exp(torch.sin(x))
        z = y * 2 + y.sum()
        return z * x

    jitted = skipped(Skipping("mine", torch__sin=True))(chain)
    x = leaf(3)

    def cut(x: Tensor) -> Tensor:
        y = torch.exp(torch.sin(x).detach())
        return (y * 2 + y.sum()) * x

    assert_same(step(jitted, x), step(cut, x))
    differentiated = [c.symbol for c in sg.last_choices(jitted) if c.kind == "gradient" and c.owner == "derived"]
    assert differentiated == ["aten.mul.Tensor"]
    made = {proxy.name: proxy for item in lines(joint(jitted)) if BACKWARD not in item.tags for proxy in item.outputs}
    assert sorted(proxy.requires_grad for proxy in made.values()).count(True) == 1


def test_straight_through_estimator() -> None:
    mine = Skipping("mine", torch__round=True, torch__sub=True)

    def quantised(x: Tensor) -> Tensor:
        return (x + (torch.round(x) - x)) * 3

    x = leaf(4)
    result, (grad,) = step(skipped(mine)(quantised), x)
    assert_same(result.detach(), quantised(x.detach()))
    assert_same(grad, torch.full((4,), 3.0))


def test_skip_rule_comes_before_every_grad_rule() -> None:
    def fail(x: Tensor) -> Any:
        raise AssertionError("a constant is not to be differentiated")

    mine = Skipping("mine", torch__sin=True)
    step(skipped(mine, grad_rules=rules(torch.sin, fail))(function), leaf(3))


def test_only_composites_and_leaves_that_could_be_differentiated_are_asked_about() -> None:
    mine = Skipping("mine")

    def mixed(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = torch.cos(x)
        return torch.sin(x) + y + torch.argmax(x)

    skipped(mine)(mixed)(leaf(3))
    assert "torch.sin" in mine.asked
    assert "aten.sin.default" in mine.asked
    assert not {"torch.cos", "aten.cos.default", "torch.argmax", "aten.argmax.default"} & set(mine.asked)


def test_false_ends_the_asking_and_makes_nothing_differentiable() -> None:
    keeps, cuts = Skipping("keeps", torch__sin=False, torch__argmax=False), Skipping("cuts", torch__sin=True)
    x = leaf(3)
    assert_same(step(skipped(keeps, cuts)(function), x), step(function, x))
    assert "torch.sin" not in cuts.asked
    assert_same(step(skipped(cuts, keeps)(function), x), step(detached, x))
    assert not skipped(keeps)(lambda x: torch.argmax(x))(x).requires_grad
    with torch.no_grad():
        assert not skipped(keeps)(function)(x).requires_grad


def test_executor_outside_the_list_is_not_asked() -> None:
    mine = Skipping("mine", torch__sin=True)
    x = leaf(3)
    assert_same(step(sg.jit(function, executors=["torch"]), x), step(function, x))
    assert mine.asked == []


HOOK = """
@sg.hookimpl
def switchgear_is_constant_for_vjp(bound_symbol):
    return {answer} if bound_symbol.symbol.name == "torch.sin" else None
"""


def test_hook_of_a_plugin_with_an_executor(install: Any) -> None:
    install(mine=executor_plugin("mine", HOOK.format(answer=True)))
    x = leaf(3)
    for executors in (["mine", "torch"], None):
        assert_same(step(sg.jit(function, executors=executors), x), step(detached, x))
    assert_same(step(sg.jit(function, executors=["torch"]), x), step(function, x))


def test_hook_of_a_package_of_rules_is_asked_after_executors(install: Any) -> None:
    package = rules_plugin("package", HOOK.format(answer=True))
    install(package=package)
    x = leaf(3)
    assert_same(step(sg.jit(function, executors=["torch", "package"]), x), step(detached, x))
    assert_same(step(sg.jit(function, executors=["torch"]), x), step(function, x))
    keeps = Skipping("keeps", torch__sin=False)
    torch.testing.assert_close(step(skipped(keeps)(function), x), step(function, x))


def test_kernel_runs_what_is_skipped() -> None:
    kernel = Kernel(torch.ops.aten.sin)
    table = sg.Table("mine")
    table.implementation(torch.sin)(kernel)
    mine = Skipping("mine", table, torch__sin=True)
    x = leaf(3)
    # strict has nothing against it: there is nothing to differentiate
    jitted = skipped(mine, strict=True)(function)
    assert_same(step(jitted, x), step(detached, x))
    assert kernel.calls == 1


def test_random_operator_is_skipped_and_drawn_once() -> None:
    mine = Skipping("mine", None, torch__nn__functional__dropout=True)

    def noisy(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) * x

    x = leaf(32)
    assert_same(step(skipped(mine)(noisy), x), step(lambda x: F.dropout(x, 0.5).detach() * x, x))


def test_second_derivative_leaves_it_out_as_well() -> None:
    options: dict[str, Any] = {"executors": [Skipping("mine", torch__sin=True), "torch"]}

    def product(x: Tensor) -> Tensor:
        return torch.sin(x) * x * x

    x = torch.tensor(0.4, dtype=torch.float64)
    assert_same(sg.grad(product, **options)(x), torch.sin(x) * x + torch.sin(x) * x)
    torch.testing.assert_close(sg.grad(sg.grad(product, **options), **options)(x), 2 * torch.sin(x))


# What is refused.


@pytest.mark.parametrize("answer", [KeyError("boom"), 3, "yes", torch.tensor(True)])
def test_skip_rule_that_raises_or_makes_no_sense(answer: Any) -> None:
    mine = Skipping("mine", torch__sin=answer)
    with pytest.raises(RuleError) as caught:
        skipped(mine)(function)(leaf(3))
    text = str(caught.value)
    for part in ("mine: skip rule Skipping.is_constant_for_vjp", "torch.sin", line_of(function, "user's line")):
        assert part in text
    assert "leave mine out of executors" in text
    assert ("KeyError: 'boom'" if isinstance(answer, Exception) else "TypeError: a skip rule returns") in text
    assert isinstance(caught.value.__cause__, (KeyError, TypeError))


def test_raising_hook_names_its_plugin_and_version(install: Any) -> None:
    install(package=rules_plugin("package", HOOK.format(answer="1 / 0")))
    with pytest.raises(RuleError, match=r"package 1\.0: skip rule switchgear_is_constant_for_vjp .*ZeroDivisionError"):
        sg.jit(function, executors=["torch", "package"])(leaf(3))
    assert_same(sg.jit(function, executors=["torch", "package"])(torch.ones(3)), function(torch.ones(3)))

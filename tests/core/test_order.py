"""Who is asked: what a list of executors and packages of rules means. The rows are those of docs/choice.md."""

from __future__ import annotations

import importlib
import itertools
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear.errors import UnknownExecutor
from switchgear_core.registry.order import order, passed_over
from switchgear_core.registry.plugins import Plugins, load
from tests.core.made_up import Site, executor_plugin, rules_plugin

FUSES = """
class Fusing(sg.FusionExecutor):
    pass

@sg.hookimpl
def switchgear_executors():
    return [Fusing({name!r}, priority={priority})]
"""


class Nameless(sg.Executor):
    def __init__(self) -> None:
        self.factor = 2.0


@pytest.fixture
def plugins(site: Site) -> Plugins:
    return load(
        [
            site.add("low", executor_plugin("low", options="priority=-1")),
            site.add("b", executor_plugin("b")),
            site.add("a", executor_plugin("a")),
            site.add("slow_fuser", FUSES.format(name="slow_fuser", priority=-5)),
            site.add("fuser", FUSES.format(name="fuser", priority=-2)),
            site.add("rules", rules_plugin("rules")),
            site.add("more", rules_plugin("more", priority=1)),
        ]
    )


PACKAGES = ["more", "rules"]
DEFAULT = ["fuser", "slow_fuser", "a", "b", "low", *PACKAGES]


@pytest.mark.parametrize(
    ("executors", "expected"),
    [
        (None, ["a", "b", "low", "fuser", "slow_fuser", *PACKAGES]),
        ("auto", DEFAULT),
        ([...], DEFAULT),
        ([], []),
        (["low"], ["low"]),
        (["low", "rules", "a"], ["low", "rules", "a"]),
        (["b", ...], ["b", "fuser", "slow_fuser", "a", "low", *PACKAGES]),
        ([..., "a"], ["fuser", "slow_fuser", "b", "low", *PACKAGES, "a"]),
        (["rules", ..., "a"], ["rules", "fuser", "slow_fuser", "b", "low", "more", "a"]),
        ([..., "-fuser", "-more"], ["slow_fuser", "a", "b", "low", "rules"]),
        (["-b", "low", ...], ["low", "fuser", "slow_fuser", "a", *PACKAGES]),
        ([sg.Executor("own"), ...], ["own", *DEFAULT]),
    ],
)
def test_order(plugins: Plugins, executors: Any, expected: list[str]) -> None:
    found = order(plugins, executors)
    assert [one.name for one in found.participants] == expected
    assert found.is_measured == (executors is not None)
    assert passed_over(plugins, found) == tuple(
        name for name in (*["a", "b", "low", "fuser", "slow_fuser"], *PACKAGES) if name not in expected
    )


@pytest.mark.parametrize(
    ("executors", "error", "message"),
    [
        (["a", "a"], ValueError, "'a' is listed twice"),
        ([..., ...], ValueError, "'...' is listed twice"),
        (["a", "-b"], ValueError, r"'-b' leaves out one of the default ones: write executors=\[..., '-b'\]"),
        ([..., "-c"], UnknownExecutor, "no executor is called 'c'"),
        (["rule"], UnknownExecutor, "did you mean 'rules'"),
        ([sg.Table("mine")], TypeError, r"write sg.Executor\('mine', table=table\)"),
        ("a", TypeError, r"write \['a'\]"),
        ({"a"}, TypeError, "not a list, of which the first is asked first"),
        ([Nameless(), "a"], TypeError, r"Nameless.__init__ does not call super\(\).__init__\(name\)"),
    ],
)
def test_lists_that_mean_nothing(plugins: Plugins, executors: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        order(plugins, executors)


def test_a_priority_of_its_own_comes_before_those_that_fuse(site: Site) -> None:
    entries = [
        site.add("early", executor_plugin("early", options="priority=1")),
        site.add("usual", executor_plugin("usual")),
        site.add("fuser", FUSES.format(name="fuser", priority=0)),
        site.add("first_fuser", FUSES.format(name="first_fuser", priority=2)),
    ]
    found = [one.name for one in order(load(entries), "auto").participants]
    assert found == ["first_fuser", "early", "fuser", "usual"]


def test_order_of_installation_means_nothing(site: Site) -> None:
    entries = [
        site.add("one", executor_plugin("one")),
        site.add("fuser", FUSES.format(name="fuser", priority=0)),
        site.add("rules", rules_plugin("rules")),
        site.add("more", rules_plugin("more")),
    ]
    found = {
        tuple(one.name for one in order(load(permuted), ["more", ...]).participants)
        for permuted in itertools.permutations(entries)
    }
    assert found == {("more", "fuser", "one", "rules")}


def test_a_plugin_that_goes_by_another_name_than_its_executor(site: Site) -> None:
    plugins = load([site.add("package", executor_plugin("fast"))])
    with pytest.raises(UnknownExecutor, match="plugin 'package' brings the executors fast; name these"):
        order(plugins, ["package"])


def test_a_list_uses_nothing_that_it_does_not_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's bits with `["torch"]`, whatever rules are installed; `explain` names who was not asked."""
    wrong = rules_plugin("wrong").replace("torch.cos(x)", "x * 100")
    found = load([*entry_points(group="switchgear"), site.add("wrong", wrong)])
    monkeypatch.setattr(importlib.import_module("switchgear.jitting"), "installed", lambda *listed: found)
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.sin(x).sum(), x)
    jitted = sg.jit(torch.sin, executors=["torch"])
    (gradient,) = torch.autograd.grad(jitted(x).sum(), x)
    assert torch.equal(gradient, expected)
    (asked,) = [line for line in str(sg.explain(jitted)).splitlines() if line.startswith("installed and not asked: ")]
    assert "wrong" in asked
    named = sg.jit(torch.sin, executors=["torch", "wrong"])
    (gradient,) = torch.autograd.grad(named(x).sum(), x)
    assert not torch.equal(gradient, expected)
    assert "torch.sin: gradient by wrong" in str(sg.explain(named).gradients())
    assert "rules also by: wrong" in str(sg.explain(named))


# Single operators.


def _adds(name: str, number: float) -> sg.Executor:
    table = sg.Table(name)
    table.implementation(torch.sin)(lambda x: torch.sin(x) + number)
    table.grad_rule(torch.sin)(lambda x: (torch.sin(x), lambda grad: grad * number))
    return sg.Executor(name, table=table)


def _outcome(**options: Any) -> tuple[float, float]:
    x = torch.zeros((), requires_grad=True)
    y = sg.jit(lambda x: torch.sin(x) * 1, executors=[_adds("one", 1), _adds("two", 2), "torch"], **options)(x)
    y.backward()
    assert x.grad is not None
    return y.item(), x.grad.item()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, 1)),
        ({"prefer": {torch.sin: "two"}}, (2, 2)),
        ({"prefer": {"torch.sin": ["two", "one"]}}, (2, 2)),
        ({"prefer": {torch.cos: "two"}}, (1, 1)),
        ({"avoid": {torch.sin: "one"}}, (2, 2)),
        ({"avoid": {torch.sin: ["one", "two"]}}, (0, 1)),
        ({"avoid": {torch.sin: "one"}, "prefer": {torch.sin: "one"}}, (2, 2)),
    ],
)
def test_single_operators(options: dict[str, Any], expected: tuple[float, float]) -> None:
    assert _outcome(**options) == expected


def test_a_composite_that_is_preferred_is_not_taken_apart() -> None:
    class Fusing(sg.FusionExecutor):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return None if bound_symbol.is_leaf else sg.Declined("leaves only")

        def compile(self, region: sg.Trace) -> Any:
            return region.function()

    executors: list[Any] = [Fusing("fuses"), _adds("one", 1), "torch"]
    jitted = sg.jit(lambda x: torch.sin(x).cos().cos(), executors=executors, prefer={torch.sin: "one"})
    assert torch.equal(jitted(torch.zeros(2)), torch.ones(2).cos().cos())
    assert "torch.sin: execution by one" in str(sg.explain(jitted).operators())


@pytest.mark.parametrize("option", ["prefer", "avoid"])
def test_a_preference_for_somebody_who_takes_no_part(option: str) -> None:
    with pytest.raises(UnknownExecutor, match=f"{option}: no executor 'three' takes part .*one, two, torch"):
        _outcome(**{option: {torch.sin: "three"}})

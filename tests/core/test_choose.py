"""The hook `switchgear_choose`: what a plugin is asked, what its answers do, and what happens without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import RuleError
from switchgear_core.registry import plugins
from tests.core.made_up import Site
from tests.core.training import forward, lines, operators
from tests.oracle import assert_same

#: Two executors that take products; `first` is asked before `second`.
FUSING = """
class Fusing(sg.FusionExecutor):
    def supports(self, bound_symbol):
        return None if bound_symbol.symbol.name == "aten.mul.Tensor" else sg.Declined("no product")

    def compile(self, region):
        compiled.append((self.name, region.name))
        return region.function()

compiled = []

@sg.hookimpl
def switchgear_executors():
    return [Fusing("first", priority=2), Fusing("second", priority=1)]
"""
TORCH = EntryPoint("torch", "switchgear_torch", "switchgear")

Install = Callable[..., Any]


@pytest.fixture
def install(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Has the two executors installed beside `torch`, and plugins with these sources; returns the executors' module."""

    def add(**sources: str) -> Any:
        entries = [TORCH, site.add("fusing", FUSING), *(site.add(name, source) for name, source in sources.items())]
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: entries)
        plugins.loaded_once.cache_clear()
        return entries[1].load()

    yield add
    plugins.loaded_once.cache_clear()


def chooser(answer: str) -> str:
    """A plugin that answers so for each region."""
    return f"""
@sg.hookimpl
def switchgear_choose(regions, context):
    return [{answer} for region in regions]
"""


def two_regions(a: Tensor) -> Tensor:
    return (a * 2 * 3).sin() * 4 * 5


def run(**options: Any) -> Any:
    jitted = sg.jit(two_regions, **options)
    for _ in range(2):
        assert_same(jitted(torch.ones(3)), two_regions(torch.ones(3)))
    return jitted


def owners(jitted: Any) -> list[str]:
    return [line.implementation.owner for line in lines(forward(jitted)) if line.implementation]


def test_nobody_answers(install: Install) -> None:
    """By default a region goes to the first fusion executor, by priority."""
    module = install()
    jitted = run()
    assert owners(jitted) == ["first", "torch", "first"]
    assert sg.explain(jitted).operators().lines[0] == "executors: first, second, torch"
    assert module.compiled == [("first", "first_computation_0"), ("first", "first_computation_1")]


def test_an_answer_with_a_reason(install: Install) -> None:
    module = install(mine=chooser("sg.executors.RegionChoice(region.candidates[1], 'by lot')"))
    jitted = run()
    assert owners(jitted) == ["second", "torch", "second"]
    report = str(sg.explain(jitted).operators())
    assert report.splitlines()[0] == "executors: first, second, torch; regions as chosen by mine 1.0"
    assert "aten.mul.Tensor: execution by second (in second_computation_0 (by lot))" in report
    assert [name for name, _ in module.compiled] == ["second", "second"]


def test_left_to_the_operators(install: Install) -> None:
    module = install(mine=chooser("sg.executors.RegionChoice(None, 'too small')"))
    jitted = run()
    assert operators(forward(jitted)) == ["aten.mul.Tensor"] * 2 + ["torch.sin"] + ["aten.mul.Tensor"] * 2
    assert "aten.mul.Tensor: execution by torch; first: too small" in str(sg.explain(jitted).operators())
    assert not module.compiled


def test_composites_take_part(install: Install) -> None:
    """Among the operators that a region is left to are composites that an executor takes whole."""
    source = """
table = sg.Table("times")

@table.implementation(torch.mul)
def times(x, other):
    return torch.mul(x, other)

@sg.hookimpl
def switchgear_executors():
    return [sg.Executor("times")]

@sg.hookimpl
def switchgear_register_implementations(registry):
    table.install_implementations(registry)

@sg.hookimpl
def switchgear_choose(regions, context):
    owners = [[line.implementation.owner for line in context.operators(one).bound_symbols] for one in regions]
    return [sg.executors.RegionChoice(None, f"left to {names}") for names in owners]
"""
    install(times=source)
    jitted = run()
    assert owners(jitted) == ["times", "times", "torch", "times", "times"]
    assert "4 x torch.mul: execution by times; first: left to ['times', 'times']" in str(sg.explain(jitted).operators())


@pytest.mark.parametrize("silent", ["def switchgear_choose(regions, context):\n    pass", None])
def test_who_has_no_opinion_leaves_it_to_the_next(install: Install, silent: str | None) -> None:
    source = f"@sg.hookimpl\n{silent}" if silent else chooser("None")
    install(a=source, b=chooser("sg.executors.RegionChoice(region.candidates[1]) if region is regions[0] else None"))
    assert owners(run()) == ["second", "torch", "first"]


def test_what_a_plugin_is_told(install: Install) -> None:
    source = """
seen = []

@sg.hookimpl
def switchgear_choose(regions, context):
    compiled = context.compile([(region, executor) for region in regions for executor in region.candidates])
    for region in regions:
        operators = context.operators(region)
        x = torch.ones(3)
        seen.append(
            (
                [one.name for one in region.candidates],
                [context.label(one) for one in context.executors],
                [line.implementation.owner for line in operators.bound_symbols],
                [(proxy.shape, proxy.stride) for proxy in region.layouts],
                region.sizes,
                context.function(operators)(x)[0].tolist(),
                compiled[region, region.candidates[1]](x)[0].tolist(),
            )
        )
    return [sg.executors.RegionChoice(region.candidates[1]) for region in regions]
"""
    module = install(mine=source)
    run()
    labels = ["first 1.0", "second 1.0", "torch 0.1.0"]
    (chooser,) = [plugin.chooser for plugin in plugins.installed().plugins if plugin.chooser]
    seen = chooser.source.__globals__
    told: tuple[Any, ...] = (["first", "second"], labels[:2], ["torch", "torch"], [((3,), (1,))], [])
    assert [(entry[0], entry[1][:2], *entry[2:5]) for entry in seen["seen"]] == [told, told]
    assert [entry[5:] for entry in seen["seen"]] == [([6.0] * 3, [6.0] * 3), ([20.0] * 3, [20.0] * 3)]
    assert len(module.compiled) == 4  # the winners are not compiled again


def test_who_lists_executors_asks_nobody(install: Install) -> None:
    install(mine=chooser("1 / 0"))
    assert owners(run(executors=["second", "torch"])) == ["second", "torch", "second"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("1 / 0", "raised ZeroDivisionError"),
        ("'first'", "an answer is a RegionChoice or None, not 'first'"),
        ("sg.executors.RegionChoice(context.executors[-1])", "is no candidate for the region"),
    ],
)
def test_what_goes_wrong_names_the_plugin(install: Install, answer: str, message: str) -> None:
    install(mine=chooser(answer))
    with pytest.raises(RuleError, match=rf"plugin mine 1.0: switchgear_choose .*{message}.*SWITCHGEAR_DISABLE=mine"):
        sg.jit(two_regions)(torch.ones(3))


def test_as_many_answers_as_regions(install: Install) -> None:
    install(mine="@sg.hookimpl\ndef switchgear_choose(regions, context):\n    return []")
    with pytest.raises(RuleError, match="an answer for each of 2 regions, or None"):
        sg.jit(two_regions)(torch.ones(3))

"""Who is asked, in which order, and who takes a bound symbol."""

from __future__ import annotations

import itertools
import sys
import warnings
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear.errors import ExecutorUnavailable, PluginWarning, RuleError, UnknownExecutor
from switchgear_core.registry.order import select
from switchgear_core.registry.plugins import Plugins, load
from switchgear_core.registry.selection import Selection
from tests.core.made_up import SIN, Site, call, executor_plugin, rules_plugin

NOTHING = load([])


def sin_rule(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda grad: grad * torch.cos(x)


def executor(name: str, checker: Any = None, **options: Any) -> sg.Executor:
    """An executor object that implements and differentiates `torch.sin`."""
    table = sg.Table(name)
    table.implementation(torch.sin, checker)(torch.sin)
    table.grad_rule(torch.sin, checker)(sin_rule)
    return sg.Executor(name, table=table, **options)


def rules(owner: str, checker: Any = None) -> sg.Table:
    table = sg.Table(owner)
    table.grad_rule(torch.sin, checker)(sin_rule)
    return table


def chosen(executors: Any, plugins: Plugins = NOTHING, grad_rules: Any = (), *, strict: bool = False) -> Selection:
    return select(plugins, executors, {"grad_rules": grad_rules, "strict": strict})


def implementer(selection: Selection, target: Any = torch.sin) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    taken, declined = selection.implementation(call(target))
    return (taken.owner if taken else None), declined


def differentiator(selection: Selection, target: Any = torch.sin) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    rule, declined = selection.grad_rule(call(target))
    return (rule.owner if rule else None), declined


class Absent(sg.Executor):
    """Cannot run here."""

    def unavailable(self) -> str | None:
        return "no such device"


class Skipping(sg.Executor):
    """Has a skip rule with one answer."""

    def __init__(self, name: str, answer: Any, asked: list[str] | None = None) -> None:
        super().__init__(name)
        self.answer = answer
        self.asked = asked if asked is not None else []

    def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
        self.asked.append(self.name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


# Whom a call names.


def test_order_is_the_users() -> None:
    a, b = executor("a"), executor("b", priority=9)
    assert implementer(chosen([a, b]))[0] == "a"
    assert implementer(chosen([b, a]))[0] == "b"


def test_without_a_list_priority_then_name_decide(site: Site) -> None:
    entries = [
        site.add(name, executor_plugin(name, SIN, options=options))
        for name, options in {"c": "", "b": "", "low": "priority=-1", "high": "priority=1"}.items()
    ]
    selection = chosen(None, load(entries))
    assert [found.name for found in selection.executors] == ["high", "b", "c", "low"]
    assert implementer(selection)[0] == "high"


def test_name_and_object_of_an_installed_executor_are_one(site: Site) -> None:
    plugins = load([site.add("mine", executor_plugin("mine", SIN))])
    for item in ("mine", plugins.executors[0], sg.Executor("mine")):
        assert implementer(chosen([item], plugins)) == ("mine", ())
        assert differentiator(chosen([item], plugins)) == ("mine", ())


def test_object_of_another_kind_or_table_shares_the_name_alone(site: Site) -> None:
    plugins = load([site.add("mine", executor_plugin("mine", SIN))])
    assert implementer(chosen([sg.Executor("mine", table=sg.Table("mine"))], plugins))[0] is None
    assert implementer(chosen([Skipping("mine", None)], plugins))[0] is None


def test_unknown_name_lists_the_known_ones(site: Site) -> None:
    plugins = load([site.add(name, executor_plugin(name)) for name in ("alpha", "beta")])
    with pytest.raises(UnknownExecutor, match=r"no executor is called 'alpa'; did you mean 'alpha'\? .*alpha, beta"):
        chosen(["beta", "alpa"], plugins)
    with pytest.raises(ValueError, match="installed: none"):
        chosen(["alpha"])


def test_name_of_a_plugin_that_did_not_load_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [site.add("broken", "raise ValueError('boom')"), site.add("off", executor_plugin("off"))]
    monkeypatch.setenv("SWITCHGEAR_DISABLE", "off")
    with pytest.warns(PluginWarning):
        plugins = load(entries)
    with pytest.raises(UnknownExecutor, match="plugin broken has failed: ValueError: boom"):
        chosen(["broken"], plugins)
    conflicting = [site.add(name, executor_plugin("gpu")) for name in ("one", "two")]
    with pytest.warns(PluginWarning):
        rivals = load(conflicting)
    with pytest.raises(UnknownExecutor, match="plugin one is in conflict: "):
        chosen(["one"], rivals)
    with pytest.raises(UnknownExecutor, match="plugin off is disabled: named in SWITCHGEAR_DISABLE"):
        chosen(["off"], plugins)


def test_listed_twice() -> None:
    with pytest.raises(ValueError, match="'a' is listed twice"):
        chosen([executor("a"), executor("a")])


@pytest.mark.parametrize("executors", ["torch", [3], [None], sg.Executor("a")])
def test_list_of_something_else(executors: Any) -> None:
    with pytest.raises(TypeError, match="executors"):
        chosen(executors)


def test_grad_rules_that_are_no_tables() -> None:
    with pytest.raises(TypeError, match="grad_rules is a Table"):
        chosen([], NOTHING, [sin_rule])


def test_listed_but_unavailable_is_one_warning_and_a_reason_everywhere() -> None:
    with pytest.warns(PluginWarning, match="gpu is listed but skipped, it cannot run here: no such device") as caught:
        selection = chosen([executor("a"), Absent("gpu")])
    assert len(caught) == 1
    reason = ("gpu", "unavailable: no such device")
    assert selection.skipped == (reason,)
    assert implementer(selection) == ("a", (reason,))
    assert differentiator(selection) == ("a", (reason,))
    assert differentiator(selection, torch.cos) == (None, (reason, ("a", "no grad rule for torch.cos")))


def test_listed_but_unavailable_is_an_error_under_strict() -> None:
    with pytest.raises(ExecutorUnavailable, match="gpu cannot run here: no such device"):
        chosen([Absent("gpu")], strict=True)


def test_installed_but_unavailable_is_silent_and_keeps_its_reason(site: Site) -> None:
    source = """
class Absent(sg.Executor):
    def unavailable(self):
        return "no such device"

@sg.hookimpl
def switchgear_executors():
    return [Absent("gpu")]
"""
    plugins = load([site.add("gpu", source), site.add("a", executor_plugin("a", SIN))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selection = chosen(None, plugins, strict=True)
    assert implementer(selection) == ("a", (("gpu", "unavailable: no such device"),))


def test_availability_is_asked_once() -> None:
    asked = []

    class Counting(sg.Executor):
        def unavailable(self) -> str | None:
            asked.append(self.name)
            return None

    selection = chosen([Counting("a")])
    implementer(selection)
    differentiator(selection)
    assert asked == ["a"]


def test_table_is_taken_as_it_is_when_selected() -> None:
    mine = executor("mine")
    assert mine.table is not None
    selection = chosen([mine])
    mine.table.implementation(torch.cos)(torch.cos)
    assert implementer(selection, torch.cos)[0] is None
    assert implementer(chosen([mine]), torch.cos)[0] == "mine"


# Implementations.


def test_everyone_asked_before_has_a_reason() -> None:
    first = executor("first", lambda bound_symbol: "float16 only")
    second = executor("second", lambda bound_symbol: sg.Declined("too small"))
    third = executor("third", lambda bound_symbol: False)
    taken, declined = implementer(chosen([first, second, third, sg.Executor("none"), executor("last")]))
    assert taken == "last"
    assert dict(declined)["first"] == "float16 only"
    assert dict(declined)["second"] == "too small"
    assert "said no" in dict(declined)["third"]
    assert dict(declined)["none"] == "no implementation of torch.sin"


def test_nobody_takes_it() -> None:
    assert implementer(chosen([executor("a")]), torch.cos) == (None, (("a", "no implementation of torch.cos"),))
    assert implementer(chosen([])) == (None, ())


def test_claim_written_in_code() -> None:
    class Everything(sg.Executor):
        def claim(self, bound_symbol: sg.BoundSymbol, entry: Any) -> sg.executors.Implementation | sg.Declined:
            return sg.executors.Implementation(self.name, bound_symbol.symbol.fn)

    assert implementer(chosen([Everything("all")]), torch.cos)[0] == "all"


@pytest.mark.parametrize("answer", [None, True, "no", sg.executors.Implementation("somebody", torch.sin)])
def test_claim_that_is_none(answer: Any) -> None:
    class Wrong(sg.Executor):
        def claim(self, bound_symbol: sg.BoundSymbol, entry: Any) -> Any:
            return answer

    with pytest.raises(RuleError, match=r"wrong 1\.5: executor's claim .*claim .* raised \w+Error"):
        chosen([Wrong("wrong", version="1.5")]).implementation(call(torch.sin))


def raising(bound_symbol: sg.BoundSymbol) -> bool:
    raise ValueError("boom")


def test_raising_checker_is_named_with_operator_and_line() -> None:
    selection = chosen([executor("mine", raising, version="1.5")])
    for decide in (selection.implementation, selection.grad_rule):
        with pytest.raises(RuleError) as caught:
            decide(call(torch.sin))
        text = str(caught.value)
        for part in ("mine 1.5", "raising (", "ValueError: boom", "torch.sin", "model.py:12 mlp", "out of executors"):
            assert part in text
        assert isinstance(caught.value.__cause__, ValueError)


# Grad rules.


def test_order_of_grad_rules(site: Site) -> None:
    plugins = load(
        [
            site.add("mine", executor_plugin("mine", SIN)),
            site.add("a", rules_plugin("a")),
            site.add("b", rules_plugin("b", priority=3)),
        ]
    )
    passed = [rules("one", lambda bound_symbol: "not now"), rules("two")]
    assert differentiator(chosen(["mine"], plugins, passed)) == ("two", (("one", "not now"),))
    assert differentiator(chosen(["mine"], plugins, passed[:1])) == ("mine", (("one", "not now"),))
    assert differentiator(chosen([executor("other", lambda _: "x"), "mine"], plugins)) == ("mine", (("other", "x"),))
    assert differentiator(chosen([], plugins)) == (None, ())
    assert differentiator(chosen(["a", "b"], plugins)) == ("a", ())
    assert differentiator(chosen(["b", "mine"], plugins)) == ("b", ())
    assert differentiator(chosen(["mine"], plugins, ["a"])) == ("a", ())
    assert [name for name, _ in differentiator(chosen(None, plugins), torch.cos)[1]] == ["mine", "b", "a"]


def test_executor_without_a_rule_does_not_hide_that_of_the_next() -> None:
    implements = sg.Table("implements")
    implements.implementation(torch.sin)(torch.sin)
    selection = chosen([sg.Executor("implements", table=implements), executor("differentiates")])
    assert implementer(selection)[0] == "implements"
    assert differentiator(selection) == ("differentiates", (("implements", "no grad rule for torch.sin"),))


def test_executors_outside_the_list_are_not_asked(site: Site) -> None:
    plugins = load([site.add("mine", executor_plugin("mine", SIN))])
    assert differentiator(chosen([], plugins)) == (None, ())
    assert implementer(chosen([sg.Executor("other")], plugins))[0] is None


# Skip rules.


def test_first_opinion_ends_the_asking() -> None:
    for answer in (True, False):
        asked: list[str] = []
        silent, first, later = (Skipping(n, a, asked) for n, a in (("s", None), ("f", answer), ("l", not answer)))
        constant, reason = chosen([silent, first, later]).constant(call(torch.sin))
        assert constant is answer
        assert reason.startswith("skip rule of f")
        assert asked == ["s", "f"]
    assert chosen([Skipping("s", None)]).constant(call(torch.sin)) == (False, "")


SKIP = """
@sg.hookimpl
def switchgear_is_constant_for_vjp(bound_symbol):
    return {answer}
"""


def test_packages_are_asked_after_executors_by_priority_and_name(site: Site) -> None:
    yes, no = SKIP.format(answer=True), SKIP.format(answer=False)
    plugins = load(
        [
            site.add("mine", executor_plugin("mine", SKIP.format(answer=None))),
            site.add("outside", executor_plugin("outside", no)),
            site.add("a", rules_plugin("a", yes)),
            site.add("b", rules_plugin("b", no)),
        ]
    )
    constant, reason = chosen(["mine", "a", "b"], plugins).constant(call(torch.sin))
    assert constant
    assert reason.startswith("skip rule of a: switchgear_is_constant_for_vjp (made_up")
    assert chosen(["outside"], plugins).constant(call(torch.sin))[0] is False


def test_plugin_with_two_executors_is_asked_once(site: Site) -> None:
    source = """
asked = []

@sg.hookimpl
def switchgear_executors():
    return [sg.Executor("one"), sg.Executor("two")]

@sg.hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("same", "before_grad", lambda trace, context: trace)]

@sg.hookimpl
def switchgear_is_constant_for_vjp():
    asked.append(1)
"""
    entry = site.add("both", source)
    selection = chosen(None, load([entry]))
    assert selection.constant(call(torch.sin)) == (False, "")
    assert sys.modules[entry.value].asked == [1]
    assert [placement.name for placement in selection.passes] == ["same"]


def test_passes_are_those_of_the_plugins_that_take_part(site: Site) -> None:
    add = """
@sg.hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("of {0}", "before_grad", lambda trace, context: trace)]
"""
    plugins = load(
        [
            *(site.add(name, executor_plugin(name, add.format(name))) for name in ("a", "b")),
            site.add("rules", rules_plugin("rules", add.format("rules"))),
        ]
    )
    assert [placement.name for placement in chosen(["b"], plugins).passes] == ["of b"]
    assert [placement.name for placement in chosen(["b", "a"], plugins).passes] == ["of b", "of a"]
    assert [placement.name for placement in chosen(["rules", "b"], plugins).passes] == ["of rules", "of b"]
    assert [placement.name for placement in chosen(None, plugins).passes] == ["of a", "of b", "of rules"]


@pytest.mark.parametrize("answer", [ValueError("boom"), 1, "yes"])
def test_skip_rule_that_fails(answer: Any) -> None:
    selection = chosen([Skipping("mine", answer)])
    with pytest.raises(
        RuleError, match=r"mine: skip rule .*is_constant_for_vjp .*(?s:.*)torch\.sin, called at model\.py:12 mlp"
    ):
        selection.constant(call(torch.sin))


def test_raising_rules_package_is_named_with_its_version_and_the_way_out(site: Site) -> None:
    body = "@sg.hookimpl\ndef switchgear_is_constant_for_vjp(bound_symbol):\n    raise ValueError('boom')\n"
    plugins = load([site.add("mine", rules_plugin("mine", body), version="0.7")])
    with pytest.raises(
        RuleError, match=r"mine 0\.7: skip rule .*ValueError: boom(?s:.*)pass executors=\[..., '-mine'\]"
    ):
        chosen(None, plugins).constant(call(torch.sin))
    with pytest.raises(RuleError, match="leave mine out of executors"):
        chosen(["mine"], plugins).constant(call(torch.sin))


# Nothing but names and priorities decides.


def test_choices_do_not_depend_on_the_order_of_installation(site: Site) -> None:
    skip = SKIP.format(answer="bound_symbol.symbol.name == 'torch.sign' or None")
    entries = [
        site.add("a", executor_plugin("a", SIN)),
        site.add("b", executor_plugin("b", SIN + skip, options="priority=1")),
        site.add("x", rules_plugin("x", skip)),
        site.add("y", rules_plugin("y")),
    ]
    seen = set()
    for permuted in itertools.permutations(entries):
        for entry in entries:
            sys.modules.pop(entry.value, None)
        plugins = load(permuted)
        for executors in (None, ["a", "b"], ["a"], []):
            selection = chosen(executors, plugins)
            decisions = (implementer(selection), differentiator(selection), selection.constant(call(torch.sign)))
            seen.add((str(executors), decisions))
    assert len(seen) == 4


def test_torch_executor() -> None:
    selection = chosen(["torch"], load([EntryPoint("torch", "switchgear_torch", "switchgear")]), strict=True)
    (torch_executor,) = selection.executors
    assert torch_executor.priority == -100
    leaf = call(torch.ops.aten.sin.default)
    taken, _ = selection.implementation(leaf)
    assert taken is not None
    assert taken.fn is torch.ops.aten.sin.default
    composite, _ = selection.implementation(call(torch.sin, requires_grad=False, parts=(leaf,)))
    assert composite is not None
    declined, reasons = selection.implementation(call(torch.sin, parts=(leaf,)))
    assert declined is None
    assert "can depend on requires_grad" in dict(reasons)["torch"]

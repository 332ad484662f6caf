"""Tables, the registry that they are installed on, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear.errors import RegistrationError
from switchgear_core.ir.naming import symbols_of
from switchgear_core.registry.registry import GradRule, ImplementationEntry, describe
from tests.core.made_up import call

ATEN = torch.ops.aten


def fast_sin(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def faster_sin(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def sin_rule(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda grad: grad * torch.cos(x)


def sin_backward(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return grad * torch.cos(x)


def test_declaring_changes_nothing_until_installed() -> None:
    table, registry = sg.Table("mine"), sg.executors.Registry()
    assert table.implementation(torch.sin)(fast_sin) is fast_sin
    assert table.grad_rule(torch.sin)(sin_rule) is sin_rule
    assert not registry.implementation_owners
    assert not registry.grad_rule_owners
    table.install_implementations(registry)
    assert registry.implementation("mine", "torch.sin") == ImplementationEntry("mine", "torch.sin", fast_sin)
    assert registry.grad_rule("mine", "torch.sin") is None
    table.install_grad_rules(registry)
    assert registry.grad_rule("mine", "torch.sin") == GradRule("mine", "torch.sin", "pullback", sin_rule)
    assert registry.implementation("other", "torch.sin") is None
    assert registry.implementation("mine", "torch.cos") is None


def test_three_forms() -> None:
    table = sg.Table("mine")
    table.grad_rule(torch.sin)(sin_rule)
    table.grad_transform(torch.cos)(sin_rule)
    table.augmented(torch.tan, forward=sin_rule, backward=sin_backward)
    assert {name: rule.form for name, rule in table.grad_rules.items()} == {
        "torch.sin": "pullback",
        "torch.cos": "transform",
        "torch.tan": "augmented",
    }
    assert table.grad_rules["torch.tan"].backward is sin_backward


@pytest.mark.parametrize("target", [torch.Tensor.add, torch.add, "torch.add"])
def test_spellings_of_one_operator_are_one(target: Any) -> None:
    table = sg.Table("mine")
    table.implementation(target)(fast_sin)
    assert list(table.implementations) == ["torch.add"]


def test_packet_stands_for_its_overloads_and_one_may_be_overridden() -> None:
    table = sg.Table("mine")
    table.grad_rule(ATEN.sub)(sin_rule)
    assert "aten.sub.Tensor" in table.grad_rules
    assert "aten.sub.Scalar" in table.grad_rules
    table.grad_transform(ATEN.sub.Scalar, override=True)(sin_rule)
    assert table.grad_rules["aten.sub.Tensor"].form == "pullback"
    assert table.grad_rules["aten.sub.Scalar"].form == "transform"


def test_custom_operators_of_two_packages_with_one_name_differ() -> None:
    with torch.library._scoped_library("made_up_a", "DEF") as a, torch.library._scoped_library("made_up_b", "DEF") as b:
        for library in (a, b):
            library.define("fast_gelu(Tensor x) -> Tensor")
        table = sg.Table("mine")
        table.implementation(torch.ops.made_up_a.fast_gelu)(fast_sin)
        table.implementation(torch.ops.made_up_b.fast_gelu)(faster_sin)
        assert {name: entry.fn for name, entry in table.implementations.items()} == {
            "made_up_a.fast_gelu.default": fast_sin,
            "made_up_b.fast_gelu.default": faster_sin,
        }


def test_duplicate_in_a_table_names_both() -> None:
    table = sg.Table("mine")
    table.implementation(torch.sin)(fast_sin)
    with pytest.raises(RegistrationError, match=r"mine .* torch\.sin: fast_sin \(.*:\d+\) and faster_sin \(.*:\d+\)"):
        table.implementation(torch.Tensor.sin)(faster_sin)
    assert table.implementations["torch.sin"].fn is fast_sin


def test_duplicate_across_tables_of_one_owner_names_both_and_override_is_spelled_out() -> None:
    first, second, third, registry = sg.Table("mine"), sg.Table("mine"), sg.Table("mine"), sg.executors.Registry()
    first.grad_rule(torch.sin)(sin_rule)
    second.grad_transform(torch.sin)(fast_sin)
    third.grad_transform(torch.sin, override=True)(faster_sin)
    first.install_grad_rules(registry)
    with pytest.raises(RegistrationError, match=r"sin_rule .* and fast_sin .*override=True"):
        second.install_grad_rules(registry)
    third.install_grad_rules(registry)
    rule = registry.grad_rule("mine", "torch.sin")
    assert rule is not None
    assert rule.fn is faster_sin


def test_two_owners_may_bring_one_symbol() -> None:
    registry = sg.executors.Registry()
    for owner, fn in (("a", fast_sin), ("b", faster_sin)):
        table = sg.Table(owner)
        table.implementation(torch.sin)(fn)
        table.install_implementations(registry)
    assert registry.implementation_owners == {"a", "b"}
    assert {registry.implementations_of(owner)["torch.sin"].fn for owner in "ab"} == {fast_sin, faster_sin}


def test_frozen_registry_refuses() -> None:
    table, registry = sg.Table("mine"), sg.executors.Registry()
    table.implementation(torch.sin)(fast_sin)
    table.grad_rule(torch.sin)(sin_rule)
    registry.freeze()
    with pytest.raises(RegistrationError, match=r"mine registers fast_sin .* on a registry that is in use"):
        table.install_implementations(registry)
    with pytest.raises(RegistrationError, match="in use"):
        table.install_grad_rules(registry)


@pytest.mark.parametrize("target", [fast_sin, 3, "torch.no_such_function", "aten.mm", "no_such_library.op.default"])
def test_target_that_is_no_operator(target: Any) -> None:
    with pytest.raises(RegistrationError):
        sg.Table("mine").implementation(target)(fast_sin)


@pytest.mark.parametrize("name", ["", " mine", "a,b", "-a", "derived", "constant", "decomposition", 3, None])
def test_names_that_nobody_can_have(name: Any) -> None:
    with pytest.raises(RegistrationError):
        sg.Table(name)
    with pytest.raises(RegistrationError):
        sg.Executor(name)


def test_what_is_registered_is_callable() -> None:
    table, wrong = sg.Table("mine"), ("not", "a function")
    with pytest.raises(RegistrationError, match="mine registers the function"):
        table.implementation(torch.sin)(wrong)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match="the checker"):
        table.grad_rule(torch.sin, checker=wrong)(sin_rule)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="the function"):
        table.augmented(torch.sin, forward=sin_rule, backward=wrong)  # type: ignore[arg-type]
    assert not table.implementations
    assert not table.grad_rules


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(True, None), ("wrong dtype", "wrong dtype"), (sg.Declined("too small"), "too small"), (False, "said no")],
)
def test_answers_of_a_checker(answer: Any, reason: str | None) -> None:
    entry = ImplementationEntry("mine", "torch.sin", fast_sin, lambda bound_symbol: answer)
    rule = GradRule("mine", "torch.sin", "pullback", sin_rule, checker=lambda bound_symbol: answer)
    for declined in (entry.declined(call(torch.sin)), rule.declined(call(torch.sin))):
        if reason is None:
            assert declined is None
        else:
            assert declined is not None
            assert reason in declined.reason


@pytest.mark.parametrize("answer", [None, 1, 0, object()])
def test_a_checker_never_declines_by_accident(answer: Any) -> None:
    entry = ImplementationEntry("mine", "torch.sin", fast_sin, lambda bound_symbol: answer)
    with pytest.raises(TypeError, match="a checker returns True, False, a reason"):
        entry.declined(call(torch.sin))


def test_default_claim() -> None:
    executor = sg.Executor("mine")
    declined = executor.claim(call(torch.sin), None)
    assert isinstance(declined, sg.Declined)
    assert declined.reason == "no implementation of torch.sin"
    taken = executor.claim(call(torch.sin), ImplementationEntry("mine", "torch.sin", fast_sin))
    assert isinstance(taken, sg.executors.Implementation)
    assert (taken.owner, taken.fn) == ("mine", fast_sin)


def test_table_of_an_executor_is_its_own() -> None:
    with pytest.raises(RegistrationError, match=r"executor a .* belongs to b"):
        sg.Executor("a", table=sg.Table("b"))


def test_mm_goes_by_its_name() -> None:
    def products(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x) + x.mm(x)

    jitted = sg.jit(products, executors=["torch"])
    jitted(torch.ones(2, 2))
    names = [line.symbol.name for line in sg.last_traces(jitted)[0].bound_symbols]
    assert names == ["torch.mm", "torch.mm", "torch.add"]
    assert symbols_of(torch.mm) == symbols_of("torch.mm") == symbols_of(torch.Tensor.mm)


def test_describe() -> None:
    assert describe(fast_sin).startswith("fast_sin (")
    assert describe(functools.partial(fast_sin, torch.zeros(1))) == describe(fast_sin)
    assert "sin" in describe(torch.sin)
    assert describe(3) == "3"

"""Passes of plugins: where they run, what they may ask, and what `explain` says of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import RuleError
from switchgear_core.registry import plugins
from switchgear_runtime.last_call import compiler_of
from tests.core.made_up import Site, executor_plugin
from tests.core.training import backward, executor, forward, operators, owners, rules

#: An executor `mine` with an operator for `sin` and then `cos`, and a pass that puts it in their place.
PATTERN = """
import dataclasses

library = torch.library.Library("made_up_{name}", "DEF")
library.define("sincos(Tensor x) -> Tensor")

def sincos(x):
    return x.sin().cos()

library.impl("sincos", sincos, "CompositeImplicitAutograd")
overload = torch.ops.made_up_{name}.sincos.default
table.implementation(overload)(lambda x: sincos(x))
table.grad_rule(overload)(lambda x: (overload(x), lambda grad: -grad * x.sin().sin() * x.cos()))

def fuse(trace, context):
    assert {{"mine", "torch"}} <= {{executor.name for executor in context.executors}}
    for first, second in zip(trace.bound_symbols, trace.bound_symbols[1:]):
        if (first.symbol.name, second.symbol.name) == ("torch.sin", "torch.cos"):
            if len(first.output.shape) > 1:
                context.decline("mine", second, "for vectors alone")
                continue
            symbol = sg.Symbol(str(overload), overload)
            call = sg.BoundSymbol(symbol, first.args, {{}}, second.output, (first, second), second.source)
            if context.takes("mine", call):
                body = [call if item is second else item for item in trace.bound_symbols if item is not first]
                return dataclasses.replace(trace, bound_symbols=tuple(body))
    return trace

@hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("mine_sincos", "before_grad", fuse)]
"""


TORCH = EntryPoint("torch", "switchgear_torch", "switchgear")


@pytest.fixture
def install(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has a plugin `mine` with this source installed beside `torch`."""

    def add(source: str) -> None:
        entries = [site.add("mine", executor_plugin("mine", source)), TORCH]
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: entries)
        plugins.loaded_once.cache_clear()

    yield add
    plugins.loaded_once.cache_clear()


@pytest.fixture
def installed(request: Any, install: Callable[[str], None]) -> None:
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    install(PATTERN.format(name=name))


def function(x: Tensor) -> Tensor:
    return x.sin().cos() * 2


def patterns(jitted: Any) -> list[str]:
    return [str(choice).partition(": ")[2] for choice in sg.last_choices(jitted) if choice.kind == "pattern"]


def is_fused(jitted: Any) -> bool:
    return any("sincos" in name for name in operators(forward(jitted)))


@pytest.mark.usefixtures("installed")
def test_pattern_is_taken_forward_and_backward() -> None:
    x = torch.randn(3, requires_grad=True)
    jitted = sg.jit(function, executors=["mine", "torch"])
    (found,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(function(x).sum(), x)[0])
    assert patterns(jitted) == ["pattern by mine"]
    assert is_fused(jitted)
    assert [trace.provenance[-1].name for trace in sg.last_traces(jitted)][2] == "mine_sincos"
    assert "rule: mine (pullback)" in backward(jitted).python(link=True)


@pytest.mark.usefixtures("installed")
def test_a_pass_that_changes_nothing_leaves_no_stage() -> None:
    jitted = sg.jit(torch.tan, executors=["mine", "torch"])
    jitted(torch.randn(3))
    assert "mine_sincos" not in [trace.provenance[-1].name for trace in sg.last_traces(jitted)]


@pytest.mark.usefixtures("installed")
def test_declined_with_a_reason() -> None:
    jitted = sg.jit(function, executors=["mine", "torch"])
    jitted(torch.randn(2, 3))
    assert patterns(jitted) == ["pattern by decomposition; mine: for vectors alone"]
    assert "torch.cos: pattern by decomposition; mine: for vectors alone" in str(sg.explain(jitted).operators())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_who_comes_before_keeps_the_parts(requires_grad: bool) -> None:
    x = torch.randn(3, requires_grad=requires_grad)
    jitted = sg.jit(function, executors=[executor("other", {torch.cos: torch.cos}), "mine", "torch"])
    torch.testing.assert_close(jitted(x), function(x))
    (reason,) = patterns(jitted)
    assert reason.endswith("; mine: other, which comes before it, takes torch.cos inside")
    assert not is_fused(jitted)


@pytest.mark.usefixtures("installed")
def test_without_a_list_the_declared_priority_decides() -> None:
    jitted = sg.jit(function)
    jitted(torch.randn(3))
    assert patterns(jitted) == ["pattern by mine"]
    last = sg.jit(function, executors=["torch", "mine"])
    last(torch.randn(3))
    assert patterns(last) == ["pattern by decomposition; mine: torch comes before it"]


@pytest.mark.usefixtures("installed")
def test_rule_asked_before_keeps_the_parts_if_there_is_a_gradient() -> None:
    doubled = rules(torch.sin, lambda x: (x.sin(), lambda grad: 2 * grad * x.cos()), "twice")
    jitted = sg.jit(function, executors=["mine", "torch"], grad_rules=doubled)
    x = torch.randn(3, requires_grad=True)
    (found,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.testing.assert_close(found, 2 * torch.autograd.grad(function(x).sum(), x)[0])
    assert patterns(jitted) == [
        "pattern by decomposition; mine: twice, which comes before it, has a grad rule for torch.sin inside"
    ]
    jitted(x.detach())
    assert patterns(jitted) == ["pattern by mine"]


@pytest.mark.usefixtures("installed")
def test_rule_of_an_executor_asked_later_does_not() -> None:
    other = executor("other", rules={torch.sin: lambda x: (x.sin(), lambda grad: 2 * grad * x.cos())})
    jitted = sg.jit(function, executors=["mine", other, "torch"])
    x = torch.randn(3, requires_grad=True)
    (found,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(function(x).sum(), x)[0])
    assert patterns(jitted) == ["pattern by mine"]


@pytest.mark.usefixtures("installed")
def test_skip_rule_keeps_the_parts() -> None:
    class Constant(sg.Executor):
        def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
            return True if bound_symbol.symbol.name == "torch.sin" else None

    jitted = sg.jit(lambda x: function(x) + x, executors=["mine", Constant("other"), "torch"])
    x = torch.randn(3, requires_grad=True)
    (found,) = torch.autograd.grad(jitted(x).sum(), x)
    torch.testing.assert_close(found, torch.ones(3))
    assert "mine: torch.sin inside is a constant by a skip rule of other" in patterns(jitted)[0]


def test_a_pass_that_raises(install: Callable[[str], None]) -> None:
    install("""
@hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("broken", "before_claim", lambda trace, context: 1 / 0)]
""")
    with pytest.raises(RuleError, match=r"pass 'broken' of mine 1\.0 raised ZeroDivisionError.*passes=\['-broken'\]"):
        sg.jit(torch.sin, executors=["mine", "torch"])(torch.randn(2))


def test_a_pass_that_breaks_the_trace(install: Callable[[str], None]) -> None:
    install("""
import dataclasses

def drop_the_first(trace, context):
    return dataclasses.replace(trace, bound_symbols=trace.bound_symbols[1:])

@hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("broken", "before_claim", drop_the_first)]
""")

    def two(x: Tensor) -> Tensor:
        return x.sin().cos()

    jitted = sg.jit(two, executors=["mine", "torch"])
    with pytest.raises(RuleError) as raised:
        jitted(torch.randn(2))
    message = str(raised.value)
    assert "pass 'broken' of mine 1.0 broke the trace; passes=['-broken'] runs without it" in message
    assert "is used before it is defined" in message
    assert f"{Path(__file__).name}:{two.__code__.co_firstlineno + 1}" in message


# After claiming.

AFTER = """
import dataclasses

seen = []

def write_sums_to_their_inputs(trace, context):
    seen.append((trace.name, context.gives_gradients, dict(context.destined)))
    body, outputs, written = list(trace.bound_symbols), list(trace.outputs), {}
    home = sg.passes.storages(body)
    for place, number in context.destined.items():
        target, value = trace.inputs[number], trace.outputs[place]
        (line,) = [item for item in body if value in item.outputs]
        assert line.implementation.owner == "torch"
        assert sg.passes.aliased_argument(line) is None and value.name not in home
        if line.symbol.name == "aten.add.Tensor" and line.args[0] == target:
            fn = torch.ops.aten.add_.Tensor
            run = sg.executors.Implementation("torch", fn)
            new = dataclasses.replace(line, symbol=sg.Symbol(str(fn), fn), implementation=run)
            assert sg.passes.written_arguments(new) == (target,)
            body[body.index(line)], outputs[place] = new, None
            written[target.name] = 1
    return dataclasses.replace(
        trace, bound_symbols=tuple(body), outputs=tuple(outputs), writes=written
    ) if written else trace

@hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("mine_writes", "after_claim", write_sums_to_their_inputs)]
"""


def test_after_claiming(install: Callable[[str], None]) -> None:
    """A plugin does with the public names what the project's own does: here, have the program write to an input."""
    install(AFTER)

    @torch.no_grad()
    def step(w: Tensor) -> None:
        w.add_(2)

    jitted = sg.jit(step, executors=["mine", "torch"])
    w = torch.zeros(3, dtype=torch.bfloat16)  # which the core leaves functional
    for count in (2.0, 4.0):
        jitted(w)
        assert w.tolist() == [count] * 3
    assert len(forward(jitted).writes) == 1
    assert "mine_writes" in [trace.provenance[-1].name for trace in sg.last_traces(jitted)]
    assert owners(jitted, "execution") == {"aten.add.Tensor": "torch"}


def test_after_claiming_it_is_told_what_the_trace_gives(install: Callable[[str], None]) -> None:
    install(AFTER)
    jitted = sg.jit(lambda x: x.sin(), executors=["mine", "torch"])
    jitted(torch.ones(3, requires_grad=True)).sum().backward()
    (placement,) = [one for one in compiler_of(jitted).selection.passes if one.name == "mine_writes"]
    seen = placement.run.__globals__["seen"]
    assert [(name, gradients) for name, gradients, _ in seen] == [("forward", False), ("backward", True)]


def test_a_call_reads_another_value() -> None:
    captured = sg.last_traces(run_twice(lambda x: (x.sin(), x.cos())))[0]
    sine, cosine = captured.bound_symbols
    line = cosine.reading({"t_0": sine.output})
    assert line.inputs == (sine.output,)
    assert line.output is cosine.output
    assert line.subsymbols[0].inputs == (sine.output,)


def run_twice(function: Callable[..., Any]) -> Any:
    jitted = sg.jit(function, executors=["torch"])
    for _ in range(2):
        jitted(torch.ones(3))
    return jitted

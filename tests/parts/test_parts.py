"""Parts of strangers: options, front ends and runtimes, and the messages where they are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import switchgear as sg
from conftest import shipped
from switchgear.errors import InvalidInput, PluginWarning, RuleError
from switchgear_core.registry import parts as registry
from tests.core.made_up import Site

#: A front end for functions of one tensor, and a runtime that runs in eager mode.
ONE_TENSOR = """
from switchgear import parts

class OneTensor:
    name = "one tensor"
    direct = parts.DirectFrontend()

    def capture(self, function, args, kwargs, handlers):
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            raise sg.errors.Unsupported("more than one tensor")
        return self.direct.capture(function, args, kwargs, handlers)

@sg.hookimpl
def switchgear_frontends(selection):
    return [OneTensor()] if selection.settings["plain"] else []

@sg.hookimpl
def switchgear_options():
    return [parts.Option("plain", True, "the function reads nothing else.", **parts.one_of(True, False))]
"""
EAGER_RUNTIME = """
class Eager:
    def run(self, captured, programs):
        function = captured.trace.function()
        return lambda inputs: captured.finish(function(*inputs), inputs)

@sg.hookimpl
def switchgear_runtime(selection):
    return Eager() if selection.settings["by_hand"] else None

@sg.hookimpl
def switchgear_options():
    from switchgear import parts
    return [parts.Option("by_hand", False, "run in eager mode.", "Debugging", **parts.one_of(True, False))]
"""
Install = Callable[..., None]
_NUMBERS = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    site = Site(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def add(**sources: str) -> None:
        number = next(_NUMBERS)  # a module is imported once in a process
        entries = [
            site.add(name, source, distribution=f"part-{name}-{number}", group="switchgear.parts")
            for name, source in sources.items()
        ]

        def entry_points(*, group: str) -> Any:
            return [*shipped(group=group), *(entries if group == "switchgear.parts" else [])]

        monkeypatch.setattr(registry, "entry_points", entry_points)
        registry._loaded_once.cache_clear()

    yield add
    registry._loaded_once.cache_clear()


def test_a_front_end_is_asked_first_and_its_entry_trains(install: Install) -> None:
    install(one=ONE_TENSOR)
    jitted = sg.jit(lambda x: x.sin().square(), executors=["torch"], fallback="error")
    x = torch.randn(3, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(jitted(x).sum(), x)
        assert torch.equal(gradient, torch.autograd.grad(x.sin().square().sum(), x)[0])
    assert jitted(torch.ones(4)).shape == (4,)
    assert "front end one tensor" in str(sg.explain(jitted).facts.guards)
    assert "torch.sin" in str(sg.last_traces(jitted)[0])


def test_a_call_that_it_refuses_goes_to_the_next(install: Install) -> None:
    install(one=ONE_TENSOR)
    jitted = sg.jit(lambda x, y: x + y, executors=["torch"], fallback="error")
    assert torch.equal(jitted(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert "one tensor" not in str(sg.explain(jitted).facts.guards)


def test_a_front_end_follows_an_option(install: Install) -> None:
    install(one=ONE_TENSOR)
    jitted = sg.jit(torch.sin, executors=["torch"], plain=False)  # type: ignore[call-overload]
    jitted(torch.ones(2))
    assert "one tensor" not in str(sg.explain(jitted).facts.guards)


def test_a_recompilation_by_a_front_end_recommends_no_option_of_another(install: Install) -> None:
    install(one=ONE_TENSOR)
    jitted = sg.jit(lambda x: x.sin(), executors=["torch"])
    for size in (2, 3):
        jitted(torch.ones(size))
    (_, reason) = sg.cache_info(jitted).reasons
    assert reason == "argument x changed from f32[2] to f32[3]"


def test_an_option_of_a_part(install: Install) -> None:
    with pytest.raises(TypeError, match="no option by_hand"):
        sg.jit(torch.sin, by_hand=True)  # type: ignore[call-overload]
    install(eager=EAGER_RUNTIME)
    jitted = sg.jit(lambda x: x.sin() + 1, executors=["torch"], by_hand=True)  # type: ignore[call-overload]
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(jitted(x), x.sin() + 1)
    assert "AddBackward" in type(jitted(x).grad_fn).__name__
    with pytest.raises(InvalidInput, match="by_hand=3 is not one of True, False"):
        sg.jit(torch.sin, by_hand=3)  # type: ignore[call-overload]


def test_two_runtimes(install: Install) -> None:
    second = EAGER_RUNTIME.replace("by_hand", "by_foot")
    install(eager=EAGER_RUNTIME, other=second)
    jitted = sg.jit(torch.sin, executors=["torch"], by_hand=True, by_foot=True, strict=True)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"eager and other each answer switchgear_runtime.*SWITCHGEAR_DISABLE=eager"):
        jitted(torch.ones(2))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("switchgear_contract = 7\n" + ONE_TENSOR, "written for contract 7"),
        (ONE_TENSOR.replace("switchgear_frontends", "switchgear_frontend"), "did you mean 'switchgear_frontends'"),
        (EAGER_RUNTIME.replace("by_hand", "strict"), "declares option strict, as part core"),
        (EAGER_RUNTIME.replace('"Debugging"', '"Speed"'), "of group 'Speed'"),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    return []\n",
            "group 'switchgear' alone; register it",
        ),
        ("1 / 0", "ZeroDivisionError"),
        ("switchgear_priority = 'high'\n" + ONE_TENSOR, "'high' is no number"),
    ],
)
def test_a_part_that_cannot_be_used_is_passed_over(install: Install, source: str, message: str) -> None:
    install(wrong=source)
    with pytest.warns(PluginWarning, match=f"plugin wrong 1.0 is not used.*{message}"):
        jitted = sg.jit(torch.sin, executors=["torch"])
    assert torch.equal(jitted(torch.ones(2)), torch.ones(2).sin())
    (status,) = [one for one in sg.plugin_report() if one.name == "wrong"]
    assert message in status.error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "capture returned 3, not a CapturedCall"),
        ("raise ValueError('no')", "ValueError: no"),
        (
            "import dataclasses\n"
            "        captured = self.direct.capture(function, args, kwargs, handlers)\n"
            "        trace = dataclasses.replace(captured.trace, bound_symbols=())\n"
            "        return dataclasses.replace(captured, trace=trace)",
            "InvalidTrace",
        ),
    ],
)
def test_a_front_end_that_fails_is_named(install: Install, body: str, message: str) -> None:
    install(one=ONE_TENSOR.replace("return self.direct.capture(function, args, kwargs, handlers)", body))
    jitted = sg.jit(lambda x: x.sin(), executors=["torch"])
    with pytest.raises(
        RuleError, match=f"(?s)front end one tensor of part one 1.0: .*{message}.*SWITCHGEAR_DISABLE=one"
    ):
        jitted(torch.ones(2))

"""The seam of capture: features that are left out, features that a plugin brings, and features that collide."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import switchgear as sg
from switchgear.errors import PluginWarning, RegistrationError
from switchgear_core.record.handler import DISABLE_VARIABLE, Handlers, enabled
from switchgear_core.registry import plugins
from switchgear_frontend.features import BUILT_IN
from tests.core.made_up import Site
from tests.oracle import differences, fallbacks_recorded


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.arange(16).view(2, 8) % 11
    return {"input_ids": ids, "labels": ids.clone()}


def gpt2() -> tuple[Any, dict[str, Any]]:
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8, use_cache=False)
    return transformers.GPT2LMHeadModel(config), tokens()


def llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=11,
        max_position_embeddings=8,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), tokens()


class WithLoss(torch.nn.Sequential):
    """Layers, and the loss of what they give."""

    def forward(self, input: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": super().forward(input).square().mean()}  # type: ignore[no-untyped-call]


def mlp() -> tuple[Any, dict[str, Any]]:
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    return WithLoss(*layers), {"input": torch.randn(3, 4)}


def cnn() -> tuple[Any, dict[str, Any]]:
    layers = torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    return WithLoss(*layers, torch.nn.Linear(16, 2)), {"input": torch.randn(3, 2, 4, 4)}


MODELS = (gpt2, llama, mlp, cnn)


def step(model: Any, batch: dict[str, Any]) -> Any:
    """The loss, the gradients and the state after two training steps."""
    seen: list[Any] = []
    for seed in range(2):
        torch.manual_seed(seed)
        loss = model(**batch)["loss"]
        loss.backward()
        seen += [loss.detach(), *[parameter.grad for parameter in model.parameters()]]
    return copy.deepcopy((seen, dict(model.state_dict())))


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("name", [feature.name for feature in BUILT_IN])
def test_training_steps_without_a_feature(
    name: str, make: Callable[[], tuple[Any, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make()
    twin = copy.deepcopy(model)
    monkeypatch.setenv(DISABLE_VARIABLE, f"{name}, ")
    with fallbacks_recorded():
        found = step(sg.jit(twin, executors=["torch"]), batch)
    assert not list(differences(step(model, batch), found, "step"))


def test_a_feature_that_is_left_out_is_not_asked() -> None:
    assert len(enabled(BUILT_IN)) == len(BUILT_IN)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(DISABLE_VARIABLE, "autocast,checkpoint")
        left = {feature.name for feature in BUILT_IN} - {feature.name for feature in enabled(BUILT_IN)}
    assert left == {"autocast", "checkpoint"}


def test_a_feature_that_is_not_there_cannot_be_left_out(
    plugin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(logged=LOGGED)
    monkeypatch.setenv(DISABLE_VARIABLE, "logged")
    sg.jit(torch.sin, executors=["torch"])  # it is another call's
    monkeypatch.setenv(DISABLE_VARIABLE, "autocast,nosuch")
    with pytest.warns(PluginWarning, match=r"FEATURES names nosuch, .*there are: .*checkpoint.*logged") as caught:
        jitted = sg.jit(torch.sin, executors=["torch"])
    assert len(caught) == 1
    assert sg.jit(torch.cos, executors=["torch"]) is not jitted  # and no warning, which would be an error


LOGGED = """
CALLS = []

class Logged(sg.capture.Handler):
    functions = frozenset({torch.special.i0e})

    def begin(self, recorder):
        return [0]

    def take(self, recorder, call):
        recorder.state(self)[0] += 1
        CALLS.append(recorder.state(self)[0])
        (tensor,) = call.args
        return torch.exp(-tensor.abs()) * torch.i0(tensor)

@sg.hookimpl
def switchgear_features():
    return [sg.capture.Feature("logged", (Logged(),))]
"""


#: The plugin of the guide.
RANGES = (Path(__file__).parents[2] / "docs" / "feature.md").read_text().split("```python\n")[1].split("```")[0]


@pytest.fixture
def plugin(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    shipped: Any = vars(plugins)["entry_points"]

    def install(**sources: str) -> None:
        added = [site.add(name, source) for name, source in sources.items()]
        monkeypatch.setattr(plugins, "entry_points", lambda group: [*added, *shipped(group=group)])
        plugins.loaded_once.cache_clear()

    yield install
    monkeypatch.undo()
    plugins.loaded_once.cache_clear()


def ranged(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("outer"):
        x = x.sin()
        with torch.profiler.record_function("inner"):
            x = x.mul(2)
    return x.cos()


def ranges_of(function: Callable[..., torch.Tensor], x: torch.Tensor) -> list[str]:
    """The names of the ranges that a profiler sees a call enter, in order; its gradients are eager's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch 2.11 warns of cycles
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            result = function(x)
    (found,), (expected,) = (torch.autograd.grad(y.sum(), x) for y in (result, ranged(x)))
    assert torch.equal(found, expected)
    events = sorted((event for event in profile.events() if event.name in ("outer", "inner")), key=lambda e: e.id)
    return [event.name for event in events]


@pytest.mark.parametrize("option", ["keep", "drop"])
def test_a_plugin_records_ranges_as_lines(
    plugin: Callable[..., None], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(ranges=RANGES)
    monkeypatch.setenv("RANGES", option)
    x = torch.linspace(-1, 1, 4).requires_grad_()
    jitted = sg.jit(ranged, executors=["torch", "ranges"], strict=True)
    jitted(x)
    kept = ["outer", "inner"] if option == "keep" else []
    assert ranges_of(jitted, x) == kept
    assert sg.last_traces(jitted)[-1].python().count("ranges.enter") == len(kept)
    assert "enter" not in sg.last_backward_traces(jitted)[-1].python()


def test_a_feature_of_a_plugin_answers_calls(plugin: Callable[..., None]) -> None:
    plugin(logged=LOGGED)
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0e(x).add(torch.special.i0e(x * 2))  # type: ignore[no-any-return]

    jitted = sg.jit(function, executors=["torch", "logged"])
    for _ in range(2):
        torch.testing.assert_close(jitted(x), function(x))
    assert "special.i0e" not in sg.last_traces(jitted)[0].python()
    assert "i0" in sg.last_traces(jitted)[0].python()
    (module,) = [plugin for plugin in plugins.installed().plugins if plugin.name == "logged"]
    (feature,) = module.features
    calls = vars(__import__(type(feature.handlers[0]).__module__))["CALLS"]
    assert calls == [1, 2]  # one capture, two calls


def test_a_feature_of_a_plugin_is_left_out_by_name(
    plugin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(logged=LOGGED)
    monkeypatch.setenv(DISABLE_VARIABLE, "logged")
    jitted = sg.jit(torch.special.i0e, executors=None)
    jitted(torch.ones(2))
    assert "i0e" in sg.last_traces(jitted)[0].python()


RAISING = """
class Raising(sg.capture.Handler):
    functions = frozenset({torch.special.i0e})

    def METHOD(self, recorder, call):
        return 1 / 0

@sg.hookimpl
def switchgear_features():
    return [sg.capture.Feature("raising", (Raising(),))]
"""


@pytest.mark.parametrize("method", ["take", "answer"])
def test_a_feature_that_raises_is_named(plugin: Callable[..., None], method: str) -> None:
    plugin(raising=RAISING.replace("METHOD", method))
    jitted = sg.jit(scaled, executors=["torch", "raising"])
    for _ in range(2):  # nothing is left behind
        with pytest.raises(ZeroDivisionError) as raised:
            jitted(torch.ones(2))
        (note,) = raised.value.__notes__
        line = f"{__file__}:{scaled.__code__.co_firstlineno + 1}"
        assert note == f"raised by the feature raising for {line}; {DISABLE_VARIABLE}=raising leaves it out"


def scaled(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = torch.special.i0e(x)
    return y


def test_an_error_of_the_program_is_not_a_features(plugin: Callable[..., None]) -> None:
    plugin(raising=RAISING)

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7)

    with pytest.raises(RuntimeError) as raised:
        sg.jit(wrong, executors=["torch", "raising"])(torch.ones(2))
    assert not hasattr(raised.value, "__notes__")


def test_two_features_that_answer_one_function_are_an_error_that_names_both(plugin: Callable[..., None]) -> None:
    plugin(logged=LOGGED, other=LOGGED.replace('"logged"', '"other"'))
    with pytest.raises(RegistrationError, match=rf"logged and other both answer .*i0e.*{DISABLE_VARIABLE}"):
        sg.jit(torch.sin)


def test_two_features_of_one_name_are_an_error() -> None:
    with pytest.raises(RegistrationError, match="two features are called same"):
        enabled([sg.capture.Feature("same", ()), sg.capture.Feature("same", ())])


def test_what_no_handler_answers_is_passed_on() -> None:
    handlers = Handlers()
    recorder: Any = None
    assert handlers.ask("take", recorder, sg.capture.Call(torch.sin)) is sg.capture.PASS
    assert repr(sg.capture.PASS) == "PASS"
    with warnings.catch_warnings(), handlers.entered("around"):
        pass

"""Globals that are read: numbers, tensors, functions, namespaces, defaults, those of a helper's own module."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import Tensor

from tests.python_state import globals_of_a_helper as helper
from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, repeated, step

SCALE = 1.0
WEIGHT = torch.ones(4)
ACTIVATION: Any = torch.relu
SETTINGS: dict[str, Any] = {}
ARGS = types.SimpleNamespace()
THRESHOLDS: list[float] = []
DEBUG = False


def _set(**values: Any) -> None:
    globals().update(values)


@case(entries=3)
def number() -> Scenario:
    _set(SCALE=1.0)
    return changed(lambda x: x * SCALE, lambda: _set(SCALE=2.0), lambda: _set(SCALE=1.0))


@case()
def flag() -> Scenario:
    _set(DEBUG=False)
    return changed(lambda x: (x * 2, x.abs().max()) if DEBUG else x * 2, lambda: _set(DEBUG=True))


@case()
def tensor_rebound() -> Scenario:
    _set(WEIGHT=torch.ones(4))
    return changed(lambda x: x * WEIGHT, lambda: _set(WEIGHT=torch.full((4,), 2.0)))


@case(entries=1)
def tensor_written_in_place() -> Scenario:
    _set(WEIGHT=torch.ones(4))
    return changed(lambda x: x * WEIGHT, lambda: WEIGHT.add_(1.0))


def _scale() -> float:
    return SCALE


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().sum() * SCALE


@case()
def number_of_a_helper_without_operators() -> Scenario:
    _set(SCALE=1.0)
    return changed(lambda x: x.sin() * _scale(), lambda: _set(SCALE=2.0))


@case()
def number_of_a_helper_that_torch_calls() -> Scenario:
    _set(SCALE=0.1)
    loss = torch.nn.functional.triplet_margin_with_distance_loss
    return changed(lambda x: loss(x, x + 1, x + 2, distance_function=_distance), lambda: _set(SCALE=0.2))


@case()
def function_rebound() -> Scenario:
    _set(ACTIVATION=torch.relu)
    return changed(lambda x: ACTIVATION(x), lambda: _set(ACTIVATION=torch.tanh))


@case()
def dict_of_settings() -> Scenario:
    _set(SETTINGS={"scale": 1.0, "unread": 0})
    return changed(lambda x: x * SETTINGS["scale"], lambda: SETTINGS.update(scale=3.0))


@case()
def list_of_numbers() -> Scenario:
    _set(THRESHOLDS=[0.0, 0.5])
    return changed(lambda x: sum((x > t).sum() for t in THRESHOLDS) * x, lambda: THRESHOLDS.append(1.0))


@case()
def namespace_of_arguments() -> Scenario:
    _set(ARGS=types.SimpleNamespace(temperature=1.0))
    return changed(lambda x: (x / ARGS.temperature).softmax(-1), lambda: put(ARGS, temperature=0.5))


@case(falls_back="globals() has more than any guard can tell")
def global_that_appears() -> Scenario:
    globals().pop("LATER", None)
    return changed(lambda x: x * globals().get("LATER", 1.0), lambda: _set(LATER=2.0), lambda: globals().pop("LATER"))


@case()
def global_of_a_helper() -> Scenario:
    put(helper, FACTOR=1.0)
    return changed(lambda x: helper.scaled(x) + 1, lambda: put(helper, FACTOR=2.0))


@case()
def attribute_of_a_python_module() -> Scenario:
    put(helper, FACTOR=1.0)
    return changed(lambda x: x * helper.FACTOR, lambda: put(helper, FACTOR=2.0))


@case()
def function_of_a_helper_patched() -> Scenario:
    put(helper, inner=lambda x: x + 1)
    return changed(lambda x: helper.outer(x), lambda: put(helper, inner=lambda x: x - 1))


@case()
def defaults_of_the_function() -> Scenario:
    def scaled(x: Tensor, factor: float = 1.0) -> Tensor:
        return x * factor

    return changed(scaled, lambda: put(scaled, __defaults__=(2.0,)))


@case()
def defaults_of_a_callee() -> Scenario:
    def scaled(x: Tensor, *, factor: float = 1.0) -> Tensor:
        return x * factor

    return changed(lambda x: scaled(x) + 1, lambda: put(scaled, __kwdefaults__={"factor": 2.0}))


@case()
def code_replaced() -> Scenario:
    def loss(x: Tensor) -> Tensor:
        return x.square().mean()

    def robust(x: Tensor) -> Tensor:
        return x.abs().mean()

    return changed(lambda x: loss(x) * 2, lambda: put(loss, __code__=robust.__code__))


@case()
def partial_of_a_setting() -> Scenario:
    settings = {"scale": 1.0}

    def scaled(x: Tensor, options: dict[str, float]) -> Tensor:
        return x * options["scale"]

    bound = functools.partial(scaled, options=settings)
    return changed(lambda x: bound(x), lambda: settings.update(scale=2.0))


@case()
def attribute_of_a_function() -> Scenario:
    def loss(x: Tensor) -> Any:
        return x.square().mean() * loss.weight  # type: ignore[attr-defined]

    put(loss, weight=1.0)
    return changed(loss, lambda: put(loss, weight=0.1))


@case()
def global_tensor_made_a_parameter() -> Scenario:
    _set(WEIGHT=torch.ones(4))

    def drive(call: Call) -> Steps:
        for _ in range(2):
            yield step(call, points())
        WEIGHT.requires_grad_()
        for _ in range(2):
            result = call(points())
            yield result
            yield torch.autograd.grad(result.sum(), WEIGHT)

    return Scenario(lambda x: x * WEIGHT, drive)


@case()
def variable_that_appears() -> Scenario:
    globals().pop("LATE", None)

    def forward(x: Tensor) -> Any:
        try:
            return x * LATE  # type: ignore[name-defined]
        except NameError:
            return x

    return changed(forward, lambda: _set(LATE=2.0))


@case()
def variable_of_a_helper_that_appears() -> Scenario:
    vars(helper).pop("GAIN", None)
    return changed(lambda x: x * getattr(helper, "GAIN", 1.0), lambda: put(helper, GAIN=2.0))


@case(entries=3)
def list_that_the_first_call_makes() -> Scenario:
    vars(helper).pop("SEEN", None)

    def forward(x: Tensor) -> Any:
        if not hasattr(helper, "SEEN"):
            helper.SEEN = []  # type: ignore[attr-defined]
        helper.SEEN.append(x.sum())  # type: ignore[attr-defined]
        return x * len(helper.SEEN)  # type: ignore[attr-defined]

    return repeated(forward, lambda: helper.SEEN, 3)  # type: ignore[attr-defined]


@case(entries=3)
def attribute_that_a_function_gives_itself() -> Scenario:
    def forward(x: Tensor) -> Any:
        forward.calls = getattr(forward, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * forward.calls  # type: ignore[attr-defined]

    return repeated(forward, lambda: forward.calls)  # type: ignore[attr-defined]

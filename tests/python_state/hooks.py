"""Hooks of modules that keep, change or count, added and removed between calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, step


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def _steps(module: nn.Module, state: Any, *changes: Any) -> Scenario:
    """Two calls, and two after each change."""

    def drive(call: Call) -> Steps:
        for change in (lambda: None, *changes):
            change()
            for seed in range(2):
                yield step(call, points(seed=seed), of=module)
                yield state()

    return Scenario(module, drive)


@case()
def features_in_a_list() -> Scenario:
    module, features = _network(), list[Tensor]()
    module[0].register_forward_hook(lambda _m, _i, out: features.append(out.detach()))
    return _steps(module, lambda: features, features.clear)


@case(entries=2)
def features_in_a_dict() -> Scenario:
    module, features = _network(), dict[str, Tensor]()

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, out: Tensor) -> None:
            features[name] = out

        return hook

    for name, layer in module.named_children():
        layer.register_forward_hook(keep(name))
    return _steps(module, lambda: features)


@case()
def output_replaced() -> Scenario:
    module = _network()
    factor = {"value": 2.0}
    module[1].register_forward_hook(lambda _m, _i, out: out * factor["value"])
    return _steps(module, lambda: None, lambda: factor.update(value=3.0))


@case()
def hook_added_later_and_removed() -> Scenario:
    module = _network()
    handles: list[Any] = []
    return _steps(
        module,
        lambda: None,
        lambda: handles.append(module[1].register_forward_hook(lambda _m, _i, out: out * 2)),
        lambda: handles.pop().remove(),
    )


@case()
def input_changed_before() -> Scenario:
    module = _network()
    handles: list[Any] = []
    return _steps(
        module,
        lambda: None,
        lambda: handles.append(module[2].register_forward_pre_hook(lambda _m, inputs: (inputs[0] + 1,))),
    )


@case(entries=4)
def hook_that_counts() -> Scenario:
    module, counts = _network(), {"calls": 0}

    def count(_module: nn.Module, _inputs: Any, _out: Tensor) -> None:
        counts["calls"] += 1

    module[1].register_forward_hook(count)
    return _steps(module, lambda: counts, lambda: None)


@case()
def hook_on_the_root() -> Scenario:
    module, features = _network(), list[Tensor]()
    module.register_forward_hook(lambda _m, _i, out: features.append(out.detach()))
    return _steps(module, lambda: features)


@case()
def steering_vector() -> Scenario:
    module = _network()
    vector = {"add": torch.zeros(4)}
    module[0].register_forward_hook(lambda _m, _i, out: out + vector["add"])
    return _steps(module, lambda: None, lambda: vector.update(add=torch.ones(4)))


@case(entries=2)
def state_that_a_hook_sets_for_another() -> Scenario:
    module = _network()
    seen: dict[str, Any] = {}
    module[0].register_forward_pre_hook(lambda _m, inputs: seen.update(first=inputs[0].detach().mean()))
    module[1].register_forward_hook(lambda _m, _i, out: out * seen["first"])
    return _steps(module, lambda: seen)


@case(entries=4)
def hook_of_all_modules() -> Scenario:
    module, names = _network(), list[str]()

    def drive(call: Call) -> Steps:
        yield step(call, points(), of=module)
        handle = nn.modules.module.register_module_forward_hook(
            lambda m, _i, _o: names.append(type(m).__name__) if isinstance(m, (nn.Linear, nn.Tanh)) else None
        )
        try:
            for _ in range(3):
                yield step(call, points(), of=module)
                yield names
        finally:
            handle.remove()

    return Scenario(module, drive)


@case(falls_back="a backward hook sees gradients inside the compiled part")
def gradients_of_a_submodule() -> Scenario:
    module, norms = _network(), list[Tensor]()
    module[1].register_full_backward_hook(lambda _m, _i, grads: norms.append(grads[0].norm()))  # type: ignore[index]
    return _steps(module, lambda: norms)

"""Results that the function makes itself, of any class, each call its own."""

from __future__ import annotations

import collections
import functools
import types
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, repeated


class Detection:
    """A result with a method, as detectors give it."""

    def __init__(self, boxes: Tensor, image: str) -> None:
        self.boxes = boxes
        self.image = image

    def largest(self) -> Tensor:
        return self.boxes.max()


class Node:
    """An object that refers to itself by way of another."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.children: list[Node] = []
        self.parent: Node | None = None


@dataclass
class Metrics:
    """A dataclass with a part that each instance has by itself."""

    loss: Tensor
    history: list[Tensor] = field(default_factory=list)


def _applied(make: Any, use: Any) -> Scenario:
    def drive(call: Call) -> Steps:
        for rows in (3, 3, 3):
            yield use(call(points(rows)))

    return Scenario(make, drive)


@case()
def loss_closure_for_an_optimiser() -> Scenario:
    layer = nn.Linear(4, 4)

    def forward(x: Tensor) -> Any:
        y = layer(x)
        return lambda target: (y - target).square().mean()

    return _applied(forward, lambda loss: loss(points()))


@case()
def closure_that_counts() -> Scenario:
    def forward(x: Tensor) -> Any:
        calls = [0]

        def add() -> Tensor:
            calls[0] += 1
            return x + calls[0]

        return add

    return _applied(forward, lambda add: (add(), add()))


@case()
def object_with_a_method() -> Scenario:
    return _applied(lambda x: Detection(x * 2, "a.png"), lambda found: (found.largest(), found.image))


@case()
def dataclass_with_a_history() -> Scenario:
    def forward(x: Tensor) -> Metrics:
        metrics = Metrics(x.mean())
        metrics.history.append(x.sum())
        return metrics

    return _applied(forward, lambda metrics: (metrics.loss, metrics.history))


@case()
def tree_with_parents() -> Scenario:
    def forward(x: Tensor) -> Node:
        root, child = Node(x.sum()), Node(x * 2)
        root.children.append(child)
        child.parent = root
        return root

    return _applied(forward, lambda root: (root.value, root.children[0].value, root.children[0].parent is root))


@case()
def default_dict_by_layer() -> Scenario:
    def forward(x: Tensor) -> Any:
        features: Any = collections.defaultdict(list)
        features["low"].append(x * 2)
        features["high"].append(x + 1)
        return features

    return _applied(forward, lambda features: (dict(features), features["none"]))


@case()
def namespace_of_outputs() -> Scenario:
    return _applied(lambda x: types.SimpleNamespace(logits=x * 2, step=1), lambda out: (out.logits, out.step))


@case()
def window_of_the_last_two() -> Scenario:
    def forward(x: Tensor) -> Any:
        return collections.deque([x, x * 2, x * 3], maxlen=2)

    return _applied(forward, lambda window: ([*window], window.maxlen))


@case()
def wrapped_function() -> Scenario:
    def scaled(function: Any, factor: float) -> Any:
        @functools.wraps(function)
        def wrapper(x: Tensor) -> Any:
            return function(x) * factor

        return wrapper

    return repeated(scaled(lambda x: x + 1, 2.0), lambda: None)


@case()
def class_made_inside() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        class Scale:
            factor = 3

            def __call__(self, y: Tensor) -> Tensor:
                return y * self.factor

        return Scale()(x)

    return repeated(forward, lambda: None)


@case(falls_back="the text of a tensor")
def text_of_a_tensor() -> Scenario:
    return changed(lambda x: (x * 2, f"{x.detach()}", repr(x.detach() + 1)))


@case(falls_back="a method of a tensor of the call")
def method_of_a_tensor() -> Scenario:
    def drive(call: Call) -> Steps:
        for seed in range(3):
            yield call(points(seed=seed))(1.0)

    return Scenario(lambda x: (x * 2).add, drive, settled=False)

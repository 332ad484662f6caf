"""Arguments that are objects: configs, namespaces, outputs of models, NumPy's scalars, attributes of tensors."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, put, step


def _called(function: Any, *arguments: Any) -> Scenario:
    """Two calls with each."""

    def drive(call: Call) -> Steps:
        for argument in arguments:
            for _ in range(2):
                yield step(call, points(), argument)
                yield argument

    return Scenario(function, drive)


class Options:
    """An object of a class nobody registered."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def apply(self, x: Tensor) -> Tensor:
        """Use the attribute."""
        return x * self.scale


@case()
def plain_object() -> Scenario:
    return _called(lambda x, options: x * options.scale, Options(1.0), Options(2.0), Options(2.0))


@case()
def method_of_an_argument() -> Scenario:
    return _called(lambda x, options: options.apply(x), Options(1.0), Options(2.0))


@case()
def object_that_changes() -> Scenario:
    options = Options()

    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, 2.0, 2.0, 1.0):
            put(options, scale=scale)
            yield step(call, points(), options)

    return Scenario(lambda x, options: x * options.scale, drive)


@case()
def namespace() -> Scenario:
    spaces = [types.SimpleNamespace(scale=scale) for scale in (1.0, 2.0)]
    return _called(lambda x, args: x * args.scale, *spaces)


@dataclass
class Batch:
    inputs: Tensor
    mask: Tensor | None = None
    names: list[str] = field(default_factory=list)


@case()
def dataclass_of_tensors() -> Scenario:
    layer = nn.Linear(4, 4)

    def forward(batch: Batch) -> Tensor:
        y = layer(batch.inputs)
        return y if batch.mask is None else y * batch.mask  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for mask in (None, None, torch.ones(4), torch.zeros(4)):
            out = call(Batch(points(), mask))
            yield out, torch.autograd.grad(out.sum(), list(layer.parameters()))

    return Scenario(forward, drive)


@dataclass
class Progress:
    steps: int = 0
    seen: list[int] = field(default_factory=list)
    total: Tensor = field(default_factory=lambda: torch.zeros(()))


@case(entries=4)
def dataclass_written_to() -> Scenario:
    def forward(x: Tensor, progress: Progress) -> tuple[Tensor, Progress]:
        progress.steps += 1
        progress.seen.append(x.shape[0])
        progress.total = progress.total + x.detach().sum()
        return x * progress.steps, progress

    def drive(call: Call) -> Steps:
        progress = Progress()
        for seed in range(4):
            result, same = call(points(seed=seed), progress)
            yield result, same is progress, progress

    return Scenario(forward, drive)


@dataclass(frozen=True)
class Fixed:
    scale: float = 1.0


@case()
def frozen_dataclass_returned() -> Scenario:
    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, 2.0):
            fixed = Fixed(scale)
            result, same = call(points(), fixed)
            yield result, same is fixed

    return Scenario(lambda x, fixed: (x * fixed.scale, fixed), drive)


@case(entries=2)
def dataclass_that_gets_another_attribute() -> Scenario:
    def forward(x: Tensor, progress: Any) -> Tensor:
        progress.factor = getattr(progress, "factor", 1) + 1
        return x * progress.factor  # type: ignore[no-any-return]

    return _called(forward, Progress())


class Running:
    """State of a class that PyTorch's pytree takes apart."""

    def __init__(self, total: Tensor, count: int) -> None:
        self.total, self.count = total, count


pytree.register_pytree_node(
    Running, lambda state: ([state.total], state.count), lambda parts, count: Running(next(iter(parts)), count)
)


@case()
def registered_node_written_to() -> Scenario:
    def forward(x: Tensor, state: Running) -> Tensor:
        state.count += 1
        state.total = state.total + x.detach().sum()
        return x * state.total / state.count

    def drive(call: Call) -> Steps:
        state = Running(torch.zeros(()), 0)
        for seed in range(4):
            yield step(call, points(seed=seed), state), state.total, state.count

    return Scenario(forward, drive)


#: Named as attributes of the argument are.
steps = 0


@case(entries=1)
def variable_of_the_module_named_as_an_attribute() -> Scenario:
    def forward(x: Tensor, progress: Progress) -> Tensor:
        return x * (progress.steps + 2)

    def drive(call: Call) -> Steps:
        for count in range(4):
            globals()["steps"] = count
            yield step(call, points(), Progress())

    return Scenario(forward, drive)


@case()
def object_written_to() -> Scenario:
    def forward(x: Tensor, state: Any) -> Tensor:
        state.hidden = x.detach() + state.hidden
        return x * state.hidden  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        state = types.SimpleNamespace(hidden=torch.zeros(3, 4))
        for seed in range(4):
            yield step(call, points(seed=seed), state)
            yield state

    return Scenario(forward, drive)


@case()
def fresh_object_in_every_call() -> Scenario:
    class Context:
        def __init__(self) -> None:
            self.saved: list[Tensor] = []

    def forward(x: Tensor, context: Context) -> Tensor:
        context.saved.append(x * 2)
        return context.saved[0] + 1

    def drive(call: Call) -> Steps:
        for seed in range(4):
            context = Context()
            yield step(call, points(seed=seed), context)
            yield context

    return Scenario(forward, drive)


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: keys that are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@case()
def model_output() -> Scenario:
    def drive(call: Call) -> Steps:
        for seed in range(4):
            x = points(seed=seed)
            yield call(ModelOutput(logits=x, loss=x.mean()))

    return Scenario(lambda out: out.logits * 2 + out["loss"], drive)


@case()
def batch_encoding() -> Scenario:
    class BatchEncoding(UserDict[str, Any]):
        def __getattr__(self, name: str) -> Any:
            try:
                return self.__dict__["data"][name]
            except KeyError:
                raise AttributeError(name) from None

    embed = nn.Embedding(8, 4)

    def drive(call: Call) -> Steps:
        for number in range(4):
            ids = torch.tensor([[number, 2, 3]])
            yield call(BatchEncoding(input_ids=ids, attention_mask=torch.ones_like(ids)))

    return Scenario(lambda batch: embed(batch.input_ids) * batch["attention_mask"][..., None], drive)


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


@case()
def enum_member() -> Scenario:
    return _called(lambda x, kind: x.sum() if kind is Kind.SUM else x.mean(), Kind.SUM, Kind.MEAN)


@case()
def numpy_scalar() -> Scenario:
    return _called(lambda x, scale: x * float(scale), np.float64(2.0), np.float64(3.0))


@case()
def set_of_indices() -> Scenario:
    return _called(lambda x, columns: x[:, sorted(columns)], {0, 2}, {1, 3})


class Pair(NamedTuple):
    left: Any
    right: Any


@case()
def named_tuple_of_objects() -> Scenario:
    pairs = [Pair(Options(1.0), 2), Pair(Options(3.0), 2)]
    return _called(lambda x, pair: pair.left.apply(x) + pair.right, *pairs)


@case(falls_back="a wrapper has no attributes of the user's")
def attribute_read_from_a_tensor() -> Scenario:
    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, 2.0, 2.0):
            x = points()
            put(x, scale=scale)
            yield step(call, x)

    return Scenario(lambda x: x * getattr(x, "scale", 1.0), drive)


@case(falls_back="a wrapper has no attributes of the user's")
def attribute_set_on_a_tensor() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        x.marked = True  # type: ignore[attr-defined]
        return x * 2

    def drive(call: Call) -> Steps:
        for _ in range(4):
            x = points()
            yield step(call, x)
            yield vars(x)

    return Scenario(forward, drive)


@case()
def function_as_argument() -> Scenario:
    return _called(lambda x, act: act(x), torch.relu, torch.tanh)


@case()
def closure_as_argument() -> Scenario:
    def scaled_by(scale: float) -> Any:
        return lambda y: y * scale

    return _called(lambda x, act: act(x), scaled_by(1.0), scaled_by(2.0))


@case()
def module_as_argument() -> Scenario:
    torch.manual_seed(0)
    return _called(lambda x, layer: layer(x), nn.Linear(4, 4), nn.Linear(4, 4))


@dataclass
class Loose:
    """One field, and whatever else is set."""

    x: Tensor


@case(entries=4)
def dataclass_with_more_than_its_fields() -> Scenario:
    def drive(call: Call) -> Steps:
        box: Any = Loose(points())
        for other in (None, 2.0, 3.0, 3.0):
            if other is not None:
                box.other = other
            yield call(box)

    return Scenario(lambda box: box.x * getattr(box, "other", 5.0), drive)


@case(falls_back="attributes of tensors are not guarded")
def attribute_used_of_a_tensor() -> Scenario:
    def drive(call: Call) -> Steps:
        for factor in (2.0, 3.0):
            x: Any = points()
            x.factor = factor
            yield call(x)

    return Scenario(lambda x: x * x.factor, drive, settled=False)


@case(entries=2)
def namespaces_of_each_call() -> Scenario:
    def drive(call: Call) -> Steps:
        for seed in range(3):
            box = types.SimpleNamespace(x=points(seed=seed), more={"y": points(seed=seed + 5)})
            yield call(box)
            yield box.out

    def forward(box: Any) -> Tensor:
        box.out = box.x * 2
        return box.out + box.more["y"]  # type: ignore[no-any-return]

    return Scenario(forward, drive)

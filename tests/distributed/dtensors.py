"""Functions of DTensors, for two processes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor, ones
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

#: Makes a function and its arguments.
Make = Callable[[DeviceMesh], tuple[Any, tuple[Any, ...]]]
Jit = Callable[[Any], Any]


ROWS = Shard(0)


def leaf(mesh: DeviceMesh, *shape: int, at: Placement = ROWS) -> Tensor:
    tensor: Tensor = distribute_tensor(torch.randn(*shape), mesh, [at])
    return tensor.requires_grad_()


def summary(value: Any) -> Any:
    """The local values, the placements and the strides of tensors in a nest."""
    if isinstance(value, DTensor):
        return summary(value.to_local().detach()), str(value.placements), value.stride()
    if isinstance(value, dict):
        return type(value).__name__, summary([*value.values()])
    if isinstance(value, Tensor):
        return value.detach().double().tolist(), str(value.dtype), value.stride()
    return [*map(summary, value)] if isinstance(value, (tuple, list)) else value


def loss(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return sum(map(loss, value))
    if isinstance(value, dict):
        return loss([*value.values()])
    return (value.to_local() if isinstance(value, DTensor) else value).float().square().sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2, self.att, self.mlp = nn.LayerNorm(8), nn.LayerNorm(8), Attention(), Perceptron()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))  # type: ignore[no-any-return]


_HEADS = {name: ColwiseParallel() for name in "qkv"} | {"o": RowwiseParallel()}
_GATHERED = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
_SEQUENCE = {
    "n1": SequenceParallel(),
    "n2": SequenceParallel(),
    "att": _GATHERED,
    "mlp": _GATHERED,
    **{f"att.{name}": ColwiseParallel() for name in "qkv"},
    "att.o": RowwiseParallel(output_layouts=Shard(1)),
    "mlp.a": ColwiseParallel(),
    "mlp.b": RowwiseParallel(output_layouts=Shard(1)),
}


def module(kind: type[nn.Module], plan: dict[str, Any], cast: bool = False) -> Make:
    def make(mesh: DeviceMesh) -> Any:
        model: Any = parallelize_module(kind(), mesh, plan)
        return model, (torch.randn(2, 4, 8, requires_grad=True),)

    return make


def linear(weight: Placement, bias: Placement, data: Placement) -> Make:
    def make(mesh: DeviceMesh) -> Any:
        tensors = leaf(mesh, 2, 4, at=data), leaf(mesh, 6, 4, at=weight), leaf(mesh, 6, at=bias)
        return F.linear, tensors

    return make


def of_one(function: Callable[[Any], Any], *shape: int, at: Placement = ROWS) -> Make:
    return lambda mesh: (function, (leaf(mesh, *(shape or (4, 4)), at=at),))


def gathered(x: Any) -> Any:
    y = x.redistribute(placements=[Replicate()])
    return (y * 2).redistribute(placements=[Shard(1)]).sin()


def checkpointed(x: Any) -> Any:
    return checkpoint(lambda y: (y @ y).redistribute(placements=[Replicate()]).sin(), x, use_reentrant=False)


def without_gradient(x: Any) -> Any:
    with torch.no_grad():
        y = x.to_local() * 2
    return x.to_local() * y


def local_written(x: Any) -> Any:
    with torch.no_grad():
        y = x * 1
        y.to_local().mul_(2)
    return x * y


def from_local(mesh: DeviceMesh) -> Any:
    def function(x: Tensor, w: Any) -> Any:
        return (DTensor.from_local(x * 2, mesh, [Shard(0)]) @ w).to_local()

    return function, (torch.randn(2, 4, requires_grad=True), leaf(mesh, 4, 4))


def closure(mesh: DeviceMesh) -> Any:
    w = leaf(mesh, 4, 4)
    return lambda x: x @ w, (leaf(mesh, 4, 4),)


def autocast(mesh: DeviceMesh) -> Any:
    model: Any = parallelize_module(Perceptron(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    return torch.autocast("cpu", torch.bfloat16)(model), (torch.randn(2, 4, 8, requires_grad=True),)


def vocabulary(mesh: DeviceMesh) -> Any:
    model: Any = parallelize_module(nn.Embedding(6, 4), mesh, RowwiseParallel(input_layouts=Replicate()))
    return (lambda x: model(x).sin()), (torch.arange(5),)


def added(mesh: DeviceMesh, other: Callable[[], Any]) -> Any:
    return (lambda x: x + other()), (leaf(mesh, 4, 4),)


def with_replicas(x: Any) -> Any:
    with implicit_replication():
        return x + torch.ones(4, 4)


_LAYOUTS = Shard(0), Shard(1), Replicate()
#: By name, what is called, and what is said where it falls back; None where it is compiled.
CASES: dict[str, tuple[Make, str | None]] = {
    **{
        f"linear of {data} by {weight}": (linear(weight, Shard(0) if weight == Shard(0) else Replicate(), data), None)
        for weight in _LAYOUTS
        for data in _LAYOUTS
    },
    "perceptron": (module(Perceptron, {"a": ColwiseParallel(), "b": RowwiseParallel()}), None),
    "sharded result": (
        module(Perceptron, {"a": ColwiseParallel(), "b": RowwiseParallel(use_local_output=False)}),
        None,
    ),
    "heads": (module(Attention, _HEADS), None),
    "sequence": (module(Block, _SEQUENCE), None),
    "autocast": (autocast, None),
    "vocabulary": (vocabulary, None),
    "closure of one": (closure, None),
    "from_local": (from_local, None),
    "products": (of_one(lambda x: (x @ x).relu()), None),
    "redistributed": (of_one(gathered), None),
    "whole": (of_one(lambda x: (x * 2).full_tensor().sin()), None),
    "partial sums": (of_one(lambda x: x.sum(0) * 3), None),
    "uneven": (of_one(lambda x: (x.sin() @ x.t()).sum(1), 5, 4), None),
    "softmax": (of_one(lambda x: F.layer_norm(x.softmax(-1), (4,))), None),
    "views": (of_one(lambda x: x.view(4, 2, 2).transpose(1, 2).reshape(4, 4).sin()), None),
    "lists": (of_one(lambda x: [part.sin() for part in torch.cat([x, x * 2], 1).split(2, 1)]), None),
    "in place": (of_one(lambda x: (x * 2).relu_()), None),
    "a class of results": (of_one(lambda x: OrderedDict(y=x * 2)), None),
    "returned": (of_one(lambda x: (x, x * 2)), None),
    "detached": (of_one(lambda x: x.detach() * x), None),
    "cast": (of_one(lambda x: x.to(torch.float64) * 2), None),
    "checkpointed": (of_one(checkpointed), None),
    "without gradient": (of_one(without_gradient), None),
    "placements read": (of_one(lambda x: x * 2 if x.placements[0].is_shard() else x * 3), None),
    "class read": (of_one(lambda x: x * 2 if isinstance(x, DTensor) else x * 3), None),
    "rank read": (of_one(lambda x: x * (x.device_mesh.get_local_rank() + 1)), None),
    "branch": (of_one(lambda x: x if x.sum().full_tensor() > 100 else x * 2), None),
    "local written": (of_one(local_written), "writes to a DTensor"),
    "dropout": (of_one(lambda x: F.dropout(x, 0.5)), "draws random numbers"),
    "local read": (of_one(lambda x: (x * 2, x._local_tensor * 2)), "the local tensor of a DTensor is used"),
    "data": (of_one(lambda x: x.data * x), "attribute 'data' .* of a DTensor"),
    "made inside": (
        lambda mesh: added(mesh, lambda: ones(4, 4, device_mesh=mesh, placements=[Shard(0)])),
        "is made in",
    ),
    "replicas": (of_one(with_replicas), "plain tensors count as replicas"),
}


def called(make: Make, mesh: DeviceMesh) -> Callable[[Jit], Any]:
    """Two calls of a function: results, and gradients of the arguments and parameters."""

    def case(jit: Jit) -> Any:
        torch.manual_seed(1)
        function, args = make(mesh)
        call, results = jit(function), []
        for _ in range(2):
            torch.manual_seed(2)
            results.append(call(*args))
            loss(results[-1]).backward()
        leaves = [*args, *(function.parameters() if isinstance(function, nn.Module) else ())]
        return summary([*results, *(tensor.grad for tensor in leaves)])

    return case

"""Every case in eager and jitted, by one of two processes: `python -m tests.distributed.ranks RANK FALLBACK FOLDER`.

Each case is a tuple of what it returns, the same for both. What the cases gave is written to the folder as JSON: by
name, whether jitted equals eager, the reasons of the calls that fell back, and how often something was compiled.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import switchgear as sg
from switchgear_runtime.last_call import compiler_of
from tests.distributed import dtensors
from tests.oracle import fallbacks_recorded

Jit = Callable[[Any], Any]


def all_reduce(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y


def all_reduce_async(x: Tensor) -> Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    assert work is not None
    work.wait()
    return y


def all_gather(x: Tensor) -> Tensor:
    parts = [torch.zeros_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def all_gather_into_tensor(x: Tensor) -> Tensor:
    whole = torch.zeros(8)
    dist.all_gather_into_tensor(whole, x.detach())
    return whole


def reduce_scatter_tensor(x: Tensor) -> Tensor:
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, x.clone())
    return part


def broadcast(x: Tensor) -> Tensor:
    y = x * 1
    dist.broadcast(y, 0)
    return y


def all_to_all(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    dist.all_to_all_single(y, x)
    return y


def send_and_recv(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 1, 1)
        dist.recv(y, 1)
    else:
        dist.recv(y, 0)
        dist.send(x * 1, 0)
    return y


def barrier(x: Tensor) -> Tensor:
    dist.barrier()
    return x * 2


def objects(x: Tensor) -> Any:
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, dist.get_rank() + 1)
    return x * ranks[1]


def everyone() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def with_gradients(x: Tensor) -> Any:
    return differentiable.all_reduce(x * 2).square()


def functional_all_reduce(x: Tensor) -> Any:
    return functional.all_reduce(x * 2, "sum", everyone()) + 1


def functional_all_gather(x: Tensor) -> Any:
    return functional.all_gather_tensor(x * 2, 0, everyone()) + 1


def functional_unlike(x: Tensor) -> Any:
    """The ranks read one of three collectives each: all three are made."""
    sums = [functional.all_reduce(x, "sum", everyone()) * 1 for _ in range(2)]
    largest = functional.all_reduce(x, "max", everyone()) * 1
    return sums[0] if dist.get_rank() == 0 else largest


def functional_autograd(x: Tensor) -> Any:
    return functional.all_gather_tensor_autograd(x * 2, 0, everyone()) + 1


IN_PLACE = (
    *(all_reduce, all_reduce_async, all_gather, all_gather_into_tensor, reduce_scatter_tensor, broadcast, all_to_all),
    *(send_and_recv, barrier, objects, with_gradients),
)
FUNCTIONAL = functional_all_reduce, functional_all_gather, functional_unlike, functional_autograd


def called(function: Callable[[Tensor], Tensor], requires_grad: bool) -> Callable[[Jit], list[Any]]:
    """Two calls of a function of a tensor, and the gradients."""

    def case(jit: Jit) -> list[Any]:
        found: list[Any] = []
        run = jit(function)
        for step in range(2):
            x = torch.arange(1.0, 5.0).mul(dist.get_rank() + 1 + step).requires_grad_(requires_grad)
            y = run(x)
            found.append(y.detach().tolist())
            if y.requires_grad:
                found.append(torch.autograd.grad(y.sum(), x)[0].tolist())
        return found

    return case


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def trained(make: Callable[[Jit], Any], alike: bool = False) -> Callable[[Jit], list[Any]]:
    """Three steps of a model: results and gradients. `alike`: the ranks see the same data."""

    def case(jit: Jit) -> list[Any]:
        model, found = make(jit), []
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            torch.manual_seed(step if alike else 2 * step + dist.get_rank())
            y = model(torch.randn(2, 8))
            y.square().sum().backward()
            found.append(y.tolist())
            found += [_whole(parameter.grad) for parameter in model.parameters()]
            optimiser.step()
            optimiser.zero_grad()
        return found

    return case


def _whole(tensor: Tensor | None) -> Any:
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return None if tensor is None else tensor.tolist()


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)  # type: ignore[no-any-return]


def models(mesh: DeviceMesh) -> dict[str, Callable[[Jit], list[Any]]]:
    def sharded(model: nn.Sequential) -> nn.Module:
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        return model

    def flat(model: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))

    def parallel(model: nn.Module) -> nn.Module:
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def each(model: nn.Sequential, jit: Jit) -> nn.Sequential:
        return nn.Sequential(jit(model[0]), model[1], jit(model[2]))

    return {
        "ddp_of_jit": trained(lambda jit: DistributedDataParallel(jit(layers()))),
        "jit_of_ddp": trained(lambda jit: jit(DistributedDataParallel(layers()))),
        "jit_around_ddp": trained(lambda jit: jit(Doubled(DistributedDataParallel(layers())))),
        "fsdp_of_jit": trained(lambda jit: fully_shard(jit(layers()), mesh=mesh)),
        "fsdp_of_jitted_layers": trained(lambda jit: sharded(each(layers(), jit))),
        "fsdp_of_jit_and_layers": trained(lambda jit: sharded(jit(layers()))),
        "jit_of_fsdp": trained(lambda jit: jit(fully_shard(layers(), mesh=mesh))),
        "jit_of_fsdp_of_layers": trained(lambda jit: jit(sharded(layers()))),
        "flat_fsdp_of_jit": trained(lambda jit: flat(jit(layers()))),
        "jit_of_flat_fsdp": trained(lambda jit: jit(flat(layers()))),
        "parallel_of_jit": trained(lambda jit: parallel(jit(layers())), alike=True),
        "jit_of_parallel": trained(lambda jit: jit(parallel(layers())), alike=True),
        "parallel_of_jitted_layers": trained(lambda jit: parallel(each(layers(), jit)), alike=True),
    }


def sharded_tensors(mesh: DeviceMesh) -> dict[str, Callable[[Jit], list[Any]]]:
    tensor = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    table = distribute_tensor(torch.arange(18.0).view(6, 3), mesh, [Shard(0)])
    index = distribute_tensor(torch.arange(5), mesh, [Replicate()])
    return {
        # whose result holds a mask until it is communicated, here outside
        "sharded_embedding": lambda jit: [
            _whole(jit(lambda index: nn.functional.embedding(index, table))(index)) for _ in range(2)
        ],
        "sharded_argument": lambda jit: [_whole(jit(lambda x: x * 2 + 1)(tensor)) for _ in range(2)],
        "sharded_closure": lambda jit: [_whole(jit(lambda: tensor * 2 + 1)()) for _ in range(2)],
    }


def observed(case: Callable[[Jit], list[Any]], fallback: Any) -> dict[str, Any]:
    made: list[Any] = []

    def jit(function: Any) -> Any:
        made.append(sg.jit(function, executors=["torch"], fallback=fallback))
        return made[-1]

    with fallbacks_recorded() as reasons:
        try:
            expected, found = case(lambda function: function), case(jit)
        except Exception:
            return {"error": traceback.format_exc()}
    entries = sum(len(compiler_of(one).cache._order) for one in made)
    return {"equal": found == expected, "reasons": [reason for _, reason in reasons], "entries": entries}


def main(rank: int, fallback: str, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    cases = {function.__name__: called(function, False) for function in (*IN_PLACE, *FUNCTIONAL)}
    cases |= {f"{function.__name__}_grad": called(function, True) for function in (all_reduce, *FUNCTIONAL[:2])}
    cases["with_gradients_grad"] = called(with_gradients, True)
    cases |= models(mesh) | sharded_tensors(mesh)
    cases |= {name: dtensors.called(make, mesh) for name, (make, _) in dtensors.CASES.items()}
    results = {}
    for name, case in cases.items():
        print(rank, name, flush=True)
        results[name] = observed(case, fallback)
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

"""Writes in place, by the size of the written tensor: decoding with caches, and other programs that write to a part.

A layer of a decoder takes one token and writes its key and value to caches at a position. The query attends to the
last `WINDOW` positions, so that only the price of a write can depend on the length of the caches.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import switchgear as sg
from benchmarks.measure import Samples, interleave, per_call, verdict

WIDTH, HEADS, WINDOW = 512, 8, 64
POSITIONS = (256, 4096, 65536)
CALLS, CALLS_OF_LOOPS = 40, 8
#: The most bytes that a call may allocate beyond eager, and the largest growth of our time with the size.
EXTRA, GROWTH = 1 << 20, 1.1

Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


def decode(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
    """Run one token through one layer."""
    heads = (1, 1, HEADS, WIDTH // HEADS)
    q, key, value = [F.linear(x, weight).view(heads).transpose(1, 2) for weight in (wq, wk, wv)]
    k.index_copy_(2, place, key)
    v.index_copy_(2, place, value)
    mixed = F.scaled_dot_product_attention(q, k[:, :, :WINDOW], v[:, :, :WINDOW])
    return F.linear(mixed.transpose(1, 2).reshape(1, 1, WIDTH), wo)


def caches(positions: int) -> tuple[Any, ...]:
    """Return the arguments of `decode`."""
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH for _ in range(4)]
    k, v = (torch.zeros(1, HEADS, positions, WIDTH // HEADS) for _ in range(2))
    return torch.randn(1, 1, WIDTH), *weights, k, v, torch.tensor([5])


def two_writes(x: Tensor, k: Tensor, v: Tensor, place: Tensor) -> Tensor:
    """Write to both caches, and do little else."""
    k.index_copy_(2, place, x)
    v.index_copy_(2, place, x)
    return (x @ k[:, :, :8].transpose(-1, -2)).sum()


def plain_caches(positions: int) -> tuple[Any, ...]:
    """Return the arguments of `two_writes`."""
    k, v = (torch.zeros(1, HEADS, positions, 64) for _ in range(2))
    return torch.randn(1, HEADS, 1, 64), k, v, torch.tensor([3])


def replay(states: Tensor, rewards: Tensor, state: Tensor, reward: Tensor, at: Tensor, sample: Tensor) -> Any:
    """Add observations to a replay buffer, and draw a batch."""
    states.index_copy_(0, at, state)
    rewards[at] = reward
    return states[sample], rewards[sample]


def buffers(size: int) -> tuple[Any, ...]:
    """Return the arguments of `replay`."""
    values = torch.randn(4, 32), torch.randn(4)
    return torch.zeros(size, 32), torch.zeros(size), *values, torch.arange(4), torch.arange(0, 32)


def embed(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """Write some rows of an embedding table."""
    table[rows] = table[rows] * 0.9 + values
    return F.embedding(rows, table)


def tables(size: int) -> tuple[Any, ...]:
    """Return the arguments of `embed`."""
    return torch.zeros(size, 64), torch.arange(16), torch.randn(16, 64)


def loop(x: Tensor, y: Tensor) -> Tensor:
    """Write row after row in a loop."""
    for number in range(100):
        x[number] = y * number
    return x[:100].sum()


def rows(size: int) -> tuple[Any, ...]:
    """Return the arguments of `loop`."""
    return torch.zeros(size, 16), torch.randn(16)


def average(averages: list[Tensor], parameters: list[Tensor]) -> None:
    """Update an exponential moving average: every element is written."""
    for target, parameter in zip(averages, parameters, strict=True):
        target.mul_(0.999).add_(parameter, alpha=0.001)


def averaged(size: int) -> tuple[Any, ...]:
    """Return the arguments of `average`."""
    return [torch.zeros(size) for _ in range(8)], [torch.randn(size) for _ in range(8)]


PROGRAMS: dict[str, Program] = {
    "decoder layer": (decode, caches),
    "two writes": (two_writes, plain_caches),
    "replay buffer": (replay, buffers),
    "embedding table": (embed, tables),
    "loop of 100": (loop, rows),
    "moving average": (average, averaged),
}
#: Programs that write every element, so time grows with the size.
WRITES_ALL = ("moving average",)


class _Allocated(TorchDispatchMode):
    """Mode that counts the bytes of tensors that operators create, each storage once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if all(returned.alias_info is None for returned in func._schema.returns):
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                self.bytes += tensor.untyped_storage().nbytes() if isinstance(tensor, Tensor) else 0
        return result


def contestants(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return eager and the peers, ours last."""
    functions = {"eager": function}
    if shutil.which("g++"):
        functions["torch.compile"] = torch.compile(function)
    functions["ours, default"] = sg.jit(function, compile="now")
    functions["ours, torch"] = sg.jit(function, executors=["torch"])
    return functions


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of one program at one size, by contestant, and the bytes that ours allocates beyond eager."""

    program: str
    size: int
    samples: list[Samples]
    extra: int


@dataclass(frozen=True, slots=True)
class Result:
    """All programs at all sizes."""

    measured: list[Measured]

    def of(self, program: str) -> list[Measured]:
        """Return the measurements of one program, by size."""
        return [item for item in self.measured if item.program == program]

    def __str__(self) -> str:
        lines = ["writes in place by the size of what is written to; µs, ratios with their 95 % intervals"]
        for program in PROGRAMS:
            by_size = self.of(program)
            lines.append(f"{program}")
            for item in by_size:
                times = [f"{sample.name} {1e6 * sample.median:.1f}" for sample in item.samples]
                lines.append(f"  {item.size:6}: {', '.join(times)}; {item.extra} bytes more than eager")
                for ours in item.samples[-2:]:
                    peers = [f"÷ {peer.name} {ours.interval_to(peer)}" for peer in item.samples[:-2]]
                    lines.append(f"          {ours.name} {', '.join(peers)}")
            if program not in WRITES_ALL:
                for place in (-2, -1):
                    first, *_, last = [item.samples[place] for item in by_size]
                    growth = min(last.seconds) / min(first.seconds)
                    lines.append(verdict(f"{first.name}, largest by smallest", growth, GROWTH))
                lines.append(verdict("bytes more than eager", max(item.extra for item in by_size), EXTRA))
        return "\n".join(lines)


def run(rounds: int) -> Result:
    """Measure every program at every size, contestants in turn."""
    measured = []
    for name, (function, make) in PROGRAMS.items():
        torch._dynamo.reset()
        functions = contestants(function)
        for size in POSITIONS:
            torch.manual_seed(0)
            arguments = make(size)
            calls = CALLS_OF_LOOPS if name in ("loop of 100", *WRITES_ALL) else CALLS
            with torch.no_grad():
                candidates = {peer: _timed(called, arguments, calls) for peer, called in functions.items()}
                samples = interleave(rounds, candidates)
                extra = _allocated(functions["ours, torch"], arguments) - _bytes(function, arguments)
            measured.append(Measured(name, size, samples, extra))
    return Result(measured)


def _timed(called: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> Callable[[], float]:
    for _ in range(3):
        called(*arguments)
    return lambda: per_call(lambda: called(*arguments), calls=calls, clock=time.process_time)


def _bytes(called: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    with _Allocated() as allocated:
        called(*arguments)
    return int(allocated.bytes)


def _allocated(jitted: Any, arguments: tuple[Any, ...]) -> int:
    """Return the bytes that a call's program allocates; the call itself falls back under a mode that sees operators."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return _bytes(sg.last_traces(jitted)[-1].function(), tuple(leaves))

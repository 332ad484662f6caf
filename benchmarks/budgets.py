"""Budgets of saved bytes, compared with torch.utils.checkpoint by layer at equal bytes: bytes and processor time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from benchmarks.measure import Ratio, Samples, interleave
from benchmarks.memory import Held, measure
from benchmarks.workloads import WORKLOADS, Function, Task

NAMES = ("gpt2/training", "llama/training")
#: Budgets, as fractions of eager's saved bytes.
BUDGETS = (0.9, 0.7, 0.5, 0.3, 0.2)
#: The longest time of Switchgear's default, as a fraction of checkpointing's, at bytes between these budgets.
LIMIT = 0.9
QUICK_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Results for one number of checkpointed layers, whose saved bytes are Switchgear's budget.

    Switchgear runs twice: by operators alone, and with the default executors.
    """

    layers: int
    limit: int
    part: float
    held: dict[str, Held]
    samples: dict[str, Samples]

    def to_checkpoint(self, name: str) -> Ratio:
        """Return the ratio of a contestant's time to the time with checkpointed layers."""
        return self.samples[name].interval_to(self.samples["checkpoint"])

    def __str__(self) -> str:
        lines = [f"  {self.layers} layers checkpointed: {self.limit:,} bytes, {self.part:.2f} of eager's"]
        for name, held in self.held.items():
            size = f"held {held.saved:12,}  peak {held.peak:12,}  {1e3 * self.samples[name].median:8.1f} ms"
            lines.append(f"    {name:24}  {size}  × checkpoint {self.to_checkpoint(name)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Result:
    """Rows by workload, and the fraction of eager's bytes that the default saves under each budget."""

    rows: dict[str, list[Row]]
    parts: dict[str, dict[float, float]]

    @property
    def ratio(self) -> dict[str, float]:
        """The greatest ratio of the default's time to checkpointing's within the budgets, by workload."""
        return {
            name: max(
                (row.to_checkpoint("switchgear").value for row in rows if BUDGETS[-1] <= row.part <= BUDGETS[0]),
                default=0.0,
            )
            for name, rows in self.rows.items()
        }

    @property
    def met(self) -> bool:
        """Whether every budget is met."""
        rows = [row for rows in self.rows.values() for row in rows]
        equal = all(row.held[name].saved <= row.limit for row in rows for name in ("switchgear", "switchgear-torch"))
        return equal and all(held <= budget for parts in self.parts.values() for budget, held in parts.items())

    def __str__(self) -> str:
        lines = ["budgets of saved bytes, beside torch.utils.checkpoint by layer at equal bytes"]
        for name, rows in self.rows.items():
            parts = ", ".join(f"{budget:g}: {held:.2f}" for budget, held in self.parts[name].items())
            lines += [name, *map(str, rows), f"  held of eager's bytes with memory={parts}"]
        for name, ratio in self.ratio.items():
            holds = "yes" if ratio <= LIMIT else "NO"
            between = f"between {BUDGETS[-1]:g} and {BUDGETS[0]:g} of eager's bytes"
            lines.append(f"{name}: {between} at most {ratio:.3f} of checkpointing's time, {LIMIT:g} wanted: {holds}")
        return "\n".join([*lines, f"every budget met: {'yes' if self.met else 'NO'}"])


def chosen(names: Sequence[str]) -> list[str]:
    """Return the workloads of these names; without names, both. Raises `ValueError` for another name."""
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return [name for name in NAMES if not names or name in names]


def layers_of(function: Function) -> Sequence[nn.Module]:
    """Return the layers of a model of transformers."""
    assert isinstance(function, nn.Module)
    return list(next(part for part in function.modules() if isinstance(part, nn.ModuleList)))


def checkpointed(task: Task, count: int) -> Function:
    """Return a workload's function with its first layers checkpointed."""
    for layer in layers_of(task.function)[:count]:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    return task.function


def held(name: str, task: Task, function: Function) -> Held:
    """Return the bytes that a warm step holds, without the loss: `mse_loss` keeps a storage of its arguments' size."""
    for _ in range(2):
        task.run(function)
    for tensor in task.learned:
        tensor.grad = None
    sizes = []

    def forward() -> Tensor:
        loss = task.forward(function)
        sizes.append(loss.untyped_storage().nbytes())
        return loss

    memory = measure(name, forward)
    return replace(memory, saved=memory.saved - sizes[-1])


def compared(name: str, layers: int, eager: Held, rounds: int, quick: bool) -> Row:
    """Return the results for one number of checkpointed layers."""
    names = ("eager", "checkpoint", "switchgear-torch", "switchgear")
    tasks = {contestant: WORKLOADS[name].task(quick) for contestant in names}
    function = checkpointed(tasks["checkpoint"], layers)
    results = {"checkpoint": held("checkpoint", tasks["checkpoint"], function)}
    limit = results["checkpoint"].saved
    functions: dict[str, Function] = {
        "eager": tasks["eager"].function,
        "checkpoint": function,
        "switchgear-torch": sg.jit(tasks["switchgear-torch"].function, executors=["torch"], memory=f"{limit}B"),
        "switchgear": sg.jit(tasks["switchgear"].function, memory=f"{limit}B", compile="now"),
    }
    results = {
        contestant: results.get(contestant) or held(contestant, tasks[contestant], function)
        for contestant, function in functions.items()
    }

    def seconds(contestant: str) -> Callable[[], float]:
        def measured() -> float:
            start = time.process_time()  # the time of one thread: other work of the machine counts less
            tasks[contestant].run(functions[contestant])
            return time.process_time() - start

        return measured

    samples = interleave(rounds, {contestant: seconds(contestant) for contestant in functions})
    return Row(layers, limit, limit / eager.saved, results, {sample.name: sample for sample in samples})


def part_held(name: str, budget: float, eager: Held, quick: bool) -> float:
    """Return the fraction of eager's bytes that the default saves under a budget."""
    task = WORKLOADS[name].task(quick)
    return held("switchgear", task, sg.jit(task.function, memory=budget, compile="now")).saved / eager.saved


def run(rounds: int, *, workloads: Sequence[str] = (), contestants: Sequence[str] = (), quick: bool = False) -> Result:
    """Measure the named workloads, or both; there is no choice of contestants."""
    transformers.logging.set_verbosity_error()
    rows: dict[str, list[Row]] = {}
    parts: dict[str, dict[float, float]] = {}
    for name in chosen(workloads):
        task = WORKLOADS[name].task(quick)
        eager = held("eager", task, task.function)
        counts = range(1, len(layers_of(task.function)) + 1)
        rows[name] = [compared(name, count, eager, rounds, quick) for count in counts]
        parts[name] = {budget: part_held(name, budget, eager, quick) for budget in BUDGETS}
    return Result(rows, parts)

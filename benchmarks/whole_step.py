"""A whole training step of an MLP with AdamW, warm: forward, backward and the update of the parameters."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from benchmarks.measure import Samples, interleave, per_call, table
from examples.whole_step import BETA1, BETA2, EPS, LR, WEIGHT_DECAY, State, batch, initial, mlp, whole_step

WIDTH, HIDDEN, BATCH = 64, 4, 32
#: Without this option torch.compile refuses `torch.autograd.grad`; older releases lack the option.
WHOLE_STEP_OPTION = "trace_autograd_ops"
#: Steps after which every candidate must have the same parameters, and is warm.
CHECKED = 20
CALLS = 50
#: The largest distance of parameters after `CHECKED` steps where roundings differ; a step moves them by about `LR`.
TOLERANCE = 1e-3

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Result:
    """The candidates, eager with `torch.optim.AdamW` first, Switchgear last.

    `distances`: of each candidate's parameters from those of the uncompiled function after `CHECKED` steps.
    """

    samples: list[Samples]
    distances: dict[str, float]

    @property
    def ratio(self) -> float:
        """The ratio of Switchgear's time to eager's with `torch.optim.AdamW`."""
        return self.samples[-1].ratio_to(self.samples[0])

    def __str__(self) -> str:
        *peers, switchgear = self.samples
        width = max(len(peer.name) for peer in peers)
        ratios = [f"  switchgear ÷ {peer.name:{width}}  {spread(switchgear, peer)}" for peer in peers]
        size = f"{HIDDEN} hidden layers of {WIDTH}, batch {BATCH}"
        return "\n".join(
            [
                f"training step of an MLP, {size}: forward, backward, AdamW; warm",
                table(self.samples, self.samples[0], unit="ms"),
                *ratios,
                f"  parameters after {CHECKED} steps, beside those of the same function in eager",
                *(f"    {name:{width}}  {distance(value)}" for name, value in self.distances.items()),
            ]
        )


def spread(candidate: Samples, peer: Samples) -> str:
    """Return the ratio of two candidates: its median over the rounds, the least and the greatest."""
    ratios = [mine / theirs for mine, theirs in zip(candidate.seconds, peer.seconds, strict=True)]
    return f"{candidate.ratio_to(peer):6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"


def distance(value: float) -> str:
    """Return a distance in words."""
    return f"differ by at most {value:.1e}" if value else "bit-equal"


def optimised(state: State, compile_with: Callable[[Any], Any]) -> Step:
    """Return a step of forward, backward and `torch.optim.AdamW`, each through `compile_with`."""
    options: dict[str, Any] = {"lr": LR, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": WEIGHT_DECAY}
    optimizer = torch.optim.AdamW(state.parameters, **options)
    loss_of = compile_with(lambda x, y: F.cross_entropy(mlp(state.parameters, x), y))
    update = compile_with(optimizer.step)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(x, y)
        loss.backward()
        update()
        return loss.detach()

    return step


def functional(state: State, compile_with: Callable[[Any], Any]) -> Step:
    """Return the step that is one function, through `compile_with`."""
    step = compile_with(whole_step)
    return lambda x, y: step(state, x, y)


def same(fn: Any) -> Any:
    """Return the function uncompiled."""
    return fn


def through(backend: str, fullgraph: bool = False) -> Callable[[Any], Any]:
    """Return a compiler of the peer, torch.compile."""
    return lambda fn: torch.compile(fn, backend=backend, fullgraph=fullgraph)


def switchgear(fn: Any) -> Any:
    """Compile with Switchgear, the candidate."""
    return sg.jit(fn, executors=["torch"])


def candidates(start: State) -> dict[str, tuple[State, Step]]:
    """Return the candidates, each with its own copy of the trained state."""
    makers: dict[str, Callable[[State], Step]] = {
        "eager, torch.optim": lambda state: optimised(state, same),
        "eager, same function": lambda state: functional(state, same),
    }
    has_compiler = shutil.which(os.environ.get("CXX", "g++"))  # torch.compile's default backend needs one on a CPU
    for backend in ("aot_eager", "inductor") if has_compiler else ("aot_eager",):
        makers[f"torch.compile {backend}, torch.optim"] = functools.partial(optimised, compile_with=through(backend))
        if hasattr(torch._dynamo.config, WHOLE_STEP_OPTION):
            makers[f"torch.compile {backend}, same function"] = functools.partial(
                functional, compile_with=through(backend, fullgraph=True)
            )
    makers["switchgear"] = lambda state: functional(state, switchgear)
    results = {}
    for name, make in makers.items():
        state = copy.deepcopy(start)
        results[name] = state, make(state)
    return results


def check(candidates: dict[str, tuple[State, Step]]) -> dict[str, float]:
    """Train with every candidate: Switchgear is bit-identical to the same function, the others round in other places.

    Returns:
        The distance of each candidate's parameters from those of the uncompiled function.
    """
    for _, step in candidates.values():
        generator = torch.Generator().manual_seed(0)
        for _ in range(CHECKED):
            step(*batch(generator, BATCH))
    expected = candidates["eager, same function"][0]
    distances = {}
    for name, (state, _) in candidates.items():
        pairs = zip(state.parameters, expected.parameters, strict=True)
        distances[name] = max(float((first - second).detach().abs().max()) for first, second in pairs)
        if not distances[name] <= (0 if name == "switchgear" else TOLERANCE):
            raise RuntimeError(f"{name}: after {CHECKED} steps the parameters {distance(distances[name])}")
    return distances


def run(rounds: int) -> Result:
    """Measure every candidate, warm and after the check."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with whole_steps_allowed():
        contestants = candidates(initial(WIDTH, HIDDEN))
        distances = check(contestants)
        x, y = batch(torch.Generator().manual_seed(1), BATCH)
        samples = interleave(rounds, {name: timed(step, x, y) for name, (_, step) in contestants.items()})
    return Result(samples, distances)


def whole_steps_allowed() -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch.compile accepts `torch.autograd.grad`, if this version can."""
    if not hasattr(torch._dynamo.config, WHOLE_STEP_OPTION):
        return contextlib.nullcontext()
    allowed: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(WHOLE_STEP_OPTION, True)
    return allowed


def timed(step: Step, x: Tensor, y: Tensor) -> Callable[[], float]:
    """Return a function that measures one candidate, on one batch."""
    return lambda: per_call(lambda: step(x, y), calls=CALLS)

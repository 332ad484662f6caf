"""What a case of Python state beside tensors is: a fresh world, a callable in it, and calls with changes between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: The plain callable or its compiled form, as a case's calls get it.
Call = Callable[..., Any]
#: What the calls of a case observe, one thing after another; each is recorded at once.
Steps = Iterator[Any]


@dataclass(frozen=True)
class Scenario:
    """A callable that is to be compiled, and the calls of it; `settled`: a later call is the same in each run."""

    target: Callable[..., Any]
    drive: Callable[[Call], Steps]
    settled: bool = True


@dataclass(frozen=True)
class Case:
    """One world, built anew by `build`; why its calls may run in eager, and how many entries they may compile."""

    name: str
    build: Callable[[], Scenario]
    falls_back: str
    entries: int | None


CASES: dict[str, Case] = {}


def case(
    falls_back: str = "", entries: int | None = None
) -> Callable[[Callable[[], Scenario]], Callable[[], Scenario]]:
    """Register a case. `entries`: how many may be compiled, where not fewer than there are calls."""

    def register(build: Callable[[], Scenario]) -> Callable[[], Scenario]:
        name = f"{build.__module__.rpartition('.')[2]}.{build.__name__}"
        assert name not in CASES, name
        CASES[name] = Case(name, build, falls_back, entries)
        return build

    return register


def points(rows: int = 3, seed: int = 0) -> Tensor:
    """Numbers in a matrix of four columns, which require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator).requires_grad_()


def step(call: Call, *args: Any, of: Any = None, **kwargs: Any) -> Any:
    """What a call returns, and the gradients of its sum for the arguments and for the parameters of a module."""
    result = call(*args, **kwargs)
    leaves = [value for value in args if isinstance(value, Tensor) and value.requires_grad]
    leaves += list(of.parameters()) if isinstance(of, nn.Module) else []
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    values = result if isinstance(result, (tuple, list)) else [result]
    ends = [value for value in values if isinstance(value, Tensor) and value.requires_grad]
    if not ends or not leaves:
        return result, None
    loss = torch.stack([end.float().square().sum() for end in ends]).sum()
    return result, torch.autograd.grad(loss, leaves, allow_unused=True)


def changed(target: Callable[..., Any], *changes: Callable[[], Any], args: tuple[Any, ...] = ()) -> Scenario:
    """Two steps of training, and two after each change of the state."""

    def drive(call: Call) -> Steps:
        inputs = args or (points(),)
        for change in (None, *changes):
            if change is not None:
                change()
            for _ in range(2):
                yield step(call, *inputs, of=target)

    return Scenario(target, drive)


def repeated(target: Callable[..., Any], state: Callable[[], Any], times: int = 4) -> Scenario:
    """Steps of training, the state read after each."""

    def drive(call: Call) -> Steps:
        for seed in range(times):
            yield step(call, points(seed=seed), of=target)
            yield state()

    return Scenario(target, drive)


def put(holder: Any, **values: Any) -> None:
    """Set attributes."""
    for name, value in values.items():
        setattr(holder, name, value)


def attempt(call: Call, *args: Any) -> Any:
    """What a call returns, or the type and the text of what it raises."""
    try:
        return call(*args)
    except Exception as error:
        return type(error), str(error)

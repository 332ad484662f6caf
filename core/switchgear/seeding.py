"""Seeding: reading and setting the state of a random stream are steps of a trace, in their place among the draws."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import torch_internals as internals
from .errors import Unsupported
from .patches import redirected
from .recorder import active_recorder
from .symbol import Symbol

#: What a trace holds as it is, by where it is called: functions of modules of PyTorch, and methods of a generator.
_RECORDED: dict[str, tuple[str, ...]] = {
    "torch": ("manual_seed", "get_rng_state", "set_rng_state"),
    "torch.cuda": ("get_rng_state", "set_rng_state"),
    "torch.Generator": ("manual_seed", "get_state", "set_state"),
}
_REFUSED: dict[str, tuple[str, ...]] = {
    "torch": ("seed", "initial_seed"),
    "torch.cuda": ("manual_seed", "manual_seed_all", "seed", "seed_all"),
    "torch.Generator": (
        *("seed", "initial_seed", "get_offset", "set_offset", "clone_state"),
        *("graphsafe_get_state", "graphsafe_set_state"),
    ),
}
_STEPS = frozenset(f"{place}.{name}" for place, names in _RECORDED.items() for name in names)


@contextlib.contextmanager
def seeding_recorded() -> Iterator[None]:
    """While this is active, calls of this thread that seed or read a random stream are recorded, or refused."""
    with contextlib.ExitStack() as stack:
        for table, target in ((_RECORDED, _record), (_REFUSED, _refuse)):
            for place, names in table.items():
                for name in names:
                    handler = functools.partial(target, f"{place}.{name}")
                    if place == "torch.Generator":
                        stack.enter_context(internals.generator_method(name, handler))
                        continue
                    for module in (sys.modules[place], sys.modules[f"{place}.random"]):
                        stack.enter_context(redirected(module, name, handler))
        yield


def _record(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recorder = active_recorder()
    if recorder is None:
        return original(*args, **kwargs)
    owner = args[0] if args and isinstance(args[0], torch.Generator) else None
    given = (*args, *kwargs.values())
    if name.endswith("manual_seed"):
        given = (*given[:-1], int(given[-1]))
    symbol = Symbol(name, original)
    if name.rpartition(".")[2] in ("get_state", "get_rng_state"):
        device = owner.device if owner is not None else name.split(".")[-2].replace("torch", "cpu")
        return recorder.step(symbol, given, like=internals.random_state(torch.device(device)))
    recorder.step(symbol, given)
    if name.endswith("manual_seed"):
        return owner or torch.default_generator
    return owner if name == "torch.Generator.set_state" else None


def _refuse(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recorder = active_recorder()
    if recorder is None:
        return original(*args, **kwargs)
    raise Unsupported(
        f"{name} inside a jitted function, in {recorder.here()}: what it does or returns cannot be part of a trace; "
        "call it outside, or use torch.manual_seed, torch.get_rng_state and torch.set_rng_state inside"
    )


def callable_of(symbol: Symbol) -> Callable[..., Any]:
    """What runs a symbol within an enclosing capture, where a step of a random stream is recorded in its turn."""
    if symbol.name not in _STEPS:
        return symbol.fn
    found: Callable[..., Any] = operator.attrgetter(symbol.name.removeprefix("torch."))(torch)
    return found

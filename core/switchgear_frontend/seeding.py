"""Seeding: calls that seed a random stream, or read or set its state, are refused inside a jitted function.

During a capture, stand-ins replace the generators among the arguments and the default generator.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.patches import redirected, replaced
from switchgear_core.record.recorder import active_recorder

_STATE = (
    *("manual_seed", "seed", "initial_seed", "get_state", "set_state", "get_offset", "set_offset"),
    *("clone_state", "graphsafe_get_state", "graphsafe_set_state"),
)
_CUDA = (
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed"),
    *("get_rng_state", "set_rng_state"),
)


def random_states() -> tuple[object, ...]:
    """Return the states of the random streams of Python and NumPy, which compare by value."""
    numpy = sys.modules.get("numpy")
    states = (random.getstate(),)
    return states if numpy is None else (*states, pickle.dumps(numpy.random.get_state()))


def is_global_stream(value: object) -> bool:
    """Check whether an object is a stream of `random_states`."""
    numpy, owner = sys.modules.get("numpy"), "__self__"
    return value is getattr(random.seed, owner) or (
        numpy is not None and value is getattr(numpy.random.get_state, owner)
    )


class StandIn(torch.Generator):
    """Stand-in for a generator, which the function may pass on, but neither query nor change."""

    original: torch.Generator


def stand_in(generator: torch.Generator) -> StandIn:
    """Return the stand-in for a generator, on the same device."""
    result = StandIn(generator.device)
    result.original = generator
    return result


@contextlib.contextmanager
def seeding_refused() -> Iterator[None]:
    """Return a context in which captures refuse to seed a random stream, and to read or set its state."""
    default = stand_in(torch.default_generator)
    with contextlib.ExitStack() as stack:
        for module in (torch, torch.random):
            stack.enter_context(replaced(module, "default_generator", default))
        for name in _CUDA:
            for module in (torch.cuda, torch.cuda.random):
                stack.enter_context(redirected(module, name, _refuse))
        yield


def _refuse(original: Callable[..., object], *args: object, **kwargs: object) -> Any:
    recorder = active_recorder()
    if recorder is None:
        return original(*args, **kwargs)
    raise Unsupported(
        f"a random stream is seeded, or its state is read or set, in {recorder.here()}: a trace holds draws alone; "
        "do it outside the jitted function, or draw from a torch.Generator that is an argument"
    )


def _refusing(name: str) -> Callable[..., object]:
    def method(generator: StandIn, *args: object, **kwargs: object) -> object:
        return _refuse(getattr(generator.original, name), *args, **kwargs)

    return method


for _name in _STATE:
    setattr(StandIn, _name, _refusing(_name))

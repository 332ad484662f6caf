"""Streams: stateful objects that every use changes. Their state is restored after a capture, and a use is refused."""

from __future__ import annotations

import functools
import gc
import pickle
import random
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_frontend.features.python_state.holders import MISSING

_Memo: type = type(functools.lru_cache(lambda: None))


def has_stream(value: object) -> bool:
    """Check whether an object is a random stream of Python or NumPy, a memo of functools, or a context variable."""
    return isinstance(value, (random.Random, _Memo, ContextVar)) or (
        type(value).__module__.startswith("numpy.random") and hasattr(value, "random")
    )


def variable_of_context(variable: ContextVar[Any]) -> Any:
    """Return the value of a context variable, its default, or `MISSING`."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


class Stream:
    """A stateful object, with its initial state."""

    def __init__(self, value: Any, label: str, *, is_global: bool = False) -> None:
        self.is_global = is_global
        self._value = value
        self._label = label
        self._before = self._state()
        is_plain = isinstance(value, (_Memo, ContextVar))
        self._keys = {*_results(value)} if isinstance(value, _Memo) else set()
        self._uses = _uses(value)
        self._pickled = None if is_plain else pickle.dumps(self._before)

    def _state(self) -> Any:
        value = self._value
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, ContextVar):
            return variable_of_context(value)
        if isinstance(value, _Memo):
            return value.cache_info().misses  # type: ignore[attr-defined]
        return value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state()

    def _is_same(self, now: Any) -> bool:
        before = self._before
        if self._pickled is not None:
            return pickle.dumps(now) == self._pickled
        return now is before or (type(now) is int and bool(now == before))

    def put_back(self) -> bool:
        """Restore the initial state; return whether it had changed."""
        now, before, value = self._state(), self._before, self._value
        if self._is_same(now):
            return False
        if isinstance(value, _Memo):
            if not _holds_wrappers(value):
                return False
            results = _results(value)
            new = results.keys() - self._keys
            for key in new:
                del results[key]
            return bool(new)
        if isinstance(value, ContextVar):
            if before is not MISSING:
                value.set(before)
        elif isinstance(value, random.Random):
            value.setstate(before)
        elif hasattr(value, "bit_generator"):
            value.bit_generator.state = before
        else:
            value.set_state(before)
        return True

    def results_stay(self) -> Callable[[], bool] | None:
        """Return a check that a memo still holds its current results, or None if the capture did not use the memo."""
        if _uses(self._value) == self._uses:
            return None
        results = _results(self._value)
        held = [*results.values()]
        return lambda: {*map(id, held)} <= {*map(id, results.values())}

    def refuse_use(self) -> None:
        """Raise `Unsupported` if the object was used."""
        if self.put_back():
            raise Unsupported(
                f"the function uses {self._label}, a {type(self._value).__name__}, which every use changes and no "
                "guard can see; use it outside of the function",
                splits=False,  # TorchDynamo does not see the use either
            )


def _uses(value: Any) -> object:
    # hits and misses
    return value.cache_info()[:2] if isinstance(value, _Memo) else None  # type: ignore[attr-defined]


def _results(memo: Any) -> dict[Any, Any]:
    """Return the results in a memo, by the keys of their arguments."""
    attrs = vars(memo)
    return next(held for held in gc.get_referents(memo) if type(held) is dict and held is not attrs)


def _holds_wrappers(memo: object) -> bool:
    """Check whether a memo holds tensors or symbolic numbers of a capture."""
    pending, ids = [(memo, 0)], set[int]()
    while pending:
        value, depth = pending.pop()
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if isinstance(value, torch.Tensor):
            if internals.is_wrapper(value):
                return True
        elif depth < _DEPTH and id(value) not in ids and not isinstance(value, _NO_RESULTS):
            ids.add(id(value))
            pending += [(part, depth + 1) for part in gc.get_referents(value)]
    return False


#: Types of objects that hold no tensor of a result.
_NO_RESULTS = (type, types.FunctionType, types.ModuleType, str, int, float)
#: The depth of results below a memo: its links, the result of a link, and the parts of the result.
_DEPTH = 5

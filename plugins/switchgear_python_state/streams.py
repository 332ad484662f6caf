"""Streams: memo tables and context variables. Their state is restored after a capture, and a use is refused."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_python_state.holders import MISSING

_Memo: Any = type(functools.lru_cache(lambda: None))


def has_stream(value: object) -> bool:
    """Check whether an object is a memo table of functools or a context variable."""
    return isinstance(value, (_Memo, ContextVar))


def variable_of_context(variable: ContextVar[Any]) -> Any:
    """Return the value of a context variable, its default, or `MISSING`."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


class Stream:
    """A memo table with its initial results, or a context variable with its initial value."""

    def __init__(self, value: Any, label: str) -> None:
        self._value = value
        self._label = label
        is_memo = isinstance(value, _Memo)
        self._before: Any = {*_results(value)} if is_memo else variable_of_context(value)
        #: Hits and misses.
        self._uses = value.cache_info()[:2] if is_memo else None

    def put_back(self) -> bool:
        """Restore the variable, or remove results with stand-ins; return whether there were any."""
        value = self._value
        if isinstance(value, ContextVar):
            is_changed = variable_of_context(value) is not self._before
            if is_changed and self._before is not MISSING:
                value.set(self._before)
            return is_changed
        results = _results(value)
        new = results.keys() - self._before
        if not new or not _holds_wrappers(value):
            return False
        for key in new:
            del results[key]
        return True

    def results_stay(self) -> Callable[[], bool] | None:
        """Return a check that a memo still holds its current results, or None if the capture did not use the memo."""
        if self._uses is None or self._value.cache_info()[:2] == self._uses:
            return None
        results = _results(self._value)
        current = [*results.values()]
        return lambda: {*map(id, current)} <= {*map(id, results.values())}

    def refuse_use(self) -> None:
        """Raise `Unsupported` if the object was used."""
        if self.put_back():
            raise Unsupported(
                f"the function uses {self._label}, a {type(self._value).__name__}, which every use changes and no "
                "guard can see; use it outside of the function",
                splits=False,  # TorchDynamo does not see the use either
            )


def _results(memo: Any) -> dict[Any, Any]:
    """Return the results in a memo, by the keys of their arguments."""
    attrs = vars(memo)
    return next(target for target in gc.get_referents(memo) if type(target) is dict and target is not attrs)


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


#: Types of objects without tensors of a result.
_NO_RESULTS = (type, types.FunctionType, types.ModuleType, str, int, float)
#: The depth of results below a memo: its links, the result of a link, and the parts of the result.
_DEPTH = 5

"""Symbolic sizes among the arguments of calls, and as the function's own code sees them.

To the function, symbolic sizes are integers: `isinstance(n, int)` is true. Text and keys of dicts hold the values of
the captured call, and the entry then serves only calls with equal values.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.patches import caller, redirected
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.sizes import active_sizes, settled
from switchgear_core.record.user_code import is_own_file

#: The symbolic types, with the Python types behind them.
_PLAIN: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_GET, _SET = torch.Tensor.__getitem__, torch.Tensor.__setitem__


class SymbolicSizes(Handler):
    """Handler of symbolic sizes: uses that a trace cannot hold, such as truth values, are decided before the call."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Allow symbolic numbers as keys of dicts, until entries made by the function are gone."""
        with contextlib.ExitStack() as stack:
            for kind, plain in _PLAIN.items():
                stack.enter_context(redirected(kind, "__hash__", partial(_hash, plain)))
            yield

    @contextlib.contextmanager
    def running(
        self, recorder: Recorder, roots: Sequence[Any], arguments: Mapping[int, Any]
    ) -> Iterator[None]:
        """Present symbolic numbers as integers to the function."""
        if active_sizes() is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            for kind in (torch.SymInt, torch.SymFloat):
                for name in ("__str__", "__repr__", "__format__"):
                    stack.enter_context(redirected(kind, name, partial(_text, _PLAIN[kind])))
                stack.enter_context(internals.shown_class(kind, partial(_kind, _PLAIN[kind])))
            stack.enter_context(redirected(builtins, "len", _length))
            yield

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Replace symbolic numbers in the call by numbers that a trace holds."""
        if active_sizes() is None or call.symbol is None:
            return PASS
        if call.fn in (_GET, _SET):
            tensor, index, *value = call.args
            return _indexed(tensor, index if type(index) is tuple else (index,), value)
        if call.fn is torch.tensor and type(call.args[0]) is torch.SymInt:
            fill: Any = call.args[0]
            return torch.full((), fill, **{"dtype": torch.int64, **call.kwargs})
        call.args, call.kwargs = settled((call.args, call.kwargs))
        return PASS


def _indexed(tensor: torch.Tensor, index: tuple[Any, ...], value: list[Any]) -> object:
    """Read or write `x[:, n]`, which PyTorch accepts for integers alone, as `x.select(1, n)`."""
    dim = next((dim for dim, place in enumerate(index) if place != slice(None)), len(index))
    place = index[dim] if dim < min(len(index), tensor.dim()) else None
    if type(place) is not torch.SymInt or not 0 <= place < tensor.shape[dim]:
        return PASS
    view, rest = torch.select(tensor, dim, place), index[:dim] + index[dim + 1 :]
    if value:
        view[rest or ...] = value[0]
        return None
    return view[rest] if rest else view


def _kind(plain: type, number: object) -> type:
    return type(number) if is_own_file(sys._getframe(1).f_code.co_filename) else plain


def _length(original: Callable[[object], int], value: object) -> int | torch.SymInt:
    # skip the frame of `redirected`
    asker = sys._getframe(2).f_code.co_filename
    if isinstance(value, torch.Tensor) and value.dim() and not is_own_file(asker):
        return value.shape[0]
    return original(value)


def _hash(plain: type, original: Callable[..., int], number: object) -> int:
    # the caller of the frame of `redirected`
    return original(number) if caller(2).partition(".")[0] == "torch" else hash(plain(number))


def _text(plain: type, original: Callable[..., str], number: Any, *args: Any) -> str:
    # skip the frame of `redirected`
    if is_own_file(sys._getframe(2).f_code.co_filename):
        return original(number, *args)
    return str(getattr(plain(number), original.__name__)(*args))

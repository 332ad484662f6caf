"""Symbolic sizes among the arguments of calls, and in the hands of the function's own code.

To that code they are integers: `isinstance(n, int)` is true, and text holds, and a dict has for a key, what they are in
the call at hand, to which other calls are held.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.patches import caller, redirected
from switchgear.record.call import Call
from switchgear.record.handler import PASS, Handler
from switchgear.record.recorder import Recorder
from switchgear.record.sizes import active_sizes, settled
from switchgear.record.user_code import is_own_file

#: The numbers, and what they stand for.
_PLAIN: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_GET, _SET = torch.Tensor.__getitem__, torch.Tensor.__setitem__


class SymbolicSizes(Handler):
    """What a trace cannot hold of them, such as truth values, is decided before the call."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Let them be keys of dicts, until what the function has put there is gone."""
        with contextlib.ExitStack() as stack:
            for kind, plain in _PLAIN.items():
                stack.enter_context(redirected(kind, "__hash__", partial(_hash, plain)))
            yield

    @contextlib.contextmanager
    def running(
        self, recorder: Recorder, roots: Sequence[Any], arguments: Mapping[int, Any]
    ) -> Iterator[None]:
        """Have them be integers to the function."""
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
        """The call with the numbers that a trace holds."""
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
    """What lies at, or a write to, `x[:, n]`, which PyTorch takes for integers alone: `x.select(1, n)`."""
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
    # past what `redirected` puts in the place of the original
    asker = sys._getframe(2).f_code.co_filename
    if isinstance(value, torch.Tensor) and value.dim() and not is_own_file(asker):
        return value.shape[0]
    return original(value)


def _hash(plain: type, original: Callable[..., int], number: object) -> int:
    # the caller of what `redirected` puts in the place of the original
    return original(number) if caller(2).partition(".")[0] == "torch" else hash(plain(number))


def _text(plain: type, original: Callable[..., str], number: Any, *args: Any) -> str:
    # past what `redirected` puts in the place of the original
    if is_own_file(sys._getframe(2).f_code.co_filename):
        return original(number, *args)
    return str(getattr(plain(number), original.__name__)(*args))

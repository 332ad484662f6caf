"""Backward code that writes in place: to what it saved, or to its grad outputs.

The pullback that runs it ends with a call of `WRITTEN`, with each tensor that has another value then. Where others can
see such a tensor, the grad pass makes the value an output of the backward, and it is copied into the tensor afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from . import torch_internals as internals
from .aliasing import storages
from .errors import RuleError, SwitchgearError, Unsupported
from .proxy import TensorProxy
from .symbol import BoundSymbol, Source, Symbol
from .tracking import Tracker


def _unreplaced(*args: Any) -> Any:
    raise SwitchgearError("a write of a backward in a trace was not taken out; please report this")


#: `((tensor, its value after the write), ...), (all tensors that the backward code was handed) -> None`
WRITTEN = Symbol("switchgear.written_in_backward", _unreplaced)


class Watch:
    """Tensors, each with what it stands for, as backward code is about to be handed them."""

    def __init__(self, tracker: Tracker, handed: Sequence[tuple[TensorProxy, torch.Tensor]]) -> None:
        self._tracker = tracker
        self._handed = [(proxy, tensor, tracker.proxy_of(tensor)) for proxy, tensor in handed]

    def writes(self, source: Source | None) -> tuple[BoundSymbol, ...]:
        """A call of `WRITTEN` with those of them that were written to since, if any was."""
        found: dict[str, tuple[TensorProxy, TensorProxy]] = {}
        for proxy, tensor, before in self._handed:
            now = self._tracker.proxy_of(tensor)
            if now != before:
                if internals.metadata_mutated(tensor):
                    raise RuleError("changes the sizes or strides of a tensor in place; make a view instead")
                found.setdefault(proxy.name, (proxy, now))
        handed = tuple(proxy for proxy, _, _ in self._handed)
        return (BoundSymbol(WRITTEN, (tuple(found.values()), handed), {}, None, source=source),) if found else ()


def taken_out(
    forward: Iterable[BoundSymbol],
    backward: Iterable[BoundSymbol],
    visible: Iterable[TensorProxy],
) -> tuple[list[BoundSymbol], list[tuple[TensorProxy, TensorProxy]]]:
    """The backward without its calls of `WRITTEN`, and those tensors with their values that others can see.

    These are `visible`, and what shares storage with them. Raises `Unsupported` where a write shows in a way that the
    copy after the backward does not make.
    """
    backward = list(backward)
    if all(item.symbol != WRITTEN for item in backward):
        return backward, []
    homes = storages((*forward, *backward))

    def home(proxy: TensorProxy) -> str:
        return homes.get(proxy.name, proxy.name)

    named = {proxy.name: proxy for proxy in visible}
    outside = {home(proxy) for proxy in named.values()}
    written: set[str] = set()
    kept: list[BoundSymbol] = []
    writes: list[tuple[TensorProxy, TensorProxy]] = []
    for item in backward:
        pairs, read = item.args if item.symbol == WRITTEN else ((), item.inputs)
        if any(home(proxy) in written for proxy in read):
            _refuse(item.source, "a tensor that another line of the backward reads after it")
        if item.symbol != WRITTEN:
            kept.append(item)
        for tensor, value in pairs:
            if any(home(other) == home(tensor) and other.name != tensor.name for other in read):
                _refuse(item.source, "one of several tensors of the same memory that it keeps")
            written.add(home(tensor))
            if tensor.name in named:
                writes.append((named[tensor.name], value))
            elif home(tensor) in outside:
                _refuse(item.source, "a view of an argument, of a result or of a gradient")
    return kept, writes


def refuse_visible(written: Iterable[TensorProxy], what: str) -> None:
    """Raise `Unsupported`, saying `what` it is about, if a backward writes to any tensor."""
    for tensor in written:
        raise Unsupported(f"a backward writes in place to {tensor.name}, which {what}; write to a clone")


def _refuse(source: Source | None, what: str) -> NoReturn:
    where = f", for the call at {source}" if source is not None else ""
    raise Unsupported(f"a backward writes in place to {what}{where}; write to a clone")

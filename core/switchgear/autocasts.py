"""Autocast in a trace: the casts that it makes are bound symbols, and what they feed runs without it."""

from __future__ import annotations

from typing import Any

import torch

from .composites import leaves_of
from .proxy import TensorProxy
from .symbol import BoundSymbol, map_proxies, proxies

_CAST = torch.ops.aten._to_copy.default


def _casts(leaf: BoundSymbol) -> bool:
    """Whether a leaf goes from one floating-point dtype to another, as autocast may have made it do."""
    return len({proxy.dtype for proxy in (*leaf.inputs, *leaf.outputs) if proxy.dtype.is_floating_point}) > 1


class Casts:
    """The casts seen so far in a capture; `apart` takes them out of a call, so that the rest is the call whole."""

    def __init__(self) -> None:
        self._source: dict[str, str] = {}

    def apart(
        self, given: tuple[Any, Any], recorded: list[BoundSymbol]
    ) -> tuple[list[BoundSymbol], tuple[Any, Any], list[BoundSymbol]] | None:
        """The casts of a call's arguments, the arguments after them, and the call's other parts.

        None if the call on those arguments, without autocast, would not be these parts. A cast may be one that an
        earlier call made, for autocast remembers those of parameters.
        """
        arguments = {proxy.name for proxy in proxies(given)}
        casts = [part for part in recorded if part.symbol.fn is _CAST and part.inputs[0].name in arguments]
        rest = [part for part in recorded if part not in casts]
        self._source.update((part.outputs[0].name, part.inputs[0].name) for part in casts)
        if not rest:
            return [], given, recorded
        replacing: dict[str, TensorProxy] = {}
        for proxy in (read for part in rest for read in part.inputs):
            source = self._source.get(proxy.name)
            if proxy.name in arguments or source not in arguments:
                continue
            if replacing.setdefault(source, proxy).name != proxy.name:
                return None
        if any(proxy.name in replacing for part in rest for proxy in part.inputs) or any(map(_casts, leaves_of(rest))):
            return None
        return casts, map_proxies(lambda proxy: replacing.get(proxy.name, proxy), given), rest

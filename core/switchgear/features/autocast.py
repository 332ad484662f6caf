"""Autocast in a trace: the casts that it makes are bound symbols, and what they feed runs without it."""

from __future__ import annotations

import torch

from switchgear import torch_private as internals
from switchgear.ir.composites import leaves_of
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import BoundSymbol, map_proxies, proxies
from switchgear.record.call import Call
from switchgear.record.handler import Handler
from switchgear.record.recorder import Recorder

_CAST = torch.ops.aten._to_copy.default


class Autocast(Handler):
    """A composite is kept whole on the casts of its arguments, if nothing inside it casts.

    The state is what each cast was made of: autocast remembers casts of parameters for later calls.
    """

    def begin(self, recorder: Recorder) -> dict[str, str]:
        """No cast is known."""
        return {}

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Take the casts of the arguments out of the call, so that the rest is the call on these."""
        if not internals.autocast_active():
            return
        sources: dict[str, str] = recorder.state(self)
        arguments = {proxy.name for proxy in proxies(call.given)}
        made = (line for line in call.lines if line.symbol.fn is _CAST)
        casts = [line for line in made if line.inputs[0].name in arguments]
        rest = [line for line in call.lines if line not in casts]
        sources.update((cast.outputs[0].name, cast.inputs[0].name) for cast in casts)
        if not rest:
            return
        replacing = _replacing(rest, arguments, sources)
        if replacing is None or any(map(_casts, leaves_of(rest))):
            call.whole = False
            return
        call.before += casts
        call.given = map_proxies(lambda proxy: replacing.get(proxy.name, proxy), call.given)
        call.lines = rest


def _replacing(
    lines: list[BoundSymbol], arguments: set[str], sources: dict[str, str]
) -> dict[str, TensorProxy] | None:
    """The arguments, by name, whose casts some lines read in their place; None if they read both, or several casts."""
    replacing: dict[str, TensorProxy] = {}
    reads = [proxy for line in lines for proxy in line.inputs]
    for proxy in reads:
        source = sources.get(proxy.name)
        if proxy.name in arguments or source not in arguments:
            continue
        if replacing.setdefault(source, proxy).name != proxy.name:
            return None
    return None if any(proxy.name in replacing for proxy in reads) else replacing


def _casts(leaf: BoundSymbol) -> bool:
    """Whether a leaf goes from one floating-point dtype to another, as autocast may have made it do."""
    dtypes = {proxy.dtype for proxy in (*leaf.inputs, *leaf.outputs)}
    return sum(dtype.is_floating_point for dtype in dtypes) > 1

"""Autocast in a trace: its casts become bound symbols, and the lines that consume the casts run without autocast."""

from __future__ import annotations

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, map_proxies, proxies
from switchgear_core.record.call import Call
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder

_CAST = torch.ops.aten._to_copy.default


class Autocast(Handler):
    """Handler of autocast: a composite is kept whole on the cast arguments, if nothing inside the composite casts.

    The state maps each cast to its source: autocast remembers casts of parameters for later calls.
    """

    def begin(self, recorder: Recorder) -> dict[str, str]:
        """Return an empty map of casts."""
        return {}

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Move the casts of the arguments in front of the call, so that the call runs on the cast arguments."""
        if not internals.autocast_active():
            return
        sources: dict[str, str] = recorder.state(self)
        arguments = {proxy.name for proxy in proxies(call.operands)}
        all_casts = (line for line in call.lines if line.symbol.fn is _CAST)
        casts = [line for line in all_casts if line.inputs[0].name in arguments]
        rest = [line for line in call.lines if line not in casts]
        sources.update((cast.outputs[0].name, cast.inputs[0].name) for cast in casts)
        if not rest:
            return
        replacing = _replacing(rest, arguments, sources)
        if replacing is None or any(map(_casts, leaves_of(rest))):
            call.is_unit = False
            return
        call.before += casts
        call.operands = map_proxies(lambda proxy: replacing.get(proxy.name, proxy), call.operands)
        call.lines = rest


def _replacing(
    lines: list[BoundSymbol], arguments: set[str], sources: dict[str, str]
) -> dict[str, TensorProxy] | None:
    """Return the casts that lines read, by argument; None if a line reads the argument itself, or two casts."""
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
    """Check whether a leaf converts between two floating-point dtypes, as autocast would."""
    dtypes = {proxy.dtype for proxy in (*leaf.inputs, *leaf.outputs)}
    return sum(dtype.is_floating_point for dtype in dtypes) > 1

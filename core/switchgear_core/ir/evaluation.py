"""Evaluation: bound symbols run separately on tensors, by their symbols alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.composites import bind_outputs
from switchgear_core.ir.symbol import BACKWARD, BoundSymbol, map_proxies
from switchgear_core.ir.writes import SET_VALUE, WRITTEN_VIEWS


def evaluate(bound_symbols: Iterable[BoundSymbol], values: dict[str, Any]) -> None:
    """Run bound symbols on the tensors in `values`, by name, each in its grad mode, and add their results.

    A recorder records them as new lines, so a backward can itself be differentiated.
    """
    for item in bound_symbols:
        args, kwargs = map_proxies(lambda proxy: values[proxy.name], (item.args, dict(item.kwargs)))
        # the lines include the casts of autocast
        with (
            torch.set_grad_enabled(item.grad_enabled or BACKWARD in item.tags),
            internals.autocast_off(),
        ):
            if item.symbol == SET_VALUE:
                result = args[0].clone()
                result.data.copy_(args[1])
            else:
                function = item.symbol.fn
                if any(proxy.dtype.is_complex for proxy in item.outputs):
                    function = WRITTEN_VIEWS.get(function, function)
                result = function(*args, **kwargs)
        bind_outputs(item.output, result, values)

"""The executor `torch`: PyTorch runs what no other executor takes."""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

_NEEDS_DECOMPOSITION = "its path in PyTorch can depend on requires_grad; its leaves are run instead"


class TorchExecutor(sg.Executor):
    """Runs every leaf, and every composite in which no gradient is at stake, by the symbol's own callable."""

    def claim(self, bound_symbol: sg.BoundSymbol, entry: object) -> sg.Implementation | sg.Declined:
        """Accept, unless a composite might take another path in PyTorch than it did under capture.

        Compiled code runs outside autograd, so PyTorch sees no input that requires grad there.
        """
        if not bound_symbol.is_leaf and any(proxy.requires_grad for proxy in bound_symbol.inputs):
            return sg.Declined(_NEEDS_DECOMPOSITION)
        return sg.Implementation(self.name, bound_symbol.symbol.fn)


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `torch`, asked last unless a user's list says otherwise."""
    return (TorchExecutor("torch", priority=-100),)

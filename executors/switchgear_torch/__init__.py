"""The executor `torch`: PyTorch runs each operator that no other executor claims.

Composites written in Python are declined: their parts alone cost less. After claiming, passes make calls cheaper:

- `short_chains` and `nested` write several calls as one;
- `late_products` moves a product to its first reader;
- `reuse_buffers` writes into an argument without later readers;
- `linears` writes a transposition and a product as a single call;
- `numbers` creates tensors of numbers once, not in each call;
- `spelling` calls an overload by a PyTorch function that reaches it at half the cost.

`user_ranges` keeps the user's `record_function` blocks.

The passes use public names, open to any plugin's pass: `sg.passes.storages`, `sg.passes.aliased_argument`,
`sg.passes.written_arguments`, `Implementation.path`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import switchgear as sg

from .passes import PASSES

_TRACED = "it is user code, run when it was captured; its leaves are run instead"
_NEEDS_DECOMPOSITION = "its path in PyTorch can depend on requires_grad; its operators are run one by one"
_IN_PYTHON = "it is written in Python; the operators it calls run instead"


def mkldnn_rnn_layer(*args: Any, **kwargs: Any) -> Any:
    """Run the operator in grad mode, as in eager training: otherwise the workspace for its backward is not made."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(
            *[arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args], **kwargs
        )


#: Operators whose kernels depend on the grad mode.
_AS_UNDER_AUTOGRAD: Mapping[str, Callable[..., Any]] = {"aten.mkldnn_rnn_layer.default": mkldnn_rnn_layer}


class TorchExecutor(sg.Executor):
    """Executor of every leaf, and of C++ composites of PyTorch without gradients, by their own callables."""

    is_exact = True

    def claim(self, bound_symbol: sg.BoundSymbol, entry: object) -> sg.executors.Implementation | sg.Declined:
        """Accept, unless a composite costs more than its parts, or might take another path than under capture.

        Compiled code runs outside autograd, so PyTorch sees no input that requires grad there.

        Args:
            bound_symbol: the call.
            entry: unused; the executor claims without a table.

        Returns:
            The call's own function, or `Declined` with the reason.
        """
        if not bound_symbol.is_leaf and any(proxy.requires_grad for proxy in bound_symbol.inputs):
            return sg.Declined(_NEEDS_DECOMPOSITION)
        if "custom_function" in bound_symbol.tags:
            return sg.Declined(_TRACED)
        fn = bound_symbol.symbol.fn
        if not bound_symbol.is_leaf and isinstance(fn, types.FunctionType):
            return sg.Declined(_IN_PYTHON)
        if bound_symbol.grad_enabled and any(proxy.requires_grad for proxy in bound_symbol.inputs):
            fn = _AS_UNDER_AUTOGRAD.get(bound_symbol.symbol.name, fn)
        return sg.executors.Implementation(self.name, fn)


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return the executor `torch`, which comes last unless a user's list has another order."""
    return (TorchExecutor("torch", priority=-100),)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.passes.PassPlacement]:
    """Return the passes that make PyTorch's calls cheaper."""
    return PASSES

"""The executor `cublas`: matrix products, and what cuBLASLt can do beside them in the same kernel.

Its operators are composites of PyTorch's: shapes, derivatives of any order, and what runs where nobody takes them come
from their decomposition. Before differentiation `linear` and the GELU (tanh) or ReLU that alone reads it become one
operator, with a grad rule that saves what the GELU was taken of, or the ReLU's result. Before executors claim, a
product with the gradient of a GELU behind it becomes `matmul_dgelu`, and the gradients of a weight and its bias
`matmul_bgrad`. Products for training with GELU have no entry point in PyTorch: they are declined, with that reason,
unless `CublasExecutor(nvmath=True)` takes them from nvmath-python (`plans`).
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .executor import CublasExecutor
from .patterns import PASSES
from .rules import table

__all__ = ["CublasExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `cublas`, asked after `torch`, which takes everything: who wants it lists it."""
    return (CublasExecutor(),)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.Registry) -> None:
    """The rules for the operators of this package."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.PassPlacement]:
    """The passes that put those operators in the place of others."""
    return PASSES

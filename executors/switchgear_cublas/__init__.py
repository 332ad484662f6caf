"""The executor `cublas`: matrix products with the epilogues of cuBLASLt in one kernel.

Its operators are composites of PyTorch's. Their decomposition gives shapes, derivatives of any order, and the code
without an executor. Before differentiation, `linear` and its only reader, a GELU (tanh) or ReLU, become one operator.
Its grad rule saves the input of the GELU, or the result of the ReLU. Before executors claim, a product followed by the
gradient of a GELU becomes `matmul_dgelu`, and the gradients of a weight and its bias become `matmul_bgrad`. Products
for training with GELU have no entry point in PyTorch: they are declined for this reason, unless
`CublasExecutor(nvmath=True)` takes them from nvmath-python (`plans`).
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
    """Return the executor `cublas`. To use it, list it: by default `torch` comes first and claims everything."""
    return (CublasExecutor(),)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.executors.Registry) -> None:
    """Register the rules for the operators of Switchgear.

    Args:
        registry: the registry of all plugins.
    """
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.passes.PassPlacement]:
    """Return the passes from PyTorch's operators to the operators of Switchgear."""
    return PASSES

"""The symbol of a call of `torch.autograd.grad` inside a jitted function; a pass replaces the call by its gradients."""

from __future__ import annotations

from typing import NoReturn

from switchgear_core.errors import SwitchgearError
from switchgear_core.ir.symbol import Symbol


def _unreplaced(*args: object) -> NoReturn:
    raise SwitchgearError(
        "torch.autograd.grad in a trace was not replaced by its gradients; please report this"
    )


#: `(outputs, inputs, grad_outputs or None each) -> gradients`; no gradient flows back.
AUTOGRAD_GRAD = Symbol("torch.autograd.grad", _unreplaced)

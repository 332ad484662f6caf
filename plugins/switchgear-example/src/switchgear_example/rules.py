"""The implementations and grad rules of the executor `example`: declared here, installed by the hooks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

from .operators import fast_gelu, fast_gelu_derivative

table = sg.Table("example")


def approximates_by_tanh(call: sg.BoundSymbol) -> bool | str:
    """Check a call: True accepts the call; a string declines the call and is the reason that `sg.explain` gives."""
    return sg.passes.argument(call, "approximate") == "tanh" or "only with approximate='tanh'"


@table.implementation(F.gelu, checker=approximates_by_tanh)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Run `F.gelu` by this package's operator. An implementation has the arguments of the implemented function."""
    y: Tensor = fast_gelu(x)
    return y


@table.grad_rule(F.gelu, checker=approximates_by_tanh)
def gelu_rule(x: Tensor, approximate: str = "none") -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Use the first form: outputs and a pullback. The user's executor order decides who runs the forward."""
    return F.gelu(x, approximate=approximate), lambda grad: grad * fast_gelu_derivative(x)


@table.grad_transform(fast_gelu)
def fast_gelu_transform(x: Tensor) -> Tensor:
    """Use the second form: get the gradient of the output, and put the gradient of the argument."""
    y: Tensor = fast_gelu(x)
    sg.put_grad(x, sg.get_grad(y) * fast_gelu_derivative(x))
    return y


def silu_forward(x: Tensor, inplace: bool = False) -> tuple[Tensor, tuple[Tensor]]:
    """Use the third form, first half: return the outputs, and the residuals for the second half."""
    return F.silu(x), (x,)


def silu_backward(x: Tensor, grad: Tensor) -> Tensor:
    """Use the third form, second half: recomputed values, such as `sigmoid`, need not be saved."""
    sigmoid = torch.sigmoid(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


table.augmented(F.silu, forward=silu_forward, backward=silu_backward)

"""A first plugin: an executor with one implementation and one grad rule."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

rules = sg.Table("first")


def only_float32(call: sg.BoundSymbol) -> bool | str:
    return call.args[0].dtype == torch.float32 or "float32 only"  # a string declines, and is the reason


@rules.implementation(F.softplus, checker=only_float32)
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)) / beta)


@rules.grad_rule(F.softplus)
def softplus_grad(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    def pullback(grad: Tensor) -> Tensor:
        return grad * torch.where(x * beta > threshold, 1.0, torch.sigmoid(x * beta))

    return F.softplus(x, beta, threshold), pullback


if __name__ == "__main__":
    first = sg.Executor("first", table=rules)
    f = sg.jit(lambda x: F.softplus(x).sum(), executors=[first, "torch"])  # `first` is asked before `torch`
    x = torch.randn(4, requires_grad=True)
    f(x).backward()
    torch.testing.assert_close(x.grad, torch.sigmoid(x))
    print(sg.last_traces(f)[-1])
    print(sg.last_backward_traces(f)[-1].python(link=True))
    print(sg.explain(f))

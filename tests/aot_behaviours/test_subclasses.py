"""Tensor subclasses as arguments that are written to, transposed, aliased or viewed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import switchgear as sg
from switchgear_core.nesting import tensors_in
from tests.aot_behaviours.observation import values

pytestmark = pytest.mark.beside_eager


def transposed(x: Tensor) -> Tensor:
    x.transpose_(1, 0)
    return x.mul(2).transpose(1, 0)


def written_and_transposed(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.t_()
    return x.mul(y)


def written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def both_written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(3)
    y.mul_(2)
    return x.clone().view(-1) + y.clone().view(-1)


def viewed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(x.shape), y.view(y.shape)


def one_written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return y + 1, x + 1


def written_and_unsqueezed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y.unsqueeze_(0)
    return x + y, x.view(-1)


CASES: list[tuple[Callable[..., Any], Callable[[Tensor], tuple[Tensor, ...]]]] = [
    (transposed, lambda base: (base,)),
    (written_and_transposed, lambda base: (base[0], base[0])),
    (written, lambda base: (base[:, 0],)),
    (both_written, lambda base: (base[0:2], base[2:4])),
    (viewed, lambda base: (base.view(-1), base[0])),
    (one_written, lambda base: (base.view(-1), base.view(-1))),
    (written_and_unsqueezed, lambda base: (base.view(-1), base.view(-1))),
]


#: Why some fall back: inputs share memory, sizes change in place, or autograd would have to see the write.
REASONS = {
    "transposed": "in place",
    "written": "writes to an input",
    "both_written": "writes to an input",
    "written_and_transposed": "shares memory|in place|writes to an input",
    "one_written": "shares memory|writes to an input",
    "written_and_unsqueezed": "shares memory|in place|writes to an input",
}


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize(("function", "take"), CASES, ids=[function.__name__ for function, _ in CASES])
def test_subclass(function: Callable[..., Any], take: Callable[[Tensor], tuple[Tensor, ...]], grad: bool) -> None:
    """All is as in eager; what falls back says why."""

    def called(call: Callable[..., Any]) -> tuple[TwoTensor, Any, tuple[Tensor, ...]]:
        base: Any = TwoTensor(values(4, 4), values(4, 4)).requires_grad_(grad) + 1
        args = take(base)
        return base, call(*args), args

    jitted = sg.jit(function, executors=["torch"])
    base, result, args = called(function)
    other, same, others = called(jitted)
    assert torch.equal(other.a, base.a)
    assert [(one.shape, one.stride()) for one in others] == [(one.shape, one.stride()) for one in args]
    for one, two in zip(tensors_in(result), tensors_in(same), strict=True):
        assert type(one) is type(two)
        assert one.shape == two.shape
        assert torch.equal(one.a, two.a)  # type: ignore[attr-defined]
        assert torch.equal(one.b, two.b)  # type: ignore[attr-defined]
    if "0 in eager" not in repr(jitted):
        assert re.search(REASONS[function.__name__], str(sg.explain(jitted).fallbacks()))

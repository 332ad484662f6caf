"""Autograd's surface: custom Functions, grad modes, hooks, partial and repeated backwards, saved tensors; as in eager."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.autograd.function import once_differentiable

import switchgear as sg
from switchgear import errors
from tests.core.against_eager import check, numbers

# mypy: disable-error-code="no-untyped-call, no-any-return, override"

T = torch.Tensor
Function = torch.autograd.Function


def jit(function: Any, **options: Any) -> Any:
    return sg.jit(function, executors=["torch"], **options)


# --- Functions: each has a backward that no derived rule would give ---


class Scaled(Function):
    """Saves an argument, a result and a value on its way; takes numbers; keeps attributes."""

    @staticmethod
    def forward(ctx: Any, x: T, factor: float, w: T, mode: str = "sum") -> T:
        inner = torch.tanh(x * w)
        result = inner.exp() * factor
        ctx.save_for_backward(x, w, inner, result)
        ctx.factor, ctx.mode = factor, mode
        return result

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        x, w, inner, result = ctx.saved_tensors
        assert ctx.mode == "sum"
        common = grad * result * (1 - inner * inner) * ctx.factor * 0.5
        return common * w, None, common * x, None


class Double(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad * 3


class SetUp(Function):
    @staticmethod
    def forward(x: T, factor: float = 2.0, shift: bool = False) -> tuple[T, T]:
        return x.sin() * factor, x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.factor, ctx.cosine = inputs[1], output[1]

    @staticmethod
    def backward(ctx: Any, a: T, b: T) -> Any:
        (x,) = ctx.saved_tensors
        return a * ctx.factor * ctx.cosine + b * x * 5, None, None


class Split(Function):
    """Several results, one of them of integers, one that is marked as not differentiable, one no tensor."""

    @staticmethod
    def forward(ctx: Any, x: T) -> tuple[T, T, T, int, T]:
        values, indices = x.sort()
        mask = x > 0
        flat = x * 7
        ctx.mark_non_differentiable(flat)
        ctx.save_for_backward(indices, mask)
        return values, indices, flat, 3, mask

    @staticmethod
    def backward(ctx: Any, values: T, indices: T, flat: T, number: None, mask: T) -> T:
        order, positive = ctx.saved_tensors
        assert number is None
        assert indices.dtype is torch.int64
        assert not indices.any() if not torch.compiler.is_compiling() else True
        grad = torch.zeros_like(values).scatter(-1, order, values * 2)
        return torch.where(positive, grad, -grad)


class Undefined(Function):
    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> tuple[T, T]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: T | None, b: T | None) -> Any:
        return (None if a is None else a * 5), (None if b is None else b * 7)


class Materialised(Undefined):
    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> tuple[T, T]:
        return x * 2, y * 3


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: T, y: T) -> T:
        x.mul_(y)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, y)
        return x

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        x, y = ctx.saved_tensors
        return grad * y * 2, grad * x


class Identity(Function):
    """Gradient reversal: returns its input as it is."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return -grad


class Flat(Function):
    """Returns a view of its input."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad.view(ctx.shape) * 4


class Rounded(Function):
    """Straight-through."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad


class Nested(Function):
    """Other Functions in the forward and in the backward."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        y = Scaled.apply(x, 2.0, x + 1)
        ctx.save_for_backward(x, y)
        return Rounded.apply(y * 3)

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        x, y = ctx.saved_tensors
        return Double.apply(grad) * x + Scaled.apply(grad, 1.5, y)


class Needs(Function):
    @staticmethod
    def forward(ctx: Any, x: T, flag: bool, y: T) -> T:
        ctx.forward_needs = ctx.needs_input_grad
        ctx.save_for_backward(x if y.requires_grad else None, y if x.requires_grad else None)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad == ctx.forward_needs == (y is not None, False, x is not None)
        return (grad * y if ctx.needs_input_grad[0] else None), None, (grad * x if ctx.needs_input_grad[2] else None)


class Broadcast(Function):
    """Gradients of another shape and dtype than the arguments."""

    @staticmethod
    def forward(ctx: Any, x: T, bias: T) -> T:
        ctx.save_for_backward(x)
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad.float() * 2, grad * 3


class OnceOnly(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: T) -> T:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class Point(NamedTuple):
    x: T
    scale: float


@dataclasses.dataclass
class Pair:
    first: T
    second: Any


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Containers(Function):
    """Tensors in containers among the arguments and attributes; the named tuple comes as one."""

    @staticmethod
    def forward(ctx: Any, point: Point, x: T, more: dict[str, Any], thing: Any, shape: torch.Size) -> T:
        result = x * point.scale + point.x * more["y"][0]
        ctx.pair = Pair(x * 2, {"shape": shape.numel(), "result": result})
        ctx.thing = thing
        return result

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return None, grad * ctx.pair.first * ctx.pair.second["result"] + ctx.pair.second["shape"], None, None, None


class Stepwise(Function):
    """The backward works in place on the grad output's clone and on what the forward computed on its way."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        soft = torch.softmax(x, -1)
        ctx.save_for_backward(soft)
        return soft.log().sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        (soft,) = ctx.saved_tensors
        result = grad.unsqueeze(-1).expand_as(soft).clone()
        result[..., 0] *= 2
        soft.mul_(2).sub_(1)
        return result.mul_(soft)


class OldVjp(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def vjp(ctx: Any, grad: T) -> T:
        return grad * ctx.saved_tensors[0]


class Noisy(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad * ctx.saved_tensors[0] * 2


class Statistics(Function):
    """Writes to an argument that it does not mark."""

    @staticmethod
    def forward(ctx: Any, x: T, mean: T) -> T:
        mean.mul_(0.5).add_(x.detach().mean())
        ctx.save_for_backward(mean.clone())
        return x - mean

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad * ctx.saved_tensors[0], None


class Twice(Function):
    """Returns one tensor twice: the last result counts."""

    @staticmethod
    def forward(ctx: Any, x: T) -> tuple[T, T]:
        y = x * 2
        return y, y

    @staticmethod
    def backward(ctx: Any, a: T, b: T) -> T:
        return a * 10 + b * 100


A, B = numbers(2, 3, grad=True), numbers(3, grad=True)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "saved": (lambda x, w: Scaled.apply(x.sin(), 3.0, w).cos(), (A, B)),
    "on arguments themselves": (lambda x, w: Scaled.apply(x, 3.0, w), (A, B)),
    "one argument twice": (lambda x: Scaled.apply(x, 3.0, x), (A,)),
    "result used often": (lambda x: [y := Double.apply(x), y * 2, y.sum() + x.sum()], (A,)),
    "called often": (lambda x: Double.apply(Double.apply(x)) + Double.apply(x), (A,)),
    "setup_context": (lambda x: SetUp.apply(x.exp()), (A,)),
    "setup_context, keywords": (lambda x: SetUp.apply(x, factor=4.0), (A,)),
    "setup_context, one result": (lambda x: SetUp.apply(x, 4.0)[1], (A,)),
    "kinds of results": (lambda x: Split.apply(x * 2), (A,)),
    "differentiable results alone": (lambda x: Split.apply(x * 2)[0], (A,)),
    "other results alone": (lambda x: Split.apply(x)[1:], (A,)),
    "undefined, first": (lambda x, y: Undefined.apply(x, y)[0], (A, B)),
    "undefined, second": (lambda x, y: Undefined.apply(x, y)[1] * x.detach(), (A, B)),
    "undefined, both": (lambda x, y: Undefined.apply(x, y), (A, B)),
    "materialised, first": (lambda x, y: Materialised.apply(x, y)[0], (A, B)),
    "dirty": (lambda x, y: (z := x * 2, Dirty.apply(z, y), z.sin())[1:], (A, B)),
    "dirty, no gradient before": (lambda x, y: (z := x * 2, Dirty.apply(z, y), z.sin())[1:], (A.detach(), B)),
    "dirty argument": (lambda x, y: Dirty.apply(x, y).sin(), (A.detach(), B)),
    "dirty with a view": (lambda x, y: (z := x * 2, v := z[0], Dirty.apply(z, y), v * 3, z * 1)[2:], (A, B)),
    "input as it is": (lambda x: Identity.apply(x * 2) + x, (A,)),
    "argument as it is": (lambda x: Identity.apply(x), (A,)),
    "argument as it is, no gradient": (lambda x: Identity.apply(x) * 2, (A.detach(),)),
    "view": (lambda x: Flat.apply(x * 2).sin(), (A,)),
    "view of an argument": (lambda x: Flat.apply(x) * 2, (A,)),
    "straight through": (lambda x: Rounded.apply(x * 5), (A,)),
    "nested": (lambda x: Nested.apply(x), (A,)),
    "needs both": (lambda x, y: Needs.apply(x, True, y), (A, B)),
    "needs first": (lambda x, y: Needs.apply(x, True, y), (A, B.detach())),
    "needs second": (lambda x, y: Needs.apply(x, True, y * 2), (A.detach(), B)),
    "needs none": (lambda x, y: Needs.apply(x, True, y), (A.detach(), B.detach())),
    "reduced and cast": (lambda x, b: Broadcast.apply(x, b), (A, B)),
    "once differentiable": (lambda x: OnceOnly.apply(x) * x, (A,)),
    "containers": (
        lambda x, y: Containers.apply(Point(x, 2.0), y, {"y": [x, 1]}, Unprintable(), y.shape) * x,
        (A, A),
    ),
    "in place in the backward": (lambda x: Stepwise.apply(x), (A,)),
    "vjp": (lambda x: OldVjp.apply(x), (A,)),
    "random": (lambda x: Noisy.apply(x) + torch.rand_like(x), (A,)),
    "unmarked write": (lambda x, m: (Statistics.apply(x, m), m * 2), (A, numbers(1))),
    "same result twice": (lambda x: Twice.apply(x), (A,)),
    "same result twice, first": (lambda x: Twice.apply(x)[0], (A,)),
    "same result twice, second": (lambda x: Twice.apply(x)[1] * 2, (A,)),
    "complex": (lambda x: Double.apply(torch.view_as_complex(x.view(3, 2))).abs(), (A,)),
    "0-dim": (lambda x: Scaled.apply(x.sum(), 2.0, x.mean()), (A,)),
    "no elements": (lambda x: Double.apply(x[:0]), (A,)),
    "float32": (lambda x: Broadcast.apply(x.float(), x[0]), (A,)),
}


@pytest.mark.parametrize("name", CASES)
def test_function(name: str) -> None:
    function, args = CASES[name]
    check(function, *args)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("dirty")])
def test_function_without_gradients(name: str) -> None:
    function, args = CASES[name]
    check(function, *args, gradient=False)

    def quiet(*inner: Any) -> Any:
        with torch.no_grad():
            return function(*inner)

    check(quiet, *args)

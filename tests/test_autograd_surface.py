"""Autograd's surface: custom Functions, grad modes, hooks, partial and repeated backwards, saved tensors."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd.function import FunctionCtx, once_differentiable

import switchgear as sg
from switchgear import errors
from switchgear_runtime.last_call import last_entry
from tests.core.against_eager import check, numbers
from tests.falling_back import assert_falls_back, falls_back
from tests.oracle import differences
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

# mypy: disable-error-code="no-untyped-call, no-any-return, override, untyped-decorator"

T = torch.Tensor
Function = torch.autograd.Function


def jit(function: Any, **options: Any) -> Any:
    return sg.jit(function, executors=EXECUTORS, **options)


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
        assert indices.shape == flat.shape == mask.shape
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


class Views(Function):
    """Two views of its input, and one that is marked as not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: T) -> tuple[T, T, T]:
        fixed = x[0]
        ctx.mark_non_differentiable(fixed)
        return x[0], x[1], fixed

    @staticmethod
    def backward(ctx: Any, a: T, b: T, fixed: T) -> T:
        return torch.stack([a * 2, b * 3])


class Collects(Function):
    """Writes to a list among its arguments, and returns None beside its result."""

    @staticmethod
    def forward(ctx: Any, x: T, found: list[T]) -> tuple[T, None]:
        found.append(x * 2)
        ctx.found = found
        with torch.enable_grad():
            return (x * 3).sin(), None

    @staticmethod
    def backward(ctx: Any, grad: T, none: None) -> Any:
        assert none is None
        return grad * ctx.found[0] * torch.rand_like(grad), None


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


class Mixed(Function):
    """Mixed precision, as libraries write it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: T) -> T:
        (x,) = ctx.saved_tensors
        return (grad + grad.T) @ x * 2


class Plain(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        (x,) = ctx.saved_tensors
        return (grad.to(x.dtype) + grad.T.to(x.dtype)) @ x * 2


def autocast(function: Any) -> Any:
    def inside(x: T) -> T:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function.apply(x @ x.T)

    return inside


def checkpointed(x: T) -> T:
    return torch.utils.checkpoint.checkpoint(
        lambda value: Scaled.apply(value, 2.0, value).sin(), x, use_reentrant=False
    )


def list_written(x: T) -> T:
    found: list[T] = []
    return Collects.apply(x, found)[0] * found[0]


A, B = numbers(2, 3, grad=True), numbers(3, grad=True)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "saved": (lambda x, w: Scaled.apply(x.sin(), 3.0, w).cos(), (A, B)),
    "on arguments themselves": (lambda x, w: Scaled.apply(x, 3.0, w), (A, B)),
    "one argument twice": (lambda x: Scaled.apply(x, 3.0, x), (A,)),
    "result used often": (lambda x: [y := Double.apply(x), y * 2, y.sum() + x.sum()], (A,)),
    "called often": (lambda x: Double.apply(Double.apply(x)) + Double.apply(x), (A,)),
    "setup_context": (lambda x: SetUp.apply(x.exp()), (A,)),
    "keywords": (lambda x, w: Scaled.apply(x, w=w, factor=3.0), (A, B)),
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
    "dirty view": (lambda x, y: (z := x * 2, Dirty.apply(z[0], y), z * 1)[2:], (A, B)),
    "dirty view, no gradient before": (lambda x, y: (z := x * 2, Dirty.apply(z[0], y), z * 1)[2:], (A.detach(), B)),
    "in place on a result": (lambda x: Double.apply(x).mul_(x), (A,)),
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
    "vjp": (lambda x: OldVjp.apply(x), (A,)),
    "random": (lambda x: Noisy.apply(x) + torch.rand_like(x), (A,)),
    "unmarked write": (lambda x, m: (Statistics.apply(x, m), m * 2), (A, numbers(1))),
    "same result twice": (lambda x: Twice.apply(x), (A,)),
    "same result twice, first": (lambda x: Twice.apply(x)[0], (A,)),
    "same result twice, second": (lambda x: Twice.apply(x)[1] * 2, (A,)),
    "complex": (lambda x: Double.apply(torch.view_as_complex(x.view(3, 2))).abs(), (A,)),
    "autocast with casts": (autocast(Mixed), (numbers(2, 3, grad=True, dtype=torch.float32),)),
    "autocast": (autocast(Plain), (numbers(2, 3, grad=True, dtype=torch.float32),)),
    "checkpoint": (checkpointed, (A,)),
    "views": (lambda x: [view * 2 for view in Views.apply(x * 1)], (A,)),
    "list written": (list_written, (A,)),
    "expanded": (lambda x: Double.apply(x.expand(4, 2, 3)), (A,)),
    "transposed": (lambda x: Scaled.apply(x.t(), 2.0, x.t()), (A,)),
    "0-dim": (lambda x: Scaled.apply(x.sum(), 2.0, x.mean()), (A,)),
    "no elements": (lambda x: Double.apply(x[:0]), (A,)),
    "float32": (lambda x: Broadcast.apply(x.float(), x[0]), (A,)),
}


#: What of a Function is left to eager, by the reason.
LEFT_TO_EAGER = {
    **dict.fromkeys(
        ("setup_context", "setup_context, keywords", "setup_context, one result", "containers", "list written"),
        "keeps a tensor as an attribute of ctx; use ctx.save_for_backward",
    ),
    **dict.fromkeys(
        (
            "input as it is",
            "argument as it is",
            "argument as it is, no gradient",
            "view",
            "view of an argument",
            "views",
            *(name for name in CASES if name.startswith("same result twice")),
        ),
        "returns an argument, a view, or results that share memory; return clones",
    ),
    **dict.fromkeys([name for name in CASES if name.startswith("dirty")], "marks a tensor dirty|does not see it"),
}


@pytest.mark.parametrize("name", LEFT_TO_EAGER)
def test_function_that_falls_back(name: str) -> None:
    if name.endswith("keywords") and torch.__version__ < "2.13":
        pytest.skip("this PyTorch takes no keyword arguments here")
    function, args = CASES[name]

    def arguments() -> tuple[T, ...]:
        return tuple(arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args)

    assert_falls_back(function, arguments, LEFT_TO_EAGER[name])


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT_TO_EAGER])
def test_function(name: str) -> None:
    if name.endswith("keywords") and torch.__version__ < "2.13":
        pytest.skip("this PyTorch takes no keyword arguments here")
    function, args = CASES[name]
    check(function, *args)


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT_TO_EAGER])
def test_function_without_gradients(name: str) -> None:
    if name.endswith("keywords") and torch.__version__ < "2.13":
        pytest.skip("this PyTorch takes no keyword arguments here")
    function, args = CASES[name]
    check(function, *args, gradient=False)

    def quiet(*inner: Any) -> Any:
        with torch.no_grad():
            return function(*inner)

    check(quiet, *args)


class Block(torch.nn.Module):
    """As in transformers: a custom norm and activation, a residual, a straight-through gate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3, dtype=torch.float64)
        self.weight = torch.nn.Parameter(numbers(3))

    def forward(self, x: T) -> T:
        hidden = Scaled.apply(self.inner(x), 0.5, self.weight)
        return x + hidden * Rounded.apply(torch.sigmoid(hidden) * 4)


class ClosesOver(Function):
    @staticmethod
    def forward(ctx: Any, x: T, module: Any) -> T:
        ctx.module = module
        return module.weight * x

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad * ctx.module.weight * 3, None


class WithModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(3))

    def forward(self, x: T) -> T:
        return ClosesOver.apply(x * self.weight, self)


def test_functions_in_modules() -> None:
    torch.manual_seed(0)
    check(torch.nn.Sequential(Block(), Block(), torch.nn.LayerNorm(3, dtype=torch.float64)), A)
    check(WithModule(), A)


def test_a_module_among_the_arguments_is_read_anew_in_the_backward() -> None:
    """What is written to the parameter between forward and backward shows, as in eager."""

    def run(module: Any) -> T | None:
        x = A.detach().clone().requires_grad_()
        y = module(x)
        with torch.no_grad():
            module.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return x.grad

    assert run(WithModule()) is None
    assert run(jit(WithModule())) is None


COUNTER = torch.zeros((), dtype=torch.float64)


class Counts(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        COUNTER.add_(1)
        return x * COUNTER

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad * 2


def test_a_write_to_what_the_forward_closes_over() -> None:
    COUNTER.zero_()
    jitted = jit(lambda x: Counts.apply(x))
    for count in (1, 2, 3):
        x = A.detach().clone().requires_grad_()
        jitted(x).sum().backward()
        assert COUNTER.item() == count
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(A, 2))


RUNS: list[str] = []


class Seen(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        RUNS.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        RUNS.append("backward")
        return grad * 2


def test_what_user_code_writes_is_written_by_every_call() -> None:
    RUNS.clear()
    jitted = jit(lambda x: Seen.apply(x))
    for _ in range(3):
        jitted(A.detach())
    assert RUNS == ["forward"] * 3
    with falls_back("backward of an autograd.Function writes to .*RUNS"):
        jitted(A).sum().backward()
    A.grad = None
    assert [*["forward"] * 4, "backward"] == RUNS


# --- traces, rules and executors ---


def test_every_stage_prints_and_says_whose_rule_it_was() -> None:
    jitted = sg.jit(lambda x: Scaled.apply(x, 2.0, x), executors=["torch"], link=True)
    jitted(A)
    texts = [trace.python() for trace in (*sg.last_traces(jitted), *sg.last_backward_traces(jitted))]
    assert "Scaled(" in texts[0]
    backward = texts[-1]
    assert "rule: Scaled (autograd.Function)" in backward
    assert "test_autograd_surface.py:" in backward
    for trace in (*sg.last_traces(jitted), *sg.last_backward_traces(jitted)):
        assert trace.python(decompositions=True)


def test_a_function_is_one_symbol_and_its_choice_names_it() -> None:
    jitted = jit(lambda x: Double.apply(x).sin())
    jitted(A)
    (first, second) = sg.last_traces(jitted)[0].bound_symbols
    assert first.symbol.name == f"{__name__}.Double"
    assert second.symbol.name == "torch.sin"
    assert first.subsymbols
    chosen = {choice.symbol: choice.owner for choice in sg.last_choices(jitted) if choice.kind == "gradient"}
    assert chosen["switchgear.autograd_function"] == "Double"


@pytest.mark.parametrize("strict", [False, True])
def test_an_executor_claims_a_function_by_its_class(strict: bool) -> None:
    calls = []

    def run(x: T, factor: float, w: T, mode: str = "sum") -> T:
        calls.append((factor, mode))
        return torch.tanh(x * w).exp() * factor

    table = sg.Table("mine")
    table.implementation(Scaled)(run)
    executors: list[str | sg.Executor] = [sg.Executor("mine", table=table), "torch"]
    jitted = sg.jit(lambda x, w: Scaled.apply(x, 3.0, w, "sum"), executors=executors, strict=strict)
    assert torch.equal(jitted(A.detach(), B.detach()), Scaled.apply(A.detach(), 3.0, B.detach()))
    assert calls == [(3.0, "sum")]
    # with gradients the claim stays, and the backward is the class's own
    results = []
    for function in (jitted, lambda x, w: Scaled.apply(x, 3.0, w, "sum")):
        x, w = A.detach().clone().requires_grad_(), B.detach().clone().requires_grad_()
        y = function(x, w)
        y.sum().backward()
        results.append((y, x.grad, w.grad))
    assert len(calls) == 2
    for got, wanted in zip(*results, strict=True):
        assert torch.equal(got, wanted)


def test_a_grad_rule_for_the_class_goes_first() -> None:
    table = sg.Table("mine")
    table.grad_rule(Double)(lambda x: (x * 2, lambda grad: grad * 11))
    jitted = sg.jit(lambda x: Double.apply(x), executors=["torch"], grad_rules=table)
    x = A.detach().clone().requires_grad_()
    jitted(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 11))


# --- higher order ---


def eager_second(function: Callable[[T], T], x: T) -> T:
    x = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    return second


def our_second(function: Callable[[T], T], x: T) -> T:
    first = sg.grad(lambda value: function(value).sum(), executors=["torch"])
    return sg.grad(lambda value: (first(value) ** 2).sum(), executors=["torch"])(x.detach())


def test_the_gradient_of_the_gradient_of_what_is_written_to_a_transposed_value() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(x, n=10, dim=1) ** 2

    x = torch.randn(5, 6, 7, dtype=torch.float64)
    jitted = sg.jit(function, executors=["torch"], fallback="error")
    assert torch.equal(eager_second(jitted, x), eager_second(function, x))


class Straight(Function):
    """The backward reads the result, through which the derivative of the backward is the class's own again."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        y = (x * 3).round()
        ctx.save_for_backward(y, x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        y, x = ctx.saved_tensors
        return grad * y * x


class Hidden(Function):
    """The backward reads what the forward computed on its way: constant, for autograd."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        inner = x.sin()
        ctx.save_for_backward(inner)
        ctx.twice = x * 2
        return inner * x

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad * ctx.saved_tensors[0] * ctx.twice


class Inner(Function):
    @staticmethod
    def forward(ctx: Any, grad: T, x: T) -> T:
        ctx.save_for_backward(grad, x)
        return grad * x.cos()

    @staticmethod
    def backward(ctx: Any, outer: T) -> Any:
        grad, x = ctx.saved_tensors
        return outer * x.cos() * 2, outer * grad * 5


class Outer(Function):
    """Its second derivative is another Function's backward."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return Inner.apply(grad, ctx.saved_tensors[0])


SECOND: dict[str, Callable[[T], T]] = {
    "result": lambda x: Straight.apply(x * 1.3).sin(),
    "Function in the backward": lambda x: Outer.apply(x * x).exp(),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_order(name: str) -> None:
    assert torch.equal(our_second(SECOND[name], A), eager_second(SECOND[name], A))


def test_once_differentiable_is_not_differentiated_twice() -> None:
    def function(x: T) -> T:
        return OnceOnly.apply(x.sin()).cos()

    x = A.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        first.sum().backward()
    with pytest.raises(errors.NotDifferentiable, match=r"marked with @once_differentiable: .*OnceOnly"):
        our_second(function, A)
    x = A.detach().clone().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(sg.grad(lambda value: function(value).sum(), executors=["torch"])(A.detach()), x.grad)


# --- refused, and eager's errors ---


class TooFew(Double):
    @staticmethod
    def forward(ctx: Any, x: T, y: int) -> T:
        return x * y


class NotNone(TooFew):
    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad, grad


class WrongShape(Double):
    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return grad[:1, :2]


class NoBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x * 2


class WritesSaved(Double):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return ctx.saved_tensors[0].mul_(grad)


class WritesOutside(Double):
    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        COUNTER.add_(1)
        return grad


class ReturnsOutside(Double):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return COUNTER


class KeepsNoTensor(Double):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x, "text")
        return x * 2


REFUSED: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (
        lambda x: TooFew.apply(x, 2),
        errors.RuleError,
        r"TooFew, called at test_autograd_surface.py:\d+, .*expected 2, got 1",
    ),
    (lambda x: NotNone.apply(x, 2), errors.RuleError, r"invalid gradient for argument 1: .* for no tensor"),
    (lambda x: WrongShape.apply(x), errors.RuleError, r"invalid gradient for argument 0.*\(1, 2\)"),
    (lambda x: NoBackward.apply(x), errors.RuleError, r"NoBackward.*NotImplementedError.*no_grad"),
    (lambda x: WritesSaved.apply(x[:1]), errors.Unsupported, r"in place to a tensor that it is handed"),
    (lambda x: WritesOutside.apply(x), errors.Unsupported, r"in place to a tensor that it closes over"),
    (lambda x: KeepsNoTensor.apply(x), TypeError, r"can only save variables"),
    (lambda x: Dirty.apply(x, x), RuntimeError, r"leaf Variable that requires grad"),
    (lambda x: ReturnsOutside.apply(x), errors.Unsupported, r"ReturnsOutside returns a tensor that it closes over"),
    (lambda x: Double.apply(x, x), TypeError, r"positional arguments"),
]


@pytest.mark.parametrize("row", range(len(REFUSED)))
def test_refused_or_as_eager(row: int) -> None:
    function, kind, message = REFUSED[row]
    x, expected = A.detach().clone().requires_grad_(), A.detach().clone().requires_grad_()
    with pytest.raises(kind, match=message):
        jit(function, strict=True)(x)
    if not issubclass(kind, errors.SwitchgearError):
        with pytest.raises(kind, match=message):
            function(expected)
    assert torch.equal(x, expected)


# --- hooks ---


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: T) -> T:
        return self.part(x).sin()


def test_forward_hooks_of_a_submodule_are_traced_and_guarded() -> None:
    torch.manual_seed(0)
    net = Net()
    jitted = jit(net)

    def agrees() -> T:
        found = jitted(A)
        assert torch.equal(found, net(A))
        return found

    plain = agrees()
    first = net.part.register_forward_hook(lambda module, args, result: Double.apply(result))
    hooked = agrees()
    second = net.part.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    both = agrees()
    first.remove()
    agrees()
    second.remove()
    assert torch.equal(agrees(), plain)
    assert not torch.equal(plain, hooked)
    assert not torch.equal(both, hooked)


def node_hook(x: T) -> T:
    y: Any = x * 2
    y.grad_fn.register_hook(lambda given, got: None)
    return y


def node_prehook(x: T) -> T:
    y: Any = x * 2
    y.grad_fn.register_prehook(lambda got: (got[0] * 3,))
    return y


def later_node_hook(x: T) -> T:
    y: Any = x * 2
    y.sin().grad_fn.next_functions[0][0].register_hook(lambda given, got: None)
    return y


def tensor_hook(x: T) -> T:
    y = x * 2
    y.register_hook(lambda grad: grad * 2)
    return y


def several_hook(x: T) -> T:
    y = x * 2
    torch.autograd.graph.register_multi_grad_hook((y,), lambda grads: None)
    return y


def keeps_grad(x: T) -> T:
    y = x * 2
    y.retain_grad()
    return y


@pytest.mark.parametrize("function", [node_hook, node_prehook, later_node_hook, tensor_hook, several_hook, keeps_grad])
def test_hooks_inside_are_refused(function: Any) -> None:
    with falls_back(r"hook|retain_grad|next_functions"):
        jit(function)(A)


def test_a_node_that_is_looked_at_falls_back_and_is_eagers() -> None:
    names: list[str] = []

    def function(x: T) -> T:
        y = x * 2
        assert x.grad_fn is None
        names.append(y.grad_fn.name() if y.grad_fn is not None else "none")
        return y

    assert_falls_back(function, lambda: (A.detach().clone().requires_grad_(),), r"reads \.grad_fn")
    assert {*names} == {"MulBackward0"}


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook", "backward_hook"])
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_backward_hooks_of_a_submodule_fall_back(kind: str) -> None:
    net = Net()
    getattr(net.part, f"register_{kind}")(lambda *args: None)
    with falls_back("backward hook"):
        jit(net)(A)


def test_hooks_on_what_goes_in_and_comes_out() -> None:
    def run(function: Any) -> list[T]:
        x, seen = A.detach().clone().requires_grad_(), []
        x.register_hook(lambda grad: grad * 2)
        x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.clone()))
        y = function(x)
        y.register_hook(lambda grad: grad + 1)
        y.retain_grad()
        y.grad_fn.register_hook(lambda given, got: tuple(g and g * 3 if g is None else g * 3 for g in given))
        y.sum().backward()
        return [y, y.grad, x.grad, *seen]

    for got, wanted in zip(run(jit(lambda x: Double.apply(x))), run(lambda x: Double.apply(x)), strict=True):
        assert torch.equal(got, wanted)


# --- grad modes ---


def modes_inside(x: T, w: T) -> Any:
    with torch.no_grad():
        a = Double.apply(x) * w
        with torch.enable_grad():
            b = Double.apply(x) * w
        with torch.set_grad_enabled(True):
            c = x.sin()
    with torch.set_grad_enabled(False):
        d = b * 2
    with torch.inference_mode():
        e = (x * 3).sum() * 1.0
    return a, b, c, d, b.detach() * w, x.detach(), float(3), e.requires_grad


@torch.no_grad()
def decorated(x: T, w: T) -> T:
    return x * w


@torch.enable_grad()
def enabled(x: T, w: T) -> T:
    return x * w


def test_grad_modes_inside() -> None:
    check(modes_inside, A, B)
    check(decorated, A, B)
    check(lambda x, w: (decorated(x, w) * w, enabled(x, w)), A, B)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.enable_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)]
)
def test_grad_modes_outside(mode: Any) -> None:
    for function in (modes_inside, enabled, lambda x, w: Double.apply(x) * w):
        jitted = jit(function)
        # the entry of one mode is never another's
        for outer in (torch.enable_grad, mode, torch.enable_grad):
            with outer():
                got, wanted = jitted(A, B), function(A, B)
            for left, right in zip(
                torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted), strict=True
            ):
                if isinstance(left, T):
                    assert torch.equal(left, right)
                    assert left.requires_grad == right.requires_grad
                    assert left.is_inference() == right.is_inference()


# --- backwards: partial, repeated, retained ---


def several(x: T, w: T) -> Any:
    hidden = Double.apply(x.sin())
    return hidden * w, hidden.argmax(-1), hidden > 0, w.detach() + 1, x.sum(), None


def run_backward(function: Any, backward: Callable[[Any, list[T]], Any]) -> Any:
    leaves = [A.detach().clone().requires_grad_(), B.detach().clone().requires_grad_()]
    try:
        extra = backward(function(*leaves), leaves)
    except RuntimeError as error:
        return str(error), [leaf.grad for leaf in leaves]
    return extra, [leaf.grad for leaf in leaves]


def twice(outputs: Any, leaves: list[T]) -> None:
    outputs[0].sum().backward()
    outputs[0].sum().backward()


def twice_retained(outputs: Any, leaves: list[T]) -> None:
    outputs[0].sum().backward(retain_graph=True)
    outputs[0].sum().backward()


def first_alone(outputs: Any, leaves: list[T]) -> None:
    outputs[0].sum().backward()


def last_alone(outputs: Any, leaves: list[T]) -> None:
    outputs[4].backward()


def one_after_the_other(outputs: Any, leaves: list[T]) -> None:
    outputs[4].backward(retain_graph=True)
    outputs[0].sum().backward()


def subset(outputs: Any, leaves: list[T]) -> Any:
    return torch.autograd.grad(outputs[0].sum(), [leaves[1]])


def unused(outputs: Any, leaves: list[T]) -> Any:
    return torch.autograd.grad(outputs[4], leaves, allow_unused=True)


def into_inputs(outputs: Any, leaves: list[T]) -> None:
    outputs[0].sum().backward(inputs=[leaves[0]])


def of_integers(outputs: Any, leaves: list[T]) -> None:
    outputs[1].sum().backward()


def of_constants(outputs: Any, leaves: list[T]) -> None:
    outputs[3].sum().backward()


BACKWARDS = [
    *(twice, twice_retained, first_alone, last_alone, one_after_the_other),
    *(subset, unused, into_inputs, of_integers, of_constants),
]


@pytest.mark.parametrize("backward", BACKWARDS)
def test_backward(backward: Any) -> None:
    jitted = jit(several)
    wanted = run_backward(several, backward)
    for _ in range(2):
        got = run_backward(jitted, backward)
        flat = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(wanted)
        for left, right in zip(*flat, strict=True):
            assert torch.equal(left, right) if isinstance(left, T) else left == right


def test_gradients_accumulate_in_place_and_none_stays_none() -> None:
    def run(function: Any) -> Any:
        x, unused = A.detach().clone().requires_grad_(), B.detach().clone().requires_grad_()
        function(x, unused)[4].backward()
        first = x.grad
        function(x, unused)[4].backward()
        x.grad, kept = None, x.grad
        function(x, unused)[4].backward()
        return kept is first, kept, x.grad, unused.grad

    got, wanted = run(jit(several)), run(several)
    assert got[0] == wanted[0]
    assert got[3] is wanted[3] is None
    assert torch.equal(got[1], wanted[1])
    assert torch.equal(got[2], wanted[2])


# --- saved tensors ---


def test_saved_tensors_are_freed_during_the_backward() -> None:
    """When the first Function's gradient is computed, what the last one saved is gone; nothing is left afterwards."""
    alive: list[int] = []
    saved: list[weakref.ref[Any]] = []

    @torch.library.custom_op("autograd_surface::probe", mutates_args=())
    def probe(grad: torch.Tensor) -> torch.Tensor:
        alive.append(sum(ref() is not None for ref in saved))
        return grad.clone()

    probe.register_fake(lambda grad: grad.clone())

    class Probed(Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: T) -> T:
            return probe(grad)

    def function(x: T) -> T:
        return OldVjp.apply(Probed.apply(OldVjp.apply(x * 2)) * 2).sum()

    def pack(tensor: T) -> T:
        saved.append(weakref.ref(tensor))
        return tensor

    jitted = jit(function)
    x = A.detach().clone().requires_grad_()
    jitted(x).backward()
    alive.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = jitted(x)
    count = sum(ref() is not None for ref in saved)
    loss.backward()
    del loss
    gc.collect()
    assert count >= 2
    if hasattr(torch.autograd.function.BackwardCFunction, "maybe_clear_saved_tensors"):
        assert alive[-1] < count
    assert not any(ref() is not None and ref() is not x for ref in saved)


def test_saved_tensors_hooks_around_the_call() -> None:
    """Packed and unpacked are the real tensors that the forward saves, also in the call that is captured."""

    def run(function: Any) -> tuple[list[T | None], list[str]]:
        events: list[str] = []

        def pack(tensor: T) -> Any:
            assert not torch._is_functional_tensor(tensor)
            events.append("pack")
            return tensor.numpy(force=True).copy()

        def unpack(array: Any) -> T:
            events.append("unpack")
            return torch.from_numpy(array)

        x, w = A.detach().clone().requires_grad_(), B.detach().clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = function(x, w)
        assert events
        assert "unpack" not in events
        y.sum().backward()
        return [x.grad, w.grad], events

    jitted = jit(CASES["saved"][0])
    wanted, _ = run(CASES["saved"][0])
    calls = [run(jitted) for _ in range(2)]
    assert calls[0][1] == calls[1][1]
    assert calls[0][1].count("pack") == calls[0][1].count("unpack")
    for got, _ in calls:
        assert all(gradient is not None for gradient in got)
        assert not list(differences(wanted, got, "gradients"))


def test_save_on_cpu_around_the_call() -> None:
    x = A.detach().clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = jit(lambda value: Scaled.apply(value, 2.0, value))(x)
    y.sum().backward()
    z = A.detach().clone().requires_grad_()
    Scaled.apply(z, 2.0, z).sum().backward()
    assert x.grad is not None
    assert z.grad is not None
    assert torch.equal(x.grad, z.grad)


HOOKS = (lambda tensor: tensor * 2, lambda tensor: tensor)


@pytest.mark.parametrize(
    "hooks", [torch.autograd.graph.save_on_cpu, lambda: torch.autograd.graph.saved_tensors_hooks(*HOOKS)]
)
def test_saved_tensors_hooks_inside_are_refused(hooks: Any) -> None:
    def function(x: T) -> T:
        with hooks():
            return x.sin() * x

    with falls_back("set it around the call"):
        jit(function)(A)


def test_version_check_of_a_stale_backward() -> None:
    for function in (jit(lambda x: OldVjp.apply(x)), lambda x: OldVjp.apply(x)):
        x = A.detach().clone().requires_grad_()
        y = function(x)
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# --- what a backward does not read may be overwritten ---


def two_paths(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.softmax(0), x * w


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("overwritten", ["output", "input"])
def test_only_a_backward_that_reads_what_was_overwritten_fails(overwritten: str, create_graph: bool) -> None:
    """The other works, before and after."""
    found = []
    for function in (two_paths, sg.jit(two_paths, executors=["torch"])):
        x, w = numbers(4), numbers(4) + 1
        x.requires_grad_()
        soft, product = function(x, w)
        stale, sound = (soft, product) if overwritten == "output" else (product, soft)
        (soft.detach() if overwritten == "output" else w).mul_(2)
        for _ in range(2):
            found.append(torch.autograd.grad(sound.sum(), x, retain_graph=True, create_graph=create_graph)[0])
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(stale.sum(), x, retain_graph=True, create_graph=create_graph)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_what_is_written_to_beside_a_saved_input_leaves_it_as_it_is() -> None:
    """Inputs that are parts of one buffer have one version counter."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        return x * x

    jitted = sg.jit(function, executors=["torch"])
    for apart in (True, False, True):
        buffer = numbers(8)
        x, y = buffer[:4].clone() if apart else buffer[:4].detach(), buffer[4:]
        x.requires_grad_()
        jitted(x, y).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, 2 * x)


# What newer versions of PyTorch give ctx.


class Fused(Function):
    """Adds its gradient to what has arrived before, where that may be."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        (buffer,) = ctx.input_grad_buffers
        if buffer is None:
            return grad * 2
        buffer.add_(grad * 2)
        return None


class Wider(Function):
    """Has its gradients arrive in float64."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.set_output_grad_dtype(torch.float64)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return (grad * 2).float()


@pytest.mark.skipif(not hasattr(FunctionCtx, "input_grad_buffers"), reason="of PyTorch 2.15")
def test_gradients_that_arrived_before() -> None:
    def f(x: T) -> T:
        return Fused.apply(x) + x.sin()

    found, expected = (torch.ones(3, requires_grad=True) for _ in range(2))
    sg.jit(f, executors=["torch"], strict=True)(found).sum().backward()
    f(expected).sum().backward()
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


@pytest.mark.skipif(not hasattr(FunctionCtx, "set_output_grad_dtype"), reason="of PyTorch 2.14")
def test_gradients_of_another_dtype_fall_back() -> None:
    def f(x: T) -> T:
        return Wider.apply(x).cos()

    found, expected = (torch.ones(3, requires_grad=True) for _ in range(2))
    with falls_back("set_output_grad_dtype"):
        sg.jit(f, executors=["torch"])(found).sum().backward()
    f(expected).sum().backward()
    assert found.grad is not None
    assert expected.grad is not None
    assert torch.equal(found.grad, expected.grad)


class Recurrent(torch.nn.Module):
    """Keeps its state, and goes on from it without its history."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(2, 3)
        self.state: T | None = None

    def forward(self, x: T) -> T:
        state = self.cell(x, None if self.state is None else self.state.detach())
        self.state = state
        return state.sum()


def test_backwards_through_a_state_that_is_detached_inside() -> None:
    """They end there: the graph before is gone."""
    gradients = []
    for jitted in (False, True):
        torch.manual_seed(0)
        model = Recurrent()
        call = jit(model) if jitted else model
        for _ in range(3):
            call(torch.ones(1, 2)).backward()
        assert model.cell.weight_ih.grad is not None
        gradients.append(model.cell.weight_ih.grad)
    assert torch.equal(*gradients)


def test_a_backward_does_not_come_to_what_is_detached_or_used_without_gradients() -> None:
    """So the graph of it is there for another backward, as of a generator and its discriminator."""

    def loss(real: T, made: T, weight: T) -> T:
        with torch.no_grad():
            scale = made.abs().mean()
        return ((real @ weight).sigmoid() + (made.detach() @ weight).sigmoid()).sum() * scale

    found = []
    for function in (loss, jit(loss)):
        source, weight = torch.ones(2, 3, requires_grad=True), torch.ones(3, 1, requires_grad=True)
        made = source.exp()
        (slope,) = torch.autograd.grad(function(torch.ones(2, 3), made, weight), weight, create_graph=True)
        assert torch.autograd.grad(slope.sum(), source, allow_unused=True)[0] is None
        function(torch.ones(2, 3), made, weight).backward()
        made.sum().backward()
        found.append((weight.grad, source.grad))
    assert all(map(torch.equal, *found))


def test_what_has_no_formula_fails_in_a_backward_alone() -> None:
    def function(x: T) -> tuple[T, T]:
        return x * 2, x // 0.1

    x = torch.ones(2, requires_grad=True)
    with falls_back("no gradient is recorded for aten.floor_divide"):
        first, second = jit(function)(x)
    first.sum().backward()
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="not implemented"):
        second.sum().backward()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_a_sparse_tensor_made_inside() -> None:
    index, target = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.randn(3, 2)

    def function(x: T, values: T) -> T:
        return (torch.sparse.mm(torch.sparse_coo_tensor(index, values, (3, 3)), x) * target).sum()

    for x, values in ((torch.ones(3, 2, requires_grad=True), torch.rand(3)), (torch.ones(3, 2), torch.rand(3))):
        values.requires_grad_(not x.requires_grad)
        with falls_back("makes a tensor of another kind"):
            result = jit(function)(x, values)
        leaf = x if x.requires_grad else values
        expected = torch.autograd.grad(function(x, values), leaf)
        assert torch.equal(torch.autograd.grad(result, leaf)[0], expected[0])


def losses_of_three(x: T, a: T, b: T, c: T) -> tuple[T, T, T, T]:
    """The last shares a part with the first."""
    trunk = (x * a).tanh()
    return trunk.sum(), (x @ b).exp().sum(), (x.sin() * c).pow(2).sum(), (trunk * trunk).sum()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 3)])
def test_a_backward_of_each_of_several_losses(order: tuple[int, ...]) -> None:
    found = []
    for function in (losses_of_three, jit(losses_of_three)):
        leaves = [numbers(2, 3, grad=True), numbers(3, 2, grad=True), numbers(2, 3, grad=True)]
        losses = function(numbers(2, 3), *leaves)
        for place in order:
            losses[place].backward()
        found.append([leaf.grad for leaf in leaves])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("order", [(0, 3), (0, 1, 1), (0, 1, 0)])
def test_a_second_backward_of_what_is_gone(order: tuple[int, ...]) -> None:
    for function in (losses_of_three, jit(losses_of_three)):
        leaves = [numbers(2, 3, grad=True), numbers(3, 2, grad=True), numbers(2, 3, grad=True)]
        losses = function(numbers(2, 3), *leaves)
        for place in order[:-1]:
            losses[place].backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            losses[order[-1]].backward()


def test_what_another_loss_needs_is_watched() -> None:
    for function in (losses_of_three, jit(losses_of_three)):
        x, a, b, c = numbers(2, 3), numbers(2, 3, grad=True), numbers(3, 2, grad=True), numbers(2, 3, grad=True)
        losses = function(x, a, b, c)
        losses[0].backward()
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            losses[1].backward()


@pytest.mark.parametrize("how", ["grad", "grad of second order", "inputs"])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_backward_for_some_inputs_computes_their_gradients_alone(how: str, is_leaf: bool) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 2))
    jitted = sg.jit(network, executors=["torch"])
    results = []
    for called in (network, jitted):
        network.zero_grad()
        leaf = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        x = leaf if is_leaf else leaf * 2
        y = called(x).square().sum()
        if how == "inputs":
            y.backward(inputs=[leaf])
            results.append([leaf.grad])
        else:
            (grad,) = torch.autograd.grad(y, x, create_graph=how != "grad")
            results.append([grad.detach()])
            if how != "grad":
                grad.square().sum().backward()
                results[-1] += [leaf.grad, *[parameter.grad for parameter in network.parameters()]]
    assert not [*differences(results[0], results[1], "gradients")]
    bridge = last_entry(jitted).bridge
    assert bridge is not None
    if how == "grad of second order":
        (differentiable,) = bridge.backwards._differentiable.values()
        trace = differentiable.trace
    else:
        trace = bridge.backwards.last_backward.stages[-1]
    assert [proxy is not None for proxy in trace.outputs].count(True) == 1


@pytest.mark.parametrize("activation", [torch.nn.Tanh(), torch.nn.LeakyReLU(0.2), torch.nn.Identity()], ids=repr)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_gradients_of_second_order_are_added_in_eagers_order(activation: torch.nn.Module, calls: int) -> None:
    """To those of other calls: of a weight that a linear layer reads as a view, and of one that is read as it is."""

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), activation, torch.nn.Linear(64, 32))
            self.last = torch.nn.Parameter(torch.randn(32, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).tanh() @ self.last

    critic = Critic()
    places, *others = torch.randn(3, 16, 64)
    results = []
    for called in (critic, sg.jit(critic, executors=["torch"])):
        critic.zero_grad()
        x = places.clone().requires_grad_()
        (slope,) = torch.autograd.grad(called(x).sum(), x, create_graph=True)
        loss = (slope.norm(2, 1) - 1).square().mean()
        for other in others[: calls - 1]:
            loss = called(other).mean() + loss * 10
        loss.backward()
        results.append([parameter.grad for parameter in critic.parameters()])
    assert not [*differences(results[0], results[1], "gradients")]

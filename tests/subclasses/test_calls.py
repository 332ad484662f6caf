"""Tensors of subclasses as arguments, in modules, closed over, made inside, and as results, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import switchgear as sg
from tests.subclasses.classes import Named, Pair, Rounded, Scaled, assert_alike, pair

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
_numbers = torch.randn


def _written(x: Any) -> Any:
    x.add_(1)
    return x * 2


def _row_written(x: Any) -> Any:
    x[0] = 1.0
    return x + 1


def _view_written(x: Any) -> Any:
    y = x * 2
    y.t()[0].mul_(3)
    return y.sin()


def _opened(x: Tensor) -> Any:
    result: Any = Pair(x, x * 2).exp()
    return result.b


def _attribute(x: Any) -> Any:
    x.b = x.a
    return x + 1


CLOSED_OVER = pair(3)
COMPILED: dict[str, Case] = {
    "one operator": (lambda x: x * 2, lambda: (pair(3),)),
    "a chain": (lambda x: (x * 2).sin().exp(), lambda: (pair(3),)),
    "with a plain tensor": (lambda x, y: x @ y + 1, lambda: (pair(3, 3), _numbers(3, 3))),
    "as the second": (lambda x, y: F.linear(y, x), lambda: (pair(4, 3), _numbers(2, 3))),
    "two": (lambda x, y: torch.cat([x, y]), lambda: (pair(3), pair(2))),
    "one twice": (lambda x, y: x * y, lambda: (pair(3),) * 2),
    "in a list": (lambda xs: [x * 2 for x in xs], lambda: ([pair(3), pair(2)],)),
    "in a dict": (lambda xs: {"y": xs["x"] + 1}, lambda: ({"x": pair(3)},)),
    "by name": (lambda x, *, scale: x * scale, lambda: (pair(3),)),
    "views": (lambda x: x.t()[0].reshape(-1), lambda: (pair(3, 4),)),
    "a view returned": (lambda x: x.t(), lambda: (pair(3, 4),)),
    "split": (lambda x: x.split(2), lambda: (pair(4, 2),)),
    "unbind": (lambda x: x.unbind(0), lambda: (pair(3, 2),)),
    "several results": (lambda x: x.max(0), lambda: (pair(3, 2),)),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), lambda: (pair(2, 4),)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda: (pair(1, 2, 4, 8),)),
    "convolution": (lambda x, w: F.conv2d(x, w), lambda: (pair(1, 2, 5, 5), pair(3, 2, 3, 3))),
    "embedding": (lambda x, i: F.embedding(i, x), lambda: (pair(5, 2), torch.tensor([1, 3]))),
    "another dtype": (lambda x: x.to(torch.float64), lambda: (pair(3),)),
    "detached and cloned": (lambda x: x.detach().clone(), lambda: (pair(3),)),
    "like it": (lambda x: torch.zeros_like(x).fill_(2) + x, lambda: (pair(3),)),
    "sizes and dtype": (lambda x: x * x.shape[0] if x.dtype == torch.float32 else x, lambda: (pair(3, 2),)),
    "its class": (lambda x: x * 2 if isinstance(x, Pair) else x * 3, lambda: (pair(3),)),
    "inner tensors": (lambda x: x.a + x.b, lambda: (pair(3),)),
    "an inner tensor's value": (lambda x: x * 2 if x.a.sum() > 0 else x * 3, lambda: (pair(3),)),
    "written in place": (_written, lambda: (pair(3),)),
    "a row written": (_row_written, lambda: (pair(3, 2),)),
    "random numbers": (lambda x: torch.rand_like(x) + x, lambda: (pair(3),)),
    "dropout": (lambda x: F.dropout(x, 0.5), lambda: (pair(20),)),
    "made inside": (lambda x: Pair(x, x * 2).exp(), lambda: (_numbers(3),)),
    "made inside, opened": (_opened, lambda: (_numbers(3),)),
    "closed over": (lambda x: x + CLOSED_OVER, lambda: (_numbers(3),)),
    "nested": (lambda x: (x * 2).sin(), lambda: (Pair(pair(3), pair(3)),)),
    "nested, views": (lambda x: x.t().reshape(-1), lambda: (Pair(pair(3, 2), pair(3, 2)),)),
    "a context": (lambda x, y: y @ x, lambda: (Scaled(_numbers(3, 3), 2.0), _numbers(3, 3))),
    "a class with functions": (lambda x, y: (x @ y).sin() + 1, lambda: (pair(3, 3, kind=Named), _numbers(3, 3))),
    "two classes": (lambda x, y: x * 1 + y.a, lambda: (pair(3, kind=Named), pair(3))),
}


def _with(name: str, value: Any, kind: type[Pair] = Pair) -> Any:
    tensor = pair(3, kind=kind)
    setattr(tensor, name, value)
    return tensor


FALLS_BACK: dict[str, tuple[Case, str]] = {
    "the argument returned": ((lambda x: (x, x + 1), lambda: (pair(3),)), "returns a tensor of a subclass"),
    "written and returned": ((lambda x: x.add_(1), lambda: (pair(3),)), "returns a tensor of a subclass"),
    "closed over, returned": ((lambda x: CLOSED_OVER, lambda: (_numbers(3),)), "returns a tensor of a subclass"),
    "an attribute assigned": ((_attribute, lambda: (pair(3),)), "assigns an attribute of a Pair"),
    "an attribute that the class does not know": (
        (lambda x: x * 2 if hasattr(x, "mark") else x * 3, lambda: (_with("mark", 1),)),
        "has the attribute mark",
    ),
    "its gradient read": ((lambda x: x * 2 if x.grad is None else x, lambda: (pair(3),)), "of a subclass is read"),
}


def _check(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Any:
    jitted = sg.jit(function, executors=["torch"])
    kept: list[list[Any]] = [[], []]
    for values, called in zip(kept, (jitted, function), strict=True):
        for seed in range(3):
            torch.manual_seed(seed)
            arguments = make()
            options = {"scale": 3} if function.__code__.co_kwonlyargcount else {}
            values += [called(*arguments, **options), arguments]
    assert_alike(*kept)
    return jitted


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    function, make = COMPILED[name]
    with torch.no_grad():
        jitted = _check(function, make)
    assert "0 in eager" in repr(jitted)
    assert "split" not in repr(jitted)


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
@pytest.mark.parametrize("name", FALLS_BACK)
def test_falls_back(name: str) -> None:
    (function, make), reason = FALLS_BACK[name]
    with torch.no_grad():
        jitted = _check(function, make)
    assert reason in str(sg.explain(jitted).fallbacks())


def test_lines_name_the_operators_on_inner_tensors() -> None:
    jitted = sg.jit(lambda x: x * 2, executors=["torch"])
    jitted(pair(3))
    names = [line.symbol.name for line in sg.last_traces(jitted)[0].bound_symbols]
    assert names == ["aten.mul.Tensor", "aten.mul.Tensor"]


# What a later call has to have.


def test_another_context_is_another_program() -> None:
    jitted = sg.jit(lambda x, y: y @ x, executors=["torch"])
    y = _numbers(3, 3)
    for factor in (2.0, 2.0, 3.0, 2.0):
        x = Scaled(_numbers(3, 3), factor)
        assert torch.equal(jitted(x, y), y @ x)
    assert "2 compiled entries, 0 in eager" in repr(jitted)


def test_a_context_that_the_tensor_changes() -> None:
    jitted = sg.jit(lambda x, y: y @ x, executors=["torch"])
    x, y = Scaled(_numbers(3, 3), [2.0]), _numbers(3, 3)
    for factor in (2.0, 5.0):
        x.factor[0] = factor
        assert torch.equal(jitted(x, y), y @ x)


def test_another_class_or_none() -> None:
    jitted = sg.jit(lambda x: x * 2, executors=["torch"])
    for x in (pair(3), pair(3, kind=Named), _numbers(3), pair(3)):
        assert_alike(jitted(x), x * 2)
    assert "3 compiled entries, 0 in eager" in repr(jitted)


FACTOR = {"value": 2.0}


class Global(Pair):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return super().__torch_dispatch__(func, types, (args[0], FACTOR["value"]), kwargs)


def test_what_the_code_of_a_class_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(lambda x: x * 1, executors=["torch"])
    for value in (2.0, 2.0, 3.0):
        monkeypatch.setitem(FACTOR, "value", value)
        x = pair(3, kind=Global)
        assert_alike(jitted(x), x * 1)


def _layer(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def test_parameters() -> None:
    layer, x = _layer(pair(4, 4)), _numbers(2, 4)
    jitted = sg.jit(layer, executors=["torch"])

    def check() -> None:
        assert_alike(jitted(x), layer.forward(x))

    with torch.no_grad():
        check()
        layer.weight = nn.Parameter(pair(4, 4), requires_grad=False)
        check()
        layer.weight.a = torch.zeros(4, 4)  # type: ignore[attr-defined]
        check()
        assert "1 compiled entry, 0 in eager" in jitted._switchgear.state()  # type: ignore[union-attr, operator]
        layer.weight = nn.Parameter(_numbers(4, 4))
        check()
        layer.weight = nn.Parameter(pair(4, 4, kind=Named), requires_grad=False)
        check()


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_inner_values_that_are_no_tensors() -> None:
    class Odd(Scaled):
        def __tensor_flatten__(self) -> Any:
            return ["plain", "factor"], None

    jitted = sg.jit(lambda x, y: y @ x, executors=["torch"])
    x, y = Odd(_numbers(3, 3), 2.0), _numbers(3, 3)
    assert torch.equal(jitted(x, y), y @ x)
    assert "__tensor_flatten__ takes to strided tensors" in str(sg.explain(jitted).fallbacks())


# Gradients.


class Product(torch.autograd.Function):
    """The product with a constant tensor of a subclass, which is saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, factor: float) -> Any:
        ctx.save_for_backward(weight, x)
        ctx.factor = factor
        assert ctx.needs_input_grad[0] == x.requires_grad
        assert not ctx.needs_input_grad[2]
        return x @ weight * factor

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        weight, x = ctx.saved_tensors
        return grad * ctx.factor @ (weight * 1).t() + 0 * x, None, None


TRAINED: dict[str, Case] = {
    "a Function of one": (
        lambda x, w: Product.apply(x, w, 2.0),  # type: ignore[no-untyped-call]
        lambda: (_numbers(2, 3, requires_grad=True), Scaled(_numbers(3, 4), 2.0)),
    ),
    "a chain": (lambda x: (x * 2).sin(), lambda: (pair(3, grad=True),)),
    "used twice": (lambda x: x * x + x, lambda: (pair(3, grad=True),)),
    "a weight": (lambda x, w: F.linear(x, w), lambda: (_numbers(2, 3), pair(4, 3, grad=True))),
    "a net": (
        lambda x, w, v: F.gelu(x @ w) @ v,
        lambda: (pair(3, 4, grad=True), pair(4, 4, grad=True), pair(4, 2, grad=True)),
    ),
    "views": (lambda x: x.t()[0].reshape(-1), lambda: (pair(3, 4, grad=True),)),
    "a view returned": (lambda x: x.t(), lambda: (pair(3, 4, grad=True),)),
    "chunks": (lambda x: torch.cat([part * 2 for part in x.chunk(2)]), lambda: (pair(4, 2, grad=True),)),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), lambda: (pair(2, 4, grad=True),)),
    "softmax": (lambda x: x.softmax(-1).log(), lambda: (pair(2, 4, grad=True),)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda: (pair(1, 2, 4, 8, grad=True),)),
    "convolution": (
        lambda x, w: F.conv2d(x, w),
        lambda: (pair(1, 2, 5, 5, grad=True), pair(3, 2, 3, 3, grad=True)),
    ),
    "the largest": (lambda x: x.max(0)[0], lambda: (pair(4, 2, grad=True),)),
    "dropout": (lambda x: F.dropout(x, 0.5), lambda: (pair(20, grad=True),)),
    "partly detached": (lambda x: x.detach() * 2 + x, lambda: (pair(3, grad=True),)),
    "without gradients inside": (lambda x: torch.no_grad()(lambda: x * 2)() + x, lambda: (pair(3, grad=True),)),
    "asked": (lambda x: x * 2 if x.requires_grad else x * 3, lambda: (pair(3, grad=True),)),
    "not a leaf": (lambda x: x * 2, lambda: (pair(3, grad=True) * 2,)),
    "a parameter": (
        lambda x: x * 2 if isinstance(x, nn.Parameter) else x,
        lambda: (nn.Parameter(pair(3)),),
    ),
    "an inner tensor": (lambda x: (x * 2).a, lambda: (pair(3, grad=True),)),
    "nested": (lambda x: (x * 2).sin(), lambda: (Pair(pair(3), pair(3)).requires_grad_(),)),
    "in place": (lambda x: (x * 1).add_(1) * 2, lambda: (pair(3, grad=True),)),
    "a view in place": (_view_written, lambda: (pair(3, 2, grad=True),)),
}
NOT_TRAINED: dict[str, tuple[Case, str]] = {
    "made inside": (
        (lambda x: Pair(x * 1, x * 2).exp(), lambda: (_numbers(3, requires_grad=True),)),
        "is made around tensors that require grad",
    ),
    "a leaf": ((lambda x: x * 2 if x.is_leaf else x * 3, lambda: (pair(3, grad=True),)), "of a subclass is read"),
    "another gradient": (
        (lambda x, y: y @ x, lambda: (Rounded(_numbers(3, 3), 1.0).requires_grad_(), _numbers(3, 3))),
        "has another gradient than the operators on its inner tensors",
    ),
    "a Function of one that requires grad": (
        (lambda x: Product.apply(x, x, 2.0), lambda: (pair(3, 3, grad=True),)),  # type: ignore[no-untyped-call]
        "takes a tensor of a subclass that requires grad",
    ),
    "required inside alone": (
        (lambda x: Pair(x, x * 2).requires_grad_() * 2, lambda: (_numbers(3),)),
        "inside of the function alone",
    ),
    "a plain tensor's": (
        (lambda x, y: x @ y, lambda: (pair(3, 3), _numbers(3, 3, requires_grad=True))),
        "has another gradient than the operators on its inner tensors",
    ),
}


class Doubled(Scaled):
    """Its gradient is one of another factor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].plain.detach(), args[0].factor)
        plain = tree_map(lambda v: v.plain if isinstance(v, Scaled) else v, (args, kwargs or {}))
        return cls(func(*plain[0], **plain[1]), args[0].factor + 1)


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_a_gradient_with_another_context() -> None:
    jitted = sg.jit(lambda x: x.neg(), executors=["torch"])
    for called in (jitted, lambda x: x.neg()):
        x: Any = Doubled(_numbers(3), 1).requires_grad_()
        result = called(x)
        assert result.factor == 2
        result.backward(Doubled(torch.ones(3), 2))
        assert x.grad.factor == 3
    assert "has another gradient" in str(sg.explain(jitted).fallbacks())


def test_an_incoming_gradient_of_another_kind_is_named() -> None:
    jitted = sg.jit(lambda x: x * 2, executors=["torch"])
    result = jitted(pair(3, grad=True))
    with pytest.raises(RuntimeError, match="call the original function"):
        result.backward(torch.ones(3))


def _ones(result: Any) -> Any:
    return Pair(_ones(result.a), 2 * _ones(result.b)) if isinstance(result, Pair) else torch.ones_like(result)


def _trained(called: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> list[Any]:
    kept: list[Any] = []
    for seed in range(3):
        torch.manual_seed(seed)
        arguments = make()
        for argument in arguments:
            if argument.requires_grad:
                argument.retain_grad()
        result = called(*arguments)
        kept += [result, arguments]
        if result.requires_grad:
            result.backward(_ones(result))
        kept += [getattr(argument, "grad", None) for argument in arguments]
    return kept


@pytest.mark.parametrize("name", TRAINED)
def test_gradients(name: str) -> None:
    function, make = TRAINED[name]
    jitted = sg.jit(function, executors=["torch"])
    assert_alike(_trained(jitted, make), _trained(function, make))
    assert "1 compiled entry, 0 in eager" in repr(jitted)


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
@pytest.mark.parametrize("name", NOT_TRAINED)
def test_gradients_that_fall_back(name: str) -> None:
    (function, make), reason = NOT_TRAINED[name]
    jitted = sg.jit(function, executors=["torch"])
    assert_alike(_trained(jitted, make), _trained(function, make))
    assert reason in str(sg.explain(jitted).fallbacks())


def test_a_module_trains() -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
        for layer in layers[::2]:
            layer.weight, layer.bias = nn.Parameter(pair(*layer.weight.shape)), nn.Parameter(pair(*layer.bias.shape))
        return nn.Sequential(*layers)

    kept: list[list[Any]] = [[], []]
    for values, is_jitted in zip(kept, (True, False), strict=True):
        model = net()
        called: Any = sg.jit(model, executors=["torch"]) if is_jitted else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(3):
            torch.manual_seed(seed)
            result = called(_numbers(3, 4))
            optimizer.zero_grad()
            result.backward(_ones(result))
            optimizer.step()
            values += [result, *model.parameters()]
        if is_jitted:
            assert "1 compiled entry, 0 in eager" in called._switchgear.state()
    assert_alike(*kept)


def test_nested_ones_in_a_container_train() -> None:
    jitted = sg.jit(lambda tensors: tensors["w"] * 2, executors=["torch"])
    gradients = []
    for called in (jitted, lambda tensors: tensors["w"] * 2):
        torch.manual_seed(0)
        w = Pair(pair(3), pair(3)).requires_grad_()
        result = called({"w": w})
        result.backward(_ones(result))
        gradients.append(w.grad)
    assert_alike(*gradients)
    assert "1 compiled entry, 0 in eager" in repr(jitted)

"""Derived rules: PyTorch's own formulas, recorded once and used wherever they fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import NotDifferentiable
from switchgear_core.grad import derived
from tests.core.training import backward, choice, forward, leaf, line_of, operators, owners
from tests.falling_back import assert_falls_back
from tests.oracle import assert_same, assert_trains_as_eager, step


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose formulas are recorded, beginning with an empty cache."""
    made: list[str] = []
    record = derived._record

    def counting(bound_symbol: sg.BoundSymbol, *args: Any) -> Any:
        made.append(bound_symbol.symbol.name)
        return record(bound_symbol, *args)

    monkeypatch.setattr(derived, "_CACHE", OrderedDict())
    monkeypatch.setattr(derived, "_record", counting)
    return made


# Templates.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + y


def trained(depth: int) -> Any:
    jitted = sg.jit(nn.Sequential(*(Block() for _ in range(depth))), executors=["torch"])
    jitted(torch.randn(3, 8, requires_grad=True)).backward(torch.ones(3, 8))
    return jitted


def test_repeated_layers_share_templates(recorded: list[str]) -> None:
    trained(2)
    once = len(recorded)
    assert once > 0
    trained(9)
    assert len(recorded) == once


def test_template_is_used_by_another_function(recorded: list[str]) -> None:
    assert_trains_as_eager(torch.tanh, leaf(3))
    assert_trains_as_eager(lambda x: torch.tanh(x) * 2, leaf(3))
    assert recorded.count("aten.tanh.default") == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x**2, lambda x: x**3),
        (lambda x: x**2, lambda x: x**2.0),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: torch.softmax(x, 0), lambda x: torch.softmax(x, 1)),
        (lambda x: x * True, lambda x: x * 1),
        (lambda x: x * float("nan"), lambda x: x * float("inf")),
        (lambda x: x.clamp(0, 1), lambda x: x.clamp(0, None)),
        (lambda x: F.pad(x, (0, 1)), lambda x: F.pad(x, (1, 0))),
    ],
)
def test_templates_are_told_apart_by_values(one: Any, other: Any) -> None:
    for function in (one, other, one):
        assert_trains_as_eager(function, leaf(3, 3))


def test_templates_are_told_apart_by_metadata() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    for x, y in (
        (leaf(3), leaf(3)),
        (leaf(3), torch.randn(3)),
        (torch.randn(3), leaf(3)),
        (leaf(1), leaf(3)),
        (leaf(3), leaf(1)),
        (leaf(), leaf(3)),
        (leaf(3, 3), leaf(3)),
        (leaf(3, 3).detach().t().requires_grad_(), leaf(3)),
        (leaf(3, dtype=torch.float64), leaf(3)),
        (leaf(3, dtype=torch.complex64), leaf(3)),
    ):
        assert_trains_as_eager(function, x, y)


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch, recorded: list[str]) -> None:
    monkeypatch.setattr(derived, "_CACHE_SIZE", 3)
    for size in range(1, 8):
        assert_trains_as_eager(torch.tanh, leaf(size))
    assert len(derived._CACHE) <= 3


def test_template_holds_no_tensor(recorded: list[str]) -> None:
    trained(1)
    for template in derived._CACHE.values():
        for item in template.bound_symbols:
            assert not any(isinstance(value, Tensor) for value in (*item.args, *item.kwargs.values()))


# What is saved: results, where PyTorch's node saves them.


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, torch.reciprocal, F.relu])
def test_result_is_read_and_not_computed_again(function: Any) -> None:
    x = (torch.rand(4) + 0.5).requires_grad_()
    jitted = assert_trains_as_eager(function, x)
    (name,) = {proxy.name for proxy in forward(jitted).outputs if proxy is not None}
    assert name in [proxy.name for proxy in backward(jitted).inputs]
    assert not {name for name in operators(backward(jitted)) if name == operators(forward(jitted))[0]}


def test_users_detach_is_no_alias() -> None:
    assert_trains_as_eager(lambda x: torch.exp(x).detach() * torch.exp(x), leaf(3))
    assert_trains_as_eager(lambda x: (lambda y: y * y.detach())(torch.tanh(x)), leaf(3))


# aten.copy, and others that PyTorch has a formula for in place alone.


def copied(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z.copy_(y)
    return z * x


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z.copy_(y[0])
    return z + x


def rounded(x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(3, 3, dtype=torch.float64)
    z.copy_(x * y)
    return z


def row(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z[1] = y[0]
    z[:, 2] = 5.0
    z[0, 0] = y[2, 2]
    return z * z


def indexed(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[torch.tensor([2, 0])] = y[:2]
    z[[0, 1]] += y[1:]
    return z


def overlapping(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[1:].copy_(z[:-1].clone() * y[1:])
    return z


@pytest.mark.parametrize("function", [copied, broadcast, rounded, row, indexed, overlapping])
def test_copies(function: Any) -> None:
    assert_trains_as_eager(function, leaf(3, 3), leaf(3, 3))
    assert_trains_as_eager(function, leaf(3, 3), torch.randn(3, 3))


def test_copy_is_derived() -> None:
    jitted = assert_trains_as_eager(copied, leaf(3), leaf(3))
    names = owners(jitted, "gradient")
    assert [owner for name, owner in names.items() if name.startswith("aten.copy")] == ["derived"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone().fill_(3) * x,
        lambda x: (x * 2).zero_() + x,
        lambda x: x.clone().index_put_((torch.tensor([0, 2]),), x[:2] * 2),
        lambda x: x.clone().masked_fill_(x > 0, 0.5),
        lambda x: x.clone().clamp_(min=0).add_(x, alpha=2).mul_(x).div_(3),
        lambda x: torch.sort(x, 0).values,
        lambda x: torch.linalg.norm(x) + torch.linalg.det(x),
        pytest.param(
            lambda x: torch.cumprod(x, 1),
            marks=pytest.mark.xfail(torch.__version__ < "2.12", reason="2.11 looks for zeros to choose a formula"),
        ),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: F.conv1d(x[None], x[:, :, None]),
        lambda x: torch.max(x, 1).values + torch.amax(x, 1) + torch.median(x, 1).values,
        lambda x: F.cross_entropy(x, torch.tensor([0, 2, -100])),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
        lambda x: torch.view_as_real(torch.fft.fft(x)),
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)).abs(),
        lambda x: x.to(torch.bfloat16).softmax(-1).to(torch.float64),
        lambda x: torch.linalg.solve(x + 9 * torch.eye(3), x),
    ],
)
def test_formulas_are_bit_equal(function: Any) -> None:
    assert_trains_as_eager(function, leaf(3, 3))


# Operators of torch.library.


@torch.library.custom_op("switchgear_test_derived::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, factor: float) -> Tensor:
    return torch.sin(x) * factor


@scaled_sine.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("switchgear_test_derived::scaled_cosine", mutates_args=())
def scaled_cosine(x: Tensor, factor: float) -> Tensor:
    return torch.cos(x) * factor


@scaled_cosine.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


scaled_sine.register_autograd(
    lambda ctx, grad: (grad * scaled_cosine(ctx.saved_tensors[0], ctx.factor), None), setup_context=keep
)
scaled_cosine.register_autograd(
    lambda ctx, grad: (-grad * scaled_sine(ctx.saved_tensors[0], ctx.factor), None), setup_context=keep
)


@torch.library.custom_op("switchgear_test_derived::split", mutates_args=())
def split(tensors: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    x = torch.cat(list(tensors))
    values, indices = torch.topk(x, k)
    return values.clone(), indices.clone()


@split.register_fake
def _(tensors: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    return tensors[0].new_empty(k), torch.empty(k, dtype=torch.int64)


def keep_split(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.sizes = [tensor.shape[0] for tensor in inputs[0]]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def split_back(ctx: Any, grad: Tensor, _: Any) -> Any:
    whole = torch.zeros(sum(ctx.sizes), dtype=grad.dtype).scatter(0, ctx.saved_tensors[0], grad)
    return list(whole.split(ctx.sizes)), None


split.register_autograd(split_back, setup_context=keep_split)


@torch.library.custom_op("switchgear_test_derived::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    return x.clone()


@opaque.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_custom_operator() -> None:
    jitted = assert_trains_as_eager(lambda x: scaled_sine(x * 2, 3.0) * x, leaf(3))
    assert choice(jitted, "gradient", "switchgear_test_derived.scaled_sine.default").owner == "derived"
    assert "switchgear_test_derived.scaled_sine.default" in operators(forward(jitted))
    assert "switchgear_test_derived.scaled_cosine.default" in operators(backward(jitted))


def test_custom_operator_keeps_its_templates_apart() -> None:
    for factor in (3.0, 4.0, 3.0):
        assert_trains_as_eager(lambda x, factor=factor: scaled_sine(x, factor), leaf(3))


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_losses_of_no_elements_are_differentiated(name: str) -> None:
    """The fakes of their derivatives divide by the number of elements."""
    x, y = (torch.rand(0, 3, requires_grad=True) for _ in range(2))
    loss = sg.jit(getattr(F, name), executors=["torch"], strict=True)(x, y)
    loss.backward()
    assert loss.isnan()
    assert x.grad is not None
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize("overload", [False, True])
def test_an_operator_of_torch_library_called_by_its_name(overload: bool) -> None:
    packet = torch.ops.switchgear_test_derived.scaled_sine
    assert_trains_as_eager(lambda x: (packet.default if overload else packet)(x, 3.0) * x, leaf(3))


def test_custom_operator_to_higher_order() -> None:
    def function(x: Tensor) -> Tensor:
        y: Tensor = scaled_sine(x, 3.0)
        return y

    x = torch.tensor(0.4, dtype=torch.float64)
    first = sg.grad(function, executors=["torch"])
    second = sg.grad(first, executors=["torch"])
    torch.testing.assert_close(first(x), 3 * torch.cos(x))
    torch.testing.assert_close(second(x), -3 * torch.sin(x))
    torch.testing.assert_close(sg.grad(second, executors=["torch"])(x), -3 * torch.cos(x))


def test_custom_operator_with_a_list_and_an_integer_output() -> None:
    jitted = sg.jit(lambda x, y: split([x, y], 3), executors=["torch"])
    x, y = leaf(4), leaf(2)
    got, wanted = step(jitted, x, y), step(lambda x, y: split([x, y], 3), x, y)
    assert_same(got, wanted)


def uses_opaque(x: Tensor) -> Tensor:
    y: Tensor = opaque(x * 2)  # the user's line
    return y * x


def test_operator_without_a_formula() -> None:
    jitted = sg.jit(uses_opaque, executors=["torch"], fallback="error")
    with pytest.raises(NotDifferentiable) as caught:
        jitted(leaf(3))
    for part in (
        "switchgear_test_derived.opaque.default",
        line_of(uses_opaque, "user's line"),
        "Register a grad rule",
        "switchgear_is_constant_for_vjp",
        "torch.no_grad()",
    ):
        assert part in str(caught.value)
    assert_same(jitted(torch.ones(3)), uses_opaque(torch.ones(3)))


def test_a_formula_that_needs_data_falls_back() -> None:
    def sparse_inside(x: Tensor) -> Tensor:
        return (x * 2).to_sparse().to_dense() * x

    assert_falls_back(sparse_inside, lambda: (leaf(3),), "runs on tensors that hold data alone")


def test_every_remedy_works() -> None:
    def under_no_grad(x: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = opaque(x * 2)
        return y * x

    class Skips(sg.Executor):
        def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
            return True if "opaque" in bound_symbol.symbol.name else None

    table = sg.Table("mine")
    table.grad_rule(opaque)(lambda x: (opaque(x), lambda grad: grad))
    x = leaf(3)
    assert_trains_as_eager(under_no_grad, x)
    wanted = step(under_no_grad, x)
    assert_same(step(sg.jit(uses_opaque, executors=[Skips("skips"), "torch"]), x), wanted)
    got = step(sg.jit(uses_opaque, executors=["torch"], grad_rules=table), x)
    assert_same(got, step(lambda x: x * 2 * x, x))


def test_nothing_is_asked_of_a_formula_for_what_is_not_wanted() -> None:
    """An operator without a formula before the frozen part, or unused, is no obstacle."""
    assert_trains_as_eager(lambda x, y: opaque(y) * x, leaf(3), torch.randn(3))


def test_deterministic_mode_has_its_own_templates() -> None:
    def function(x: Tensor) -> Tensor:
        return x[torch.tensor([0, 0, 2])]

    for on in (False, True, False):
        torch.use_deterministic_algorithms(on)
        try:
            assert_trains_as_eager(function, leaf(3))
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("function", [lambda x: torch.maximum(x, x.detach()), lambda x: x.norm(), lambda x: x.std(0)])
def test_what_a_formula_fills_in_place_keeps_its_strides(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 3).mT.requires_grad_()
    expected, found = (torch.autograd.grad(f(x).sum(), x)[0] for f in (function, sg.jit(function, executors=["torch"])))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # from 2.14 on the formula of `maximum` fills in place in eager alone, and under a dispatch mode fills a copy
    fills_a_copy = torch.__version__ >= "2.14" and "maximum" in function.__code__.co_names
    assert found.stride() == ((4, 1) if fills_a_copy else expected.stride())
    assert expected.stride() == (1, 3)

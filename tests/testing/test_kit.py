"""The kit finds planted bugs, and has nothing against PyTorch's own implementations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear import testing
from switchgear.errors import RegistrationError
from switchgear_tools.testing.samples import samples_of, variants
from tests.in_turn import in_turn


def implementing(target: Any, function: Callable[..., Any], checker: Any = None) -> sg.Executor:
    table = sg.Table("mine")
    table.implementation(target, checker)(function)
    return sg.Executor("mine", table=table)


def ruling(pullback: Callable[[Tensor, Tensor], Any], forward: Callable[[Tensor], Tensor] = torch.sin) -> sg.Table:
    table = sg.Table("mine")
    table.grad_rule(torch.sin)(lambda x: (forward(x), lambda grad: pullback(x, grad)))
    return table


def sin_of_strided(x: Tensor) -> Tensor:
    """Reads memory as if it were contiguous."""
    return torch.sin(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()))


def sin_of_repeated(x: Tensor) -> Tensor:
    return torch.sin(x) * (0.5 if 0 in x.stride() else 1)


def sin_of_some(x: Tensor) -> Tensor:
    if not x.numel():
        raise ValueError("nothing to do")
    return torch.sin(x)


def sin_of_many(x: Tensor) -> Tensor:
    return torch.sin(x) if x.dim() else torch.zeros_like(x)


def counting() -> Callable[[Tensor], Tensor]:
    count = itertools.count()
    return lambda x: torch.sin(x) + next(count) / 8


def sin_of_floats(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError("float32 only")
    return torch.sin(x)


def setting_threads(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return torch.sin(x)


IMPLEMENTATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "factor": (lambda x: torch.sin(x) * 1.01, "differs from PyTorch's operators"),
    "sign": (lambda x: -torch.sin(x), "differs from PyTorch's operators"),
    "repeated elements": (sin_of_repeated, r"expanded \(.*differs from PyTorch's operators"),
    "strides": (sin_of_strided, r"(non-contiguous|transposed) \(.*"),
    "empty": (sin_of_some, r"empty \(.*ValueError: nothing to do"),
    "without dimensions": (sin_of_many, r"(without dimensions|float32\[\])"),
    "dtype": (lambda x: torch.sin(x).to(torch.float32), "its result has dtype torch.float32, expected torch.float64"),
    "in place": (torch.sin_, "it wrote to its tensor argument 0"),
    "aliased": (lambda x: x, "result 0 shares memory with an argument"),
    "hidden state": (counting(), "differs between two runs"),
    "nondeterminism": (lambda x: torch.sin(x) + torch.rand(x.shape) * 1e-3, "differs between two runs"),
    "strides of results": (
        lambda x: torch.sin(x).mT.contiguous().mT if x.dim() > 1 else torch.sin(x),
        r"result 0 has strides \(.*\), expected \(",
    ),
    "metadata": (lambda x: torch.sin(x).reshape(-1), "its result has shape"),
    "missing decline": (sin_of_floats, "TypeError: float32 only"),
    "process": (setting_threads, "it changed PyTorch's random stream"),
}


@in_turn(bug=IMPLEMENTATIONS)
def test_bugs_of_implementations(bug: str) -> None:
    function, message = IMPLEMENTATIONS[bug]
    with pytest.raises(testing.Failures, match=rf"(?s)torch.sin by mine:.*sample \d of sin.*{message}"):
        testing.check_implementation(implementing(torch.sin, function), torch.sin)


def _not_twice(x: Tensor, grad: Tensor) -> Tensor:
    return grad * torch.cos(x.detach())


RULES: dict[str, tuple[Callable[[], sg.Table], str]] = {
    "factor": (
        lambda: ruling(lambda x, g: 2 * g * torch.cos(x)),
        "gradient of argument 0 differs from PyTorch's operators",
    ),
    "sign": (lambda: ruling(lambda x, g: -g * torch.cos(x)), "gradient of argument 0 differs from PyTorch's operators"),
    "repeated elements": (
        lambda: ruling(lambda x, g: g * torch.cos(x) * (2 if 0 in x.stride() else 1)),
        r"expanded \(.*gradient of argument 0 differs from PyTorch's operators",
    ),
    "nothing": (lambda: ruling(lambda x, g: None), r"gradient of argument 0 differs from .*, got None"),
    "forward": (
        lambda: ruling(lambda x, g: g * torch.cos(x), lambda x: torch.sin(x) + 1),
        "result 0 differs from PyTorch's operators",
    ),
    "shape": (lambda: ruling(lambda x, g: (g * torch.cos(x)).sum()), "RuleError: .*has shape"),
    "not twice": (lambda: ruling(_not_twice), "second derivative by argument 0 differs"),
}


@in_turn(bug=RULES)
def test_bugs_of_rules(bug: str) -> None:
    made, message = RULES[bug]
    with pytest.raises(testing.Failures, match=rf"(?s)torch.sin by mine:.*sample \d of sin.*{message}"):
        testing.check_rule(made(), torch.sin)


def test_a_rule_that_is_right_once() -> None:
    """What a rule's derivative reads and the rule does not save: right, for who asks for one order alone."""
    table = sg.Table("mine")
    table.augmented(torch.sin, forward=lambda x: (torch.sin(x), (torch.cos(x),)), backward=lambda cos, g: g * cos)
    testing.check_rule(table, torch.sin, orders=1)


def test_one_gradient_of_several() -> None:
    table = sg.Table("mine")
    table.grad_rule(torch.mul)(lambda x, y: (torch.mul(x, y), lambda grad: (grad * y, None)))
    samples = [testing.Sample(torch.mul, (torch.rand(3), torch.rand(3)))]
    with pytest.raises(testing.Failures, match=r"gradient of argument 1 differs from .*, got None"):
        testing.check_rule(table, torch.mul, samples)


OWN = [
    torch.sin,
    torch.add,
    F.silu,
    F.gelu,
    torch.softmax,
    torch.matmul,
    F.layer_norm,
    torch.cat,
    torch.sort,
    torch.Tensor.to_sparse,
    "aten::mm",
]


@pytest.mark.parametrize("target", OWN, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_pytorchs_own_implementations(target: Any) -> None:
    function = getattr(torch.ops.aten, target[6:]).default if isinstance(target, str) else target
    target = function if isinstance(target, str) else target
    testing.check_implementation(implementing(target, lambda *args, **kwargs: function(*args, **kwargs)), target)


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"nn.functional.{name}" for name in ("relu", "linear", "conv2d", "mse_loss")])
def test_more_of_pytorchs_own(name: str) -> None:
    target = eval(f"torch.{name}")
    testing.check_implementation(implementing(target, lambda *args, **kwargs: target(*args, **kwargs)), target)


def test_what_draws_random_numbers_may_draw_others() -> None:
    own = implementing(
        F.dropout, lambda x, p=0.5, training=True, inplace=False: x * (torch.rand(x.shape) > p) / (1 - p)
    )
    testing.check_implementation(own, F.dropout, [testing.Sample(F.dropout, (torch.rand(9),))])


def dropping(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> tuple[Tensor, Tensor]:
    keep = torch.rand(x.shape, dtype=x.dtype) >= p
    return torch.where(keep, x / (1 - p), 0), keep


def test_rules_that_draw_other_numbers() -> None:
    """Their derivatives are of the numbers that they drew, which finite differences under one seed say."""
    samples = [testing.Sample(F.dropout, (torch.rand(9),))]

    def ruled(pullback: Callable[[Tensor, Tensor], Tensor]) -> sg.Table:
        def rule(x: Tensor, **kwargs: Any) -> tuple[Tensor, Callable[..., Any]]:
            value, keep = dropping(x)
            return value, functools.partial(pullback, keep)

        table = sg.Table("mine")
        table.grad_rule(F.dropout)(rule)
        return table

    testing.check_rule(ruled(lambda keep, grad: torch.where(keep, grad * 2, 0)), F.dropout, samples)
    with pytest.raises(testing.Failures, match=r"(?s)sample \(float64\[9\]\): GradcheckError: Jacobian mismatch"):
        testing.check_rule(ruled(lambda keep, grad: torch.where(keep, grad, 0)), F.dropout, samples)
    with pytest.raises(testing.Failures, match=r"sample \(float64\[9\]\): GradcheckError: Backward is not reentrant"):
        testing.check_rule(ruled(lambda keep, grad: dropping(grad)[0]), F.dropout, samples)


def test_what_pytorchs_own_fake_has_wrong_is_nobodys_failure() -> None:
    own = implementing(F.pixel_unshuffle, lambda x, downscale_factor: F.pixel_unshuffle(x, downscale_factor))
    testing.check_implementation(own, F.pixel_unshuffle)
    samples = [testing.Sample(F.pixel_unshuffle, (torch.rand(0, 1, 6, 6), 3))]
    with pytest.raises(
        testing.Failures, match=r"no call was taken.*PyTorch's kernel and its own fake of it differ: shape "
    ):
        testing.check_implementation(own, F.pixel_unshuffle, samples)


def test_rules_that_are_right() -> None:
    testing.check_rule(ruling(lambda x, grad: grad * torch.cos(x)), torch.sin)


def test_calls_that_are_declined() -> None:
    def checker(call: sg.BoundSymbol) -> bool | str:
        return call.args[0].dtype == torch.float32 or "float32 only"

    testing.check_implementation(implementing(torch.sin, sin_of_floats, checker), torch.sin)
    never = implementing(torch.sin, torch.sin, lambda call: "not today")
    with pytest.raises(testing.Failures, match="no call was taken; mine says: not today"):
        testing.check_implementation(never, torch.sin)


def test_an_argument_that_no_accepted_sample_varies_is_told() -> None:
    def checker(call: sg.BoundSymbol) -> bool | str:
        return call.kwargs.get("alpha", 1) == 1 or "no alpha"

    ignoring = implementing(torch.sub, lambda x, other, alpha=1: torch.sub(x, other), checker)
    samples = [
        testing.Sample(torch.sub, (torch.randn(3), torch.randn(3))),
        testing.Sample(torch.sub, (torch.randn(3), torch.randn(3)), {"alpha": 2}),
    ]
    with pytest.warns(sg.errors.PluginWarning, match="samples are declined, and the rest never vary alpha"):
        testing.check_implementation(ignoring, torch.sub, samples)


def test_all_overloads_at_once() -> None:
    """Calls use some of them, and none of those that write to what they are given."""
    packet = torch.ops.aten.sin
    testing.check_implementation(implementing(packet, torch.sin), packet)
    with pytest.raises(testing.Failures, match=r"(?s)^aten\.sin\.\* by mine:.*differs from PyTorch's"):
        testing.check_implementation(implementing(packet, torch.cos), packet)


def test_an_operator_that_pytorch_has_no_samples_of() -> None:
    with pytest.raises(RegistrationError, match=r"samples=\[testing.Sample"):
        testing.check_implementation(implementing(torch.sin, torch.sin), "torch.no_such_operator")


class Fuses(sg.FusionExecutor):
    """Compiles a region to what `made` says."""

    def __init__(self, made: Callable[[sg.Trace], Any]) -> None:
        super().__init__("mine")
        self.made = made

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.symbol.name != "aten.exp.default" else sg.Declined("no exp")

    def compile(self, region: sg.Trace) -> Any:
        return self.made(region)


def two(x: Tensor) -> Tensor:
    return x.sin() * 2


def test_regions() -> None:
    x = torch.rand(3, requires_grad=True)
    testing.check_region(Fuses(lambda region: region.function()), two, x)
    with pytest.raises(testing.Failures, match=r"regions of mine:\s+two \(float32\[3\]\): .*differs from PyTorch's"):
        testing.check_region(Fuses(lambda region: lambda x: (x * 3,)), two, x.detach())
    with pytest.raises(testing.Failures, match=r"no region was taken: a region of 1 operators"):
        testing.check_region(Fuses(lambda region: region.function()), lambda x: x.exp(), x.detach())


def test_passes() -> None:
    def doubles(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
        lines = [replace(line, args=(line.args[0], 4)) if 2 in line.args else line for line in trace.bound_symbols]
        return replace(trace, bound_symbols=tuple(lines))

    testing.check_pass(
        sg.passes.PassPlacement("same", "before_claim", lambda trace, context: trace), two, torch.rand(3)
    )
    with pytest.raises(
        testing.Failures, match=r"(?s)pass wrong:\s+two \(float32\[3\]\): result 0 differs from PyTorch's operators"
    ):
        testing.check_pass(sg.passes.PassPlacement("wrong", "before_claim", doubles), two, torch.rand(3))


def test_variants_are_what_pytorch_runs() -> None:
    (sample,) = samples_of("torch.sin", [testing.Sample(torch.sin, (torch.rand(2, 3, 4, 4),), name="mine")])
    assert [one.name for one in variants(sample)] == [
        "mine",
        "mine, float64",
        "mine, bfloat16",
        "mine, non-contiguous",
        "mine, expanded",
        "mine, transposed",
        "mine, channels-last",
        "mine, empty",
        "mine, without dimensions",
    ]


def test_a_gradient_of_zero_where_pytorchs_has_noise_is_no_fault() -> None:
    table = sg.Table("exact")

    @table.grad_rule(F.layer_norm)
    def rule(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
        centred = input - input.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)

        def pullback(grad: Tensor) -> Any:
            own = grad * weight
            along = own - own.mean(-1, keepdim=True)
            return scale * along, grad * centred * scale, grad * 1.0

        return centred * scale * weight + bias, pullback

    # one element: PyTorch's gradient is 1e-13 in place of zero
    values = [torch.tensor([value], dtype=torch.double) for value in (-3.0738, 7.7, 0.3)]
    x, *parameters = values
    testing.check_rule(table, F.layer_norm, [testing.Sample(F.layer_norm, (x, (1,), *parameters))], orders=1)

"""`specialize_on_data`: values and shapes that depend on data are those of each call."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear import errors
from tests.databases.operators import examine
from tests.databases.refused import DECIDED_BY_DATA
from tests.databases.verdict import Outcome, jit_on_data
from tests.falling_back import falls_back
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager


def specialized(function: Any, **options: Any) -> Any:
    return sg.jit(function, executors=EXECUTORS, specialize_on_data=True, **options)


def entries(jitted: Any) -> int:
    return len(jitted._switchgear.cache._order)


def checks(jitted: Any) -> list[str]:
    found = [item.symbol.name for item in sg.last_traces(jitted)[-1].bound_symbols if "check" in item.tags]
    return [name.removeprefix("switchgear.") for name in found]


def first_and_second(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """What a function returns, its gradients, and the gradients of their sum of squares."""
    value = function(*inputs)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    grads = torch.autograd.grad(value.pow(3).sum(), wanted, create_graph=True)
    return [value, *grads, *torch.autograd.grad([grad.pow(2).sum() for grad in grads], wanted)]


def assert_equal(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# -- shapes ------------------------------------------------------------------------------------------------------------


def by_mask(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 2)[mask].exp()


def by_two_masks(x: Tensor, mask: Tensor) -> Tensor:
    return x.reshape(2, 3)[:, mask[:3]] * mask.sum()


def selected(x: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(x.sin(), mask) * 3


def selected_again_and_again(x: Tensor, mask: Tensor) -> Tensor:
    return torch.masked_select(x.sin(), mask[:, None]) * 3


def put(x: Tensor, mask: Tensor) -> Tensor:
    y = x.exp() * 2
    y[mask] = x[: int(mask.sum())].cos()
    return y


def positions(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask.nonzero().squeeze(1)].square()


def repeated(x: Tensor, mask: Tensor) -> Tensor:
    return torch.repeat_interleave(x, mask.long() + 1).cos()


@pytest.mark.parametrize(
    "function", [by_mask, by_two_masks, selected, selected_again_and_again, put, positions, repeated]
)
def test_shapes(function: Callable[..., Tensor]) -> None:
    jitted = specialized(function)
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    for bits in ([1, 0, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 1, 0]):
        mask = torch.tensor(bits, dtype=torch.bool)
        assert_equal(first_and_second(jitted, x, mask), first_and_second(function, x, mask))


@pytest.mark.parametrize("function", [by_mask, selected, put])
def test_gradgradcheck(function: Callable[..., Tensor]) -> None:
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    jitted = specialized(function)
    assert torch.autograd.gradcheck(lambda x: jitted(x, mask), x)
    assert torch.autograd.gradgradcheck(lambda x: jitted(x, mask), x)


def test_an_entry_serves_every_mask_of_its_count() -> None:
    jitted = specialized(by_mask)
    x = torch.randn(4)
    masks = [torch.tensor(bits, dtype=torch.bool) for bits in ([1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 1, 1])]
    for mask in masks:
        assert_equal(jitted(x, mask), by_mask(x, mask))
    assert entries(jitted) == 2
    assert checks(jitted) == ["check_layout"]


def test_recompilations_are_warned_of_and_bounded() -> None:
    jitted = specialized(by_mask, recompile_limit=2, cache_size=3)
    x = torch.randn(8)
    masks = [torch.arange(8) < count for count in range(6)]
    for mask in masks[:2]:
        jitted(x, mask)
    with pytest.warns(errors.RecompileWarning, match=r"by_mask has been compiled 3 times; a result had shape \[1, 1\]"):
        jitted(x, masks[2])
    for mask in masks:
        assert_equal(jitted(x, mask), by_mask(x, mask))
    assert entries(jitted) == 3


# -- Python values -----------------------------------------------------------------------------------------------------


def branch(x: Tensor) -> Tensor:
    return x.sin() if x.sum() > 0 else x.cos() * 2


def item(x: Tensor) -> Tensor:
    return x * x.abs().max().item()


def integer(x: Tensor) -> Tensor:
    return x[: int(x.abs().sum()) % 4 + 1]


def listed(x: Tensor) -> Tensor:
    first, second = (x > 0)[:2].tolist()
    return x * 2 if first else x + 1 if second else x.exp()


def equal(x: Tensor) -> Tensor:
    return x * 2 if torch.equal(x, x.abs()) else x * 3


def loop(x: Tensor) -> Tensor:
    steps = 0
    while x.norm() > 1 and steps < 9:
        x, steps = x / 2, steps + 1
    return x * steps


def split(x: Tensor) -> Tensor:
    first, second = x.tensor_split((x > 0).sum().reshape(1))
    return torch.cat([first * 2, second * 3])


def validated(x: Tensor) -> Tensor:
    if (x > 99).any():
        raise ValueError("too much")
    return x * 2


@pytest.mark.parametrize("function", [branch, item, integer, listed, equal, loop, split, validated])
def test_values(function: Callable[..., Tensor]) -> None:
    jitted = specialized(function, recompile_limit=99)
    torch.manual_seed(0)
    for _ in range(8):
        x = torch.randn(5, dtype=torch.float64, requires_grad=True)
        assert_equal(first_and_second(jitted, x), first_and_second(function, x))
        assert_equal(jitted(x.detach()), function(x.detach()))


def test_a_branch_is_taken_anew_in_every_call() -> None:
    jitted = specialized(branch)
    x = torch.ones(3)
    for value in (x, -x, x * 2, -x, x):
        assert_equal(jitted(value), branch(value))
    assert entries(jitted) == 2
    assert checks(jitted) == ["check_result"]


def test_zeros_of_either_sign_and_nans_are_told_apart() -> None:
    jitted = specialized(lambda x: torch.ones(()) * x.item())
    for value in (0.0, -0.0, float("nan"), float("nan"), 0.0):
        assert repr(jitted(torch.tensor(value)).item()) == repr(value)
    assert entries(jitted) == 3


def test_errors_of_the_function_are_raised_and_leave_nothing_behind() -> None:
    jitted = specialized(validated)
    for _ in range(2):
        with pytest.raises(ValueError, match="too much"):
            jitted(torch.full((2,), 100.0))
        assert entries(jitted) == 0
        torch.testing.assert_close(torch.ones(2) + 1, torch.full((2,), 2.0))
    assert_equal(jitted(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="too much") as raised:
        jitted(torch.full((2,), 100.0))
    assert raised.value.__context__ is None
    assert_equal(jitted(torch.ones(2)), torch.full((2,), 2.0))


def test_what_was_computed_to_capture_is_freed() -> None:
    jitted = specialized(branch)
    x = torch.ones(3)
    reference = weakref.ref(x)
    jitted(x)
    del x
    gc.collect()
    assert reference() is None


# -- what is written, drawn, held --------------------------------------------------------------------------------------


def written_before(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2 if x.sum() > 0 else x * 3


def written_after(x: Tensor) -> Tensor:
    y = x * 2 if x.sum() > 0 else x * 3
    x.sub_(1)
    return y


def written_between(x: Tensor) -> Tensor:
    y = x.view(-1)
    y[:1].mul_(-3)
    found = x[x > 0]
    x.zero_()
    return found * found.numel()


@pytest.mark.parametrize("function", [written_before, written_after, written_between])
def test_reads_see_writes(function: Callable[..., Tensor]) -> None:
    jitted = specialized(function)
    for start in (-1.5, 0.5, -0.5, -1.5, 2.0):
        ours, eager = (torch.full((2, 2), start) for _ in range(2))
        for _ in range(3):
            assert_equal(jitted(ours), function(eager))
            assert_equal(ours, eager)


def test_reads_of_inputs_that_share_memory() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2 if y.sum() > 0 else y * 3

    jitted = specialized(function)
    for start in (-3.0, 1.0, -3.0):
        ours, eager = (torch.full((4,), start) for _ in range(2))
        assert_equal(jitted(ours, ours[1:]), function(eager, eager[1:]))
        assert_equal(ours, eager)


def dropped(x: Tensor, mask: Tensor) -> Tensor:
    kept = torch.dropout(x, 0.5, True)
    return kept[mask] + torch.rand(()) if mask[0] else kept * 2


def test_the_random_stream_is_eagers_also_where_a_check_fails() -> None:
    jitted = specialized(dropped)
    x = torch.randn(6, requires_grad=True)
    for bits in ([1, 0, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 1, 0]):
        mask = torch.tensor(bits, dtype=torch.bool)
        torch.manual_seed(1)
        expected, state = first_and_second(dropped, x, mask), torch.get_rng_state()
        torch.manual_seed(1)
        assert_equal(first_and_second(jitted, x, mask), expected)
        assert_equal(torch.get_rng_state(), state)


def test_a_generator_is_as_it_was_where_a_check_fails() -> None:
    generator, twin = torch.Generator(), torch.Generator()

    def function(x: Tensor, generator: torch.Generator) -> Tensor:
        y = x + torch.rand(3, generator=generator)
        return y * 2 if x.sum() > 0 else y * 3

    jitted = specialized(function)
    for start in (1.0, -1.0, 1.0):
        x = torch.full((3,), start)
        assert_equal(jitted(x, generator), function(x, twin))
        assert_equal(generator.get_state(), twin.get_state())


def test_what_is_drawn_in_the_call_is_not_read() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if torch.dropout(x, 0.5, True).sum() > 0 else x

    state = torch.get_rng_state()
    with pytest.raises(errors.DataDependent, match=r"test_data_dependent.py.*bernoulli.* draws random numbers"):
        sg.jit(function, executors=["torch"], specialize_on_data=True, strict=True)(torch.ones(3))
    assert_equal(torch.get_rng_state(), state)


def test_closed_over_tensors() -> None:
    threshold = torch.zeros(())

    def function(x: Tensor) -> Tensor:
        return x[x > threshold] * 2 if threshold < 1 else x

    jitted = specialized(function)
    for value in (0.0, 0.5, 2.0, 0.0):
        threshold.fill_(value)
        x = torch.tensor([0.2, 0.7, -1.0])
        assert_equal(jitted(x), function(x))


class Warm(nn.Module):
    """Counts its calls in a buffer, and behaves otherwise once it is warm."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        y = self.linear(x)
        return y[y > 0] if int(self.steps) > 2 else y  # type: ignore[no-any-return]


def test_modules_with_buffers() -> None:
    torch.manual_seed(0)
    ours, eager = Warm(), Warm()
    eager.load_state_dict(ours.state_dict())
    jitted = specialized(ours, recompile_limit=99)
    for _ in range(5):
        x = torch.randn(4, 3)
        made, expected = jitted(x), eager(x)
        assert_equal(made, expected)
        assert_equal(ours.steps, eager.steps)
        made.sum().backward()
        expected.sum().backward()
        assert_equal([p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()])


def test_a_module_as_an_argument() -> None:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        return layer(x) * 2  # type: ignore[no-any-return]

    jitted = sg.jit(function, executors=["torch"])
    x = torch.randn(2, 3)
    for layer in (nn.Linear(3, 3), nn.Linear(3, 2), nn.BatchNorm1d(3)):
        for training in (True, False, True):
            layer.train(training)
            assert_equal(jitted(x, layer), function(x, layer))
    norm, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert_equal(jitted(x, norm), function(x, twin))
    assert_equal(list(norm.buffers()), list(twin.buffers()))
    norm.weight = nn.Parameter(torch.full((3,), 2.0))
    twin.weight = nn.Parameter(torch.full((3,), 2.0))
    assert_equal(jitted(x, norm), function(x, twin))


# -- derivatives inside, checkpoints, custom functions -----------------------------------------------------------------


def test_derivatives_as_functions() -> None:
    def function(x: Tensor) -> Tensor:
        return (x[x > 0] ** 3).sum() * (1 if x.sum() > 0 else 2)

    def slopes(x: Tensor) -> Tensor:
        return sg.grad(function)(x).pow(2).sum()  # type: ignore[no-any-return]

    options: dict[str, Any] = {"executors": ["torch"], "specialize_on_data": True}
    first, second = sg.grad(function, **options), sg.grad(slopes, **options)
    for signs in ([1, 1, -1], [-1, -1, 1], [1, 1, 1], [-1, 1, 1]):
        x = (torch.tensor([1.0, 2.0, 3.0]) * torch.tensor(signs)).requires_grad_()
        (expected,) = torch.autograd.grad(function(x), x, create_graph=True)
        assert_equal(first(x.detach()), expected.detach())
        assert_equal(second(x.detach()), torch.autograd.grad(expected.pow(2).sum(), x)[0])


def test_gradients_inside() -> None:
    def function(x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad((x[x > 0] ** 3).sum(), x)
        return slope * 2 if x.sum() > 0 else slope

    jitted = specialized(function)
    for value in ([1.0, -2.0], [3.0, 1.0], [-1.0, 0.5]):
        x = torch.tensor(value, requires_grad=True)
        assert_equal(jitted(x), function(x))
    with falls_back("a backward in the same call", "DataDependent"):
        specialized(lambda x: x * torch.autograd.grad((x**2).sum(), x)[0].sum().item())(x)


def test_transforms_inside() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (y * 2 if y.sum().item() > 0 else y * 3).sin().sum())(x)  # type: ignore[no-any-return]

    jitted = specialized(function)
    for value in (1.0, -1.0, 2.0):
        x = torch.full((2,), value)
        assert_equal(jitted(x), function(x))


def test_a_checkpointed_region() -> None:
    def region(x: Tensor) -> Tensor:
        y = torch.dropout(x, 0.5, True).sin()
        return y[x > 0].exp() * (2 if x[0] > 0 else 3)

    def function(x: Tensor) -> Tensor:
        made: Tensor = torch.utils.checkpoint.checkpoint(region, x * 1, use_reentrant=False)
        return made.sum()

    jitted = specialized(function)
    for signs in ([1, 1, -1], [-1, -1, 1], [1, 1, 1], [-1, 1, 1]):
        grads = []
        for called in (jitted, function):
            x = (torch.tensor([1.0, 2.0, 3.0]) * torch.tensor(signs)).requires_grad_()
            torch.manual_seed(3)
            value = called(x)
            grads.append([value.detach(), *torch.autograd.grad(value, x), torch.get_rng_state()])
        assert_equal(*grads)


def applied(function: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: function.apply(x)


class Positive(torch.autograd.Function):
    """Twice what is positive; its gradient says three times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.positive = bool(x.sum() > 0)
        ctx.save_for_backward(x)
        return x[x > 0] * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x).masked_scatter(x > 0, grad * (3 if ctx.positive else 4))


def test_custom_functions_read_in_their_forward() -> None:
    jitted = specialized(applied(Positive))
    for value in ([1.0, -2.0, 3.0], [1.0, -5.0, 2.0], [1.0, 1.0, 1.0]):
        grads = []
        for called in (jitted, applied(Positive)):
            x = torch.tensor(value, requires_grad=True)
            grads.append(torch.autograd.grad(called(x).sum(), x))
        assert_equal(*grads)


def test_custom_functions_do_not_read_in_their_backward() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad if grad.sum() > 0 else grad * 2

    with falls_back("data of a tensor", "DataDependent"):
        specialized(applied(Reads))(torch.ones(2, requires_grad=True))


def test_nested_functions_read_with_the_outer_one() -> None:
    inner = sg.jit(item)
    x = torch.randn(3)
    assert_equal(specialized(lambda x: inner(x) * 2)(x), item(x) * 2)
    with falls_back(kind="DataDependent"):
        sg.jit(lambda x: specialized(item)(x) * 2)(x)


# -- products by index -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.filterwarnings("ignore:index_reduce\\(\\) is in beta")
def test_products_by_index(zeros: int, include_self: bool) -> None:
    """Also with several zeros in one product, which eager refuses to differentiate twice, and so one operator alone."""
    source = torch.tensor([[2.0, 3.0], [0.5, 4.0], [1.5, 5.0]], dtype=torch.float64)
    source[:zeros, 0] = 0
    source.requires_grad_()
    base = torch.tensor([[1.5, 2.0], [3.0, 0.5]], dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 1], [0, 1], [0, 0]])

    def scattered(base: Tensor, source: Tensor) -> Tensor:
        return base.scatter_reduce(0, index, source, "prod", include_self=include_self) * 1

    def indexed(base: Tensor, source: Tensor) -> Tensor:
        return base.index_reduce(0, index[:, 0], source, "prod", include_self=include_self) * 1

    for function in (scattered, indexed):
        jitted = sg.jit(function, executors=["torch"])
        assert_equal(jitted(base, source), function(base, source))
        assert torch.autograd.gradcheck(jitted, (base, source))
        assert torch.autograd.gradgradcheck(jitted, (base, source))
        torch.testing.assert_close(
            *(torch.autograd.grad(called(base, source).sum(), (base, source)) for called in (jitted, function))
        )


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [item, integer, listed, split])
def test_refused_by_default(function: Callable[..., Tensor]) -> None:
    line = function.__code__.co_firstlineno
    lines = "|".join(str(line + step) for step in range(1, 4))
    with falls_back(rf"test_data_dependent\.py:({lines}); .*specialize_on_data=True", "DataDependent"):
        sg.jit(function)(torch.ones(3))


def test_constants_are_read_without_the_option() -> None:
    weights, mask = torch.tensor([1, 2]), torch.tensor([True, False, True])

    def function(x: Tensor) -> Tensor:
        chosen = torch.masked_select(x, torch.tensor([True, False, True]))
        if torch.equal(torch.arange(3), torch.tensor([0, 1, 2])):
            chosen = chosen * torch.tensor([3, 4]).tolist()[1]
        return torch.cat([chosen, *x.tensor_split(torch.tensor([1, 2])), x[torch.ones(3) > 0]])

    jitted = sg.jit(function, executors=["torch"])
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert_equal(first_and_second(jitted, x), first_and_second(function, x))
    assert checks(jitted) == []
    for outside in (lambda x: x[mask], lambda x: x.tensor_split(weights)):
        with falls_back("specialize_on_data", "DataDependent"):
            sg.jit(outside, specialize_on_data=False)(x)


def test_an_input_is_not_switched_on_where_data_is_read() -> None:
    def function(x: Tensor) -> Tensor:
        x.requires_grad_()
        return x * 2 if x.sum() > 0 else x

    x = torch.ones(2)
    with pytest.raises(errors.Unsupported, match="requires_grad"):
        sg.jit(function, executors=["torch"], specialize_on_data=True, strict=True)(x)
    assert not x.requires_grad


def test_an_executor_that_computes_otherwise() -> None:
    table = sg.Table("rough")

    @table.implementation(torch.exp)
    def exp(x: Tensor) -> Tensor:
        return torch.exp(x) + 1e-3

    rough = sg.Executor("rough", table=table)
    rough.is_exact = True  # which it is not
    jitted = sg.jit(lambda x: x * x.exp().item(), executors=[rough, "torch"], specialize_on_data=True)
    with falls_back(r"gave .*, and gives .*'torch' executor alone", "DataDependent"):
        jitted(torch.ones(()))


def test_functions_that_read_nothing_are_compiled_as_without_the_option() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.dropout(x.sin(), 0.5, True)

    x = torch.ones(3, requires_grad=True)
    with_option, without = specialized(function), sg.jit(function, executors=["torch"])
    texts = []
    for jitted in (with_option, without):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jitted(x)
        texts.append(sg.last_traces(jitted)[-1].python().partition("# passes: ")[0])
    assert texts[0] == texts[1]


# -- PyTorch's database ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECIDED_BY_DATA)
def test_operators(name: str) -> None:
    verdicts = examine(name, jit_on_data)
    fine = {Outcome.EQUAL, Outcome.SKIPPED}
    if name in ("nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss"):
        fine.add(Outcome.FELL_BACK)  # the mean divides by lengths that PyTorch puts into a tensor without an operator
    assert {verdict.outcome for verdict in verdicts} <= fine, verdicts
    assert any(verdict.outcome is Outcome.EQUAL for verdict in verdicts)


# -- what is drawn ----------------------------------------------------------------------------------------------------


def layer_drop(x: Tensor, p: float) -> Tensor:
    for _ in range(3):
        if torch.rand([]) < p:
            continue
        x = torch.dropout(x * 2, 0.5, True)
    return x


@pytest.mark.parametrize("p", [0.0, -1.0])
def test_a_draw_compared_with_what_it_never_is(p: float) -> None:
    jitted = sg.jit(layer_drop, executors=EXECUTORS, strict=True)
    for seed in range(3):
        found = []
        for function in (layer_drop, jitted):
            torch.manual_seed(seed)
            found.append((function(torch.ones(4), p), torch.get_rng_state()))
        assert_equal(found[1], found[0])
    assert entries(jitted) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x if torch.rand(()) < 0.5 else -x,
        lambda x: x if torch.rand(()) <= 0 else -x,
        lambda x: x if torch.randn(()) < 0 else -x,
        lambda x: x if torch.rand(()) - 0.5 < 0 else -x,
    ],
)
def test_a_draw_that_decides_is_not_known(function: Callable[[Tensor], Tensor]) -> None:
    with falls_back("draws random numbers", "DataDependent"):
        sg.jit(function, executors=EXECUTORS)(torch.randn(3))


# -- branches on masks, by default -------------------------------------------------------------------------------------


def padded(x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) if mask.all() else x.masked_fill(~mask, -1e9).softmax(-1)


def test_a_branch_on_a_mask_is_specialised_on_by_default() -> None:
    jitted = sg.jit(padded, executors=EXECUTORS, strict=True)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for mask in (torch.ones(4) > 0, torch.arange(4) > 1, torch.ones(4) > 0, torch.arange(4) > 2):
        assert_equal(
            first_and_second(lambda x, mask=mask: jitted(x, mask), x),
            first_and_second(lambda x, mask=mask: padded(x, mask), x),
        )
    assert entries(jitted) == 2
    with pytest.raises(errors.DataDependent):
        sg.jit(padded, executors=EXECUTORS, strict=True, specialize_on_data=False)(x, torch.ones(4) > 0)


def test_many_outcomes_are_no_longer_specialised_on() -> None:
    def function(x: Tensor, ids: Tensor) -> Tensor:
        return x * next(number for number in range(20) if (ids == number).any())

    jitted, x = sg.jit(function, executors=EXECUTORS), torch.randn(3)
    with falls_back("specialize_on_data", "DataDependent"):
        for number in (*range(7), 0, 6):
            ids = torch.tensor([number])
            assert_equal(jitted(x, ids), function(x, ids))
    assert entries(jitted) == 4


def test_one_hot_checks_its_data_in_every_call() -> None:
    def routed(experts: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(experts, num_classes=4).to(weight.dtype) @ weight

    jitted = sg.jit(routed, executors=["torch"], strict=True)
    weight = torch.randn(4, 3, requires_grad=True)
    for count in (2, 2, 3, 5):
        experts = torch.arange(count) % 4
        results = [function(experts, weight) for function in (routed, jitted)]
        assert torch.equal(*results)
        assert torch.equal(*[torch.autograd.grad(result.sum(), weight)[0] for result in results])
    for function in (routed, jitted):
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            function(torch.tensor([1, 7]), weight)


class KeepsItsMask(torch.nn.Module):
    """As pytorch/examples' Transformer, which makes its mask anew where the length changes."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0]
        if self.mask is None or self.mask.shape[0] != size:
            self.mask = torch.full((size, size), float("-inf")).triu(1)
        causal = torch.full((size, size), float("-inf")).triu(1)
        if (self.mask == causal).all():
            return (x @ x.t() + self.mask).softmax(-1) * self.scale
        return x @ x.t() * self.scale


def test_a_branch_on_what_is_kept_beside_a_module_is_compiled() -> None:
    ours, eager = KeepsItsMask(), KeepsItsMask()
    jitted = sg.jit(ours, executors=["torch"])
    for call in range(12):
        x = torch.randn(5, 3)
        if call == 4:  # replaced by an equal one
            ours.mask, eager.mask = ours.mask.clone(), eager.mask.clone()  # type: ignore[union-attr]
        if call == 6:  # another branch
            ours.mask, eager.mask = torch.zeros(5, 5), torch.zeros(5, 5)
        if call == 8:  # back, in place
            for one in (ours, eager):
                one.mask.fill_(float("-inf")).triu_(1)  # type: ignore[union-attr]
        assert torch.equal(jitted(x), eager(x)), call
    info = sg.cache_info(jitted)
    assert info.fallbacks == 0
    assert info.misses <= 4


# -- branches on floats, and what integers decide, by default ----------------------------------------------------------


def same(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 if torch.equal(x, y) else x + y


def clipped(x: Tensor, y: Tensor) -> Tensor:
    norm = x.exp().norm()
    return x / norm if norm > 20 else x * y


def without_loops(x: Tensor, ids: Tensor) -> Tensor:
    ids = ids[ids != ids.flip(0)]
    return x[ids % x.shape[0]] * 2


def pooled(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(int(ids.max()) + 1).index_add(0, ids[: x.shape[0]], x)


_IDS = torch.tensor([0, 1, 1, 2, 0])


@pytest.mark.parametrize(
    ("function", "others"),
    [
        (same, torch.ones(4, dtype=torch.float64)),
        (clipped, torch.ones(4, dtype=torch.float64)),
        (without_loops, _IDS),
        (pooled, _IDS),
    ],
)
def test_truths_and_integers_are_specialised_on_by_default(function: Callable[..., Tensor], others: Tensor) -> None:
    jitted = sg.jit(function, executors=EXECUTORS, strict=True)
    for factor in (1.0, 3.0, 1.0, 2.0):
        x = torch.ones(4, dtype=torch.float64).mul_(factor).requires_grad_()
        assert_equal(
            first_and_second(lambda x: jitted(x, others), x), first_and_second(lambda x: function(x, others), x)
        )
    assert entries(jitted) == (2 if others.is_floating_point() else 1)
    with pytest.raises(errors.DataDependent):
        sg.jit(function, executors=EXECUTORS, strict=True, specialize_on_data=False)(x, others)


def test_counts_that_keep_changing_are_given_up_after_one_program() -> None:
    jitted, x = sg.jit(by_mask, executors=EXECUTORS), torch.randn(8)
    with falls_back("specialize_on_data", "DataDependent"):
        for count in (3, 5, 1, 3, 3, 7):
            mask = torch.arange(8) < count
            assert_equal(jitted(x, mask), by_mask(x, mask))
    info = sg.cache_info(jitted)
    assert (info.entries, info.hits, info.fallbacks) == (1, 2, 3)


def test_what_decides_a_branch_is_computed_exactly() -> None:
    def function(x: Tensor) -> Tensor:
        y = (x * 3).sin().sum(-1).mul(2).tanh()
        return y.exp() * 2 + 1 if (y > 0).all() else y.cos() * 3 - 1

    class Fuses(sg.FusionExecutor):
        """Takes everything, and computes it wrong."""

        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return None if bound_symbol.outputs and not bound_symbol.is_check else sg.Declined("a check")

        def compile(self, region: sg.Trace) -> Callable[..., Any]:
            run = region.function()
            return lambda *args: [one + 1 for one in run(*args)]

    jitted = sg.jit(function, executors=[Fuses("wrong"), "torch"])
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((4, 4), 0.1) * sign
        assert torch.equal(jitted(x), function(x) + 1)
    assert entries(jitted) == 2
    assert sg.cache_info(jitted).fallbacks == 0


def test_a_loop_that_never_takes_the_same_steps_is_given_up_after_one_program() -> None:
    def function(x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x / 2
        return x

    jitted = sg.jit(function, executors=EXECUTORS)
    with falls_back("specialize_on_data", "DataDependent"):
        for scale in (100.0, 1000.0, 10_000.0, 100_000.0, 100.0):
            x = torch.full((2,), scale)
            assert_equal(jitted(x), function(x))
    info = sg.cache_info(jitted)
    assert (info.entries, info.hits, info.fallbacks) == (1, 1, 3)

"""Random numbers: every draw comes from eager's stream, in eager's order, and leaves the stream as eager does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor as T
from torch import nn
from torch.nn import functional

import switchgear as sg
from switchgear import errors
from tests.core.against_eager import check, numbers
from tests.core.made_up import Meeting
from tests.falling_back import assert_falls_back, falls_back
from tests.oracle import differences
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
Sampler = Callable[[T, torch.Generator | None], T]


def jit(function: Function) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS)
    return jitted


def runs_as_eager(function: Function, *make: Callable[[], torch.Generator], calls: int = 3) -> None:
    """Call with generators made alike for eager and compiled: results, gradients and every state are the same."""
    observed = []
    for called in (function, jit(function)):
        torch.manual_seed(11)
        generators = [new() for new in make]
        seen: list[Any] = []
        for _ in range(calls):
            x = numbers(3, 4, grad=True)
            result = called(x, *generators)
            seen.append(result)
            if isinstance(result, T) and result.requires_grad:
                result.sum().backward()
                seen.append(x.grad)
            seen.append([torch.get_rng_state(), torch.rand(2), *(generator.get_state() for generator in generators)])
        observed.append(seen)
    faults = list(differences(observed[0], observed[1], "random"))
    assert not faults, "\n".join(faults)


# --- draws from the default stream ---

DRAWS: dict[str, Callable[[T], Any]] = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "dropout in place": lambda x: functional.dropout(x * 1, 0.3, inplace=True) * x,
    "dropout of everything": lambda x: functional.dropout(x, 1.0),
    "dropout of nothing": lambda x: functional.dropout(x, 0.0),
    "dropout not training": lambda x: functional.dropout(x, 0.5, training=False),
    "dropout of a transpose": lambda x: functional.dropout(x.t(), 0.3),
    "dropout1d": lambda x: functional.dropout1d(x[None], 0.3),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.3, training=True),
    "feature_alpha_dropout": lambda x: functional.feature_alpha_dropout(x[None], 0.3, training=True),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x),
    "gumbel_softmax, hard": lambda x: functional.gumbel_softmax(x, hard=True),
    "attention with dropout": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None], None, 0.4),
    "rand": lambda x: x * torch.rand(3, 4),
    "randn": lambda x: x * torch.randn(3, 4, dtype=torch.float64),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like, channels last": lambda x: torch.randn_like(x.reshape(1, 3, 2, 2), memory_format=torch.channels_last),
    "randint": lambda x: x * torch.randint(2, 9, (4,)),
    "randint_like": lambda x: torch.randint_like(x, 5) * x,
    "randperm": lambda x: x[:, torch.randperm(4)],
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "bernoulli_ of a number": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(x.detach().sigmoid()) * x,
    "uniform_": lambda x: (x * 1).uniform_(-1, 2) + x,
    "normal_": lambda x: (x * 1).normal_(1, 2) + x,
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "exponential_": lambda x: torch.empty(4).exponential_(2.0) * x,
    "cauchy_": lambda x: torch.empty(4).cauchy_() * x,
    "geometric_": lambda x: torch.empty(4).geometric_(0.3) * x,
    "log_normal_": lambda x: torch.empty(4).log_normal_() * x,
    "random_": lambda x: torch.empty(4).random_(7) * x,
    "poisson": lambda x: torch.poisson(x.abs() * 3) + x,
    "binomial": lambda x: torch.binomial(torch.full_like(x, 5), x.detach().sigmoid()) + x,
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(4), 2)],
    "multinomial, replaced": lambda x: x[:, torch.multinomial(torch.ones(4), 6, replacement=True)],
    "Normal.rsample": lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False).rsample(),
    "Categorical.sample": lambda x: torch.distributions.Categorical(logits=x, validate_args=False).sample(),
    "initialisation": lambda x: x @ nn.init.xavier_uniform_(torch.empty(4, 2, dtype=x.dtype)),
    "draws that nothing needs": lambda x: (torch.rand(3), functional.dropout(x), x * 2)[2],
    "an empty draw": lambda x: x * torch.rand(0).sum() + torch.rand(1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draw_is_eagers(draw: Callable[[T], Any]) -> None:
    check(draw, numbers(3, 4, grad=True))
    check(draw, numbers(3, 4))


def test_many_draws_keep_their_order() -> None:
    def draws(x: T) -> tuple[T, ...]:
        first = functional.dropout(x, 0.2)
        unused = torch.randn(5)
        second = first * torch.rand(4)
        with torch.no_grad():
            third = functional.dropout(second, 0.5)
        del unused
        return torch.randint(0, 9, (2,)), functional.dropout(second + third), torch.randn(2), first

    check(draws, numbers(3, 4, grad=True))


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.ReLU(), nn.Dropout1d(0.3), nn.Linear(6, 2)),
        lambda: nn.MultiheadAttention(4, 2, dropout=0.4),
        lambda: nn.LSTM(4, 5, 2, dropout=0.4),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3),
        lambda: nn.RReLU(),
    ],
    ids=["dropout", "attention", "lstm", "transformer", "rrelu"],
)
def test_module_that_draws(module: Callable[[], nn.Module]) -> None:
    x = numbers(5, 3, 4, grad=True, dtype=torch.float32)
    made = module()
    check(made, *((x, x, x) if isinstance(made, nn.MultiheadAttention) else (x,)))


# --- generators ---

SAMPLERS: dict[str, Sampler] = {
    "rand": lambda x, g: x * torch.rand(3, 4, generator=g),
    "randn": lambda x, g: x * torch.randn(3, 4, generator=g),
    "rand in float64": lambda x, g: torch.rand(3, 4, generator=g, dtype=torch.float64) + x,
    "randint": lambda x, g: x * torch.randint(0, 9, (3, 4), generator=g),
    "randperm": lambda x, g: x[:, torch.randperm(4, generator=g)],
    "bernoulli": lambda x, g: torch.bernoulli(x.sigmoid(), generator=g) * x,
    "bernoulli of a number": lambda x, g: torch.bernoulli(x.detach(), 0.4, generator=g) * x,
    "multinomial": lambda x, g: x[:, torch.multinomial(torch.ones(4), 3, generator=g)],
    "normal": lambda x, g: torch.normal(x, 2.0, generator=g),
    "normal of a shape": lambda x, g: torch.normal(0.0, 2.0, (4,), generator=g) * x,
    "poisson": lambda x, g: torch.poisson(x.abs() * 3, generator=g) + x,
    "binomial": lambda x, g: torch.binomial(torch.full_like(x, 5), x.detach().sigmoid(), generator=g) + x,
    "uniform_": lambda x, g: (x * 1).uniform_(generator=g) + x,
    "normal_": lambda x, g: (x * 1).normal_(generator=g) + x,
    "bernoulli_": lambda x, g: (x * 1).bernoulli_(0.5, generator=g) + x,
    "exponential_": lambda x, g: torch.empty(4).exponential_(generator=g) * x,
    "exponential_ of what requires grad": lambda x, g: (x * 1).exponential_(generator=g) + x,
    "cauchy_": lambda x, g: torch.empty(4).cauchy_(generator=g) * x,
    "geometric_": lambda x, g: torch.empty(4).geometric_(0.5, generator=g) * x,
    "log_normal_": lambda x, g: torch.empty(4).log_normal_(generator=g) * x,
    "random_": lambda x, g: torch.empty(4).random_(generator=g) * x,
    "kaiming_uniform_": lambda x, g: x @ nn.init.kaiming_uniform_(torch.empty(4, 4, dtype=x.dtype), generator=g),
}


def five() -> torch.Generator:
    """A generator at the beginning of stream 5."""
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_generator_as_argument(sampler: Sampler) -> None:
    runs_as_eager(lambda x, g: sampler(x, g), five)


def test_no_generator_is_the_default_stream() -> None:
    for sampler in SAMPLERS.values():
        check(lambda x, sampler=sampler: sampler(x, None), numbers(3, 4, grad=True))


def test_two_generators_and_the_default_stream_interleaved() -> None:
    def draws(x: T, g: torch.Generator, h: torch.Generator) -> T:
        y = x * torch.rand(4, generator=g) + torch.rand(4, generator=h)
        return functional.dropout(y) * torch.rand(4, generator=g)

    runs_as_eager(draws, five, torch.Generator)


def test_generator_as_keyword_and_in_a_container() -> None:
    ours, eagers = [five(), five()], [five(), five()]

    def draws(x: T, made: dict[str, Any], *, generator: torch.Generator) -> T:
        return x * torch.rand(4, generator=made["g"]) + torch.rand(4, generator=generator)

    jitted = jit(draws)
    for _ in range(2):
        found = jitted(numbers(4), {"g": ours[0]}, generator=ours[1])
        assert torch.equal(found, draws(numbers(4), {"g": eagers[0]}, generator=eagers[1]))


def test_generator_is_guarded_by_identity() -> None:
    ran = Mock()

    def draws(x: T, generator: torch.Generator | None) -> T:
        ran(generator is None)
        return x * torch.rand(4, generator=generator)

    jitted = jit(draws)
    first, second = five(), five()
    for generator in (first, second, first, None, second, first):
        given = generator.get_state() if generator is not None else torch.get_rng_state()
        expected = numbers(4) * torch.rand(4, generator=torch.Generator().set_state(given))
        assert torch.equal(jitted(numbers(4), generator), expected)
    assert [call.args[0] for call in ran.mock_calls] == [False, False, True]


def test_generator_in_a_nested_gradient() -> None:
    ours, eagers = five(), five()

    def noisy(generator: torch.Generator) -> Function:
        return lambda x: (x**3 * torch.rand(4, generator=generator)).sum()

    second = sg.grad(lambda x, generator: sg.grad(noisy(generator))(x).sum())
    for _ in range(2):
        x = numbers(4, grad=True)
        (once,) = torch.autograd.grad(noisy(eagers)(x), x, create_graph=True)
        (twice,) = torch.autograd.grad(once.sum(), x)
        torch.testing.assert_close(second(numbers(4), ours), twice, rtol=1e-15, atol=0)
        assert torch.equal(ours.get_state(), eagers.get_state())


# --- seeding, reading and setting a stream ---

GLOBAL = torch.Generator()
STREAM = "test_random_numbers.py.*do it outside the jitted function"


def seeds(x: T) -> T:
    torch.manual_seed(3)
    return functional.dropout(x) * x


def seeds_between(x: T) -> T:
    y = functional.dropout(x) * x
    torch.random.manual_seed(torch.iinfo(torch.int32).max)
    return y * torch.rand(4) * functional.dropout(y)


def seeds_and_draws_nothing(x: T) -> T:
    torch.manual_seed(5)
    return x * 2


def seeds_last(x: T) -> T:
    y = functional.dropout(x)
    torch.manual_seed(6)
    return y


def forks(x: T) -> T:
    first = torch.rand(4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        y = functional.dropout(x) * first
    return y * functional.dropout(x)


def forks_twice(x: T) -> T:
    with torch.random.fork_rng(devices=[]):
        y = functional.dropout(x)
        with torch.random.fork_rng(), torch.no_grad():
            y = y + torch.rand(4)
        z = torch.rand(4)
    with torch.random.fork_rng(enabled=False):
        return y * z * torch.rand(4)


def draws_again(x: T) -> T:
    state = torch.get_rng_state()
    y = functional.dropout(x)
    torch.set_rng_state(state)
    return y * functional.dropout(x) * torch.rand(4)


def returns_the_state(x: T) -> tuple[T, T, T]:
    before = torch.get_rng_state()
    return before, functional.dropout(x), torch.random.get_rng_state()[:8]


def uses_what_seeding_returns(x: T) -> T:
    return x * torch.rand(4, generator=torch.manual_seed(8))


def unused_state(x: T) -> T:
    torch.get_rng_state()
    return functional.dropout(x)


def seeds_without_result(x: T) -> None:
    torch.manual_seed(12)


def seeds_under_no_grad(x: T) -> T:
    with torch.no_grad():
        torch.manual_seed(4)
        y = torch.rand(4)
    return x * y


SEEDING = [
    seeds,
    seeds_between,
    seeds_and_draws_nothing,
    seeds_last,
    forks,
    forks_twice,
    draws_again,
    returns_the_state,
    uses_what_seeding_returns,
    unused_state,
    seeds_without_result,
    seeds_under_no_grad,
]


@pytest.mark.parametrize("function", SEEDING, ids=lambda function: function.__name__)
def test_seeding_inside(function: Function) -> None:
    assert_falls_back(function, lambda: (numbers(3, 4, grad=True),), STREAM)


def seeds_a_generator(x: T, g: torch.Generator) -> T:
    g.manual_seed(3)
    return x * torch.rand(4, generator=g)


def sets_a_generator(x: T, g: torch.Generator) -> T:
    state = g.get_state()
    y = x * torch.rand(4, generator=g)
    return y * torch.rand(4, generator=g.set_state(state))


@pytest.mark.parametrize("function", [seeds_a_generator, sets_a_generator])
def test_seeding_a_generator_inside(function: Function) -> None:
    assert_falls_back(function, lambda: (numbers(3, 4, grad=True), five()), STREAM)


def draws_from_a_global(x: T) -> T:
    GLOBAL.manual_seed(7)
    return x * torch.rand(4, generator=GLOBAL)


def draws_from_the_default_by_name(x: T) -> T:
    return x * torch.rand(4, generator=torch.default_generator)


def seeds_the_default_by_name(x: T) -> T:
    torch.default_generator.manual_seed(0)
    return x * torch.rand(4)


def test_generator_that_is_no_argument() -> None:
    """Only of an argument is it known that a call neither makes nor seeds it."""
    for function in (draws_from_a_global, draws_from_the_default_by_name):
        assert_falls_back(function, lambda: (numbers(4),), "no argument of the jitted function.*make it an argument")
    assert_falls_back(seeds_the_default_by_name, lambda: (numbers(4),), STREAM)


def test_generator_returned() -> None:
    with falls_back("returns a torch.*Generator"):
        generator = five()
        assert jit(lambda x, g: (x, g))(numbers(4), generator)[1] is generator


# --- the stream is untouched by a capture ---


@pytest.fixture
def untouched() -> Iterator[torch.Generator]:
    """A generator that, like the default one, the test must not draw from or seed."""
    generator = five()
    before = torch.get_rng_state(), generator.get_state()
    yield generator
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


class Bug(Exception):
    """What a user's function raises."""


def test_a_function_that_raises_draws_as_in_eager() -> None:
    def fails(x: T, g: torch.Generator) -> T:
        y = functional.dropout(x) * torch.rand(4, generator=g)
        raise Bug(y.shape)

    def states(function: Callable[..., object]) -> tuple[T, T]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        with pytest.raises(Bug):
            function(numbers(4), generator)
        return torch.get_rng_state(), generator.get_state()

    for one, two in zip(states(fails), states(jit(fails)), strict=True):
        assert torch.equal(one, two)


def test_a_call_that_has_no_gradient_draws_once() -> None:
    def function(x: T, g: torch.Generator) -> T:
        y = functional.dropout(x) * torch.rand(4, generator=g)
        return torch.nextafter(y, y) + torch.heaviside(y, y)

    def run(call: Any) -> tuple[T, ...]:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(0)
        return call(numbers(4, grad=True), generator).detach(), torch.get_rng_state(), generator.get_state()

    with falls_back("no gradient is recorded for aten"):
        found = run(jit(function))
    assert all(map(torch.equal, found, run(function)))


OWN = {
    "torch.seed": lambda x, g: x * torch.seed(),
    "torch.random.seed": lambda x, g: x * torch.random.seed(),
    "torch.initial_seed": lambda x, g: x * torch.initial_seed(),
    "torch.Generator.initial_seed": lambda x, g: x * g.initial_seed(),
    "torch.Generator.seed": lambda x, g: x * g.seed(),
    "torch.Generator.clone_state": lambda x, g: x * torch.rand(4, generator=g.clone_state()),
    "torch.cuda.manual_seed": lambda x, g: torch.cuda.manual_seed(1),
    "torch.cuda.manual_seed_all": lambda x, g: torch.cuda.manual_seed_all(1),
    "torch.cuda.seed": lambda x, g: torch.cuda.seed(),
    "a name imported before": lambda x, g: x * torch.rand(4, generator=IMPORTED(3)),
}
IMPORTED: Callable[[int], torch.Generator] = torch.manual_seed


@pytest.mark.parametrize("name", OWN)
def test_refused_inside(name: str, untouched: torch.Generator) -> None:
    jitted = sg.jit(OWN[name], executors=EXECUTORS, strict=True)
    with pytest.raises(errors.Unsupported, match=STREAM):
        jitted(numbers(4), untouched)


def own_generator(x: T) -> T:
    return x * torch.rand(4, generator=torch.Generator().manual_seed(0))


def own_generator_in_a_helper(x: T) -> T:
    def noise(generator: torch.Generator) -> T:
        return torch.empty(4).normal_(generator=generator) + torch.randn(4, generator=generator)

    return x * noise(torch.Generator())


@pytest.mark.parametrize("function", [own_generator, own_generator_in_a_helper])
def test_generator_made_inside(function: Function, untouched: torch.Generator) -> None:
    with falls_back(r"no argument of the jitted function.*make it an argument"):
        jit(function)(numbers(4))


def test_seeding_by_another_thread_while_capturing() -> None:
    meeting = Meeting()

    def waits(x: T) -> T:
        meeting.wait()
        return x * 2

    thread = threading.Thread(target=jit(waits), args=(numbers(3),))
    thread.start()
    try:
        meeting.begin()
        torch.manual_seed(9)
        drawn = torch.rand(3)
        state = five().get_state()
    finally:
        meeting.end()
        thread.join(30)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(9)))
    assert torch.equal(state, five().get_state())


def test_seed_of_another_thread_outlives_a_failed_capture() -> None:
    # once: undone with the attempt
    meeting = Meeting()

    def waits(x: T) -> T:
        meeting.wait()
        print(x)
        return x * 2

    def seeds() -> None:
        meeting.begin()
        torch.manual_seed(9)
        meeting.end()

    thread = threading.Thread(target=seeds)
    thread.start()
    with pytest.raises(errors.Unsupported):
        sg.jit(waits, executors=EXECUTORS, strict=True)(numbers(3))
    thread.join(30)
    assert torch.initial_seed() == 9


@pytest.mark.gpu
def test_cuda_stream() -> None:
    def draws(x: T) -> T:
        return functional.dropout(x) * torch.rand(4, device="cuda")

    observed = []
    for called in (draws, jit(draws)):
        torch.manual_seed(0)
        results = [called(numbers(3, 4, dtype=torch.float32).cuda()) for _ in range(2)]
        observed.append([*results, torch.cuda.get_rng_state(), torch.get_rng_state()])
    assert not list(differences(observed[0], observed[1], "cuda"))

"""Budgets of `memory=`: what is really held between forward and backward, at least cost, or an error; and `sg.plan`."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from highspy import Highs, HighsStatus
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import switchgear as sg
from benchmarks.memory import measure
from switchgear.errors import InvalidInput
from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.symbol import RECOMPUTED
from switchgear_memory import budget_of, memory_in
from switchgear_memory.budget import Budget, within
from switchgear_memory.costs import cost
from switchgear_memory.prices import Prices
from tests.core.training import Kernel, backward, executor, leaf, lines
from tests.oracle import assert_same, assert_trains_as_eager, step

BUDGETS = (0.9, 0.7, 0.5, 0.3, 0.2)


def saved_bytes(jitted: Any) -> int:
    return sum(value.bytes for value in sg.last_saved(jitted) if not value.alive)


def again(jitted: Any) -> list[str]:
    return [item.symbol.name for item in lines(backward(jitted)) if RECOMPUTED in item.tags]


def gpt2() -> nn.Module:
    config = GPT2Config(n_layer=4, n_head=2, n_embd=32, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def llama() -> nn.Module:
    config = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


def chain(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Products with something cheap between."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = x + F.silu(x @ w) * 0.5
        return x

    return function


@pytest.mark.parametrize("build", [gpt2, llama])
def test_budgets_are_met_by_the_allocators_account_and_gradients_are_eagers(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build()
    ids = torch.randint(0, 64, (4, 32))

    def held(called: Any) -> tuple[int, list[Tensor | None]]:
        for _ in range(2):
            model.zero_grad()
            torch.manual_seed(1)
            found = measure("", lambda: called(input_ids=ids, labels=ids).loss)
        return found.saved, [parameter.grad for parameter in model.parameters()]

    eager, expected = held(model)
    last: int | None = None
    for budget in BUDGETS:
        jitted = sg.jit(model, executors=["torch"], memory=budget)
        saved, found = held(jitted)
        assert saved <= budget * eager, f"{budget}: {saved / eager:.3f}"
        assert last is None or saved < last
        assert_same(found, expected)
        last = saved


def test_bytes_may_be_said_too() -> None:
    x, w = leaf(16, 8), leaf(8, 8)
    jitted = assert_trains_as_eager(chain(4), x, w, memory="2 kB")
    assert 1000 < saved_bytes(jitted) <= 2000
    assert saved_bytes(assert_trains_as_eager(chain(4), x, w, memory="eager")) > 2000


def test_what_fits_is_saved_as_by_default() -> None:
    jitted = assert_trains_as_eager(chain(3), leaf(16, 8), leaf(8, 8), memory=1)
    assert not again(jitted)


def test_under_a_budget_products_are_made_again() -> None:
    assert "aten.mm.default" in again(assert_trains_as_eager(chain(4), leaf(16, 8), leaf(8, 8), memory=0.1))


def test_what_another_operator_than_pytorchs_makes_is_not_made_again() -> None:
    @torch.library.custom_op("budget_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: grad * 2)

    def function(x: Tensor) -> Tensor:
        found: Tensor = twice(x).sin().exp().sin()
        return found

    jitted = sg.jit(function, executors=["torch"], memory=0.5)
    step(jitted, leaf(64))
    (value,) = (value for value in sg.last_saved(jitted) if not value.alive)
    assert value.origin.startswith("budget_test.twice")


def test_less_than_the_least_possible_is_an_error_that_tells_it() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x.exp(), 0.5).sin().exp()

    with pytest.raises(InvalidInput, match="the least possible is 1,024, for which a step takes an estimated") as found:
        step(sg.jit(function, executors=["torch"], memory="1000B"), leaf(32, 32))
    assert "where eager saves 16,384" in str(found.value)
    assert saved_bytes(assert_trains_as_eager(function, leaf(32, 32), memory="1024B")) == 1024


def test_the_users_own_solver_may_have_another_number_of_threads() -> None:
    """HiGHS holds a thread to the number that was first asked for in it, and refuses another."""
    jitted = sg.jit(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), executors=["torch"], memory=0.5)
    jitted(torch.ones(16, 8)).sum().backward()
    solver = Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 2)
    solver.addVar(0.0, 1.0)
    assert solver.run() == HighsStatus.kOk


def test_without_gradients_no_budget_is_too_small() -> None:
    assert torch.equal(sg.jit(torch.exp, executors=["torch"], memory="0B")(torch.ones(3)), torch.ones(3).exp())


@pytest.mark.parametrize(
    ("memory", "budget"),
    [
        ("eager", None),
        (0.5, 0.5),
        (1, 1.0),
        ("100B", 100),
        ("2GB", 2 * 10**9),
        ("1.5 kB", 1500),
        ("500 MiB", 500 * 2**20),
        ("1tib", 2**40),
    ],
)
def test_ways_to_say_a_budget(memory: Any, budget: Any) -> None:
    found = budget_of(memory)
    assert found == budget
    assert type(found) is type(budget)


def test_outside_of_python_a_number_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_in("0.5") == 0.5
    monkeypatch.setenv("SWITCHGEAR_MEMORY", "1.5")
    with pytest.raises(InvalidInput, match=r"SWITCHGEAR_MEMORY=1.5 in the environment: memory=1.5 is not one of"):
        sg.jit(torch.exp)
    monkeypatch.setenv("SWITCHGEAR_MEMORY", "0.25")
    jitted = sg.jit(chain(4), executors=["torch"])
    with sg.defaults(memory="eager"):
        eager = sg.jit(chain(4), executors=["torch"])
    for one in (jitted, eager):
        step(one, leaf(16, 8), leaf(8, 8))
    assert saved_bytes(jitted) <= 0.25 * saved_bytes(eager)


def test_without_the_solver_a_budget_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    x, w = leaf(16, 8), leaf(8, 8)
    assert_trains_as_eager(chain(4), x, w)
    with pytest.raises(InvalidInput, match=r"a memory budget needs highspy.*pip install"):
        sg.jit(chain(4), executors=["torch"], memory=0.5)(x, w)


def test_the_solver_is_imported_for_a_budget_alone() -> None:
    program = "import sys, switchgear; print('highspy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_attention_whose_queries_share_keys_is_counted() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, y, y, enable_gqa=True)

    x, y = torch.randn(2, 4, 64, 64, requires_grad=True), torch.randn(2, 2, 64, 64, requires_grad=True)
    jitted = sg.jit(function, executors=["torch"], memory=0.9)
    assert torch.equal(jitted(x, y), function(x, y))
    several = y.repeat_interleave(2, 1)
    alike = sg.jit(function, executors=["torch"], memory=0.9)
    alike(x, several)
    shared, own = (cost(sg.last_traces(one)[-1].bound_symbols) for one in (jitted, alike))
    assert shared == pytest.approx(own, rel=0.1)


def test_the_choice_costs_least() -> None:
    """Beside every other choice of what to save, to within the gap that the search is allowed."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.tanh(x @ w).exp()
        z = (y @ w).sin() + x
        return (z.exp() @ w).sin()

    jitted = sg.jit(function, executors=["torch"], memory="eager")
    step(jitted, leaf(16, 8), leaf(8, 8))
    trace = sg.last_traces(jitted)[-1]
    forward = [item for item in trace.bound_symbols if item.outputs and not item.symbol.name.startswith("del")]
    made = {proxy.name: proxy for item in forward for proxy in item.outputs}
    read = [made[value.name] for value in sg.last_saved(jitted) if value.name in made]
    assert len(read) == 5
    prices = Prices(False, frozenset(), frozenset(), is_budget=True)
    names = [proxy.name for item in forward if not is_view(item) for proxy in item.outputs]

    def price(saved: frozenset[str]) -> float:
        needed, run = {proxy.name for proxy in read}, []
        for item in reversed(forward):
            if any(proxy.name in needed - saved for proxy in item.outputs):
                run.append(item)
                needed.update(proxy.name for proxy in item.inputs)
        return cost(run)

    def size(saved: frozenset[str]) -> int:
        return sum(made[name].bytes for name in saved)

    choices = [frozenset(some) for n in range(len(names) + 1) for some in itertools.combinations(names, n)]
    for count in range(len(read)):
        limit = count * read[0].bytes
        # one moment of the backward alone: what is held later is not what is asked about
        found = within(forward, read, (), prices, Budget(bytes=limit))
        best = min(price(some) for some in choices if size(some) <= limit)
        assert size(found) <= limit
        assert price(found) <= 1.05 * best


def test_values_are_made_again_where_they_are_needed_and_not_all_at_once() -> None:
    def examined(memory: Any) -> int:
        return (
            sg.explain(sg.jit(chain(24), executors=["torch"], memory=memory), leaf(64, 16), leaf(16, 16))
            .facts.programs[1]
            .peak
        )

    assert examined(0.2) <= 0.5 * examined("eager")


# The plan.


def test_a_plan_is_what_the_calls_save() -> None:
    x, w = leaf(32, 8), leaf(8, 8)
    plan = sg.plan(sg.jit(chain(4), executors=["torch"]), x, w)
    sizes = [point.bytes for point in plan.points]
    assert sizes == sorted(sizes, reverse=True)
    assert plan.points[0].bytes == plan.eager_bytes > plan.points[-1].bytes
    assert plan.points[0].longer == 0 < plan.points[-1].longer
    for point in plan.points:
        if point.budget:
            assert point.bytes <= point.budget * plan.eager_bytes
            jitted = sg.jit(chain(4), executors=["torch"], memory=point.budget)
            step(jitted, x, w)
            assert saved_bytes(jitted) == point.bytes


def test_a_plan_runs_nothing_and_prints_as_a_table() -> None:
    kernel = Kernel(torch.ops.aten.silu.default)
    jitted = sg.jit(chain(2), executors=[executor("mine", {torch.ops.aten.silu.default: kernel}), "torch"])
    lines = str(sg.plan(jitted, leaf(32, 8), leaf(8, 8))).splitlines()
    assert not kernel.calls
    assert re.fullmatch(r" *memory +saved bytes +of eager's +peak of backward +longer by, estimated", lines[0])
    assert len(lines) == 12
    assert lines[-1].strip().startswith("least ")
    assert str(sg.plan(torch.sin, torch.ones(3))) == "nothing is saved: there is no gradient to be computed"


def test_there_is_no_plan_of_what_is_not_compiled_as_a_whole() -> None:
    def function(x: Tensor) -> Tensor:
        return x * x.sum().item()

    with pytest.raises(InvalidInput, match="there is no plan of a call that is not compiled as a whole: "):
        sg.plan(function, leaf(3))


def test_bytes_of_eager_do_not_depend_on_the_rules_of_a_plugin() -> None:
    table = sg.Table("masks")
    table.augmented(torch.relu, forward=lambda x: (torch.relu(x), (x > 0,)), backward=lambda mask, g: g * mask)
    x = torch.randn(1000, requires_grad=True)
    for rules in ((), table):
        jitted = sg.jit(lambda x: torch.relu(x * 2).sum(), executors=["torch"], grad_rules=rules, memory=0.5)
        jitted(x).backward()
        assert sg.explain(jitted).as_dict()["eager_saved_bytes"] == sg.plan(jitted, x).eager_bytes == 4000
    assert sum(one.bytes for one in sg.last_saved(jitted) if not one.alive) == 1000, "half of eager's is enough for it"

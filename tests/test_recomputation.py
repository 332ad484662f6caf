"""Regions of `torch.utils.checkpoint` are run again in the backward: values, gradients, random stream and memory."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import switchgear as sg
from benchmarks import checkpoint_memory
from switchgear_core.grad.redraw import random_state, swap_random_state
from switchgear_core.ir.symbol import DEL, RANDOM, RECOMPUTED
from tests.core.training import Kernel, backward, executor, forward, leaf, lines, operators, rules
from tests.falling_back import fallback_told, falls_back
from tests.oracle import differences, fallbacks_recorded, own
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4).clone().requires_grad_()


def observe(function: Function, args: Any, used: int | None = None) -> dict[str, Any]:
    """All that a call and the backward of its outputs (of output `used` alone, if it says which) leave behind."""
    args, WEIGHT.grad = own(args), None
    torch.manual_seed(3)
    result = function(*args)
    stream = torch.get_rng_state()
    outputs = [part for part in pytree.tree_leaves(result) if isinstance(part, Tensor) and part.requires_grad]
    outputs = outputs if used is None else [outputs[used]]
    torch.autograd.backward(outputs, [torch.cos(torch.ones_like(output).cumsum(0)) for output in outputs])
    gradients = [part.grad for part in pytree.tree_leaves(args) if isinstance(part, Tensor)]
    return {
        "result": result,
        "gradients": [*gradients, WEIGHT.grad],
        "stream after the forward": stream,
        "stream after the backward": torch.get_rng_state(),
    }


def check(function: Function, *args: Any, used: int | None = None, **options: Any) -> Any:
    """The first and a cached call leave behind what eager does, to the bit; returns the jitted function."""
    jitted = sg.jit(function, **{"executors": EXECUTORS, **options})
    expected = observe(function, args, used)
    for call in ("first", "cached"):
        faults = list(differences(expected, observe(jitted, args, used), call))
        assert not faults, "\n".join(faults)
    return jitted


def recomputed(jitted: Any) -> list[sg.BoundSymbol]:
    """The lines of the backward that repeat the forward's."""
    return [item for item in lines(backward(jitted)) if RECOMPUTED in item.tags]


def repeated(jitted: Any) -> list[str]:
    """What the backward repeats, by operator, switches between random streams left out."""
    return [item.symbol.name for item in recomputed(jitted) if "random_state" not in item.symbol.name]


def saved(jitted: Any) -> list[str]:
    """The names of what is saved."""
    count = len(sg.last_traces(jitted)[0].outputs)
    return [proxy.name for proxy in forward(jitted).outputs[count:] if proxy is not None]


# --- programs: each gets `use_reentrant` and tensors ---


def block(x: Tensor) -> Tensor:
    return x + F.dropout(torch.tanh(x @ WEIGHT), 0.4) @ WEIGHT.t()


def one_region(again: Function, x: Tensor) -> Any:
    return again(block, x * 2).exp()


def region_that_is_all(again: Function, x: Tensor) -> Any:
    return again(lambda x: torch.exp(torch.tanh(x) * 2), x)


def several_regions(again: Function, x: Tensor) -> Any:
    for _ in range(4):
        x = again(block, x)
    return x.sin()


def input_used_outside(again: Function, x: Tensor) -> Any:
    y = x.sin()
    return again(block, y) * y + y.exp()


def draws_outside_too(again: Function, x: Tensor) -> Any:
    y = again(block, F.dropout(x, 0.3))
    return F.dropout(again(block, y + torch.rand_like(y)), 0.3)


def draws_not_needed(again: Function, x: Tensor) -> Any:
    def body(x: Tensor) -> Tensor:
        y = x + torch.rand(3, 4)
        unused = torch.randn_like(x)
        y = F.dropout(y.sin(), 0.5) + torch.randint(0, 9, (4,)) + 0 * unused
        return F.dropout(y.tanh(), 0.5) * torch.randn(4)

    return again(body, x)


def several_outputs(again: Function, x: Tensor) -> Any:
    def body(x: Tensor, y: Tensor) -> Any:
        both = (x * y).tanh()
        return both.sin(), both.argmax(1), both.exp() * y

    first, index, second = again(body, x, x + 1)
    return first, first * second.exp(), index, second.sum()


def output_returned(again: Function, x: Tensor) -> Any:
    y = again(lambda x: torch.tanh(x * 3), x)
    return y, again(lambda y: torch.exp(y), y)


def views_and_writes(again: Function, x: Tensor) -> Any:
    def body(x: Tensor) -> Tensor:
        y = (x * 2).t().reshape(2, 6)
        y[0].mul_(3)
        y.tanh_()
        return y.view(3, 4)[:, ::2] * y.sum()

    return again(body, x).flatten().exp()


def without_grad_inside(again: Function, x: Tensor) -> Any:
    def body(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.sigmoid(x).amax(1, keepdim=True)
        return torch.tanh(x * scale) * x.detach().exp()

    return again(body, x)


def region_without_grad(again: Function, x: Tensor) -> Any:
    with torch.no_grad():
        y = again(block, x)
    return y * x.exp()


def arguments_of_every_kind(again: Function, x: Tensor) -> Any:
    def body(x: Tensor, factor: float, nothing: None, mask: Tensor, name: str) -> Tensor:
        return torch.where(mask, torch.tanh(x * factor), x.exp()) if name == "both" and nothing is None else x

    return again(body, x, 2.5, None, x > 0, "both")


def nested(again: Function, x: Tensor) -> Any:
    def outer(x: Tensor) -> Tensor:
        y = block(x).sin()
        y = again(block, again(block, y)).cos() * y
        return F.dropout(y, 0.2).tanh()

    return again(outer, again(outer, x))


def nested_alone(again: Function, x: Tensor) -> Any:
    return again(lambda x: again(lambda x: again(block, x), x), x).exp()


def in_sequence(again: Function, x: Tensor) -> Any:
    kind = again.keywords["use_reentrant"]  # type: ignore[attr-defined]
    return checkpoint_sequential([block, torch.tanh, block, torch.exp], 2, x, use_reentrant=kind)


PROGRAMS = [
    one_region,
    region_that_is_all,
    several_regions,
    input_used_outside,
    draws_outside_too,
    draws_not_needed,
    several_outputs,
    output_returned,
    views_and_writes,
    without_grad_inside,
    region_without_grad,
    arguments_of_every_kind,
    in_sequence,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: Function) -> None:
    check(functools.partial(program, functools.partial(checkpoint, use_reentrant=False)), leaf(3, 4))


def each_inside_the_other(again: Function, x: Tensor) -> Any:
    x = checkpoint(lambda x: checkpoint(block, x, use_reentrant=True).sin(), x, use_reentrant=False)
    return checkpoint(lambda x: checkpoint(block, x, use_reentrant=False).sin(), x, use_reentrant=True)


@pytest.mark.parametrize("program", [*PROGRAMS, nested, each_inside_the_other])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_regions_with_reentrance_fall_back(program: Function) -> None:
    with falls_back("checkpointing with use_reentrant=True .pass False. inside a jitted function, in .*test_recomp"):
        check(functools.partial(program, functools.partial(checkpoint, use_reentrant=True)), leaf(3, 4))


@pytest.mark.parametrize("program", [nested, nested_alone])
def test_region_inside_another(program: Function) -> None:
    with fallbacks_recorded() as reasons:
        check(functools.partial(program, functools.partial(checkpoint, use_reentrant=False)), leaf(3, 4))
    assert [kind for kind, _ in reasons] == ["Unsupported"]
    assert re.search("inside another, in .*test_recomputation.py.*mark one of them alone", reasons[0][1])


def test_keyword_arguments() -> None:
    def body(x: Tensor, *, factor: float, other: Tensor | None = None) -> Any:
        return {"y": torch.tanh(x * factor), "pair": (x.exp(), other)}

    check(lambda x, y: checkpoint(body, x, factor=3.0, other=y.sin(), use_reentrant=False), leaf(3), leaf(3))


def test_closed_over_values_get_gradients() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        made = y.exp()
        return checkpoint(lambda x: torch.tanh(x * made) * made, x, use_reentrant=False)

    check(function, leaf(3), leaf(3))
    check(function, torch.randn(3), leaf(3))


def test_module_with_parameters_and_frozen_ones() -> None:
    model = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.LayerNorm(4)) for _ in range(3)])
    model[1][0].requires_grad_(False)  # type: ignore[index]

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    whole, x = Whole(), leaf(3, 4)
    compare(whole, lambda called: called(own(x)).sum())


def test_running_statistics_are_written_twice_as_in_eager() -> None:
    """Eager's backward runs the region, and with it the write, once more: such a call falls back."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())

    def state(*, jit: bool) -> Any:
        twin = copy.deepcopy(model)

        def function(x: Tensor) -> Any:
            return checkpoint(twin, x, use_reentrant=False)

        called = sg.jit(function, executors=["torch"]) if jit else function
        x = torch.arange(12.0).reshape(3, 4).clone().requires_grad_()
        called(x).sin().sum().backward()
        return twin.state_dict(), [x.grad, *(parameter.grad for parameter in twin.parameters())]

    expected = state(jit=False)
    with fallback_told(r"inside a region of torch\.utils\.checkpoint"):
        found = state(jit=True)
    assert not list(differences(expected, found, "jitted"))
    assert expected[0]["0.num_batches_tracked"] == 2


def test_parameter_as_an_argument() -> None:
    def function(x: Tensor) -> Any:
        y = checkpoint(lambda x, w: (x @ w).tanh() @ w, x, WEIGHT, use_reentrant=False)
        return y + checkpoint(lambda w: w.sin().sum() * w.mean(), WEIGHT, use_reentrant=False)

    check(function, leaf(3, 4))


def compare(model: Any, loss: Function) -> Any:
    """Two training steps: loss, gradients and random stream are eager's to the bit; returns the jitted twin."""
    twin = copy.deepcopy(model)
    jitted = sg.jit(twin, executors=["torch"])
    for seed in (5, 6):
        found = []
        for owner, called in ((model, model), (twin, jitted)):
            owner.zero_grad(set_to_none=True)
            torch.manual_seed(seed)
            value = loss(called)
            value.backward()
            gradients = {name: parameter.grad for name, parameter in owner.named_parameters()}
            found.append({"loss": value, "gradients": gradients, "stream": torch.get_rng_state()})
        faults = list(differences(found[0], found[1], f"seed {seed}"))
        assert not faults, "\n".join(faults)
    return jitted


# --- what is saved, what is repeated, and when ---


def chain(x: Tensor) -> Tensor:
    return torch.cos(torch.tanh(torch.exp(torch.sin(x))))


def test_a_region_saves_its_inputs_only() -> None:
    def function(x: Tensor) -> Any:
        return checkpoint(chain, x, use_reentrant=False)

    jitted = check(function, leaf(3))
    assert saved(jitted) == [proxy.name for proxy in forward(jitted).inputs] == ["t_0"]
    kept = check(chain, leaf(3))
    assert len(saved(kept)) == 4 - 1  # sin, exp and cos read theirs; tanh its result


class Switched(nn.Module):
    """Checkpointing as models switch it on: by an attribute."""

    is_checkpointed = False

    def forward(self, x: Tensor) -> Any:
        return checkpoint(chain, x, use_reentrant=False) if self.is_checkpointed else chain(x)


def test_switched_on_after_a_call_less_is_saved_from_then_on() -> None:
    jitted = sg.jit(Switched(), executors=["torch"], memory="eager", strict=True)
    counts = []
    for is_on in (False, True, False):
        jitted.is_checkpointed = is_on
        jitted(leaf(3)).sum().backward()
        counts.append(len(saved(jitted)))
    assert counts == [3, 1, 3]


def test_no_more_is_repeated_than_is_needed_and_nothing_twice() -> None:
    def function(x: Tensor) -> Any:
        for _ in range(3):
            x = checkpoint(chain, x, use_reentrant=False)
        return x

    jitted = check(function, leaf(3))
    # the gradient of the last one, cos, needs its input alone; the region's output is the next one's input
    assert repeated(jitted) == ["aten.sin.default", "aten.exp.default", "aten.tanh.default"] * 3
    assert len(saved(jitted)) == 3


def test_each_region_is_repeated_in_its_turn() -> None:
    def function(x: Tensor) -> Any:
        for _ in range(3):
            x = checkpoint(chain, x, use_reentrant=False)
        return x

    jitted = check(function, leaf(3))
    program = backward(jitted).bound_symbols
    names = [[proxy.name for proxy in item.outputs] for item in recomputed(jitted)]
    where = {name: index for index, item in enumerate(program) for proxy in item.outputs for name in [proxy.name]}
    freed = {proxy.name: index for index, item in enumerate(program) if item.symbol is DEL for proxy in item.inputs}
    turns = [list(itertools.chain(*names[start : start + 3])) for start in (0, 3, 6)]
    for turn, following in itertools.pairwise(turns):
        assert max(freed[name] for name in turn) < min(where[name] for name in following)


def test_what_is_read_outside_is_saved_and_not_repeated() -> None:
    def function(x: Tensor) -> Any:
        y = checkpoint(lambda x: torch.exp(torch.sin(x)), x, use_reentrant=False)
        return y * y.view(3, 1).tanh()

    jitted = check(function, leaf(3))
    assert repeated(jitted) == []


def test_repeated_lines_are_linked_to_what_they_repeat() -> None:
    jitted = check(lambda x: checkpoint(chain, x, use_reentrant=False), leaf(3))
    linked = [(item.links[0].forward.symbol.name, str(item.links[0].rule)) for item in recomputed(jitted)]
    assert linked == [(f"torch.{name}", "checkpoint (recomputed)") for name in ("sin", "exp", "tanh")]
    assert "test_recomputation.py" in str(recomputed(jitted)[0].source)


def test_length_of_the_backward_is_linear_in_the_number_of_regions() -> None:
    def function(count: int, x: Tensor) -> Any:
        for _ in range(count):
            x = checkpoint(lambda x: block(x).sin(), x, use_reentrant=False)
        return x

    lengths = [len(lines(backward(check(functools.partial(function, count), leaf(3, 4))))) for count in (2, 4, 6)]
    assert lengths[1] - lengths[0] == lengths[2] - lengths[1]


# --- the backward that is asked for is another than expected ---


@pytest.mark.parametrize("used", [0, 1, 2])
def test_backward_of_one_output(used: int) -> None:
    check(functools.partial(several_outputs, functools.partial(checkpoint, use_reentrant=False)), leaf(3, 4), used=used)


def test_retained_graph_repeats_the_same_draws() -> None:
    def twice(called: Function) -> Tensor:
        x = torch.ones(3, 4, requires_grad=True)
        torch.manual_seed(1)
        output = called(x).sum()
        output.backward(retain_graph=True)
        torch.rand(3)
        output.backward()
        assert x.grad is not None
        return x.grad

    def function(x: Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False)

    assert torch.equal(twice(sg.jit(function, executors=["torch"])), twice(function))


def test_input_written_after_the_region() -> None:
    """Eager's backward runs the region on what is there by then."""

    def write(x: Tensor, c: Tensor) -> Any:
        y = checkpoint(lambda x: torch.tanh(x * c) * c, x, use_reentrant=False)
        c.add_(1)
        return y * 2

    x = torch.ones(3, requires_grad=True)
    expected = observe(write, (x, torch.full((3,), 0.5)))
    with falls_back("which it reads, is written to"):
        found = observe(sg.jit(write, executors=["torch"]), (x, torch.full((3,), 0.5)))
    assert not list(differences(expected, found, "first"))


def test_variable_assigned_after_the_region() -> None:
    def function(x: Tensor) -> Any:
        for factor in (x.detach() + 1, x.detach() + 2):
            x = checkpoint(lambda x: torch.tanh(x * factor), x, use_reentrant=False)  # noqa: B023
        return x

    x = leaf(3, 4)
    expected = observe(function, (x,))
    with falls_back("factor, a variable of an enclosing function, is assigned"):
        found = observe(sg.jit(function, executors=["torch"]), (x,))
    assert not list(differences(expected, found, "first"))


# --- random numbers ---


def test_without_preserve_rng_state_the_draws_are_those_of_the_forward_all_the_same() -> None:
    def function(preserve: bool, x: Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve)

    x = leaf(3, 4)
    expected = observe(functools.partial(function, True), (x,))
    found = observe(sg.jit(functools.partial(function, False), executors=["torch"]), (x,))
    assert not list(differences(expected, found, "first"))


def test_one_state_per_region_and_none_where_no_draw_is_repeated() -> None:
    def quiet(x: Tensor) -> Tensor:
        return torch.tanh(x + torch.rand(3, 4)) + torch.rand(4)

    def function(x: Tensor) -> Any:
        x = checkpoint(lambda x: x + torch.rand(3, 4), x, use_reentrant=False)  # nothing to repeat
        x = checkpoint(lambda x: block(block(x)), x, use_reentrant=False)
        return checkpoint(quiet, x, use_reentrant=False)

    jitted = check(function, leaf(3, 4))
    states = [item for item in lines(forward(jitted)) if item.symbol.name == "switchgear.random_state"]
    assert [proxy.name for item in states for proxy in item.outputs] == ["random_state_1_cpu", "random_state_2_cpu"]
    # of the two draws of the last region the first is needed
    assert [item.symbol.name for item in recomputed(jitted) if RANDOM in item.tags] == [
        "switchgear.swap_random_state",
        "torch.rand",
        "switchgear.swap_random_state",
        "switchgear.swap_random_state",
        "switchgear.draw_bernoulli",
        "switchgear.draw_bernoulli",
        "switchgear.swap_random_state",
    ]


def test_draws_from_a_generator_of_the_users_are_saved() -> None:
    generator = torch.Generator()

    def function(x: Tensor, generator: torch.Generator) -> Any:
        def body(x: Tensor) -> Tensor:
            return torch.tanh(F.dropout(x, 0.5) * torch.rand(3, 4, generator=generator)) * torch.rand(3, 4)

        return checkpoint(body, x, use_reentrant=False)

    def seeded(called: Function) -> Function:
        def run(x: Tensor) -> Any:
            generator.manual_seed(5)
            return called(x, generator)

        return run

    x = leaf(3, 4)
    jitted = sg.jit(function, executors=["torch"])
    unchecked = observe(
        seeded(
            lambda x, generator: (
                torch.tanh(F.dropout(x, 0.5) * torch.rand(3, 4, generator=generator)) * torch.rand(3, 4)
            )
        ),
        (x,),
    )
    for _ in range(2):
        assert not list(differences(unchecked, observe(seeded(jitted), (x,)), "call"))
    assert "aten.rand.generator" not in repeated(jitted)


@pytest.mark.gpu
def test_draws_of_two_devices() -> None:
    def function(x: Tensor) -> Any:
        def body(x: Tensor) -> Tensor:
            return torch.tanh(F.dropout(x, 0.5).sin() * torch.rand(3, 4, device=x.device)) * torch.rand(3, 4).cuda()

        return checkpoint(body, checkpoint(body, x, use_reentrant=False), use_reentrant=False)

    x, streams = torch.ones(3, 4, device="cuda", requires_grad=True), []
    jitted = sg.jit(function, executors=["torch"])
    for called in (function, jitted, jitted):
        found = observe(called, (x,))
        streams.append((found["gradients"], found["result"], torch.cuda.get_rng_state(), torch.get_rng_state()))
    assert not list(differences(streams[0], streams[1], "first"))
    assert not list(differences(streams[0], streams[2], "cached"))


def test_swapped_states_in_a_jitted_function() -> None:
    def function(x: Tensor) -> Any:
        cpu = torch.device("cpu")
        state = random_state(cpu)
        first = torch.rand(3)
        before = swap_random_state(state, cpu)
        second = F.dropout(x, 0.5) * torch.rand(3)
        swap_random_state(before, cpu)
        return first * x, second, torch.rand(3)

    check(function, leaf(3))


# --- selective policies ---


def matmuls(context: Any, overload: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if overload is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def prefer(context: Any, overload: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saving = overload in (torch.ops.aten.mm.default, torch.ops.aten.tanh.default)
    return CheckpointPolicy.PREFER_SAVE if saving else CheckpointPolicy.MUST_RECOMPUTE


def in_a_word(context: Any, overload: Any, *args: Any, **kwargs: Any) -> bool:
    return overload is torch.ops.aten.mm.default and args[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("policy", "gone"),
    [
        (matmuls, {"mm"}),
        (prefer, {"mm", "tanh"}),
        (in_a_word, {"mm"}),
        ([torch.ops.aten.tanh.default], {"tanh"}),
        ([], set()),
    ],
)
def test_selective_policy(policy: Any, gone: set[str]) -> None:
    def body(x: Tensor) -> Tensor:
        y = torch.tanh(x @ WEIGHT)
        return torch.sigmoid(F.dropout((y @ WEIGHT).exp(), 0.2)).sin()

    def function(x: Tensor) -> Any:
        context_fn = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(body, x, use_reentrant=False, context_fn=context_fn)

    jitted = check(function, leaf(3, 4))
    assert {"mm", "tanh", "exp"} - {name.split(".")[1] for name in repeated(jitted)} == gone


def test_other_contexts_are_refused() -> None:
    def contexts() -> Any:
        return torch.autocast("cpu"), torch.autocast("cpu")

    jitted = sg.jit(lambda x: checkpoint(chain, x, use_reentrant=False, context_fn=contexts), executors=["torch"])
    with falls_back("context_fn"):
        jitted(leaf(3))


# --- executors and rules inside a region ---


def test_a_rule_inside_a_region() -> None:
    def rule(x: Tensor) -> Any:
        return torch.sin(x), lambda grad: grad * torch.cos(x)

    def function(x: Tensor) -> Any:
        return checkpoint(chain, x, use_reentrant=False)

    jitted = check(function, leaf(3), grad_rules=rules(torch.sin, rule))
    assert saved(jitted) == ["t_0"]


def test_a_forward_that_an_executor_keeps_is_repeated_by_it_and_in_its_turn() -> None:
    def function(x: Any) -> Any:
        for _ in range(2):
            x = checkpoint(lambda x: F.normalize(torch.exp(x), dim=0).sin(), x, use_reentrant=False)
        return x

    kernel = Kernel(F.normalize)
    jitted = check(function, leaf(3), executors=[executor("mine", {F.normalize: kernel}), "torch"])
    assert len(saved(jitted)) == 2
    assert kernel.calls == 2 * 4  # two regions, each run and repeated, in two calls
    region = ["exp", "linalg_vector_norm", "clamp_min", "expand"]
    found = [item for item in recomputed(jitted) if item.symbol.name.startswith("aten.")]
    assert [item.symbol.name.split(".")[1] for item in found] == region * 2
    again = [RECOMPUTED in item.tags for item in lines(backward(jitted))]
    assert False in again[again.index(False) : len(again) - again[::-1].index(True)]  # not all of it comes first


# --- other ways to a gradient ---


def test_inside_sg_grad_of_any_order() -> None:
    def loss(x: Tensor) -> Tensor:
        total: Tensor = checkpoint(block, x, use_reentrant=False).exp().sum()
        return total

    def by_eager(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), x)
        return second

    x = torch.randn(3, 4)
    torch.manual_seed(2)
    expected, stream = by_eager(x), torch.get_rng_state()
    torch.manual_seed(2)
    found = sg.grad(lambda x: sg.grad(loss)(x).sin().sum(), executors=["torch"])(x)
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), stream)


# --- models ---

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=3,
            n_head=2,
            n_embd=16,
            vocab_size=60,
            n_positions=32,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=60,
            max_position_embeddings=32,
            attention_dropout=0.1,
            use_cache=False,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing_of_transformers(name: str) -> None:
    model, ids = MODELS[name]().train(), torch.randint(0, 60, (2, 10))
    checkpoint_memory.enable(model)
    jitted = compare(model, lambda called: called(input_ids=ids, labels=ids).loss)
    assert sum(item.symbol.name == "aten.native_layer_norm.default" for item in recomputed(jitted)) in (0, 2 * 3)
    assert len(repeated(jitted)) > 30


def test_saved_bytes_of_a_checkpointed_gpt2(capsys: pytest.CaptureFixture[str]) -> None:
    """By the allocator's account, eager's in the same way; see `benchmarks.memory.measure`."""
    eager, switchgear = checkpoint_memory.candidates(True)
    with capsys.disabled():
        print(f"\n{eager}\n{switchgear}\nratio {switchgear.saved / eager.saved:.4f}")
    assert switchgear.saved <= checkpoint_memory.LIMIT * eager.saved
    assert switchgear.peak <= checkpoint_memory.LIMIT * eager.peak
    without, _ = checkpoint_memory.candidates(False)
    assert eager.saved < without.saved / 4  # eager's is what checkpointing saves, and no empty measure


def test_region_intermediates_are_not_saved() -> None:
    model, ids = MODELS["gpt2"]().train(), torch.randint(0, 60, (2, 10))
    checkpoint_memory.enable(model)
    jitted = compare(model, lambda called: called(input_ids=ids, labels=ids).loss)
    captured = sg.last_traces(jitted)[0]
    regions: dict[str, set[str]] = {}
    for item in captured.bound_symbols:
        for tag in item.tags:
            if tag.startswith("checkpoint:"):
                regions.setdefault(tag, set()).update(proxy.name for proxy in item.outputs)
    assert len(regions) == 3
    read_later = {proxy.name for item in captured.bound_symbols if not item.tags for proxy in item.inputs}
    for inside in regions.values():
        assert len(inside) > 10
        others = {name for tag, names in regions.items() if names is not inside for name in read_by(captured, tag)}
        assert (set(saved(jitted)) & inside) <= read_later | others
    assert operators(forward(jitted)).count("switchgear.random_state") == 3


def read_by(trace: sg.Trace, tag: str) -> set[str]:
    return {proxy.name for item in trace.bound_symbols if tag in item.tags for proxy in item.inputs}

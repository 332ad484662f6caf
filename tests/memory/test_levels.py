"""The levels of `memory=`: what is saved, what is recomputed, and what is said about it."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.activations import NewGELUActivation

import switchgear as sg
from switchgear_core.ir.symbol import RECOMPUTED, region_of
from switchgear_memory.option import MEMORY, Memory
from tests.core.training import backward, forward, leaf, lines, operators, rules
from tests.oracle import assert_same, assert_trains_as_eager, step


def saved(jitted: Any) -> list[str]:
    """The names of what the forward saves, and for each that the backward takes it by the same place."""
    trace = forward(jitted)
    count = len(sg.last_traces(jitted)[0].outputs)
    found = trace.outputs[count:]
    taken = backward(jitted).inputs[: len(found)]
    assert [proxy.shape for proxy in found if proxy is not None] == [proxy.shape for proxy in taken]
    return [proxy.name for proxy in found if proxy is not None]


# How much is made again: `memory=`.

LEVELS = pytest.mark.parametrize("memory", MEMORY)
LEVELS_AND_BUDGET = pytest.mark.parametrize("memory", [*MEMORY, 0.4])


def again(jitted: Any) -> list[str]:
    """The operators, views apart, that the backward runs again."""
    return [item.symbol.name for item in lines(backward(jitted)) if RECOMPUTED in item.tags]


def saved_bytes(jitted: Any) -> int:
    """What is saved besides inputs."""
    return sum(value.bytes for value in sg.last_saved(jitted) if not value.alive)


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """A layer as there are in a transformer, residual stream and dropout included."""
    inside = F.gelu(F.layer_norm(x, (4,)) @ w, approximate="tanh") * 0.5 + 1
    return F.relu(x + F.dropout(inside @ v, 0.3)).tanh().square()


@pytest.mark.parametrize(
    "memory", ["none", "Lean", None, True, 0, -1, 1.5, float("nan"), "2 apples", "-2GB", "2GBs", "0.5", [0.5]]
)
def test_unknown_memory_is_refused(memory: Any) -> None:
    with pytest.raises(ValueError, match=r"memory=.* is not one of 'auto', 'eager', 'balanced', 'lean'"):
        sg.jit(torch.exp, memory=memory)


def test_memory_is_an_option_like_the_others() -> None:
    decorated = sg.jit(memory="lean", executors=["torch"])(lambda x: torch.tanh(x) * 2)
    step(decorated, leaf(3))
    assert again(decorated)
    eager = sg.jit(decorated, executors=["torch"], memory="eager")
    step(eager, leaf(3))
    assert not again(eager)


@LEVELS
def test_gradients_are_eagers_at_every_level(memory: Memory) -> None:
    jitted = assert_trains_as_eager(block, leaf(8, 4), leaf(4, 4), leaf(4, 4), memory=memory)
    assert bool(again(jitted)) == (memory not in ("eager", "auto"))


class Pointwise(sg.FusionExecutor):
    """Runs regions by the operators that they are made of."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


def test_by_default_what_fuses_is_made_again() -> None:
    def chain(x: Tensor) -> Tensor:
        return F.layer_norm(torch.sigmoid(x) * x, (4,)).exp() * 3

    saved = {}
    for name, first in (("fuses", (Pointwise("fuses"),)), ("torch", ())):
        jitted = sg.jit(chain, executors=[*first, "torch"])
        step(jitted, leaf(8, 4))
        saved[name] = {one.origin.partition(" at ")[0] for one in sg.last_saved(jitted) if not one.alive}
    # the statistics: what goes over its arguments once more is not, where there is nothing beside it
    assert saved["fuses"] == {"aten.native_layer_norm.default"}
    assert "aten.sigmoid.default" in saved["torch"] or "torch.sigmoid" in saved["torch"]


def test_by_default_a_small_product_is_made_again_beside_large_ones() -> None:
    def block(x: Tensor, thin: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x @ thin, (256,)).exp() @ w @ w @ w

    arguments = leaf(256, 4), leaf(4, 256), leaf(256, 256)
    jitted = sg.jit(block, executors=[Pointwise("fuses"), "torch"])
    found = step(jitted, *arguments)
    saved = [(one.type, one.origin.partition(" at ")[0]) for one in sg.last_saved(jitted) if not one.alive]
    # of the norm its statistics: to go over its argument once more is dear beside them
    statistics = [("cpu f32[256, 1]", "aten.native_layer_norm.default")] * 2
    assert sorted(saved) == sorted([*statistics, *[("cpu f32[256, 256]", "aten.mm.default")] * 2])
    for one, expected in zip(found, step(block, *arguments), strict=True):
        torch.testing.assert_close(one, expected)
    # bytes that a budget allows beyond that save time
    roomy = sg.jit(block, executors=[Pointwise("fuses"), "torch"], memory=1.0)
    step(roomy, *arguments)
    assert saved_bytes(roomy) == saved_bytes(jitted) + 256 * 256 * 4


@pytest.mark.parametrize("shape", [(16, 4), (4, 3, 8), (4, 3, 5, 5), (4, 3, 2, 5, 5)])
@pytest.mark.parametrize("affine", [True, False])
def test_fused_a_batch_norm_is_made_again_from_its_statistics(shape: tuple[int, ...], affine: bool) -> None:
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    eager = norm(shape[1], affine=affine)
    module = copy.deepcopy(eager)
    x = leaf(*shape)

    def block(part: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = part(F.gelu(x))
        return torch.sigmoid(y) * y

    jitted = sg.jit(functools.partial(block, module), executors=[Pointwise("fuses"), "torch"])
    found = step(jitted, x)
    saved = [value.type for value in sg.last_saved(jitted) if not value.alive]
    assert all(kind == f"cpu f32[{shape[1]}]" for kind in saved)
    assert not [item for item in again(jitted) if "batch_norm" in item]
    for one, expected in zip(found, step(functools.partial(block, eager), x), strict=True):
        torch.testing.assert_close(one, expected)
    for one, expected in zip(module.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, expected)


def test_a_norm_of_what_is_laid_out_otherwise_is_not_made_again_from_its_statistics() -> None:
    def block(x: Tensor) -> Tensor:
        return F.layer_norm(x.t(), (8,)).exp().view(-1) * 2

    x = leaf(8, 64)
    jitted = sg.jit(block, executors=[Pointwise("fuses"), "torch"])
    for one, expected in zip(step(jitted, x), step(block, x), strict=True):
        torch.testing.assert_close(one, expected)
    assert not [item for item in again(jitted) if "sub" in item]


def test_fused_a_layer_norm_is_made_again_from_its_statistics() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        y = F.layer_norm(F.gelu(x), (64,), w, w)
        return torch.sigmoid(y) * y

    arguments = leaf(8, 64), leaf(64)
    jitted = sg.jit(block, executors=[Pointwise("fuses"), "torch"])
    found = step(jitted, *arguments)
    assert [value.type for value in sg.last_saved(jitted) if not value.alive] == ["cpu f32[8, 1]"] * 2
    assert not [item for item in again(jitted) if "layer_norm" in item]
    for one, expected in zip(found, step(block, *arguments), strict=True):
        torch.testing.assert_close(one, expected)


def test_lean_saves_half_of_what_balanced_does() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(8):
            x = F.silu(x @ w)
        return x

    balanced, lean = (sg.jit(layers, executors=["torch"], memory=memory) for memory in ("balanced", "lean"))
    arguments = leaf(64, 16), leaf(16, 16)
    assert_same(step(lean, *arguments), step(balanced, *arguments))
    assert 0 < saved_bytes(lean) <= saved_bytes(balanced) // 2


def test_a_leaner_level_saves_less() -> None:
    sizes = []
    for memory in MEMORY[1:]:
        jitted = sg.jit(block, executors=["torch"], memory=memory)
        step(jitted, leaf(8, 4), leaf(4, 4), leaf(4, 4))
        sizes.append(saved_bytes(jitted))
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    ("function", "memory", "origins"),
    [
        (lambda x, w: F.gelu(x @ w) @ w, "eager", ["gelu", "mm"]),
        (lambda x, w: F.gelu(x @ w) @ w, "balanced", ["mm"]),
        (lambda x, w: F.gelu(x @ w, approximate="tanh") @ w, "balanced", ["gelu", "mm"]),
        (lambda x, w: F.gelu(x @ w, approximate="tanh") @ w, "lean", ["gelu"]),
        (lambda x, w: NewGELUActivation()(x @ w) @ w, "balanced", ["mm"]),
        (lambda x, w: (F.silu(x @ w) * (x @ w.T)) @ w, "balanced", ["mm", "mm"]),
        (lambda x, w: F.layer_norm(x @ w, (4,)) @ w, "balanced", ["mm"]),
        (lambda x, w: torch.pow(x @ w, 2.5) @ w, "balanced", ["pow", "mm"]),
        (lambda x, w: torch.pow(x @ w, 3.0) @ w, "balanced", ["mm"]),
    ],
)
def test_what_is_cheap_to_make_again_from_a_product(function: Any, memory: Memory, origins: list[str]) -> None:
    jitted = assert_trains_as_eager(function, leaf(64, 4), leaf(4, 4), memory=memory)
    made = [value for value in sg.last_saved(jitted) if not value.alive and value.bytes >= 64 * 4 * 4]
    assert [value.origin.split(".")[1] for value in made] == origins


@LEVELS_AND_BUDGET
def test_gpt2_is_eagers_at_every_level(memory: Any) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).train()
    jitted = sg.jit(model, executors=["torch"], memory=memory)
    ids = torch.randint(0, 32, (2, 8))
    found = []
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for called in (jitted, model):
        model.zero_grad()
        storages.clear()
        torch.manual_seed(5)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert_same(found[0], found[1])
    given = {tensor.untyped_storage().data_ptr() for tensor in (ids, *model.parameters())}
    eagers = sum(size for storage, size in storages.items() if storage not in given)
    assert saved_bytes(jitted) <= {"balanced": 0.5, "lean": 0.25, 0.4: 0.4}.get(memory, 1.0) * eagers


@LEVELS_AND_BUDGET
def test_derivatives_of_any_order_at_every_level(memory: Any) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.exp() * 2
        return (F.layer_norm(torch.tanh(x @ w) * scale + x.detach() * x, (3,)).sigmoid() * torch.sin(x)).square()

    def derivatives(called: Any) -> list[Tensor]:
        x, w = (torch.linspace(-1, k, 9, dtype=torch.float64).reshape(3, 3).requires_grad_() for k in (1, 2))
        value, found = called(x, w).sum(), []
        for _ in range(3):
            grads = torch.autograd.grad(value, (x, w), create_graph=True)
            found += [grad.detach() for grad in grads]
            value = sum(grad.square().sum() for grad in grads)
        return found

    jitted = sg.jit(function, executors=["torch"], memory=memory)
    for found, expected in zip(derivatives(jitted), derivatives(function), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@LEVELS_AND_BUDGET
def test_other_grad_outputs_than_expected_at_every_level(memory: Any) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.relu(x @ w) * 3
        return y, (y + 1).exp() * x, F.layer_norm(y * 2, (4,))

    jitted = sg.jit(function, executors=["torch"], memory=memory)
    for used in ([0], [1], [2], [0, 2], [0, 1, 2]):
        weigh = lambda result, used=used: [result[index].t() for index in used]  # noqa: E731
        x, w = leaf(4, 4), leaf(4, 4)
        assert_same(step(jitted, x, w, weigh=weigh)[1], step(function, x, w, weigh=weigh)[1])


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: (x @ x).relu().exp(), "aten.mm.default"),
        (lambda x: x.sort(0).values.exp().exp(), "aten.sort.default"),
        (lambda x: (x * 2).scatter(0, torch.zeros(1, 4, dtype=torch.long), x[:1]).exp().exp(), "aten.scatter"),
        (lambda x: x.cumsum(0).exp().exp(), "aten.cumsum.default"),
        (lambda x: (F.dropout(x, 0.5) * x.exp()).exp(), "switchgear.draw_bernoulli"),
        (lambda x: (torch.rand_like(x) * x.exp()).exp(), "aten.rand_like.default"),
        (lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]).exp(), "attention"),
        (lambda x: F.conv1d(x[None], x[:, :, None]).exp().sin(), "aten.convolution.default"),
    ],
)
def test_what_is_dear_or_random_is_never_run_again(function: Any, operator: str) -> None:
    jitted = assert_trains_as_eager(function, leaf(4, 4), memory="balanced")
    assert any(operator in name for name in operators(forward(jitted)))
    assert not [name for name in again(jitted) if operator in name]


def test_operator_from_outside_pytorch_is_never_run_again() -> None:
    with torch.library._scoped_library("switchgear_test_min_cut", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        double = torch.ops.switchgear_test_min_cut.double
        table = rules(double, lambda x: (double(x), lambda grad: grad * 2))
        jitted = sg.jit(lambda x: torch.sin(double(x)), executors=["torch"], grad_rules=table, memory="balanced")
        jitted(leaf(4)).sum().backward()
        assert [value.reason for value in sg.last_saved(jitted)] == [
            "switchgear_test_min_cut.double.default is not cheap"
        ]


def test_chain_is_run_again_only_so_far() -> None:
    """Adding up prices bounds it, though every operator of it is cheap."""

    def function(x: Tensor, length: int) -> Tensor:
        y = x @ x
        for _ in range(length):
            y = y + 1
        return torch.sin(y)

    counts = {}
    for length in (2, 100):
        jitted = assert_trains_as_eager(function, leaf(4, 4), length, memory="balanced")
        counts[length] = len(again(jitted))
    assert counts == {2: 0, 100: 0}
    both = assert_trains_as_eager(
        lambda x: (lambda y: torch.sin(y) * torch.sin(y + 1))(x @ x), leaf(4, 4), memory="balanced"
    )
    assert again(both).count("aten.add.Tensor") == 1


@LEVELS
def test_checkpointed_region_is_run_again_as_it_is(memory: Memory) -> None:
    """The region alone decides about what it makes; the cut about everything else."""

    def region(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.relu(x @ w) * 2 + 1, 0.5).exp()

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(checkpoint(region, torch.relu(x * 2) + 1, w, use_reentrant=False) @ w).exp()

    jitted = assert_trains_as_eager(function, leaf(4, 4), leaf(4, 4), memory=memory)
    repeated = [item.symbol.name for item in lines(backward(jitted)) if RECOMPUTED in item.tags and region_of(item)]
    assert [name for name in repeated if "random_state" not in name] == [
        "aten.mm.default",
        "aten.relu.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
        "aten.empty_like.default",
        "switchgear.draw_bernoulli",
        "aten.div.Scalar",
    ]
    made = {proxy.name: item for item in lines(forward(jitted)) for proxy in item.outputs}
    inside = {made[name].symbol.name for name in saved(jitted) if name in made and region_of(made[name])}
    assert inside <= {"aten.exp.default", "switchgear.random_state"}  # what is read outside, and the stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_and_ones_are_saved_as_booleans(dtype: torch.dtype) -> None:
    jitted = assert_trains_as_eager(lambda x: F.dropout(x, 0.4) * 2, leaf(5, 3, dtype=dtype), memory="balanced")
    (value,) = sg.last_saved(jitted)
    assert (value.type, value.bytes) == ("cpu b8[5, 3]", 15)
    x = leaf(5, 3, dtype=dtype)
    (first,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
    assert set(first.unique().tolist()) <= {0.0, float(2 * torch.tensor(1, dtype=dtype) / 0.6)}


def test_mask_that_is_returned_is_saved_as_itself() -> None:
    jitted = assert_trains_as_eager(
        lambda x: (lambda m: (x * m, m))(torch.bernoulli(torch.full((3,), 0.5))), leaf(3), memory="balanced"
    )
    assert [value.type for value in sg.last_saved(jitted)] == ["cpu f32[3]"]


def test_of_a_buffer_that_is_overwritten_the_part_that_is_read_is_saved() -> None:
    def function(x: Tensor, cache: Tensor) -> Tensor:
        y = x * cache[2]
        cache.add_(1)
        return y

    jitted = sg.jit(function, executors=["torch"], memory="balanced")
    x, cache = leaf(4), torch.randn(100, 4)
    expected = cache[2].clone()
    jitted(x, cache).sum().backward()
    assert_same(x.grad, expected)
    assert [(value.bytes, value.alive) for value in sg.last_saved(jitted)] == [(16, False)]


def test_strided_view_of_a_buffer_that_is_overwritten_is_saved_as_itself() -> None:
    """On a copy its offset would be that of the original."""

    def function(x: Tensor, cache: Tensor) -> Tensor:
        y = x * cache.as_strided((4,), (1,), 52)
        cache.add_(1)
        return y

    jitted = sg.jit(function, executors=["torch"], memory="balanced")
    base = torch.randn(100)
    x, cache, expected = leaf(4), base[50:60], base[52:56].clone()
    jitted(x, cache).sum().backward()
    assert_same(x.grad, expected)


def test_factories_are_not_saved() -> None:
    jitted = assert_trains_as_eager(
        lambda x: x * torch.arange(4.0).exp() * torch.full((4,), 2.0), leaf(4), memory="balanced"
    )
    assert not [value for value in sg.last_saved(jitted) if not value.alive]


def test_what_is_run_again_comes_just_in_time() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.relu(x @ w) * 2 + 1
        return x

    jitted = assert_trains_as_eager(function, leaf(4, 4), leaf(4, 4), memory="balanced")
    order = [item.symbol.name if RECOMPUTED in item.tags else "" for item in lines(backward(jitted))]
    places = [index for index, name in enumerate(order) if name == "aten.mul.Tensor"]
    products = [index for index, name in enumerate(operators(backward(jitted))) if name == "aten.mm.default"]
    assert len(places) > 2
    assert all(any(first < product < second for product in products) for first, second in itertools.pairwise(places))


def test_line_that_is_run_again_is_linked_to_the_one_it_repeats() -> None:
    jitted = assert_trains_as_eager(block, leaf(8, 4), leaf(4, 4), leaf(4, 4), memory="lean")
    forwards = set(sg.last_traces(jitted)[0].bound_symbols)
    repeated = [item for item in lines(backward(jitted)) if RECOMPUTED in item.tags]
    assert repeated
    for item in repeated:
        assert {str(link.rule) for link in item.links} == {"partition (recomputed)"}
        assert forwards.issuperset(link.forward for link in item.links)


# What is said about it.


def test_explain_says_what_is_saved_and_why() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(torch.sigmoid(x @ w).sin(), 0.5)  # the user's line

    jitted = assert_trains_as_eager(function, leaf(2, 3), leaf(3, 4), memory="balanced")
    place = f"{__file__.rsplit('/', 1)[-1]}:"
    text = str(sg.explain(jitted).saved()).splitlines()
    start = next(index for index, line in enumerate(text) if line.startswith("saved for the backward"))
    assert text[start] == (
        "saved for the backward, memory='balanced': 40 bytes in 2 values, and 2 inputs, which live anyway, of 72 bytes"
    )
    end = text.index("recomputed by the backward")
    value, mask, *inputs = text[start + 1 : end]
    assert "cpu f32[2, 4], 32 bytes, aten.sigmoid.default at " + place in value
    assert value.endswith("; for aten.cos.default, aten.sigmoid_backward.default; recomputing costs more")
    assert "cpu b8[2, 4], 8 bytes, switchgear.draw_bernoulli at " + place in mask
    assert mask.endswith("; it draws random numbers; its zeros and ones are saved as booleans")
    assert [line.split(", ", 1)[1] for line in inputs] == [
        "4], 48 bytes, input; for aten.t.default; an input, which takes no more memory",
        "3], 24 bytes, input; for aten.t.default; an input, which takes no more memory",
    ]
    (again,) = text[end + 1 :]
    assert again.startswith(f"  1 x aten.div.Scalar at {place}")
    assert again.endswith(": its result is not saved")


# What a rule of the user's saves.


def _masks() -> sg.Executor:
    table = sg.Table("masks")
    table.augmented(
        torch.relu,
        forward=lambda x: (torch.relu(x), (x > 0,)),
        backward=lambda mask, grad: grad * mask,
    )
    return sg.Executor("masks", table=table)


def _through_relu(x: Tensor) -> Tensor:
    return torch.relu(x * 2).sum()


def test_what_a_rule_keeps_is_a_candidate_of_the_cut() -> None:
    """The mask is cheaper made again from the input, which lives anyway."""
    jitted = sg.jit(_through_relu, executors=[_masks(), "torch"], memory="balanced")
    jitted(leaf(1000)).backward()
    (value,) = sg.last_saved(jitted)
    assert value.alive
    assert "torch.gt" not in operators(forward(jitted))


def test_where_views_alone_can_be_made_again() -> None:
    """They cost nothing, so that all factors of the bound on what is made again are 0."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rrelu(x.t(), training=True)  # draws, and saves what it drew

    x = torch.randn(512, 512, requires_grad=True)
    sg.jit(function, executors=[Pointwise("mine"), "torch"], strict=True)(x).sum().backward()
    assert x.grad is not None

"""Every line of a backward says which line of the forward it differentiates, and by whose rule."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import switchgear as sg
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.symbol import Link
from tests.core.training import backward, executor, leaf, line_of, lines, rules
from tests.oracle import step

LINEAR = """
def backward(t_weight, t_0, g_t1):
    # t_weight: "cpu f32[10, 100]"  t_0: "cpu f32[10, 100]"  g_t1: "cpu f32[10, 10]"
    t2 = torch.t(g_t1)  # t2: "cpu f32[10, 10]"  forward: t1 = torch.nn.functional.linear  HERE  rule: derived (aten.mm)
    t3 = torch.mm(t2, t_0)  # t3: "cpu f32[10, 100]"  forward: t1 = torch.nn.functional.linear  HERE  rule: derived (aten.mm)
    del t2, t_0
    t6 = torch.mm(g_t1, t_weight)  # t6: "cpu f32[10, 100]"  forward: t1 = torch.nn.functional.linear  HERE  rule: derived (aten.mm)
    del g_t1, t_weight
    return (t6, t3)
"""  # noqa: E501


def linear() -> Any:
    """`Linear(100, 10, bias=False)` after a step on ten samples."""
    jitted = sg.jit(nn.Linear(100, 10, bias=False), executors=["torch"])
    jitted(torch.randn(10, 100, requires_grad=True)).backward(torch.ones(10, 10))  # the user's line
    return jitted


def linked(jitted: Any) -> str:
    """The backward with links, each comment beside its code, without what stands around the function."""
    text = backward(jitted).python(link=True)
    function = text[text.index("\ndef ") : text.index("\n\n#")]
    return re.sub(r"\n {8}(# +)?", "  ", function)


def test_backward_of_a_linear_layer_with_links() -> None:
    assert linked(linear()) == LINEAR.replace("HERE", line_of(linear, "user's line")).rstrip()


def test_links_are_shown_on_request_alone() -> None:
    jitted = linear()
    for text in (str(backward(jitted)), backward(jitted).python()):
        assert "rule:" not in text
        assert text.count(line_of(linear, "user's line")) == 3
    assert "forward:" not in sg.last_traces(jitted)[-1].python(link=True)


def test_debug_option_of_jit_shows_them() -> None:
    jitted = sg.jit(nn.Linear(100, 10, bias=False), executors=["torch"], link=True)
    jitted(torch.randn(10, 100, requires_grad=True)).backward(torch.ones(10, 10))
    assert "rule: derived (aten.mm)" in str(backward(jitted))


def test_printed_with_links_it_still_runs() -> None:
    scope: dict[str, Any] = {}
    exec(backward(linear()).python(link=True), scope)
    x, w, g = torch.randn(10, 100), torch.randn(10, 100), torch.randn(10, 10)
    grads = scope["backward"](w, x, g)
    torch.testing.assert_close(grads, (g @ w, g.t() @ x))


def unlinked(jitted: Any) -> list[str]:
    """The lines of the backward without a link to a line of the captured trace."""
    forwards = set(sg.last_traces(jitted)[0].bound_symbols)
    return [
        f"{item.symbol.name} at {item.source}"
        for item in lines(backward(jitted))
        if not item.links or any(link.forward not in forwards for link in item.links)
    ]


def links(jitted: Any) -> list[tuple[Link, ...]]:
    return [item.links for item in lines(backward(jitted))]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """A jitted GPT-2 of two blocks after a step."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    model = GPT2LMHeadModel(config).train()
    jitted = sg.jit(model, executors=["torch"])
    ids = torch.randint(0, 32, (2, 8))
    jitted(input_ids=ids, labels=ids).loss.backward()
    return jitted


def test_every_line_of_gpt2_is_linked(gpt2: Any) -> None:
    assert unlinked(gpt2) == []
    text = linked(gpt2)
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    calls = [line for line in lines if " = " in line and not line.lstrip().startswith(("#", "del"))]
    assert len(calls) > 100
    for line in calls:
        assert re.search(r"forward: \S.* = \S+.*rule: \S+ \(\S+\)", line), line


def test_lines_of_gpt2_name_the_users_line_and_module(gpt2: Any) -> None:
    text = linked(gpt2)
    for block in (0, 1):
        place = rf"modeling_gpt2\.py:\d+ transformer\.h\.{block}\.attn"
        pattern = rf"forward: t\w+ = torch\.\S+  {place}.*rule: derived \(aten\.\S+\)"
        assert re.search(pattern, text)
    modules = {link.forward.source.module for found in links(gpt2) for link in found if link.forward.source}
    assert {
        "transformer.wte",
        "transformer.h.0.ln_1",
        "transformer.h.1.mlp.c_fc",
        "transformer.ln_f",
        "lm_head",
    } <= modules


def test_accumulations_of_gpt2_name_all_their_terms(gpt2: Any) -> None:
    """The gradient of a residual stream, and that of the tied embedding."""
    sums = [item for item in lines(backward(gpt2)) if len(item.links) > 1]
    assert sums
    assert all(item.symbol.name in ("aten.add.Tensor", "torch.add") for item in sums)
    tied = [{link.forward.source.module for link in item.links if link.forward.source} for item in sums]
    assert {"transformer.wte", "lm_head"} in tied


def test_links_survive_every_pass(gpt2: Any) -> None:
    stages = [trace for trace in sg.last_backward_traces(gpt2) if trace.name == "backward"]
    wanted = {item.outputs[0].name: item.links for item in lines(stages[0])}
    for stage in stages[1:]:
        for item in lines(stage):
            assert item.links == wanted.get(item.outputs[0].name, item.links)
            assert item.links


# Other rules than derived ones.


def rule_texts(jitted: Any) -> set[str]:
    return {str(link.rule) for found in links(jitted) for link in found}


def test_rules_of_each_form_are_named() -> None:
    table = sg.Table("mine")
    table.grad_rule(torch.sin)(lambda x: (torch.sin(x), lambda grad: grad * torch.cos(x)))

    @table.grad_transform(torch.cos)
    def cosine(x: Tensor) -> Tensor:
        y = torch.cos(x)
        sg.put_grad(x, sg.get_grad(y) * -torch.sin(x))
        return y

    table.augmented(torch.exp, forward=lambda x: (torch.exp(x), (x,)), backward=lambda x, g: g * torch.exp(x))
    jitted = sg.jit(
        lambda x: torch.sin(torch.cos(torch.exp(x))) * 2, executors=[sg.Executor("mine", table=table), "torch"]
    )
    step(jitted, leaf(3))
    # once: see below; here the augmented forward's residuals
    assert rule_texts(jitted) == {
        "mine (pullback)",
        "mine (transform)",
        "mine (augmented)",
        "derived (aten.mul.Tensor)",
    }
    assert unlinked(jitted) == []


def test_what_a_rule_computes_ahead_for_its_backward_is_linked() -> None:
    def rule(x: Tensor) -> Any:
        cosine = torch.cos(x)
        return torch.sin(x), lambda grad: grad * cosine

    jitted = sg.jit(torch.sin, executors=["torch"], grad_rules=rules(torch.sin, rule))
    step(jitted, leaf(3))
    # once: only what the pullback itself records gets a link, though partition moves the rest to the backward
    assert unlinked(jitted) == []


def test_what_is_recomputed_for_a_kept_forward_is_linked() -> None:
    def softmax(x: Tensor, dim: int, **kwargs: Any) -> Tensor:
        return torch.ops.aten._softmax(x, dim, False)  # type: ignore[no-any-return]

    jitted = sg.jit(lambda x: F.softmax(x, -1), executors=[executor("fast", {F.softmax: softmax}), "torch"])
    step(jitted, leaf(3, 4))
    # once: the copies of the decomposition that the backward runs again have no link
    assert unlinked(jitted) == []


def test_layouts_that_the_pass_changes_are_linked() -> None:
    table = sg.Table("mine")

    @table.grad_transform(torch.tanh)
    def rule(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        sg.put_grad(x, sg.get_grad(y).view(-1).view(4, 4))
        return y

    jitted = sg.jit(torch.tanh, executors=["torch"], grad_rules=table)
    jitted(leaf(4, 4)).backward(torch.ones(4, 4).t())
    jitted(leaf(4, 4)).backward(torch.ones(()).expand(4, 4))
    assert unlinked(jitted) == []


def test_sum_of_outputs_used_further_is_linked() -> None:
    jitted = sg.jit(lambda x: (lambda y: (y, y * x, x))(torch.exp(x)), executors=["torch"])
    step(jitted, leaf(3))
    assert unlinked(jitted) == []


def test_output_returned_twice_adds_up_with_a_stated_reason() -> None:
    """The sum of two grad outputs differentiates no line of the forward: it says nothing, and stands alone."""
    jitted = sg.jit(lambda x: (lambda y: (y, y))(torch.exp(x)), executors=["torch"])
    step(jitted, leaf(3))
    assert len(unlinked(jitted)) <= 1


def llama() -> Any:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
    return LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2, vocab_size=32)).train()


def t5() -> Any:
    shape = {"num_layers": 1, "num_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 24}
    return T5ForConditionalGeneration(T5Config(**shape, vocab_size=32, decoder_start_token_id=0)).train()


class Checkpointed(nn.Module):
    """Computes its layers again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 24, 0.0) for _ in range(2)])

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return SimpleNamespace(loss=F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten()))


class Region(sg.FusionExecutor):
    """Runs what it takes as it is."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Any:
        return region.function()


@pytest.mark.parametrize("executors", [["torch"], [Region("mine"), "torch"]], ids=["torch", "regions"])
@pytest.mark.parametrize("make", [llama, t5, Checkpointed])
def test_every_line_of_a_model_is_linked(make: Any, executors: Any) -> None:
    """What a backward computes again of the forward has no link, and says so by its place in the forward."""
    jitted = sg.jit(make(), executors=executors, compile="now", strict=True)
    ids = torch.randint(0, 32, (2, 8))
    jitted(input_ids=ids, labels=ids).loss.backward()
    forward = {item.outputs[0].name for item in leaves_of(sg.last_traces(jitted)[0].bound_symbols) if item.outputs}
    body = [item for item in leaves_of(backward(jitted).bound_symbols) if item.outputs]
    assert len(body) > 50
    assert not [f"{item!r}" for item in body if not item.links and item.outputs[0].name not in forward]

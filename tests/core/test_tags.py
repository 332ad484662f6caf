"""Tags of passes: tagged results are recomputed by the backward, or saved, and values stay eager's to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import switchgear as sg
from switchgear_core.ir.symbol import RECOMPUTED
from tests.core.against_eager import numbers

OFFLOAD, RECOMPUTE, SAVE = sg.passes.OFFLOAD, sg.passes.RECOMPUTE, sg.passes.SAVE
ATTENTION = "torch.nn.functional.scaled_dot_product_attention"


def tag_attention(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Tag every attention, as a stranger's pass does."""

    def line_of(line: sg.BoundSymbol) -> sg.BoundSymbol:
        return sg.passes.tagged(line, RECOMPUTE) if line.symbol.name == ATTENTION else line

    return replace(trace, bound_symbols=tuple(map(line_of, trace.bound_symbols)))


TAG_ATTENTION = sg.passes.PassPlacement("tag_attention", "before_grad", tag_attention)


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        return x + self.out(attended.transpose(1, 2).reshape(2, 16, 32))  # type: ignore[no-any-return]


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(dropout), Block(dropout))


def gradients(called: Callable[..., Any], module: nn.Module) -> list[Tensor]:
    """One step of training, from one state of the random stream."""
    x = numbers(2, 16, 32, dtype=torch.float32, grad=True)
    torch.manual_seed(5)
    result = called(x)
    result.sum().backward()
    grads = [x.grad, *[parameter.grad for parameter in module.parameters()]]
    module.zero_grad()
    return [result.detach(), torch.rand(3), *[grad for grad in grads if grad is not None]]


def saved_bytes(jitted: Any) -> int:
    return sum(value.bytes for value in sg.last_saved(jitted) if not value.alive)


def first_backward(jitted: Any) -> sg.Trace:
    return next(trace for trace in sg.last_backward_traces(jitted) if trace.name == "backward")


def recomputed(jitted: Any) -> Counter[str]:
    trace = first_backward(jitted)
    return Counter(item.symbol.name for item in trace.bound_symbols if RECOMPUTED in item.tags)


def reasons(jitted: Any) -> str:
    return "; ".join(value.reason for value in sg.last_saved(jitted))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("memory", ["auto", "eager", "balanced", 0.8])
def test_every_attention_recomputed(memory: Any, dropout: float) -> None:
    """Results are eager's to the bit, random numbers included; bytes are those of `sg.plan`."""
    module = model(dropout)
    options: dict[str, Any] = {"executors": ["torch"], "fallback": "error", "memory": memory}
    plain, tagging = sg.jit(module, **options), sg.jit(module, **options, passes=[TAG_ATTENTION])
    expected = gradients(module, module)
    for jitted in (plain, tagging):
        actual = gradients(jitted, module)
        assert all(map(torch.equal, expected, actual))
    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert recomputed(tagging)["aten._safe_softmax.default" if dropout else attention] == 2
    if memory in ("auto", "eager"):
        x = numbers(2, 16, 32, dtype=torch.float32, grad=True)
        plans = [sg.plan(jitted, x) for jitted in (plain, tagging)]
        assert [plan.points[0].bytes for plan in plans] == [saved_bytes(plain), saved_bytes(tagging)]
        assert plans[0].eager_bytes == plans[1].eager_bytes == saved_bytes(plain)
        assert saved_bytes(tagging) < 0.8 * saved_bytes(plain)
        assert plans[0].points[0].longer == 0 < plans[1].points[0].longer
    if dropout:
        assert "tagged recompute, but it draws random numbers" in reasons(tagging)
        assert "draw_bernoulli" not in str(recomputed(tagging))
    told = str(sg.explain(tagging).saved())
    assert "recomputed by the backward" in told
    assert "tagged recompute" in told


def test_the_default_executors() -> None:
    module = model()
    jitted = sg.jit(module, passes=[TAG_ATTENTION], fallback="error", compile="now")
    for one, other in zip(gradients(module, module), gradients(jitted, module), strict=True):
        torch.testing.assert_close(one, other)
    assert recomputed(jitted)["aten._scaled_dot_product_flash_attention_for_cpu.default"] == 2


def test_recomputed_just_in_time() -> None:
    """The second block's attention runs in front of its own backward, the first block's later."""
    jitted = sg.jit(model(), executors=["torch"], passes=[TAG_ATTENTION], fallback="error")
    jitted(numbers(2, 16, 32, dtype=torch.float32, grad=True)).sum().backward()
    lines = first_backward(jitted).bound_symbols
    names = [item.symbol.name for item in lines if "flash_attention" in item.symbol.name]
    assert ["backward" in name for name in names] == [False, True, False, True]


# --- selective policies, by name ---

WEIGHT = numbers(4, 4, dtype=torch.float32)


def chain(x: Tensor) -> Tensor:
    first = torch.tanh(x @ WEIGHT)
    second = sg.checkpoint_name((first @ WEIGHT).exp(), "grown")
    return torch.sigmoid(second.sin() @ WEIGHT).cos()


#: For each set of names, the operators for which eager's policy says MUST_SAVE.
POLICIES: list[tuple[tuple[str, ...], list[Any]]] = [
    (("aten.mm.default",), [torch.ops.aten.mm.default]),
    (("torch.matmul",), [torch.ops.aten.mm.default]),
    (("aten.tanh.default",), [torch.ops.aten.tanh.default]),
    (("grown",), [torch.ops.aten.exp.default]),
    (("grown", "aten.mm.default"), [torch.ops.aten.exp.default, torch.ops.aten.mm.default]),
    (("torch.tanh", "grown"), [torch.ops.aten.exp.default, torch.ops.aten.tanh.default]),
    ((), []),
]


def of_eager(operators: list[Any]) -> tuple[list[Tensor], Counter[Any]]:
    """The result and gradient of `chain` under eager's selective checkpoint, and the values that it saves."""
    forward, backward = create_selective_checkpoint_contexts(operators)
    x = numbers(3, 4, dtype=torch.float32, grad=True)
    result = checkpoint(chain, x, use_reentrant=False, context_fn=lambda: (forward, backward))
    values = [one for entries in forward.storage.values() for one in entries.values()]
    tensors = [tensor for value in values for tensor in _tensors(value)]
    sizes = Counter(tuple(tensor.flatten().tolist()) for tensor in tensors)
    result.sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad], sizes


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in an entry of eager's storage: results, each wrapped with its version."""
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    value = getattr(value, "val", value)
    return [value] if isinstance(value, Tensor) else []


@pytest.mark.parametrize(("names", "operators"), POLICIES, ids=str)
def test_policies_by_name(names: tuple[str, ...], operators: list[Any]) -> None:
    """Eager saves the same values, next to the region's input: the same numbers."""
    expected, values = of_eager(operators)
    policy = sg.passes.tag_names(SAVE, *names, others=RECOMPUTE)
    jitted = sg.jit(chain, executors=["torch"], passes=[policy], fallback="error")
    x = numbers(3, 4, dtype=torch.float32, grad=True)
    result = jitted(x)
    result.sum().backward()
    assert torch.equal(result, expected[0])
    assert x.grad is not None
    assert torch.equal(x.grad, expected[1])
    saved = [value for value in sg.last_saved(jitted) if not value.alive]
    kinds = {str(one).removesuffix(".default").removeprefix("aten.") for one in operators}
    assert {value.origin.split(".")[1] for value in saved} <= kinds
    # eager also saves results that nothing reads: the product in front of a saved exponential
    unread = {"grown", "aten.mm.default"} <= set(names)
    assert len(saved) == sum(values.values()) - unread
    assert all(value.reason == "tagged save" for value in saved)


def test_names_mean_nothing_without_a_pass() -> None:
    x = numbers(3, 4, dtype=torch.float32, grad=True)
    assert sg.checkpoint_name(x, "x") is x
    jitted = sg.jit(chain, executors=["torch"], fallback="error")
    assert torch.equal(jitted(x), chain(x))
    assert not recomputed_after(jitted, x)


def recomputed_after(jitted: Any, x: Tensor) -> list[str]:
    jitted(x).sum().backward()
    views = ("view", "transpose", ".t.", "permute", "unbind")
    return [name for name in recomputed(jitted) if not any(view in name for view in views)]


def test_saved_by_name_inside_a_region() -> None:
    """The user's checkpoint without a policy, and a pass with one."""

    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(chain, x, use_reentrant=False)
        return result

    def repeated(*passes: Any) -> list[str]:
        jitted = sg.jit(function, executors=["torch"], passes=passes, fallback="error")
        x, y = (numbers(3, 4, dtype=torch.float32, grad=True) for _ in range(2))
        names = recomputed_after(jitted, x)
        function(y).sum().backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
        return names

    assert "aten.exp.default" in repeated()
    assert "aten.exp.default" not in repeated(sg.passes.tag_names(SAVE, "grown"))


# --- results, rules and refusals ---


def by_result(x: Tensor) -> Tensor:
    """The backward reads both results of a line."""
    values, _ = torch.max(torch.sin(x), dim=1)
    return values.square()


def test_a_single_result() -> None:
    def place(tag: Any) -> sg.passes.PassPlacement:
        def run(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
            lines = [tag(line) if line.symbol.name == "torch.max" else line for line in trace.bound_symbols]
            return replace(trace, bound_symbols=tuple(lines))

        return sg.passes.PassPlacement("by_result", "before_grad", run)

    x = numbers(3, 4, grad=True)
    lists = {}
    for name, tag in {
        "none": lambda line: line,
        "first": lambda line: sg.passes.tagged(line, RECOMPUTE, line.outputs[0]),
        "second": lambda line: sg.passes.tagged(line, RECOMPUTE, line.outputs[1]),
        "both": lambda line: sg.passes.tagged(line, RECOMPUTE),
        "neither": lambda line: sg.passes.tagged(line, RECOMPUTE, line.inputs[0]),
    }.items():
        jitted = sg.jit(by_result, executors=["torch"], passes=[place(tag)], fallback="error")
        lists[name] = recomputed_after(jitted, x)
    again = ["aten.max.dim"]
    assert lists == {"none": [], "first": again, "second": again, "both": again, "neither": []}


def test_a_rule_inherits_the_tag() -> None:
    table = sg.Table("mine")

    @table.grad_rule(torch.tanh)
    def rule(x: Tensor) -> Any:
        exponential = torch.exp(2 * x)
        y = (exponential - 1) / (exponential + 1)
        return y, lambda grad: grad * (1 - y * y)

    def function(x: Tensor) -> Tensor:
        return torch.tanh(x.sin())

    x = numbers(3, 4, grad=True)
    tag = sg.passes.tag_names(RECOMPUTE, "torch.tanh")
    jitted = sg.jit(function, executors=["torch"], passes=[tag], grad_rules=table, fallback="error")
    assert {"torch.exp", "torch.div"} <= set(recomputed_after(jitted, x))


def test_offloading_is_not_done_and_said() -> None:
    tag = sg.passes.tag_names(OFFLOAD, "aten.tanh.default")
    jitted = sg.jit(chain, executors=["torch"], passes=[tag], fallback="error")
    jitted(numbers(3, 4, dtype=torch.float32, grad=True)).sum().backward()
    assert "tagged offload, which is not done yet" in str(sg.explain(jitted).saved())


def test_saving_against_a_budget() -> None:
    """A budget recomputes; a saved tag keeps a value from that."""

    def function(x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x.sin()).exp()).cos()

    x = numbers(64, 64, grad=True)

    def origins(*passes: Any) -> list[str]:
        jitted = sg.jit(function, executors=["torch"], memory="0B", passes=passes, fallback="error")
        jitted(x).sum().backward()
        return [value.origin.split()[0] for value in sg.last_saved(jitted) if not value.alive]

    assert origins() == []
    with pytest.raises(sg.errors.InvalidInput, match="least possible"):
        origins(sg.passes.tag_names(SAVE, "aten.exp.default"))
    jitted = sg.jit(
        function,
        executors=["torch"],
        memory=0.5,
        passes=[sg.passes.tag_names(SAVE, "aten.exp.default")],
        fallback="error",
    )
    jitted(x).sum().backward()
    assert "tagged save" in reasons(jitted)


@torch.library.custom_op("switchgear_test_tags::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    x.data.mul_(factor)


def test_a_write_runs_once() -> None:
    def function(x: Tensor) -> Tensor:
        z = x.sin()
        scale_(z, 2.0)
        return z * z

    tag = sg.passes.tag_names(RECOMPUTE, others=RECOMPUTE)
    jitted = sg.jit(function, executors=["torch"], passes=[tag], fallback="error")
    x, y = (numbers(3, 4, grad=True) for _ in range(2))
    names = recomputed_after(jitted, x)
    assert not any("scale_" in name for name in names)
    assert "tagged recompute, but it writes to its arguments" in reasons(jitted)
    function(y).sum().backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


def test_another_backward_than_expected() -> None:
    """Grad outputs other than expected, and a second derivative."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x.sin())
        return y.exp(), y.cos()

    tag = sg.passes.tag_names(RECOMPUTE, others=RECOMPUTE)
    jitted = sg.jit(function, executors=["torch"], passes=[tag], fallback="error")
    uses: list[Callable[[Any], Any]] = [
        lambda results: results[0].sum(),
        lambda results: results[1].sum(),
        lambda results: (results[0] * results[1]).sum(),
    ]
    for use in uses:
        grads = []
        for called in (function, jitted):
            x = numbers(3, 4, grad=True)
            (grad,) = torch.autograd.grad(use(called(x)), x, create_graph=True)
            grads.append((grad, *torch.autograd.grad(grad.sum(), x)))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def test_an_input_that_is_overwritten() -> None:
    """A tagged result is recomputed from the value that the forward read."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = torch.tanh(x * y)
        y.mul_(2)
        return z.exp()

    tag = sg.passes.tag_names(RECOMPUTE, others=RECOMPUTE)
    jitted = sg.jit(function, executors=["torch"], passes=[tag], fallback="error")
    x, y = numbers(3, 4, grad=True), numbers(3, 4) + 0.5
    first, other = y.clone(), x.detach().clone().requires_grad_()
    jitted(x, y).sum().backward()
    torch.tanh(other * first).exp().sum().backward()
    assert torch.equal(y, first * 2)
    assert torch.equal(x.grad, other.grad)  # type: ignore[arg-type]

"""The grad rules: gradients of eager's, to second order, and what they save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_nvfuser import NvfuserExecutor
from switchgear_nvfuser.grad_rules import rules
from tests.core.training import leaf
from tests.nvfuser.replay import recorded
from tests.oracle import step

TARGET = torch.tensor([1, 0, -100, 3, 5, -100])
Function = Callable[..., Tensor]

CASES: list[tuple[str, Function, tuple[tuple[int, ...], ...]]] = [
    ("rms_norm", lambda x, w: F.rms_norm(x, (6,), w, 1e-6), ((4, 6), (6,))),
    ("rms_norm without weight", lambda x: F.rms_norm(x, (4, 6)), ((4, 6),)),
    ("rms_norm of a row", lambda x, w: F.rms_norm(x, (6,), w), ((6,), (6,))),
    ("rms_norm of two dimensions", lambda x, w: F.rms_norm(x, (4, 6), w), ((2, 4, 6), (4, 6))),
    ("cross_entropy", lambda x: F.cross_entropy(x, TARGET), ((6, 7),)),
    ("cross_entropy, sum", lambda x: F.cross_entropy(x, TARGET, reduction="sum"), ((6, 7),)),
    ("cross_entropy, none", lambda x: F.cross_entropy(x, TARGET, reduction="none"), ((6, 7),)),
    ("cross_entropy, ignoring 0", lambda x: F.cross_entropy(x, TARGET.relu(), ignore_index=0), ((6, 7),)),
]
NAMES = [name for name, *_ in CASES]


def jit(function: Function) -> Any:
    return sg.jit(function, executors=[NvfuserExecutor(runner=recorded), "torch"])


def gradient_owners(jitted: Any) -> list[str]:
    return [choice.owner for choice in sg.last_choices(jitted) if choice.kind == "gradient"]


def leaves(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    return [leaf(*shape).detach().double().requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("name", "function", "shapes"), CASES, ids=NAMES)
def test_sixteen_bits(name: str, function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    args = [arg.detach().bfloat16().requires_grad_() for arg in leaves(shapes)]
    double = [arg.detach().double().requires_grad_() for arg in args]
    jitted = jit(function)
    (out, grads), (exact, true) = step(jitted, *args), step(function, *double)
    assert out.dtype == torch.bfloat16
    for found, wanted in zip([out, *grads], [exact, *true], strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


def saved_bytes(jitted: Any) -> int:
    return sum(saved.bytes for saved in sg.last_saved(jitted) if not saved.alive)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: F.rms_norm(x * 1.5, (64,), w), ((32, 64), (64,))),
        (lambda x: F.cross_entropy(x.float(), torch.arange(32)), ((32, 64),)),
    ],
)
def test_no_more_is_saved_than_without_the_rules(function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    args = [arg.detach().bfloat16().requires_grad_() for arg in leaves(shapes)]
    found = []
    for given in ([rules], []):
        jitted = sg.jit(function, executors=["torch"], grad_rules=given, memory="balanced")
        step(jitted, *args)
        found.append(saved_bytes(jitted))
    own, without = found
    assert own <= without


def test_of_logits_that_were_cast_a_number_a_row_is_saved() -> None:
    def function(x: Tensor) -> Tensor:
        return F.cross_entropy(x.float(), torch.arange(32))

    x = torch.randn(32, 1000, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for given in ([rules], []):
        jitted = sg.jit(function, executors=["torch"], grad_rules=given, memory="balanced")
        step(jitted, x)
        found.append(saved_bytes(jitted))
    assert found[0] < 1000
    assert found[1] > 32 * 1000


def test_nothing_of_the_logits_is_read_in_another_width() -> None:
    """But by kernels that cast what they read: nvFuser would write a copy for a gather, and compares 64 bits slowly."""
    x, target = torch.randn(32, 1000, dtype=torch.bfloat16, requires_grad=True), torch.arange(32)
    jitted = sg.jit(lambda x, target: F.cross_entropy(x, target), executors=["torch"], grad_rules=[rules])
    jitted(x, target).backward()
    forward, backward = (traces(jitted)[-1].bound_symbols for traces in (sg.last_traces, sg.last_backward_traces))
    (gather,) = [item for item in forward if "gather" in item.symbol.name]
    assert gather.inputs[0].dtype == torch.bfloat16
    (compared,) = [item for item in backward if "__eq__" in item.symbol.name]
    assert {proxy.dtype for proxy in compared.inputs} == {torch.int32}


@pytest.mark.parametrize(
    ("function", "shape", "reason"),
    [
        (lambda x: F.cross_entropy(x, torch.rand(4, 6)), (4, 6), "targets that are probabilities"),
        (lambda x: F.cross_entropy(x, torch.arange(4), torch.rand(6)), (4, 6), "weights of classes"),
        (lambda x: F.cross_entropy(x, torch.arange(4), label_smoothing=0.1), (4, 6), "smoothed labels"),
        (lambda x: F.cross_entropy(x, torch.zeros(4, 2).long()), (4, 6, 2), "logits that are no rows"),
        (lambda x: F.rms_norm(x, (6,), torch.ones(6).double()), (4, 6), "tensors of several dtypes"),
    ],
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_what_the_rules_decline(function: Function, shape: tuple[int, ...], reason: str) -> None:
    x = leaf(*shape)
    jitted = jit(function)
    torch.testing.assert_close(step(jitted, x), step(function, x), rtol=1e-5, atol=1e-6)
    reasons = [why for c in sg.last_choices(jitted) for who, why in c.declined if who == "nvfuser"]
    assert any(why.startswith(reason) for why in reasons)


def test_all_rows_ignored() -> None:
    x, target = leaf(3, 4), torch.full((3,), -100)

    def function(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target)

    torch.testing.assert_close(step(jit(function), x), step(function, x), equal_nan=True)


def test_infinite_logits() -> None:
    x = torch.tensor([[0.0, float("-inf"), 1.0], [2.0, 0.0, float("-inf")]], requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return F.cross_entropy(x, torch.tensor([0, 1]))

    torch.testing.assert_close(step(jit(function), x), step(function, x), equal_nan=True)

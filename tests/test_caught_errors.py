"""Errors that a function catches itself: what PyTorch raises for data, and what capture raises on its own account."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.falling_back import falls_back

LinAlgError: Any = vars(torch.linalg)["LinAlgError"]
GOOD, BAD, SINGULAR = torch.eye(2) * 2, torch.tensor([[1.0, 1.0], [1.0, 0.99]]), torch.zeros(2, 2)


def retried(k: Tensor) -> Any:
    """As Gaussian processes do."""
    for jitter in (0.0, 1e-2, 1e-1, 1.0):
        try:
            return torch.linalg.cholesky(k + jitter * torch.eye(len(k)))
        except RuntimeError:
            continue
    raise ValueError("not positive definite")


def repaired(k: Tensor) -> Any:
    try:
        torch.linalg.cholesky(k)
        return k
    except LinAlgError:
        values, vectors = torch.linalg.eigh(k)
        return vectors @ torch.diag(values.clamp(min=1e-3)) @ vectors.mT


def suppressed(k: Tensor) -> Any:
    with contextlib.suppress(RuntimeError):
        return torch.linalg.inv(k)
    return k


def bare(k: Tensor) -> Any:
    try:
        return torch.inverse(k)
    except:  # noqa: E722
        return k


def beside_the_call(k: Tensor) -> Any:
    try:
        k = k * 2
    except RuntimeError:
        return k
    return torch.linalg.inv(k + 0.5 * torch.eye(2))


def _solved(k: Tensor) -> Any:
    return torch.linalg.solve(k, torch.eye(2))


def in_a_helper(k: Tensor) -> Any:
    try:
        return _solved(k)
    except (ValueError, LinAlgError):
        return k + 1


@pytest.mark.parametrize("function", [retried, repaired, suppressed, bare, beside_the_call, in_a_helper])
def test_what_is_raised_for_data(function: Callable[[Tensor], Tensor]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    with falls_back("the function catches the error that .* raises for its data"):
        for k in (GOOD, BAD, SINGULAR, GOOD, BAD):
            assert torch.equal(jitted(k), function(k))


def _finally(k: Tensor) -> Any:
    try:
        return torch.linalg.inv(k)
    finally:
        k.sum()


def _with(k: Tensor) -> Any:
    with torch.no_grad():
        return torch.linalg.inv(k)


@pytest.mark.parametrize("function", [_finally, _with, _solved])
def test_what_nobody_catches_is_captured(function: Callable[[Tensor], Tensor]) -> None:
    jitted = sg.jit(function, executors=["torch"], strict=True)
    for _ in range(2):
        assert torch.equal(jitted(GOOD), function(GOOD))
    with pytest.raises(LinAlgError):
        jitted(SINGULAR)


def test_a_rule_is_no_part_of_what_catches() -> None:
    table = sg.Table("rules")

    @table.grad_rule(torch.linalg.inv)
    def rule(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        inverse: Any = torch.linalg.inv(x)
        return inverse, lambda grad: -inverse.mT @ grad @ inverse.mT

    jitted = sg.jit(lambda k: torch.linalg.inv(k).sum(), executors=["torch"], grad_rules=table, strict=True)
    k = GOOD.clone().requires_grad_()
    try:
        jitted(k).backward()
    except RuntimeError:
        pytest.fail("refused for a `try` of the caller's")
    assert k.grad is not None


def _item(x: Tensor) -> Any:
    try:
        scale = x.sum().item()
    except Exception:
        scale = 0.0
    return x * scale


def _grad(x: Tensor) -> Any:
    try:
        return x * 2 if x.grad is None else x
    except Exception:
        return x * 3


def _sparse(x: Tensor) -> Any:
    try:
        return x.to_sparse_csc().to_dense() * 2
    except:  # noqa: E722
        return x * 3


def _printed(x: Tensor) -> Any:
    try:
        print("printed")
        return x * 2
    except Exception:
        return x * 3


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("function", [_item, _grad, _sparse, _printed])
def test_what_capture_raises_is_not_for_the_function_to_catch(function: Callable[[Tensor], Tensor]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    x = torch.arange(1.0, 5).view(2, 2)
    with falls_back(kind="DataDependent" if function is _item else "Unsupported"):
        for _ in range(2):
            assert torch.equal(jitted(x), function(x))

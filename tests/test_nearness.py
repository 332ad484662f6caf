"""What is near enough to eager, where executors fuse."""

from __future__ import annotations

import pytest
import torch

from tests.under_test import is_near

EXACT = torch.tensor([100.0, 1.0, -3.0], dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "near", "far"), [(torch.float32, 1e-6, 1e-5), (torch.float64, 9e-8, 1e-6)])
def test_tolerance_of_the_dtype(dtype: torch.dtype, near: float, far: float) -> None:
    eager = EXACT.to(dtype)
    assert is_near(eager, eager * (1 + near), None)
    assert not is_near(eager, eager * (1 + far), None)
    assert not is_near(eager, eager * (1 + far), EXACT)


def test_as_good_as_eager() -> None:
    eager = (EXACT * 1.001).float()
    assert is_near(eager, EXACT.float(), EXACT)
    assert is_near(eager, (EXACT * 0.998).float(), EXACT)
    assert not is_near(eager, (EXACT * 0.99).float(), EXACT)
    assert not is_near(eager, EXACT.float(), None)


def test_a_reference_of_another_function_proves_nothing() -> None:
    assert not is_near(EXACT.float(), EXACT.float() + 1, EXACT * -1)


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
def test_infinities_and_nans(special: float) -> None:
    eager = (EXACT * 1.001).float()
    eager[0] = special
    exact = EXACT.clone()
    exact[0] = special
    assert is_near(eager, exact.float(), exact)
    for other in (1.0, float("inf"), float("-inf"), float("nan")):
        if other != special and not (other != other and special != special):
            found = exact.float()
            found[0] = other
            assert not is_near(eager, found, exact)


def test_integers_are_exact() -> None:
    assert is_near(torch.tensor([1, 2]), torch.tensor([1, 2]), None)
    assert not is_near(torch.tensor([1, 2]), torch.tensor([1, 3]), None)
    assert not is_near(torch.tensor([True]), torch.tensor([False]), None)

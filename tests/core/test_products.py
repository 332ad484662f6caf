"""Products over places with the same index, as expressions that PyTorch's operators compute in C."""

from __future__ import annotations

import pytest
import torch

from switchgear_core.grad.products import index_product, scatter_product
from tests.in_turn import in_turn


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@in_turn(dim=[0, 1, -1], include_self=[True, False])
def test_products_are_those_of_pytorchs_operators(dim: int, include_self: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    source = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    index = torch.randint(0, 3, (2, 3), generator=generator)
    expected = torch.scatter_reduce(base, dim, index, source, "prod", include_self=include_self)
    found = scatter_product(base, dim, index, source, "prod", include_self=include_self)
    torch.testing.assert_close(found, expected)
    places = torch.tensor([1, 1, 0, 1])[: base.shape[dim]]
    whole = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    expected = torch.index_reduce(base, dim, places, whole, "prod", include_self=include_self)
    found = index_product(base, dim, places, whole, "prod", include_self=include_self)
    torch.testing.assert_close(found, expected)


@in_turn(include_self=[True, False])
def test_a_number_is_a_product_of_one_place(include_self: bool) -> None:
    base, source, index = torch.tensor(2.0), torch.tensor(3.0), torch.tensor(0)
    expected = torch.scatter_reduce(base, 0, index, source, "prod", include_self=include_self)
    found = scatter_product(base, 0, index, source, "prod", include_self=include_self)
    assert (found.shape, found.item()) == (expected.shape, expected.item())

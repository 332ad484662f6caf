"""Products over places with the same index, as expressions whose derivatives of any order read no data.

PyTorch's own formulas, when differentiated, search the data for zeros, to refuse more than one.
"""

from __future__ import annotations

import torch


def index_product(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Compute `aten.index_reduce` with "prod"."""
    spread = index.reshape(
        [-1 if axis == dim % max(self.dim(), 1) else 1 for axis in range(self.dim())]
    )
    return scatter_product(
        self, dim, spread.expand(source.shape), source, reduce, include_self=include_self
    )


def scatter_product(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Compute `aten.scatter_reduce` with "prod": one factor per place of `self` and of `index` along `dim`."""
    if not self.dim():
        vector = scatter_product(
            self[None], 0, index.reshape(-1), src.reshape(-1), reduce, include_self=include_self
        )
        return vector[0]
    reached = [slice(size) for size in index.shape]
    factors = src[tuple(reached)].movedim(dim, -1).unsqueeze(-2)
    reached[dim] = slice(None)
    old = self[tuple(reached)].movedim(dim, -1)
    places = torch.arange(self.shape[dim], device=self.device).unsqueeze(-1)
    hit = index.movedim(dim, -1).unsqueeze(-2) == places
    product = torch.where(hit, factors, 1).prod(-1)
    product = old * product if include_self else torch.where(hit.any(-1), product, old)
    result = self.clone()
    result[tuple(reached)] = product.movedim(-1, dim)
    return result

"""Comparison of trained losses and parameters with eager's, for all examples."""

from __future__ import annotations

import torch
from torch import Tensor

#: A jitted function is one autograd node, which gives the terms of a gradient as one sum. Eager adds each term to
#: gradients from elsewhere, in another order, so the last bits differ.
SUMMED_OTHERWISE = frozenset({"around"})
#: The largest error of an entry in these cases, relative to the largest entry of its tensor.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def report(trained: dict[str, tuple[list[Tensor], list[Tensor]]]) -> int:
    """Print the losses side by side, and compare each column with the first; return 0 if all match as expected."""
    print(f"{'step':>4}" + "".join(f"{name:>14}" for name in trained))
    for step, row in enumerate(zip(*(losses for losses, _ in trained.values()), strict=True)):
        print(f"{step:>4}" + "".join(f"{loss:14.8f}" for loss in row))
    (losses, parameters), *others = trained.values()
    expected = [*losses, *parameters]
    equal = True
    for name, (found, moved) in zip(list(trained)[1:], others, strict=True):
        pairs = list(zip([*found, *moved], expected, strict=True))
        if all(torch.equal(one, other) for one, other in pairs):
            verdict = "bit-equal to eager's"
        elif name in SUMMED_OTHERWISE and all(map(is_close, *zip(*pairs, strict=True))):
            verdict = f"equal to eager's to {TOLERANCE[expected[0].dtype]:.0e}"
        else:
            verdict, equal = "DIFFERENT from eager's", False
        print(f"{name}: losses and trained parameters {verdict}")
    return 0 if equal else 1


def is_close(one: Tensor, other: Tensor) -> bool:
    """Check whether every error is within rounding, relative to the largest entry."""
    return bool((one - other).abs().max() <= TOLERANCE[other.dtype] * other.abs().max())

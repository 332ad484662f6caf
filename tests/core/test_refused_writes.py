"""Writes whose gradients could not be eager's to the bit are refused, each with its reason; others are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from tests.falling_back import falls_back
from tests.in_turn import in_turn

#: A function of a tensor that requires grad and one that does not.
Function = Callable[[Tensor, Tensor], Tensor]


def writing(write: Callable[[Tensor, Tensor, Tensor], object], *, made: str = "x") -> Function:
    """Write to a tensor that is made inside of one of the arguments, and return it."""

    def function(x: Tensor, c: Tensor) -> Tensor:
        target = (x if made == "x" else c) * 2
        write(target, x, c)
        return target * 3

    return function


WRITES: dict[str, tuple[Function, str]] = {
    "expanded, by an operator": (
        writing(lambda t, x, c: torch.ops.aten.fill_.Scalar(t[:, :1].expand(3, 2)[:, 0], 1.0)),
        "through a view made by expand",
    ),
    "expanded part of a part": (
        writing(lambda t, x, c: t[1:2].expand(3, 3)[0].fill_(1.0)),
        "through a view made by expand",
    ),
    "expanded": (writing(lambda t, x, c: t[:, :1].expand(3, 2)[0].mul_(c[0, 0])), "through a view made by expand"),
    "unfolded": (writing(lambda t, x, c: t.unfold(0, 2, 2).mul_(2), made="c"), "through a view made by unfold"),
    "strided": (writing(lambda t, x, c: t.as_strided((2,), (1,)).mul_(2)), "through a view made by as_strided"),
    "of what requires grad to data": (
        writing(lambda t, x, c: t.data.copy_(x)),
        "of a tensor that requires grad through .data",
    ),
    "of what does not to data": (writing(lambda t, x, c: t.data.copy_(c), made="c"), ""),
    "of what requires grad to a transposed view": (
        writing(lambda t, x, c: t.t().copy_(x), made="c"),
        "of or to a tensor that requires grad through a transposed view",
    ),
    "to a transposed view of what requires grad": (
        writing(lambda t, x, c: t.t().mul_(2)),
        "of or to a tensor that requires grad through a transposed view",
    ),
    "of what does not to a transposed view": (writing(lambda t, x, c: t.t().copy_(c), made="c"), ""),
    "to a row of a transposed view": (writing(lambda t, x, c: t.t()[0].mul_(2)), ""),
    "to a row": (writing(lambda t, x, c: t[0].mul_(2)), ""),
    "that is read by the call": (
        writing(lambda t, x, c: t[0].add_(t[1])),
        "to a tensor that requires grad and is read by the same call",
    ),
    "that is read and requires none": (writing(lambda t, x, c: t[0].add_(t[1]), made="c"), ""),
    "that overlaps in part": (
        writing(lambda t, x, c: t[1:].copy_(t[:2]), made="c"),
        "whose memory overlaps that of another argument in part",
    ),
    "with an operand of another dtype": (
        writing(lambda t, x, c: t.mul_(x.double())),
        "with an operand of another dtype than",
    ),
    "with a constant of another dtype": (writing(lambda t, x, c: t.mul_(c.double())), ""),
}


@in_turn(name=WRITES)
def test_writes(name: str) -> None:
    function, why = WRITES[name]
    jitted: Any = sg.jit(function, executors=["torch"])
    results = []
    for called in (function, jitted):
        x = torch.arange(9.0).reshape(3, 3).clone().requires_grad_()
        c = torch.arange(1.0, 10.0).reshape(3, 3)
        try:
            if why and called is jitted:
                with falls_back(why):
                    result = called(x, c)
            else:
                result = called(x, c)
        except RuntimeError as error:
            results.append([type(error), str(error)])
            continue
        if result.requires_grad:
            result.sum().backward()
        results.append([result.tolist(), None if x.grad is None else x.grad.tolist()])
    assert results[0] == results[1]
    assert sg.cache_info(jitted).fallbacks == bool(why)

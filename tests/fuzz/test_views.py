"""A view of a view, written to, and what is read afterwards: a fixed sample of all combinations, against eager."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fuzz.compare import Outcome, Script, judge

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "view_as": lambda x: x.view_as(x),
    "alias": lambda x: x[...],
    "detach": lambda x: x.detach(),
    "transpose": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "row": lambda x: x[1],
    "rows": lambda x: x[1:],
    "steps": lambda x: x[:, ::2],
    "diagonal": lambda x: x.diagonal(),
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(-1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split(1)[1],
    "unbind": lambda x: x.unbind(1)[0],
    "expand": lambda x: x.expand(2, *x.shape),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "view_as_real": torch.view_as_real,
    "view_as_complex": torch.view_as_complex,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj": lambda x: x.conj(),
    "imag of conj": lambda x: x.conj().imag,
    "dtype": lambda x: x.view(torch.int32) if x.dtype == torch.float32 else x,
    "contiguous": lambda x: x.contiguous(),
    "sin": lambda x: x.sin(),
}


def set_row(view: Tensor) -> None:
    view[0] = 2


def set_masked(view: Tensor) -> None:
    view[view.real > 0] = 1


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda view: view.mul_(2),
    "sin_": lambda view: view.sin_(),
    "add_ itself": lambda view: view.add_(view),
    "zero_": lambda view: view.zero_(),
    "copy_": lambda view: view.copy_(view.cos()),
    "set a row": set_row,
    "set masked": set_masked,
    "index_put_": lambda view: view.index_put_((torch.tensor([0]),), torch.tensor(3.0, dtype=view.dtype)),
    "transpose_": lambda view: view.transpose_(0, -1),
    "unsqueeze_": lambda view: view.unsqueeze_(0),
}

#: What is returned, of the argument, the view of the view, the view, and what they are views of.
RESULTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "products": lambda x, inner, outer, base: (x * 3, inner * 2),
    "inner": lambda x, inner, outer, base: inner,
    "both views": lambda x, inner, outer, base: (outer, inner),
    "argument": lambda x, inner, outer, base: (x, outer * 2),
    "base": lambda x, inner, outer, base: (base, base * 2, inner),
    "all": lambda x, inner, outer, base: (inner, outer, base),
}

#: The base is the argument, also with the outer view made under no_grad, or made inside, also with that written to.
WAYS = ("argument", "no_grad", "inside", "outer")
KINDS = ("real", "pairs", "columns", "rows", "plain", "complex", "complex columns", "complex rows", "plain complex")

Case = tuple[str, str, str, str, str, str]
SAMPLE, SLOW_SAMPLE = 200, 12_000


def cases(count: int, seed: int) -> list[Case]:
    every = list(itertools.product(VIEWS, VIEWS, WRITES, RESULTS, KINDS, WAYS))
    return random.Random(seed).sample(every, count)


def arguments(kind: str) -> tuple[list[Any], list[Tensor]]:
    torch.manual_seed(7)
    dtype = torch.complex64 if "complex" in kind else torch.float32
    leaf = torch.randn((3, 4, 2) if kind == "pairs" else (4, 3), dtype=dtype)
    if "plain" in kind:
        return [leaf], []
    leaf.requires_grad_()
    return [leaf.mT * 1 if "columns" in kind else (leaf * 1)[1:] if "rows" in kind else leaf * 1], [leaf]


def program(case: Case) -> Script:
    outer, inner, write, result, kind, way = case

    def function(x: Tensor) -> Any:
        base = x * 1 if way in ("inside", "outer") else x
        with torch.set_grad_enabled(way != "no_grad"):
            first = VIEWS[outer](base)
        second = VIEWS[inner](first)
        WRITES[write](first if way == "outer" else second)
        return RESULTS[result](x, second, first, base)

    return Script(lambda: arguments(kind), function)


def run(count: int, seed: int) -> tuple[collections.Counter[Outcome], list[str]]:
    found: collections.Counter[Outcome] = collections.Counter()
    different = []
    for case in cases(count, seed):
        verdict = judge(program(case))
        found[verdict.outcome] += 1
        # Kernels round by strides, and those of gradients of views are not promised.
        if verdict.outcome is Outcome.DIFFERENT and "by rounding only" not in verdict.kind:
            different.append(f"{case}: {verdict.detail.splitlines()[0]}")
    return found, different


def test_views_of_views_that_are_written_to() -> None:
    found, different = run(SAMPLE, 0)
    assert not different, "\n".join(different)
    assert found[Outcome.EQUAL] > 0.25 * SAMPLE, found


@pytest.mark.slow
def test_many_views_of_views_that_are_written_to() -> None:
    _, different = run(SLOW_SAMPLE, 1)
    assert not different, "\n".join(different)

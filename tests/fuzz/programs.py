"""Random programs as data, and the hypothesis strategies that draw them.

A program is made of small integers that say little by themselves: which operand a step takes is counted from the newest
tensor that fits, and which dimension, modulo what there is. `tests.fuzz.source` turns one into Python. So whatever is
drawn means something, and so does what is left when hypothesis, shrinking, removes or lowers a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from tests.fuzz.operators import OPERATORS

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument. `grad` says where in an autograd graph it stands; `alias`, what of an earlier one it is.

    Where there is an earlier one, an argument with an `alias` takes everything else from it.
    """

    shape: Shape
    dtype: str
    grad: str
    layout: str
    alias: str
    of: int


@dataclass(frozen=True, slots=True)
class Step:
    """One call: an operator, operands counted from the newest tensor that fits, parameters modulo what fits."""

    operator: str
    slots: tuple[int, int, int]
    numbers: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """Steps in one grad mode."""

    mode: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """An in-place call on something that the program returned, or on an argument, after its first gradient."""

    slot: int
    how: str


@dataclass(frozen=True, slots=True)
class Program:
    """A function, its arguments, how it is called, and what is done with what it returns."""

    arguments: tuple[Argument, ...]
    numbers: tuple[int | float | bool, ...]
    regions: tuple[Region, ...]
    outputs: tuple[int, ...]  # counted from the newest tensor
    calls: tuple[str, ...]
    omitted: int  # bits of the differentiable outputs that the loss leaves out
    write: Write | None
    keeps_errors: bool  # a step that raises in eager stays, and is the last


#: What a fuzzer of exactness is after is aliasing and writes, so most programs have both. The first of each is the
#: simplest, which is what hypothesis shrinks to. `.data` is nowhere: a write through it goes behind the version
#: counter, so that eager's own saved tensors are overwritten unnoticed and its gradient is wrong.
SHAPES: dict[Shape, int] = {
    (3, 4): 8,
    (4,): 4,
    (): 3,
    (4, 4): 3,
    (2, 3, 4): 4,
    (3, 1): 2,
    (1, 4): 1,
    (2, 3, 2, 2): 2,
    (0, 4): 1,
    (0,): 1,
}
DTYPES = {"float32": 10, "float64": 4, "complex64": 2, "int64": 1, "bool": 1, "bfloat16": 1}
GRADS = {"leaf": 6, "none": 4, "non-leaf": 4, "view of a leaf": 1}
LAYOUTS = {"contiguous": 8, "transposed": 3, "window": 2, "expanded": 1, "channels last": 1}
ALIASES = {"": 9, "same": 2, "view": 2, "rows": 2, "transpose": 2, "overlap": 2, "detached": 1, "real": 1}
MODES = {"": 12, "no_grad": 3, "enable_grad": 1, "no_grad, enable_grad": 1}
CALLS = {
    ("same", "same"): 8,
    ("same", "same", "distinct"): 2,
    ("distinct", "same", "same"): 2,
    ("same", "same", "no_grad"): 1,
    ("no_grad", "no_grad", "same"): 1,
    ("same", "same", "detached"): 1,
}
WRITES = {"mul_": 3, "no_grad": 1, "row": 2}


def weighted(weights: dict[T, int]) -> st.SearchStrategy[T]:
    """One of the keys, each as often as its weight says."""
    return st.sampled_from([key for key, weight in weights.items() for _ in range(weight)])


def slots() -> st.SearchStrategy[int]:
    """The newest tensors more often than the others."""
    return st.sampled_from([0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13])


def arguments() -> st.SearchStrategy[Argument]:
    """One tensor argument."""
    return st.builds(
        Argument,
        shape=weighted(SHAPES),
        dtype=weighted(DTYPES),
        grad=weighted(GRADS),
        layout=weighted(LAYOUTS),
        alias=weighted(ALIASES),
        of=st.integers(0, 2),
    )


def steps() -> st.SearchStrategy[Step]:
    """One step."""
    number = st.integers(0, 23)
    return st.builds(
        Step,
        operator=weighted({name: operator.weight for name, operator in OPERATORS.items()}),
        slots=st.tuples(slots(), slots(), slots()),
        numbers=st.tuples(number, number, number),
    )


def programs() -> st.SearchStrategy[Program]:
    """A whole program."""
    region = st.builds(Region, mode=weighted(MODES), steps=st.lists(steps(), min_size=1, max_size=8).map(tuple))
    return st.builds(
        Program,
        arguments=st.lists(arguments(), min_size=1, max_size=3).map(tuple),
        numbers=st.lists(st.sampled_from([2, 3, 0.5, True]), max_size=2).map(tuple),
        regions=st.lists(region, min_size=1, max_size=5).map(tuple),
        outputs=st.lists(slots(), min_size=1, max_size=4).map(tuple),
        calls=weighted(CALLS),
        omitted=st.sampled_from([0, 0, 0, 1, 2, 5]),
        write=st.none() | st.builds(Write, slot=st.integers(0, 7), how=weighted(WRITES)),
        keeps_errors=st.sampled_from([False] * 11 + [True]),
    )

"""Says in words how two results differ: structure, metadata, and every bit of every value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from tests import under_test
from tests.under_test import is_near


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far values may lie from eager's, and why they do; signs of zeros are free, and strides too if `strides`.

    `modes` names where, "" everywhere.
    """

    relative: float
    absolute: float
    cause: str
    strides: bool = False
    modes: str = ""


@dataclass(frozen=True, slots=True)
class Undefined:
    """Values that eager itself leaves to chance: metadata is compared, values are not."""

    cause: str


@dataclass(frozen=True, slots=True)
class Fused:
    """What a fusion executor computes, `is_near` to eager or within the tolerance that it has without one."""

    without: Tolerance | None = None


Exactness = Tolerance | Undefined | Fused | None  # None: bit for bit


def in_mode(exactness: Exactness, mode: str) -> Exactness:
    """What is asked of values in this mode of a database."""
    return None if isinstance(exactness, Tolerance) and exactness.modes not in mode else exactness


# What must agree about a tensor besides its values.
_FACTS: dict[str, Callable[[torch.Tensor], object]] = {
    "type": type,
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "layout": lambda tensor: tensor.layout,
    "shape": lambda tensor: tuple(tensor.shape),
    # Strides of a tensor without elements lead nowhere.
    "stride": lambda tensor: tensor.stride() if tensor.layout is torch.strided and tensor.numel() else None,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "conjugate bit": lambda tensor: tensor.is_conj(),
    "negative bit": lambda tensor: tensor.is_neg(),
}


def differences(
    expected: object, actual: object, where: str, exactness: Exactness = None, exact: object = None
) -> Iterator[str]:
    """Every way in which `actual`, a pytree, is not what eager's `expected` is, or `exact`, what it is in float64."""
    if not isinstance(exactness, (Fused, Undefined)) and under_test.EXECUTORS != ["torch"]:
        exactness = Fused(exactness)
    expected_leaves, expected_structure = pytree.tree_flatten(expected)
    actual_leaves, actual_structure = pytree.tree_flatten(actual)
    if expected_structure != actual_structure:
        yield f"{where}: structure is {actual_structure}, eager's {expected_structure}"
        return
    several = len(expected_leaves) > 1
    exact_leaves = pytree.tree_leaves(exact)
    if len(exact_leaves) != len(expected_leaves):
        exact_leaves = [None] * len(expected_leaves)
    for index, leaves in enumerate(zip(expected_leaves, actual_leaves, exact_leaves, strict=True)):
        yield from _leaf_differences(*leaves, f"{where}[{index}]" if several else where, exactness)


def _leaf_differences(
    expected: object, actual: object, exact: object, where: str, exactness: Exactness
) -> Iterator[str]:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        yield from _tensor_differences(expected, actual, exact, where, exactness)
    elif type(expected) is not type(actual):
        yield f"{where}: is {_brief(actual)}, eager's {_brief(expected)}"
    elif isinstance(expected, (bool, int, float, complex, str, type(None), torch.dtype, torch.device)):
        both_nan = expected != expected and actual != actual
        if expected != actual and not both_nan:
            yield f"{where}: is {actual!r}, eager's {expected!r}"


def _tensor_differences(
    expected: torch.Tensor, actual: torch.Tensor, exact: object, where: str, exactness: Exactness
) -> Iterator[str]:
    fused = isinstance(exactness, Fused)
    exactness = exactness.without if isinstance(exactness, Fused) else exactness
    free = {"stride"} if isinstance(exactness, Tolerance) and exactness.strides else set()
    wrong = [name for name, fact in _FACTS.items() if name not in free and fact(expected) != fact(actual)]
    for name in wrong:
        yield f"{where}: {name} is {_FACTS[name](actual)}, eager's {_FACTS[name](expected)}"
    if {"dtype", "layout", "shape", "device"}.isdisjoint(wrong) and not isinstance(exactness, Undefined):
        for part, (one, other) in enumerate(zip(_plain_parts(expected), _plain_parts(actual), strict=True)):
            if fused and one.shape == other.shape and is_near(one, other, _wide(exact, one)):
                continue
            yield from _value_differences(one, other, where if part == 0 else f"{where}, part {part}", exactness)


def _value_differences(expected: torch.Tensor, actual: torch.Tensor, where: str, exactness: Exactness) -> Iterator[str]:
    if expected.shape != actual.shape:
        yield f"{where}: {tuple(actual.shape)} stored values, eager's {tuple(expected.shape)}"
        return
    same = _same(expected, actual)
    if isinstance(exactness, Tolerance):
        same |= torch.isclose(actual, expected, exactness.relative, exactness.absolute, equal_nan=True)
    if same.all():
        return
    if torch.equal(expected.nan_to_num(), actual.nan_to_num()) and torch.equal(expected.isnan(), actual.isnan()):
        yield f"{where}: sign of zero differs in {int((~same).sum())} of {same.numel()} values"
        return
    distance = (expected.to(torch.float64) - actual.to(torch.float64)).abs().nan_to_num(nan=float("inf"))[~same].max()
    yield f"{where}: {int((~same).sum())} of {same.numel()} values differ, by at most {distance:.3g}"


def _same(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Where values agree to the bit; any NaN is as good as any other."""
    same = expected == actual
    if expected.is_floating_point():
        same &= torch.signbit(expected) == torch.signbit(actual)
        same |= expected.isnan() & actual.isnan()
    return same


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense real tensors that hold the values of any tensor."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._values(), tensor._indices()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    else:
        parts = [tensor]
    return [_plain(part) for part in parts]


def _wide(exact: object, expected: torch.Tensor) -> torch.Tensor | None:
    """The dense tensor of float64 that `expected` is to be compared with, if there is one."""
    if not isinstance(exact, torch.Tensor) or exact.layout is not torch.strided:
        return None
    (plain,) = _plain_parts(exact)
    return plain.double() if plain.is_floating_point() and plain.shape == expected.shape else None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    if tensor.is_complex():
        # Half the operators are missing for the smallest complex type.
        tensor = torch.view_as_real(tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.to(torch.float32)
    return tensor


def _brief(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.80}"

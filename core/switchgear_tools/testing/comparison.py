"""Comparison of results with those of PyTorch, each difference in words."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from switchgear_core.errors import FallbackWarning
from switchgear_core.nearness import tolerances, widened
from switchgear_core.nesting import tensors_in, twin
from switchgear_tools.testing.samples import Sample

#: Results, gradients by the wanted arguments, and second derivatives by them, as far as there are some.
Derivatives: TypeAlias = list[Sequence[torch.Tensor | None]]
_ORDERS = ("result", "gradient of argument", "second derivative by argument")


def derivatives(
    sample: Sample, function: Callable[..., object], wanted: Sequence[int], orders: int
) -> Derivatives:
    """Return the result of a function for copies of a sample's arguments; those `wanted` require grad."""
    places = itertools.count()
    copied = sample.mapped(
        lambda one: twin(one).requires_grad_() if next(places) in wanted else twin(one)
    )
    leaves = [copied.tensors()[place] for place in wanted]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        results = [*tensors_in(function(*copied.args, **copied.kwargs))]
    found: Derivatives = [[one.detach() for one in results]]
    ends: Sequence[torch.Tensor | None] = results
    for order in range(1, orders + 1):
        through = [one for one in ends if one is not None and one.requires_grad]
        if not through or not leaves:
            break
        gradients: Any = torch.autograd.grad(
            _weighted(through), leaves, create_graph=order < orders, allow_unused=True
        )
        found.append([one if one is None else one.detach() for one in gradients])
        ends = gradients
    return found


def differences(
    found: Derivatives, expected: Derivatives, wanted: Sequence[int], sample: Sample
) -> Iterator[str]:
    """Return the difference between a result and the one of PyTorch for a sample."""
    if len(found[0]) != len(expected[0]):
        yield f"{len(found[0])} results, expected {len(expected[0])}"
        return
    exact: Derivatives = []
    # of what does not run in float64; it seeds the random stream, of which the caller looks whether it changed
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=()):
        exact = derivatives(sample.mapped(widened), sample.function, wanted, len(expected) - 1)
    for order, (mine, theirs) in enumerate(itertools.zip_longest(found, expected, fillvalue=())):
        exacts = exact[order] if order < len(exact) else ()
        triples = itertools.zip_longest(mine, theirs, exacts)
        for index, (one, two, three) in enumerate(triples):
            what = f"{_ORDERS[order]} {wanted[index] if order else index}"
            yield from unlike(what, one, two, three, sample.tensors())


def stride_differences(found: Derivatives, expected: Derivatives) -> Iterator[str]:
    """Return the results with another layout."""
    for index, (one, two) in enumerate(zip(found[0], expected[0], strict=True)):
        if one is None or two is None or one.layout is not torch.strided or not one.numel():
            continue
        if one.stride() != two.stride():
            yield f"result {index} has strides {one.stride()}, expected {two.stride()}"


def unlike(
    what: str,
    one: torch.Tensor | None,
    two: torch.Tensor | None,
    exact: torch.Tensor | None = None,
    inputs: Sequence[torch.Tensor] = (),
) -> Iterator[str]:
    """Return the difference of two tensors beyond `tolerances`; None is zero."""
    if one is None or two is None:
        other = two if one is None else one
        zeros = None if other is None else torch.zeros_like(other)
        pair = (zeros, two) if one is None else (one, zeros)
        if other is not None and next(unlike(what, *pair, exact, inputs), ""):
            yield f"the {what} is {'missing' if one is None else 'there'}, and {_shown(other)}"
        return
    if (one.shape, one.dtype, one.device) != (two.shape, two.dtype, two.device):
        got, wanted = (f"{it.dtype} of shape {tuple(it.shape)} on {it.device}" for it in (one, two))
        yield f"the {what} is {got}, expected {wanted}"
        return
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    near, most = tolerances(two, exact, inputs)
    if not torch.allclose(one, two, rtol=near, atol=most, equal_nan=True):
        yield f"the {what} is wrong\n    expected {_shown(two)}\n    got      {_shown(one)}"


def is_random(sample: Sample) -> bool:
    """Check whether PyTorch draws random numbers, or gives other results in the next run."""
    before = torch.get_rng_state()
    pairs = zip(*(tensors_in(sample.mapped(twin)()) for _ in range(2)), strict=True)
    return any(next(unlike("", one, two), "") for one, two in pairs) or not torch.equal(
        before, torch.get_rng_state()
    )


def surroundings() -> dict[str, object]:
    """The state of the process that a call is to leave as it was."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the grad mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the mode of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the random stream": torch.get_rng_state().tolist(),
    }


def _weighted(ends: Sequence[torch.Tensor]) -> torch.Tensor:
    """A sum in which every element has a weight of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for one in ends:
        ramp = (
            torch.arange(1, one.numel() + 1, dtype=torch.float64) * 0.6180339887498949 % 1.0 + 0.5
        )
        weighted = (one * ramp.reshape(one.shape).to(one.dtype)).sum()
        total = total + (weighted.real if weighted.is_complex() else weighted).double()
    return total


def _shown(one: torch.Tensor) -> str:
    shown = ", ".join(f"{value:.6g}" for value in one.detach().flatten()[:6].tolist())
    return f"[{shown}{', ...' if one.numel() > 6 else ''}]"

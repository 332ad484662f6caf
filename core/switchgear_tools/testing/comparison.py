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
    sample: Sample, function: Callable[..., object], slots: Sequence[int], orders: int
) -> Derivatives:
    """Return the result of a function for copies of a sample's arguments; tensors at `slots` require grad."""
    places = itertools.count()
    copied = sample.mapped(
        lambda tensor: twin(tensor).requires_grad_() if next(places) in slots else twin(tensor)
    )
    leaves = [copied.tensors()[place] for place in slots]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        results = [*tensors_in(function(*copied.args, **copied.kwargs))]
    by_order: Derivatives = [[tensor.detach() for tensor in results]]
    ends: Sequence[torch.Tensor | None] = results
    for order in range(1, orders + 1):
        through = [tensor for tensor in ends if tensor is not None and tensor.requires_grad]
        if not through or not leaves:
            break
        gradients: Any = torch.autograd.grad(
            _weighted(through), leaves, create_graph=order < orders, allow_unused=True
        )
        by_order.append([tensor if tensor is None else tensor.detach() for tensor in gradients])
        ends = gradients
    return by_order


def differences(
    results: Derivatives, expected: Derivatives, slots: Sequence[int], sample: Sample
) -> Iterator[str]:
    """Return the difference between a result and the one of PyTorch for a sample."""
    if len(results[0]) != len(expected[0]):
        yield f"{len(results[0])} results, expected {len(expected[0])}"
        return
    exact: Derivatives = []
    # of what does not run in float64; it seeds the random stream, of which the caller looks whether it changed
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=()):
        exact = derivatives(sample.mapped(widened), sample.function, slots, len(expected) - 1)
    for order, (mine, theirs) in enumerate(itertools.zip_longest(results, expected, fillvalue=())):
        exacts = exact[order] if order < len(exact) else ()
        triples = itertools.zip_longest(mine, theirs, exacts)
        for index, (ours, base, three) in enumerate(triples):
            what = f"{_ORDERS[order]} {slots[index] if order else index}"
            yield from unlike(what, ours, base, three, sample.tensors())


def stride_differences(results: Derivatives, expected: Derivatives) -> Iterator[str]:
    """Return the results with another layout."""
    for index, (ours, base) in enumerate(zip(results[0], expected[0], strict=True)):
        if ours is None or base is None or ours.layout is not torch.strided or not ours.numel():
            continue
        if ours.stride() != base.stride():
            yield f"result {index} has strides {ours.stride()}, expected {base.stride()}"


def unlike(
    what: str,
    ours: torch.Tensor | None,
    base: torch.Tensor | None,
    exact: torch.Tensor | None = None,
    inputs: Sequence[torch.Tensor] = (),
) -> Iterator[str]:
    """Return the difference of two tensors beyond `tolerances`; None is zero."""
    if ours is None or base is None:
        other = base if ours is None else ours
        zeros = None if other is None else torch.zeros_like(other)
        pair = (zeros, base) if ours is None else (ours, zeros)
        if other is not None and next(unlike(what, *pair, exact, inputs), ""):
            yield f"the {what} is {'missing' if ours is None else 'there'}, and {_shown(other)}"
        return
    if (ours.shape, ours.dtype, ours.device) != (base.shape, base.dtype, base.device):
        mine, theirs = (f"{t.dtype} of shape {tuple(t.shape)} on {t.device}" for t in (ours, base))
        yield f"the {what} is {mine}, expected {theirs}"
        return
    if ours.layout is not torch.strided:
        ours, base = ours.to_dense(), base.to_dense()
    near, most = tolerances(base, exact, inputs)
    if not torch.allclose(ours, base, rtol=near, atol=most, equal_nan=True):
        yield f"the {what} is wrong\n    expected {_shown(base)}\n    got      {_shown(ours)}"


def is_random(sample: Sample) -> bool:
    """Check whether PyTorch draws random numbers, or gives other results in the next run."""
    before = torch.get_rng_state()
    pairs = zip(*(tensors_in(sample.mapped(twin)()) for _ in range(2)), strict=True)
    return any(next(unlike("", first, second), "") for first, second in pairs) or not torch.equal(
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
    for end in ends:
        ramp = (
            torch.arange(1, end.numel() + 1, dtype=torch.float64) * 0.6180339887498949 % 1.0 + 0.5
        )
        weighted = (end * ramp.reshape(end.shape).to(end.dtype)).sum()
        total = total + (weighted.real if weighted.is_complex() else weighted).double()
    return total


def _shown(tensor: torch.Tensor) -> str:
    shown = ", ".join(f"{value:.6g}" for value in tensor.detach().flatten()[:6].tolist())
    return f"[{shown}{', ...' if tensor.numel() > 6 else ''}]"

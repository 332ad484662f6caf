"""Nearness: the comparison of results with those of PyTorch's operators, which are not exact themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from switchgear_core.nesting import tensors_in

#: Results by the names that messages use; None is zero.
Named: TypeAlias = Mapping[str, torch.Tensor | None]
#: The limit on the error of a result with another order of sums, as a multiple of the error of PyTorch's operators.
_TIMES = 10


def named(results: object, skipped: Collection[int] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of a result by name, without those at the places `skipped`."""
    places = enumerate(tensors_in(results))
    return {f"result {place}": tensor for place, tensor in places if place not in skipped}


def differences(
    results: Named,
    expected: Named,
    exactly: Callable[[], Named] = dict,
    inputs: Sequence[torch.Tensor] = (),
) -> Iterator[str]:
    """Yield how results differ from those of PyTorch's operators, a sentence for each.

    Args:
        results: the results.
        expected: the results of PyTorch's operators.
        exactly: the same computation in float64, called if results differ; it may raise.
        inputs: the inputs of the computation.
    """
    exact: Named | None = None
    for name in {**expected, **results}:
        if name not in expected or name not in results:
            yield f"{name} is {'missing' if name in expected else 'not one of PyTorch'}"
            continue
        ours, base = results[name], expected[name]
        pair = [tensor for tensor in (ours, base) if tensor is not None]
        if not pair:
            continue
        ours, base = (torch.zeros_like(pair[0]) if it is None else it for it in (ours, base))
        if text := mismatch(ours, base):
            yield f"{name} has {text}"
            continue
        ours, base = dense(ours), dense(base)
        if torch.allclose(ours, base, *tolerances(base), equal_nan=True):
            continue
        if exact is None:
            exact = {}
            with contextlib.suppress(Exception), torch.random.fork_rng(devices=()):
                exact = exactly()
        near, most = tolerances(base, exact.get(name), inputs)
        if not torch.allclose(ours, base, near, most, equal_nan=True):
            wide = torch.promote_types(base.dtype, torch.float32)
            off = float((ours.to(wide) - base.to(wide)).abs().max())
            values = f"expected {_shown(expected[name])}, got {_shown(results[name])}"
            yield f"{name} differs from PyTorch's operators by up to {off:.3g}, with {most:.3g} allowed: {values}"


def mismatch(result: torch.Tensor, expected: Any) -> str:
    """Return how the metadata of a result differ from those of a tensor or proxy; empty if equal."""
    mine = {"shape": tuple(result.shape), "dtype": result.dtype, "device": result.device}
    theirs = {"shape": tuple(expected.shape), "dtype": expected.dtype, "device": expected.device}
    return "; ".join(
        f"{key} {mine[key]}, expected {theirs[key]}" for key in mine if mine[key] != theirs[key]
    )


def tolerances(
    expected: torch.Tensor,
    exact: torch.Tensor | None = None,
    inputs: Sequence[torch.Tensor] = (),
) -> tuple[float, float]:
    """Return the relative and absolute tolerance of results; zeros for integers.

    The absolute tolerance is the square root of the dtype's precision, times the largest element. It grows where terms
    cancel: there a result more exact than PyTorch's is far from PyTorch's.

    Args:
        expected: the result of PyTorch's operators.
        exact: the same result computed in float64, if possible.
        inputs: the inputs of the computation. In float64, where nothing is more exact, their largest element counts,
            too.
    """
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0, 0.0
    near = torch.finfo(expected.dtype).eps ** 0.5
    most = near * _largest(expected)
    if expected.dtype in (torch.float64, torch.complex128):
        most = near * max(_largest(expected), *map(_largest, inputs), 0.0)
    elif exact is not None and exact.shape == expected.shape:
        most += _TIMES * _largest(expected.to(exact.dtype) - dense(exact))
    return near, most


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 or complex128; a tensor of integers unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the layout `torch.strided`."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _largest(tensor: torch.Tensor) -> float:
    tensor = dense(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    finite = tensor[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _shown(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    numbers = ", ".join(f"{value:.6g}" for value in dense(tensor).detach().flatten()[:6].tolist())
    return f"[{numbers}{', ...' if tensor.numel() > 6 else ''}]"

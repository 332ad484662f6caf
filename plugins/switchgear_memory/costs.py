"""Costs: the price of running a line, in bytes moved, estimated from metadata alone.

An operator costs the bytes of its arguments and results, times a weight measured on a CPU: 1 where memory is the limit,
2 for normalisations, 8 for longer computations (softmax, `pow`, GELU (tanh)). Matrix products, convolutions and
attention cost their operations, by PyTorch's formulas.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy, bytes_of, hint_of
from switchgear_core.ir.symbol import BoundSymbol, map_proxies
from switchgear_core.ir.writes import RESTRIDE

_aten = torch.ops.aten
_QUICK_NAMES = """
abs add addcdiv addcmul amax amin bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone
conj_physical copysign cos div elu eq erf exp expm1 floor fmax fmin ge gt hardsigmoid hardswish hardtanh heaviside isinf
isnan le leaky_relu lerp log logical_and logical_not logical_or logical_xor lt masked_fill maximum mean minimum mul ne
neg positive prod reciprocal relu round rsqrt rsub sgn sigmoid sign signbit silu sin sqrt square sub sum tanh threshold
trunc where _to_copy copy cat stack constant_pad_nd tril triu arange fill full full_like new_full new_ones new_zeros
ones ones_like scalar_tensor zeros zeros_like"""
#: Operators limited by memory traffic; other pointwise operators and reductions are limited by computation.
_QUICK = frozenset(_QUICK_NAMES.split())
#: Operators that read their arguments several times.
_NORMALISATIONS = frozenset({"_fused_rms_norm", "native_group_norm", "native_layer_norm"})
_SOFTMAXES = frozenset({"_log_softmax", "_safe_softmax", "_softmax"})
_REREADING, _SLOW = 2, 8
#: Exponents of powers that are computed as products and roots.
_EXPONENTS = (-2, -1, -0.5, 0.5, 2, 3)
#: Operations of a matrix product in the time to move one byte, on a CPU; on a GPU the number is higher.
_OPERATIONS = 8
#: The speed-up of an operator inside a fused kernel.
_FUSED = 4
_UNREPEATABLE = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
)


@functools.cache
def _operation_counts() -> dict[Any, Any]:
    """Return PyTorch's formulas; importing their module takes a second where it finds compilers of kernels."""
    counts: dict[Any, Any] = importlib.import_module("torch.utils.flop_counter").flop_registry
    return counts


def cost(items: Iterable[BoundSymbol], *, fused: bool = False) -> float:
    """Return the cost of lines, in bytes moved; views cost nothing. `fused`: elementwise lines move next to nothing."""
    return sum(_leaf_cost(leaf, fused) for leaf in leaves_of(items) if not is_view(leaf))


def _leaf_cost(leaf: BoundSymbol, fused: bool) -> float:
    moved = bytes_of(*leaf.inputs, *leaf.outputs)
    weight = weight_of(leaf)
    if weight is None:
        return max(moved, _operations(leaf) / _OPERATIONS)
    return weight * moved / (_FUSED if fused and not is_a_pass(leaf) else 1)


def _operations(leaf: BoundSymbol) -> float:
    """Return PyTorch's count of operations for a matrix product, a convolution or attention; 0 for other operators."""
    fn = leaf.symbol.fn
    if not isinstance(fn, internals.OpOverload):
        return 0.0
    packet, _, suffix = str(fn.overloadpacket).removeprefix("aten.").partition("_for_cpu")
    count = _operation_counts().get(getattr(_aten, packet + suffix, None))
    if count is None:
        return 0.0
    args, kwargs, output = map_proxies(_shape, (leaf.args, leaf.kwargs, leaf.output))
    if packet.startswith("_scaled_dot_product"):
        args = _with_as_many_heads(args)
    return float(count(*args, **kwargs, out_val=output))


def _with_as_many_heads(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with as many heads in keys and values as in queries.

    2.11: "sdpa_flop_count: query/key/value shapes are incompatible", where queries share keys.
    """
    shapes = [arg for arg in args if isinstance(arg, tuple) and len(arg) == 4]
    most = max(shape[1] for shape in shapes)
    return tuple([(arg[0], most, *arg[2:]) if arg in shapes else arg for arg in args])


def _shape(proxy: TensorProxy) -> Any:
    return tuple(map(hint_of, proxy.shape))


def weight_of(leaf: BoundSymbol) -> int | None:
    """Return an operator's time relative to moving its arguments and results; None if it is not recomputed."""
    fn = leaf.symbol.fn
    if leaf.symbol == RESTRIDE:
        return 1
    if not isinstance(fn, internals.OpOverload) or fn.namespace != "aten":
        return None
    if not _UNREPEATABLE.isdisjoint(fn.tags):
        return None
    name = fn._schema.name.removeprefix("aten::")
    if name in _QUICK or _is_product(leaf) or _is_exact_gelu(leaf):
        return 1
    if name in _NORMALISATIONS:
        return _REREADING
    slow = name in _SOFTMAXES or torch.Tag.pointwise in fn.tags or torch.Tag.reduction in fn.tags
    return _SLOW if slow else None


def is_a_pass(leaf: BoundSymbol) -> bool:
    """Check whether a call must read all of its arguments before it gives a result, and so fuses with no reader."""
    if leaf.symbol == RESTRIDE:
        return False
    fn: internals.OpOverload = leaf.symbol.fn  # type: ignore[assignment]
    name = fn._schema.name.removeprefix("aten::")
    return name in _NORMALISATIONS or name in _SOFTMAXES or torch.Tag.reduction in fn.tags


def _is_product(leaf: BoundSymbol) -> bool:
    """Check whether a call is a power computed by products and roots; symbolic exponents are not evaluated."""
    if leaf.symbol.fn is not _aten.pow.Tensor_Scalar:
        return False
    exponent = leaf.args[1]
    return isinstance(exponent, (int, float)) and exponent in _EXPONENTS


def _is_exact_gelu(leaf: BoundSymbol) -> bool:
    return leaf.symbol.fn is _aten.gelu.default and leaf.kwargs.get("approximate", "none") == "none"

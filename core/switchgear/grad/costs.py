"""Costs: what it takes to run a line, in bytes moved, estimated from metadata alone.

An operator costs the bytes of its arguments and results, times a weight as measured on a CPU: 1 where memory is the
limit, 2 for normalisations, 8 for what computes longer (softmax, `pow`, GELU (tanh)). Matrix products, convolutions and
attention cost their operations, by PyTorch's formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from switchgear import torch_private as internals
from switchgear.ir.aliasing import aliased_argument
from switchgear.ir.composites import leaves_of
from switchgear.ir.proxy import TensorProxy, bytes_of, hint_of
from switchgear.ir.symbol import BoundSymbol, map_proxies
from switchgear.ir.writes import RESTRIDE

_aten = torch.ops.aten
_QUICK_NAMES = """
abs add addcdiv addcmul amax amin bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clone
conj_physical copysign cos div elu eq erf exp expm1 floor fmax fmin ge gt hardsigmoid hardswish hardtanh heaviside isinf
isnan le leaky_relu lerp log logical_and logical_not logical_or logical_xor lt masked_fill maximum mean minimum mul ne
neg positive prod reciprocal relu round rsqrt rsub sgn sigmoid sign signbit silu sin sqrt square sub sum tanh threshold
trunc where _to_copy copy cat stack constant_pad_nd tril triu arange fill full full_like new_full new_ones new_zeros
ones ones_like scalar_tensor zeros zeros_like"""
#: Limited by the memory they move; other pointwise operators and reductions compute longer than that.
_QUICK = frozenset(_QUICK_NAMES.split())
#: Read what they are given several times over.
_NORMALISATIONS = frozenset({"_fused_rms_norm", "native_group_norm", "native_layer_norm"})
_SOFTMAXES = frozenset({"_log_softmax", "_safe_softmax", "_softmax"})
_REREADING, _SLOW = 2, 8
#: Powers that are computed as products and roots.
_EXPONENTS = (-2, -1, -0.5, 0.5, 2, 3)
#: Operations of a matrix product in the time that it takes to move a byte, on a CPU; on a GPU there are more.
_OPERATIONS = 8
#: How many times less an operator takes as a part of a kernel.
_FUSED = 4
_UNREPEATABLE = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
)


def cost(items: Iterable[BoundSymbol], *, fused: bool = False) -> float:
    """What lines cost, in bytes moved; views nothing. `fused`: what depends on single elements moves next to none."""
    return sum(_leaf_cost(leaf, fused) for leaf in leaves_of(items) if not is_view(leaf))


def _leaf_cost(leaf: BoundSymbol, fused: bool) -> float:
    moved = bytes_of(*leaf.inputs, *leaf.outputs)
    weight = weight_of(leaf)
    if weight is None:
        return max(moved, _operations(leaf) / _OPERATIONS)
    return weight * moved / (_FUSED if fused and not is_a_pass(leaf) else 1)


def _operations(leaf: BoundSymbol) -> float:
    """Those that PyTorch counts of a matrix product, a convolution or attention."""
    fn = leaf.symbol.fn
    if not isinstance(fn, internals.OpOverload):
        return 0.0
    packet, _, suffix = str(fn.overloadpacket).removeprefix("aten.").partition("_for_cpu")
    count = flop_registry.get(getattr(_aten, packet + suffix, None))
    if count is None:
        return 0.0
    args, kwargs, made = map_proxies(_shape, (leaf.args, leaf.kwargs, leaf.output))
    if packet.startswith("_scaled_dot_product"):
        args = _with_as_many_heads(args)
    return float(count(*args, **kwargs, out_val=made))


def _with_as_many_heads(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys and values with as many heads as queries have.

    2.11: "sdpa_flop_count: query/key/value shapes are incompatible", where queries share keys.
    """
    shapes = [arg for arg in args if isinstance(arg, tuple) and len(arg) == 4]
    most = max(shape[1] for shape in shapes)
    return tuple([(arg[0], most, *arg[2:]) if arg in shapes else arg for arg in args])


def _shape(proxy: TensorProxy) -> Any:
    return tuple(map(hint_of, proxy.shape))


def is_view(item: BoundSymbol) -> bool:
    """Whether what a bound symbol makes shares the storage of its argument, and with it its history.

    One that requires grad where its base does not (after a write that autograd did not see) would have no history for
    a second derivative if it were made again.
    """
    return bool(item.outputs) and all(map(_shares, leaves_of([item])))


def _shares(leaf: BoundSymbol) -> bool:
    base = aliased_argument(leaf)
    return base is not None and (
        base.requires_grad or not any(proxy.requires_grad for proxy in leaf.outputs)
    )


def weight_of(leaf: BoundSymbol) -> int | None:
    """How many times longer an operator takes than to move its arguments and results; None for one not run again."""
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
    """Whether it has to have read all of its arguments before it gives a result, so that it fuses with no reader."""
    if leaf.symbol == RESTRIDE:
        return False
    fn: internals.OpOverload = leaf.symbol.fn  # type: ignore[assignment]
    name = fn._schema.name.removeprefix("aten::")
    return name in _NORMALISATIONS or name in _SOFTMAXES or torch.Tag.reduction in fn.tags


def _is_product(leaf: BoundSymbol) -> bool:
    """Whether it is a power that is computed by products and roots; a symbolic exponent is not asked about."""
    if leaf.symbol.fn is not _aten.pow.Tensor_Scalar:
        return False
    exponent = leaf.args[1]
    return isinstance(exponent, (int, float)) and exponent in _EXPONENTS


def _is_exact_gelu(leaf: BoundSymbol) -> bool:
    return leaf.symbol.fn is _aten.gelu.default and leaf.kwargs.get("approximate", "none") == "none"

"""Saving: which values the forward keeps for the backward, and which the backward makes again, by a minimum cut.

Both are priced in bytes moved. Inputs cost nothing, for they live anyway; views are always made again, so of each
storage one tensor is saved. Pointwise operators, casts, copies, factories, reductions and normalisations may run
again; random numbers, everything else and operators from outside of PyTorch never do. An operator costs the bytes
that it moves, times a weight as measured on a CPU: 1 where memory is the limit, 2 for normalisations, 8 for what
computes longer (softmax, `pow`, GELU (tanh)). The option `memory` says how many bytes may be moved for one that is not
saved. What runs again reads the same values; an input that it reads must not be overwritten before the backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from switchgear.grad.min_cut import SINK, SOURCE, min_cut
from switchgear.grad.sweep import is_dense
from switchgear.ir.aliasing import aliased_argument, storages
from switchgear.ir.composites import leaves_of
from switchgear.ir.proxy import TensorProxy, bytes_of
from switchgear.ir.symbol import BoundSymbol, RuleOrigin, region_of
from switchgear.ir.writes import DRAW_BERNOULLI, RESTRIDE
from switchgear.who.memory import Memory

#: The bytes that recomputation may move for each byte that need not be saved for it.
_WORTH: Mapping[Memory, int] = {"eager": 1, "auto": 16, "balanced": 16, "lean": 64}

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
#: Draw nothing but zeros and ones.
_COINS = frozenset(
    {_aten.bernoulli.default, _aten.bernoulli.p, _aten.bernoulli.Tensor, DRAW_BERNOULLI.fn}
)


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What it costs to save a value, and to run a bound symbol again.

    Both are counted in bytes moved. `outputs` names what the forward returns, which its caller may hold anyway;
    `overwritten` the values that are saved as copies; `residuals` those that grad rules chose to save, with the rules.
    With "auto", what goes over its arguments once more is not run again: fused, all else costs next to nothing.
    """

    memory: Memory
    outputs: frozenset[str]
    overwritten: frozenset[str]
    residuals: Mapping[str, RuleOrigin]

    def saving(self, proxy: TensorProxy, maker: BoundSymbol | None) -> int | None:
        """The price of saving a value; None if another that shares its storage is saved in its place."""
        if maker is not None and is_view(maker) and proxy.name not in self.overwritten:
            return None
        worth = _WORTH[self.memory]
        if maker is not None and self.narrows(proxy, maker):
            flags = bytes_of(proxy) // proxy.dtype.itemsize
            return flags * worth + 2 * (flags + bytes_of(proxy))
        return bytes_of(proxy) * worth // (64 if proxy.name in self.outputs else 1)

    def narrows(self, proxy: TensorProxy, maker: BoundSymbol) -> bool:
        """Whether a value holds zeros and ones alone and is worth saving as booleans."""
        fits = proxy.dtype.itemsize > 1 and not proxy.requires_grad and is_dense(proxy)
        return (
            fits
            and self.memory != "eager"
            and maker.symbol.fn in _COINS
            and proxy.name not in self.outputs
        )

    def again(self, item: BoundSymbol) -> int | str:
        """The price of running a bound symbol again, or the reason why it is not."""
        if is_view(item):
            geometry = item.symbol.fn is _aten.as_strided.default
            copied = geometry and any(proxy.name in self.overwritten for proxy in item.outputs)
            return "its place in memory is not that of the copy" if copied else 0
        if self.memory == "eager":
            return "memory='eager' saves what eager saves"
        if item.is_random:
            return "it draws random numbers"
        if region_of(item):
            return "a region of torch.utils.checkpoint says so"
        price = 0
        for leaf in leaves_of([item]):
            weight = weight_of(leaf)
            if weight is None:
                return f"{leaf.symbol.name} is not cheap"
            if self.memory == "auto" and leaf.symbol != RESTRIDE and _is_a_pass(leaf):
                return f"{leaf.symbol.name} would go over its arguments once more"
            price += weight * bytes_of(*leaf.inputs, *leaf.outputs)
        return price


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
    if not isinstance(fn, torch._ops.OpOverload) or fn.namespace != "aten":
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


def _is_a_pass(leaf: BoundSymbol) -> bool:
    """Whether it has to have read all of its arguments before it gives a result, so that it fuses with no reader."""
    fn: torch._ops.OpOverload = leaf.symbol.fn  # type: ignore[assignment]
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


_UNREPEATABLE = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
)


def overwritten_values(forward: Iterable[BoundSymbol], inputs: frozenset[str]) -> frozenset[str]:
    """The names of inputs, and of what shares their storage."""
    return inputs.union(name for name, first in storages(forward).items() if first in inputs)


def to_save(
    forward: Iterable[BoundSymbol], read: Iterable[TensorProxy], prices: Prices
) -> frozenset[str]:
    """The names of what to save, so that what is `read` of a forward can be had from it at the lowest price.

    Inputs of the forward are not among them, for they live anyway, except those that are overwritten.
    """
    maker = {proxy.name: item for item in forward for proxy in item.outputs}
    numbers = itertools.count(2)
    nodes: dict[str | BoundSymbol, int] = {}
    arcs: dict[tuple[int, int], int | None] = {}
    pending = [proxy for proxy in read if proxy.name in maker or proxy.name in prices.overwritten]
    # a value is an arc, from its node to the next number; a bound symbol is a node
    ends = [proxy.name for proxy in pending]
    if not ends:
        return frozenset()
    while pending:
        proxy = pending.pop()
        if proxy.name in nodes:
            continue
        item = maker.get(proxy.name)
        node = nodes[proxy.name] = next(numbers)
        arcs[node, next(numbers)] = prices.saving(proxy, item)
        price = "an input" if item is None else prices.again(item)
        if item is None or isinstance(price, str):
            arcs[SOURCE, node] = None
            continue
        if item not in nodes:
            nodes[item] = next(numbers)
            arcs[SOURCE, nodes[item]] = price
        arcs[nodes[item], node] = None
        pending.extend(p for p in item.inputs if p.name in maker or p.name in prices.overwritten)
    arcs.update(((nodes[name] + 1, SINK), None) for name in ends)
    again = [(key, node) for key, node in nodes.items() if isinstance(key, BoundSymbol)]
    arcs.update(
        ((nodes[p.name] + 1, node), None)
        for item, node in again
        for p in item.inputs
        if p.name in nodes
    )
    later = min_cut(arcs)
    values = ((key, node) for key, node in nodes.items() if isinstance(key, str))
    return frozenset(name for name, node in values if node not in later and node + 1 in later)

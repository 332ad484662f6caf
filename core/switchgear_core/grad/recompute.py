"""Recompute: regions marked by `torch.utils.checkpoint` are recomputed where the backward needs them.

The lines of a region are copied into the backward as a whole, before its first reader, and read saved tensors. Saved
are values read by other regions or by code outside, values named by a selective policy, and draws from a user's
generator. Other draws are repeated from the state of the generator before the region's first draw (`redraw`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from switchgear_core.grad.derived import rebind
from switchgear_core.grad.redraw import RANDOM_STATE, SWAP_RANDOM_STATE, state_proxy
from switchgear_core.ir.aliasing import aliased_argument
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import (
    BACKWARD,
    CHECK,
    CHECKPOINT,
    OFFLOAD,
    RANDOM,
    RECOMPUTED,
    SAVE,
    SAVED,
    BoundSymbol,
    Link,
    RuleOrigin,
    policy_of,
    region_of,
    with_parts,
)
from switchgear_core.ir.trace import Names
from switchgear_core.registry.savings import Body

_TAGS = frozenset({BACKWARD, RECOMPUTED})
_ORIGIN = RuleOrigin("checkpoint", "recomputed")
#: The origin of lines recomputed because their values are not saved.
_UNSAVED = RuleOrigin("partition", "recomputed")


def links_again(item: BoundSymbol) -> tuple[Link, ...]:
    """Return the links of a forward line that the backward recomputes."""
    return tuple(Link(link.forward, _UNSAVED) for link in item.links) or (Link(item, _UNSAVED),)


def recompute(
    forward: Body,
    backward: Body,
    grads: Iterable[TensorProxy],
    names: Names,
    saved_names: frozenset[str] | None = None,
) -> tuple[Body, Body]:
    """Return forward and backward, with regions recomputed in the backward.

    Values that other regions or outside code read are saved, and so are values named by a selective policy, and draws
    from a user's `torch.Generator`. All other values are recomputed, each region as a whole and just before its first
    reader. `saved_names` are the saved tensors of the forward, if decided already.
    """
    if not any(map(region_of, (*forward, *backward))):
        return forward, backward
    fixed = {proxy.name for proxy in grads}
    inside = [item for item in backward if BACKWARD not in item.tags and region_of(item)]
    # lines of a region needed by the backward alone, although without gradient: they move with the region
    moved = [item for item in inside if fixed.isdisjoint(proxy.name for proxy in item.outputs)]
    savable = {proxy.name for item in forward for proxy in item.outputs}
    regions = _Regions((*forward, *moved), savable, names, saved_names)
    for name in fixed:
        regions.read(name, None)
    away = frozenset(moved)
    sources, later = regions.run(tuple(item for item in backward if item not in away))
    return tuple(item for item in sources if item not in away), later


@dataclass(slots=True, eq=False)
class _Regions:
    """The regions of a trace: `sources` are their lines, and `savable` the names of savable values."""

    sources: Body
    savable: set[str]
    names: Names
    saved_names: frozenset[str] | None = None
    maker: dict[str, BoundSymbol] = field(init=False)
    region_names: dict[str, str | None] = field(init=False)
    saved: set[str] = field(init=False)
    pending: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.maker = {proxy.name: item for item in self.sources for proxy in item.outputs}
        self.region_names = {name: region_of(item) for name, item in self.maker.items()}
        self.saved = set(self.saved_names or ())

    def read(self, name: str, reader: str | None) -> None:
        """Record that the region `reader` reads a value."""
        if name not in self.region_names:
            return
        if reader != self.region_names[name] and name in self.savable and self.saved_names is None:
            self._keep(name)
        else:
            self.pending.add(name)

    def _keep(self, name: str) -> None:
        """Save a value, and all values in its storage."""
        while name in self.savable and name not in self.saved:
            self.saved.add(name)
            item = self.maker[name]
            base = aliased_argument(item) if item.is_leaf else None
            name = base.name if base is not None else ""

    def run(self, later: Body) -> tuple[Body, Body]:
        """Return the sources with the states of generators saved, and `later` with the regions recomputed."""
        for item in later:
            for proxy in item.inputs:
                self.read(proxy.name, region_of(item))
        selected, draws = self._select()
        states = {at: state_proxy(self.names.claim(_state_name(*at)), at[1]) for at in draws}
        env: dict[str, TensorProxy] = {}
        copies = tuple([self._copy(item, env) for item in selected])
        later = tuple([item.reading(env) for item in later])
        groups: defaultdict[str | None, list[BoundSymbol]] = defaultdict(list)
        for item in copies:
            groups[region_of(item)].append(item)
        for (region, device), state in states.items():
            groups[region] = self._redrawn(groups[region], state, device)
        firsts = {item: states[at] for at, item in draws.items()}
        sources: list[BoundSymbol] = []
        for item in self.sources:
            sources += [_state_line(item, firsts[item]), item] if item in firsts else [item]
        return tuple(sources), _placed(groups, later)

    def _select(self) -> tuple[list[BoundSymbol], dict[tuple[str, torch.device], BoundSymbol]]:
        """Return the recomputed lines, in order, and among them the first draw of each region and device."""
        selected: list[BoundSymbol] = []
        draws: dict[tuple[str, torch.device], BoundSymbol] = {}
        for item in reversed(self.sources):
            region = region_of(item)
            if region is None or CHECK in item.tags:
                continue
            names = {proxy.name for proxy in item.outputs} & self.pending
            is_saved = any(policy_of(item, proxy) in (SAVE, OFFLOAD) for proxy in item.outputs)
            if is_saved or SAVED in item.tags or (item.is_random and _has_generator(item)):
                for name in names:
                    self._keep(name)
            at = region, item.outputs[0].device
            draws_again = item.is_random and not _has_generator(item)
            # an unneeded draw still moves the stream for needed draws
            if names <= self.saved and not (draws_again and at in draws):
                continue
            if draws_again:
                draws[at] = item
            selected.append(item)
            for proxy in item.inputs:
                self.read(proxy.name, region)
        return selected[::-1], draws

    def _copy(self, item: BoundSymbol, env: dict[str, TensorProxy]) -> BoundSymbol:
        link = Link(item.links[0].forward if item.links else item, _ORIGIN)
        copy = replace(rebind(item, env, self.names), tags=item.tags | _TAGS, links=(link,))
        for proxy in item.outputs:
            if proxy.name in self.saved:
                del env[proxy.name]
        return copy

    def _redrawn(
        self, group: list[BoundSymbol], state: TensorProxy, device: torch.device
    ) -> list[BoundSymbol]:
        """Return a group whose draws from a device's generator begin at `state`, and which restores the stream."""
        draws = [item for item in group if item.is_random and item.outputs[0].device == device]
        first, last = draws[0], draws[-1]
        before, after = (replace(state, name=self.names.fresh()) for _ in range(2))
        enter = replace(_state_line(first, before), symbol=SWAP_RANDOM_STATE, args=(state, device))
        leave = replace(_state_line(last, after), symbol=SWAP_RANDOM_STATE, args=(before, device))
        start, end = group.index(first), group.index(last) + 1
        return [*group[:start], enter, *group[start:end], leave, *group[end:]]


def _placed(groups: dict[str | None, list[BoundSymbol]], later: Body) -> Body:
    """Return `later` with each group before its first reader."""
    owner = {
        proxy.name: region
        for region, group in groups.items()
        for item in group
        for proxy in item.outputs
    }
    result: list[BoundSymbol] = []

    def place(items: Iterable[BoundSymbol]) -> None:
        for item in items:
            for proxy in item.inputs:
                place(groups.pop(owner.get(proxy.name), ()))
            result.append(item)

    place(later)
    return tuple(result)


def _state_line(item: BoundSymbol, state: TensorProxy) -> BoundSymbol:
    """Return a line for the state of a generator just before a bound symbol draws from it."""
    line = BoundSymbol(RANDOM_STATE, (item.outputs[0].device,), {}, state, source=item.source)
    return replace(line, tags=item.tags & _TAGS | {RANDOM}, links=item.links)


def _state_name(region: str, device: torch.device) -> str:
    return f"random_state_{region.removeprefix(CHECKPOINT)}_{device}".replace(":", "_")


def _has_generator(item: BoundSymbol) -> bool:
    """Check whether a call draws from a user's generator."""
    arguments: Iterator[object] = (
        value for part in with_parts([item]) for value in (*part.args, *part.kwargs.values())
    )
    return any(isinstance(value, torch.Generator) for value in arguments)

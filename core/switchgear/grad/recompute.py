"""Recompute: what a region marked by `torch.utils.checkpoint` made is made again where the backward needs it.

Its lines are copied into the backward, each region as a whole before its first reader, from values that are saved.
Saved are what another region or code outside reads, what a selective policy names, and draws from a generator of the
user's; other draws are repeated from the state of the generator before the region's first (`redraw`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from switchgear.grad.derived import rebind
from switchgear.grad.redraw import RANDOM_STATE, SWAP_RANDOM_STATE, state_proxy
from switchgear.ir.aliasing import aliased_argument
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import (
    BACKWARD,
    CHECK,
    CHECKPOINT,
    RANDOM,
    RECOMPUTED,
    SAVED,
    BoundSymbol,
    Link,
    RuleOrigin,
    region_of,
    with_parts,
)
from switchgear.ir.trace import Names

Body = tuple[BoundSymbol, ...]
_TAGS = frozenset({BACKWARD, RECOMPUTED})
_ORIGIN = RuleOrigin("checkpoint", "recomputed")
#: Of what is made again because it is not saved.
_UNSAVED = RuleOrigin("partition", "recomputed")


def links_again(item: BoundSymbol) -> tuple[Link, ...]:
    """The links of a line of the forward, in the backward, which makes again what is not saved."""
    return tuple(Link(link.forward, _UNSAVED) for link in item.links) or (Link(item, _UNSAVED),)


def recompute(
    forward: Body,
    backward: Body,
    grads: Iterable[TensorProxy],
    names: Names,
    known: frozenset[str] | None = None,
) -> tuple[Body, Body]:
    """Forward and backward, with what the backward of a region reads of that region made again there.

    What another region reads, or code outside of any, is saved, and so is what a selective policy says, and draws from
    a `torch.Generator` of the user's. Everything else is made once more, each region as a whole and just before its
    first reader. `known` are the names of what the forward saves, if that is decided already.
    """
    if not any(map(region_of, (*forward, *backward))):
        return forward, backward
    fixed = {proxy.name for proxy in grads}
    # what only the backward needs of a region, though no gradient flows into it: it goes where the region goes
    moved = tuple(
        item
        for item in backward
        if BACKWARD not in item.tags
        and region_of(item)
        and fixed.isdisjoint(proxy.name for proxy in item.outputs)
    )
    away = {id(item) for item in moved}
    later = tuple(item for item in backward if id(item) not in away)
    regions = _Regions(
        (*forward, *moved), {proxy.name for item in forward for proxy in item.outputs}, names, known
    )
    for name in fixed:
        regions.read(name, None)
    sources, later = regions.run(later)
    return tuple(item for item in sources if id(item) not in away), later


@dataclass(slots=True, eq=False)
class _Regions:
    """The regions of a trace: `sources` made their values, of which `savable` can be saved."""

    sources: Body
    savable: set[str]
    names: Names
    known: frozenset[str] | None = None
    maker: dict[str, BoundSymbol] = field(init=False)
    home: dict[str, str | None] = field(init=False)
    kept: set[str] = field(init=False)
    wanted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.maker = {proxy.name: item for item in self.sources for proxy in item.outputs}
        self.home = {name: region_of(item) for name, item in self.maker.items()}
        self.kept = set(self.known or ())

    def read(self, name: str, reader: str | None) -> None:
        """Take note that a value is read in the region `reader`."""
        if name not in self.home:
            return
        if reader != self.home[name] and name in self.savable and self.known is None:
            self._keep(name)
        else:
            self.wanted.add(name)

    def _keep(self, name: str) -> None:
        """Save a value, and with it whatever shares its storage."""
        while name in self.savable and name not in self.kept:
            self.kept.add(name)
            item = self.maker[name]
            base = aliased_argument(item) if item.is_leaf else None
            name = base.name if base is not None else ""

    def run(self, later: Body) -> tuple[Body, Body]:
        """The sources with the states of generators saved, and `later` with the regions made again."""
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
        first = {id(item): at for at, item in draws.items()}
        sources = [
            line
            for item in self.sources
            for line in ([_state_line(item, states[first[id(item)]])] if id(item) in first else [])
            + [item]
        ]
        return tuple(sources), _placed(groups, later)

    def _select(self) -> tuple[list[BoundSymbol], dict[tuple[str, torch.device], BoundSymbol]]:
        """What is made again, in order, and the first draw of each region and device among it."""
        selected: list[BoundSymbol] = []
        draws: dict[tuple[str, torch.device], BoundSymbol] = {}
        for item in reversed(self.sources):
            region = region_of(item)
            if region is None or CHECK in item.tags:
                continue
            wanted = {proxy.name for proxy in item.outputs} & self.wanted
            if SAVED in item.tags or (item.is_random and _has_generator(item)):
                for name in wanted:
                    self._keep(name)
            at = region, item.outputs[0].device
            draws_again = item.is_random and not _has_generator(item)
            # a draw that is not needed itself moves the stream for those that are
            if wanted <= self.kept and not (draws_again and at in draws):
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
            if proxy.name in self.kept:
                del env[proxy.name]
        return copy

    def _redrawn(
        self, group: list[BoundSymbol], state: TensorProxy, device: torch.device
    ) -> list[BoundSymbol]:
        """A group whose draws from a device's generator begin at `state`, and leave its stream as it was."""
        places = [
            index
            for index, item in enumerate(group)
            if item.is_random and item.outputs[0].device == device
        ]
        first, last = group[places[0]], group[places[-1]]
        before, after = (replace(state, name=self.names.fresh()) for _ in range(2))
        enter = replace(_state_line(first, before), symbol=SWAP_RANDOM_STATE, args=(state, device))
        leave = replace(_state_line(last, after), symbol=SWAP_RANDOM_STATE, args=(before, device))
        return [
            *group[: places[0]],
            enter,
            *group[places[0] : places[-1] + 1],
            leave,
            *group[places[-1] + 1 :],
        ]


def _placed(groups: dict[str | None, list[BoundSymbol]], later: Body) -> Body:
    """`later` with each group before the first that reads from it."""
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
    """The state of the generator that a bound symbol draws from, just before."""
    tags = item.tags & _TAGS | {RANDOM}
    return BoundSymbol(
        RANDOM_STATE,
        (item.outputs[0].device,),
        {},
        state,
        (),
        item.source,
        tags=tags,
        links=item.links,
    )


def _state_name(region: str, device: torch.device) -> str:
    return f"random_state_{region.removeprefix(CHECKPOINT)}_{device}".replace(":", "_")


def _has_generator(item: BoundSymbol) -> bool:
    """Whether a call draws from a generator of the user's."""
    given: Iterator[object] = (
        value for part in with_parts([item]) for value in (*part.args, *part.kwargs.values())
    )
    return any(isinstance(value, torch.Generator) for value in given)

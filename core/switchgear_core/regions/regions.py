"""Regions: sets of neighbouring bound symbols to run together, found in linear time.

Every step of the data from one owner to another is a level down, so the lines of an owner on one level are convex.
Lines form a region if they read each other or the same tensor. A view counts as its base: a region recomputes the views
of its inputs, and returns no view. A region of more operators than its executor's `maximum` is cut where the fewest
bytes cross. Repeated layers are cut in the same places, and equal parts are compiled once.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from switchgear_core.ir.aliasing import aliased_argument
from switchgear_core.ir.proxy import TensorProxy, bytes_of, hint_of
from switchgear_core.ir.symbol import BoundSymbol


class Dataflow:
    """Claimed bound symbols by index, and their dependencies; a view counts as its base.

    `owners` has for each the fusion executor that claimed it, or is empty; only views of fusion executors count as
    views. A random draw depends on the previous draw, so the order of draws is kept.
    """

    def __init__(self, body: Sequence[BoundSymbol], fusion: Container[str]) -> None:
        self.body = body
        claimants = [item.implementation.owner if item.implementation else "" for item in body]
        owners = self.owners = [owner if owner in fusion else "" for owner in claimants]
        self.maker = {
            proxy.name: index for index, item in enumerate(body) for proxy in item.outputs
        }
        self.is_view = [
            bool(owner) and _is_view(item) for item, owner in zip(body, owners, strict=True)
        ]
        self._base: dict[str, TensorProxy] = {}
        self.needs: list[tuple[int, ...]] = []
        drawn: list[int] = []
        for index, item in enumerate(body):
            bases = tuple([self.base(proxy) for proxy in item.inputs])
            if self.is_view[index]:
                self._base.update((proxy.name, bases[0]) for proxy in item.outputs)
            makers = [self.maker[base.name] for base in bases if base.name in self.maker]
            self.needs.append(
                tuple(dict.fromkeys([*makers, *(drawn[-1:] if item.is_random else ())]))
            )
            if item.is_random:
                drawn.append(index)

    def base(self, proxy: TensorProxy) -> TensorProxy:
        """Return the base of a view, or the proxy itself."""
        return self._base.get(proxy.name, proxy)

    def views_read(self, read: Iterable[TensorProxy]) -> set[int]:
        """Return the views computing some proxies, and the views below."""
        views: set[int] = set()
        pending = list(read)
        while pending:
            index = self.maker.get(pending.pop().name)
            if index is not None and self.is_view[index] and index not in views:
                views.add(index)
                pending.extend(self.body[index].inputs)
        return views

    def with_views(self, members: Collection[int]) -> list[int]:
        """Return `members` and the views read by members, in order."""
        return sorted(
            {
                *members,
                *self.views_read(proxy for index in members for proxy in self.body[index].inputs),
            }
        )

    def outside(self, inside: Container[int], outputs: Iterable[TensorProxy]) -> list[int]:
        """Return all lines outside of regions; of the views only outputs and views read by the given lines."""
        rest = [
            index
            for index, is_view in enumerate(self.is_view)
            if not is_view and index not in inside
        ]
        return sorted(
            {
                *rest,
                *self.views_read(
                    [*outputs, *(p for index in rest for p in self.body[index].inputs)]
                ),
            }
        )


def find_regions(flow: Dataflow) -> list[list[int]]:
    """Return the members, without views, of maximal regions.

    Each step from one owner to another is one level down, so a path out of an owner's level never returns to the level.
    Therefore lines of an owner on one level may run together. A region joins lines that read each other or the same
    tensor. A region that reads nothing of its level is joined with its first reader.
    """
    owners = flow.owners
    level = [0] * len(flow.body)
    group = _Sets(len(flow.body))
    reader: dict[tuple[str, int, str], int] = {}
    for index, needs in enumerate(flow.needs):
        if flow.is_view[index]:
            continue
        level[index] = max(
            (level[need] + (owners[need] != owners[index]) for need in needs), default=0
        )
        if not owners[index]:
            continue
        for need in needs:
            if (owners[need], level[need]) == (owners[index], level[index]):
                group.join(need, index)
        for proxy in map(flow.base, flow.body[index].inputs):
            if math.prod(map(hint_of, proxy.shape)) > 1:
                group.join(
                    reader.setdefault((owners[index], level[index], proxy.name), index), index
                )
    _sink(flow, level, group)
    members: dict[int, list[int]] = defaultdict(list)
    for index, owner in enumerate(owners):
        if owner and not flow.is_view[index]:
            members[group.first(index)].append(index)
    return list(members.values())


def cut(flow: Dataflow, members: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Yield the parts of a region, each of at most `most` members and at least about a quarter of that, in order.

    Each part ends where the fewest bytes cross. Repetitions in a long region, such as layers, are cut in the same
    places, so that parts are equal.
    """
    passed = _passed_on(flow, members) if len(members) > most else []
    start, least = 0, max(1, most // 4)
    while len(members) - start > most:
        latest = min(start + most, len(members) - least)
        end = min(range(latest, start + least - 1, -1), key=passed.__getitem__)
        yield members[start:end]
        start = end
    yield members[start:]


def _passed_on(flow: Dataflow, members: Sequence[int]) -> list[int]:
    """Return for each position in a region the bytes computed before it, and read there or later."""
    last: dict[str, int] = {}
    for number, index in enumerate(members):
        last.update((flow.base(proxy).name, number) for proxy in flow.body[index].inputs)
    change = [0] * (len(members) + 1)
    for number, index in enumerate(members):
        for proxy in flow.body[index].outputs:
            change[number + 1] += bytes_of(proxy)
            change[last.get(proxy.name, number) + 1] -= bytes_of(proxy)
    return [*itertools.accumulate(change)]


def _sink(flow: Dataflow, level: list[int], group: _Sets) -> None:
    """Join groups with their first reader on a lower level, where no more memory waits as a result.

    Afterwards the level of a group is the level of its first member.
    """
    owners = flow.owners
    users: dict[int, list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = defaultdict(list)
    for index, needs in enumerate(flow.needs):
        if not flow.is_view[index]:
            groups[group.first(index)].append(index)
            for need in needs:
                users[need].append(index)
    for first, members in sorted(groups.items(), key=lambda item: -level[item[0]]):
        # groups on lower levels are final
        below = [user for index in members for user in users[index] if group.first(user) != first]
        if (
            not owners[first]
            or not below
            or _waiting(flow, members) > _leaving(flow, members, below)
        ):
            continue
        levels = [level[group.first(user)] for user in below]
        target = min(
            rank - (owners[user] != owners[first]) for rank, user in zip(levels, below, strict=True)
        )
        for rank, user in zip(levels, below, strict=True):
            if owners[user] == owners[first] and rank == target:
                group.join(user, first)
                level[group.first(first)] = target


def _waiting(flow: Dataflow, members: Iterable[int]) -> int:
    """Return the bytes computed by others for a group."""
    results = {proxy.name for index in members for proxy in flow.body[index].outputs}
    read = {
        base.name: base for index in members for base in map(flow.base, flow.body[index].inputs)
    }
    return sum(
        bytes_of(base) for name, base in read.items() if name in flow.maker and name not in results
    )


def _leaving(flow: Dataflow, members: Iterable[int], readers: Iterable[int]) -> int:
    """Return the bytes computed by a group for its readers."""
    read = {base.name for index in readers for base in map(flow.base, flow.body[index].inputs)}
    return sum(
        bytes_of(proxy)
        for index in members
        for proxy in flow.body[index].outputs
        if proxy.name in read
    )


def _is_view(item: BoundSymbol) -> bool:
    return item.is_leaf and len(item.inputs) == 1 and aliased_argument(item) is not None


class _Sets:
    """Disjoint sets of indices."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def first(self, index: int) -> int:
        """Return the least index in the set of an index."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(self, first: int, second: int) -> None:
        """Join two sets."""
        low, high = sorted((self.first(first), self.first(second)))
        self._parent[high] = low

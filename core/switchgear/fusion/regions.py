"""Regions: which neighbouring bound symbols can run as one, found in time linear in their number.

Every step of the data from one owner to another is a level down, so what one owner has on one level is convex, and is
one region where its parts read each other or the same tensor. A view counts as what it is a view of: a region that
reads one makes it itself, and none returns one. A region of more operators than its executor's `maximum` is cut where
the fewest bytes are handed on: layers that repeat are cut in the same places, and alike parts are compiled once.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence

from switchgear.ir.aliasing import aliased_argument
from switchgear.ir.proxy import TensorProxy, bytes_of, hint_of
from switchgear.ir.symbol import BoundSymbol


class Dataflow:
    """Claimed bound symbols by their index, and who needs whom; a view counts as what it is a view of.

    `owners` has for each the fusion executor that took it, one of `fusion`, or is empty; views of other executors are
    no views here. What draws random numbers needs what drew before it, so the order of draws is kept.
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
            made = [self.maker[base.name] for base in bases if base.name in self.maker]
            self.needs.append(
                tuple(dict.fromkeys([*made, *(drawn[-1:] if item.is_random else ())]))
            )
            if item.is_random:
                drawn.append(index)

    def base(self, proxy: TensorProxy) -> TensorProxy:
        """What a proxy is a view of, or itself."""
        return self._base.get(proxy.name, proxy)

    def views_read(self, read: Iterable[TensorProxy]) -> set[int]:
        """The views that make some proxies, and those that make what they are views of."""
        found: set[int] = set()
        left = list(read)
        while left:
            index = self.maker.get(left.pop().name)
            if index is not None and self.is_view[index] and index not in found:
                found.add(index)
                left.extend(self.body[index].inputs)
        return found

    def with_views(self, members: Collection[int]) -> list[int]:
        """`members` and the views that they read, in order."""
        return sorted(
            {
                *members,
                *self.views_read(proxy for index in members for proxy in self.body[index].inputs),
            }
        )

    def outside(self, inside: Container[int], outputs: Iterable[TensorProxy]) -> list[int]:
        """All but the members of regions: of the views only those that are read here, or are outputs."""
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
    """The members, without views, of maximal regions that can run as one.

    Each step from one owner to another is one level down, so a way that leaves an owner's level never comes back
    to it: what an owner takes on one level may run as one. It does where one part reads another or both read the
    same tensor. A region that reads nothing of its level is put with who reads it first.
    """
    owners = flow.owners
    level = [0] * len(flow.body)
    group = _Sets(len(flow.body))
    reader: dict[tuple[str, int, str], int] = {}
    for index, needs in enumerate(flow.needs):
        if flow.is_view[index]:
            continue
        level[index] = max(
            (level[one] + (owners[one] != owners[index]) for one in needs), default=0
        )
        if not owners[index]:
            continue
        for one in needs:
            if (owners[one], level[one]) == (owners[index], level[index]):
                group.join(one, index)
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
    """A region in parts of at most `most` members, in order, and about a quarter of that at least.

    Each ends where the fewest bytes are handed on. What repeats in a long region, such as layers, is cut in the same
    places, so that parts are alike.
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
    """For each position in a region the bytes of what is made before it, and read there or later."""
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
    """Join groups with their first reader on a lower level, where no more memory waits for that.

    The level of a group is from here on that of its first.
    """
    owners = flow.owners
    users: dict[int, list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = defaultdict(list)
    for index, needs in enumerate(flow.needs):
        if not flow.is_view[index]:
            groups[group.first(index)].append(index)
            for one in needs:
                users[one].append(index)
    for first, members in sorted(groups.items(), key=lambda item: -level[item[0]]):
        # those on lower levels are settled
        below = [user for index in members for user in users[index] if group.first(user) != first]
        if (
            not owners[first]
            or not below
            or _waiting(flow, members) > _leaving(flow, members, below)
        ):
            continue
        levels = [level[group.first(user)] for user in below]
        target = min(
            one - (owners[user] != owners[first]) for one, user in zip(levels, below, strict=True)
        )
        for one, user in zip(levels, below, strict=True):
            if owners[user] == owners[first] and one == target:
                group.join(user, first)
                level[group.first(first)] = target


def _waiting(flow: Dataflow, members: Iterable[int]) -> int:
    """The bytes of what others make for a group."""
    own = {proxy.name for index in members for proxy in flow.body[index].outputs}
    read = {
        base.name: base for index in members for base in map(flow.base, flow.body[index].inputs)
    }
    return sum(
        bytes_of(base) for name, base in read.items() if name in flow.maker and name not in own
    )


def _leaving(flow: Dataflow, members: Iterable[int], readers: Iterable[int]) -> int:
    """The bytes of what a group makes for its readers."""
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
        """The least of an index's set."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(self, one: int, other: int) -> None:
        """Make two sets one."""
        low, high = sorted((self.first(one), self.first(other)))
        self._parent[high] = low

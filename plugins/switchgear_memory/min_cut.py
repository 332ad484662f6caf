"""The minimum cut of a network, by Dinic's maximum flow: importing a library would take longer than this code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SOURCE, SINK = 0, 1


def min_cut(capacities: Mapping[tuple[int, int], int | None]) -> frozenset[int]:
    """Return the nodes on the sink's side of a cut of minimum capacity; of several cuts, the fewest nodes.

    Args:
        capacities: the capacity of each arc, None if unlimited. Node 0 is the source, node 1 the sink.
            No path may be unlimited.
    """
    network = _network(capacities)
    while (distances := network.distances())[SOURCE]:
        network.saturate(distances)
    return frozenset([SINK, *(node for node, distance in enumerate(distances) if distance)])


@dataclass(frozen=True, slots=True)
class _Network:
    """Arcs by number, each even arc followed by its reverse: their ends, and their residual capacity."""

    #: The outgoing arcs of each node.
    arcs: list[list[int]]
    ends: list[int]
    room: list[int]

    def distances(self) -> list[int]:
        """Return the number of arcs with room from each node to the sink; 0 for the sink and for unconnected nodes."""
        arcs, ends, room = self.arcs, self.ends, self.room
        distances = [0] * len(arcs)
        nodes, distance = [SINK], 1
        while nodes and not distances[SOURCE]:
            tails = []
            for node in nodes:
                for arc in arcs[node]:
                    if room[arc ^ 1]:
                        tail = ends[arc]
                        if tail != SINK and not distances[tail]:
                            distances[tail] = distance
                            tails.append(tail)
            nodes, distance = tails, distance + 1
        return distances

    def saturate(self, distances: list[int]) -> None:
        """Add the largest flow along the shortest paths."""
        ends, room = self.ends, self.room
        untried: dict[int, list[int]] = {}
        path: list[int] = []
        node = SOURCE
        while True:
            if node == SINK:
                flow = min([room[arc] for arc in path])
                for arc in path:
                    room[arc] -= flow
                    room[arc ^ 1] += flow
                full = next(place for place, arc in enumerate(path) if not room[arc])
                node = ends[path[full] ^ 1]
                del path[full:]
            arcs = untried.get(node)
            if arcs is None:
                nearer = distances[node] - 1
                arcs = untried[node] = [
                    arc
                    for arc in self.arcs[node]
                    if room[arc] and distances[ends[arc]] == nearer and (nearer or ends[arc] == SINK)
                ]
            while arcs and not room[arcs[-1]]:
                arcs.pop()
            if arcs:
                path.append(arcs[-1])
                node = ends[arcs[-1]]
            elif node == SOURCE:
                return
            else:
                node = ends[path.pop() ^ 1]
                untried[node].pop()


def _network(capacities: Mapping[tuple[int, int], int | None]) -> _Network:
    size = 2 + max((node for arc in capacities for node in arc), default=0)
    network = _Network([[] for _ in range(size)], [], [])
    unlimited = 1 + sum(filter(None, capacities.values()))
    for (tail, head), capacity in capacities.items():
        network.arcs[tail].append(len(network.ends))
        network.arcs[head].append(len(network.ends) + 1)
        network.ends.extend((head, tail))
        network.room.extend((unlimited if capacity is None else capacity, 0))
    return network

"""First views: of a view that functionalization made again after a write, the one that the function made is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from switchgear.aliasing import viewed_argument
from switchgear.composites import leaves_of
from switchgear.proxy import TensorProxy
from switchgear.purity import frozen
from switchgear.symbol import BoundSymbol, changed, proxies, renamed
from switchgear.trace import Trace
from switchgear.writes import SET_VALUE


def first_views(trace: Trace) -> Trace:
    """Let a view that nothing uses be read in place of an equal one that is made later.

    Once a tensor was written to, PyTorch makes its views again wherever they are read, from the tensor through all that
    lies between, and what the function itself made is read by nothing. Autograd knows only that, and adds up gradients
    in the order in which it was made.
    """
    read = {proxy.name for proxy in proxies(trace.outputs)}
    used = set(read)
    spare = False
    for leaf in reversed(list(leaves_of(trace.bound_symbols))):
        names = [proxy.name for proxy in leaf.inputs]
        if viewed_argument(leaf) is None:
            read.update(names)
            used.update(names)
        elif not used.isdisjoint(proxy.name for proxy in leaf.outputs):
            used.update(names)
        else:
            spare = True
    if not spare:
        return trace
    search = _Search(read, used)
    body = search.visit(trace.bound_symbols, trace.inputs, trace.outputs)
    return replace(trace, bound_symbols=body) if search.env else trace


class _Search:
    """`read` are the values that others than views are made from, `used` also what these are views of."""

    def __init__(self, read: set[str], used: set[str]) -> None:
        self._read = read
        self._used = used
        #: For each view the tensor and the calls that it is made by, and by these the views that nothing uses.
        self._paths: dict[str, Hashable] = {}
        #: The same without the grad mode, and through values that were set where autograd did not see it.
        self._origins: dict[str, Hashable] = {}
        self._spare: defaultdict[Hashable, list[TensorProxy]] = defaultdict(list)
        #: What is read in place of a value.
        self.env: dict[str, TensorProxy] = {}

    def visit(
        self, items: Iterable[BoundSymbol], given: Iterable[TensorProxy], kept: Iterable[TensorProxy | None]
    ) -> tuple[BoundSymbol, ...]:
        """The bound symbols of a composite that reads `given` alone and makes `kept`."""
        known = {proxy.name for proxy in given}
        outputs = {proxy.name for proxy in kept if proxy is not None}
        body: list[BoundSymbol] = []
        for call in items:
            item = renamed(call, self.env, lambda made: made) if self.env else call
            if not item.is_leaf:
                item = changed(item, subsymbols=self.visit(item.subsymbols, item.inputs, item.outputs))
            elif (viewed := viewed_argument(item)) is not None:
                self._note(item, viewed, known, outputs)
            elif item.symbol == SET_VALUE:
                self._origins[item.output.name] = self._origins.get(item.args[1].name, item.args[1].name)
            known.update(proxy.name for proxy in item.outputs)
            body.append(item)
        return tuple(body)

    def _note(self, item: BoundSymbol, viewed: TensorProxy, known: set[str], kept: set[str]) -> None:
        given, how = (item.args, dict(item.kwargs)), (item.symbol, item.grad_enabled, item.tags)
        path = *how, frozen(given, {viewed.name: self._paths.get(viewed.name, viewed.name)})
        origin = item.symbol, frozen(given, {viewed.name: self._origins.get(viewed.name, viewed.name)})
        unused = self._used.isdisjoint(proxy.name for proxy in item.outputs)
        for place, proxy in enumerate(item.outputs):
            self._paths[proxy.name], self._origins[proxy.name] = (place, path), (place, origin)
            # or the view that the same call made in the same mode: made again, what it is a view of is in that mode too
            keys = (place, path), (place, origin, *how, item.source)
            if unused:
                for key in keys:
                    self._spare[key].append(proxy)
            elif proxy.name in self._read and proxy.name not in kept:
                spare = (one for key in keys for one in self._spare[key])
                first = next((one for one in spare if one.name in known and one.metadata == proxy.metadata), None)
                if first is not None:
                    for key in keys:
                        self._spare[key] = [one for one in self._spare[key] if one is not first]
                    self.env[proxy.name] = first

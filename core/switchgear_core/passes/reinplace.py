"""Reinplace: functional writes become writes in place, so that a call costs the written part, not the whole tensor.

Functionalization makes `k[:, 5] = x` a copy of all of `k`, and the epilogue copies that back:

    t0 = select(k, 1, 5); t1 = copy(t0, x); t2 = select_scatter(k, t1, 1, 5); ...; return (t2,)

Here `t1` is written to the view, and `t2` is another name for `k`:

    t0 = select(k, 1, 5); t1 = copy_(t0, x); t2 = k; ...; return (None,)

A write needs suitable memory: made by an operator of PyTorch in the trace, or an input that the value, or a later
value, is copied into anyway (`destined`). No later line may read an older value, and no output may share the memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.aliasing import in_place_twin, viewed_argument
from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.proxy import TensorProxy, changed_proxy, is_symbolic
from switchgear_core.ir.symbol import AFTER, IN_PLACE, BoundSymbol, Symbol, changed, proxies
from switchgear_core.ir.trace import Names, Trace, names_of
from switchgear_core.ir.writes import WritingOperator
from switchgear_core.passes.places import Place, Places, extent, geometry, place_of_call, strides
from switchgear_core.record.sizes import has_numbers

_aten = torch.ops.aten
#: Operators that put a written view back into its base, each with the operator of the view.
_SCATTERS: dict[object, Any] = {
    _aten.select_scatter.default: _aten.select.int,
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.diagonal_scatter.default: _aten.diagonal.default,
    _aten.as_strided_scatter.default: _aten.as_strided.default,
}
#: Operators that write to some places of their argument, or compute nothing; others compute all elements.
_IN_PART = ("index_", "scatter", "masked_", "put", "copy", "fill", "zero")
#: Dtypes of exact results: pointwise kernels of other dtypes round differently when they overwrite their input.
_EXACT = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})

#: Lines that write all of a memory in place, at most, and stay out of regions.
_SHORT = 2
#: Operators whose twins change the memory of a tensor.
_OF_MEMORY = frozenset({"resize", "resize_as", "set"})


def reinplace(
    trace: Trace, source: Sequence[BoundSymbol], destined: Mapping[int, int], *, mark: bool = False
) -> Trace:
    """Turn functional writes into writes in place, where no visible value changes.

    Args:
        trace: a trace whose lines are claimed, except with `mark`.
        source: the lines before claiming, which tell the views that whole composites return.
        destined: outputs that are only copied into an input after the call, each with the input's position.
        mark: only tag the lines that write more cheaply in place than a region and a copy would.

    Returns:
        The trace. An output that is written to its input is None there; `Trace.writes` counts writes by input.
    """
    plan = _Plan(trace, source, destined)
    has_operators = any(isinstance(item.symbol.fn, WritingOperator) for item in trace.bound_symbols)
    if not plan.steps and not has_operators:
        return trace
    if mark:
        return _marked(trace, plan)
    names = Names(names_of(trace))
    in_place = {write.output.name: write.base for write in plan.writes}
    lines: list[BoundSymbol] = []
    for index, item in enumerate(trace.bound_symbols):
        step, fn = plan.steps.get(index), item.symbol.fn
        if isinstance(fn, WritingOperator):
            lines += fn.lines(item, in_place, names.fresh)
        else:
            lines += [item] if step is None else step.lines(item, names)
    inputs = {proxy.name for proxy in trace.inputs}
    writes: Counter[str] = Counter()
    for write in plan.writes:
        if write.memory in inputs:
            writes[write.memory] += write.versions
    outputs = [None if plan.is_home(place, p) else p for place, p in enumerate(trace.outputs)]
    return replace(
        trace,
        bound_symbols=tuple(lines),
        outputs=tuple(outputs),
        writes=writes,
    )


def _marked(trace: Trace, plan: _Plan) -> Trace:
    """Tag the lines of writes that cost less in place than a region and the copy of its result."""
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for write in plan.writes:
        lines[write.memory].update(write.lines)
    short = {memory for memory, indices in lines.items() if _is_short(plan, indices)}
    cheap = (write for write in plan.writes if write.is_in_part or write.memory in short)
    tagged = {index for write in cheap for index in write.lines}
    body = [
        changed(item, tags=item.tags | {IN_PLACE}) if index in tagged else item
        for index, item in enumerate(trace.bound_symbols)
    ]
    return replace(trace, bound_symbols=tuple(body)) if tagged else trace


def _is_short(plan: _Plan, lines: set[int]) -> bool:
    """Check whether the lines that write a memory are few, and no other line reads the results."""
    results = [proxy.name for index in lines for proxy in plan.lines[index].outputs]
    readers = {index for name in results for index in plan.values.readers.get(name, ())}
    return len(lines) <= _SHORT and readers <= {*lines, len(plan.lines)}


@dataclass(slots=True, eq=False)
class _Step:
    """The replacement of one line: a write in place, another name for written memory, or nothing.

    A step with `part` renames `base`, and `part` is the written view of it. A step with `view` writes to the view by
    `copy_`.
    """

    base: TensorProxy
    view: TensorProxy | None = None
    output: TensorProxy | None = None
    part: TensorProxy | None = None
    is_dropped: bool = False

    def lines(self, item: BoundSymbol, names: Names) -> list[BoundSymbol]:
        """Return the lines that replace `item`."""
        if self.is_dropped:
            return []
        if self.part is not None:
            return [_renamed(item, self.part, self.base)]
        if self.view is None:
            twin = in_place_twin(item.symbol.fn)
            return [_called(item, twin, item.args, dict(item.kwargs), self.output)]
        view = changed_proxy(self.view, name=names.fresh())
        output = changed_proxy(view, name=names.fresh())
        of = (self.base, *item.args[2:])
        looked = _called(item, _SCATTERS[item.symbol.fn], of, dict(item.kwargs), view)
        write = _called(item, _aten.copy_.default, (view, item.args[1]), {}, output)
        return [changed(looked, choices=()), write, _renamed(item, output, self.base)]


def _called(
    item: BoundSymbol, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> BoundSymbol:
    """Return a line that calls another overload of PyTorch."""
    implementation = item.implementation and Implementation(item.implementation.owner, fn)
    return changed(
        item,
        symbol=Symbol(f"aten.{fn._opname}.{fn._overloadname}", fn),
        args=args,
        kwargs=kwargs,
        output=output,
        implementation=implementation,
    )


def _renamed(item: BoundSymbol, part: TensorProxy, base: TensorProxy) -> BoundSymbol:
    return changed(
        item, symbol=AFTER, args=(part, base), kwargs={}, implementation=None, choices=()
    )


@dataclass(frozen=True, slots=True)
class _Write:
    """A write in place: its memory by the name of the first value there, and the changed lines."""

    memory: str
    lines: tuple[int, ...]
    is_in_part: bool
    base: TensorProxy
    output: TensorProxy
    versions: int


@dataclass(slots=True)
class _Chain:
    """The lines that bring a write through a view back to its base.

    `reads` counts their reads of older values; `values` are the new values, each with the value whose place it takes.
    """

    values: list[tuple[TensorProxy, TensorProxy]]
    steps: dict[int, _Step] = field(default_factory=dict)
    reads: int = 0


class _Plan:
    """The writes in place of a trace, found in one pass over the lines."""

    def __init__(
        self, trace: Trace, source: Sequence[BoundSymbol], destined: Mapping[int, int]
    ) -> None:
        self.lines = trace.bound_symbols
        self.values = Places(trace, source)
        self._places = {place: trace.inputs[number].name for place, number in destined.items()}
        #: By memory, the inputs that its value is copied into after the call; and the memory of all other outputs.
        self._destined: defaultdict[str, set[str]] = defaultdict(set)
        self._returned: set[str] = set()
        self._makers = {p.name: i for i, item in enumerate(self.lines) for p in item.outputs}
        for place, proxy in enumerate(trace.outputs):
            if proxy is not None:
                self._note_output(place, proxy)
        self._checked = max((i for i, item in enumerate(self.lines) if item.is_check), default=-1)
        strided = (item for item in self.lines if item.symbol.name.startswith("aten.as_strided"))
        self._strided = {self.values.root(proxy.name) for item in strided for proxy in item.inputs}
        self.steps: dict[int, _Step] = {}
        self.writes: list[_Write] = []
        #: Memory made by the trace: True for an operator's, False for that of a function of PyTorch, called whole.
        self._own: dict[str, bool] = {}
        #: Memory that a plugin's call may keep.
        self._barred: set[str] = set()
        for index, item in enumerate(self.lines):
            self._pass(index, item)

    def is_home(self, place: int, proxy: TensorProxy | None) -> bool:
        """Check whether an output was written to its destined input."""
        target = self._places.get(place)
        if proxy is None or target is None or proxy.name == target:
            return False
        return self.values.of(proxy.name) == target and proxy.name in self.values.full

    def _note_output(self, place: int, proxy: TensorProxy) -> None:
        root = self.values.root(proxy.name)
        outputs = self.lines[self._makers[root]].outputs if root in self._makers else ()
        is_whole = any(one.name == root and one.layout == proxy.layout for one in outputs)
        if place in self._places and is_whole:
            self._destined[root].add(self._places[place])
        else:
            self._returned.add(root)

    def _pass(self, index: int, item: BoundSymbol) -> None:
        for proxy in item.inputs:
            self.values.remaining[self.values.of(proxy.name)] -= 1
        if index not in self.steps:
            in_place = [self._is_written(index, item, *pair) for pair in _writes_of(item)]
            if isinstance(item.symbol.fn, WritingOperator) or not any(in_place):
                self._compute(item)

    def _compute(self, item: BoundSymbol) -> None:
        """Define the results of a line without a write in place."""
        values, is_plain = self.values, item.is_leaf and _is_pytorch(item)
        is_plain |= isinstance(item.symbol.fn, WritingOperator)
        for proxy in item.outputs:
            if proxy.name in values.memory:  # written by an operator
                continue
            values.compute(proxy)
            memory = values.memory[proxy.name]
            is_whole = item.implementation is not None and item.implementation.fn is item.symbol.fn
            if (is_plain or is_whole) and memory == proxy.name and len(item.outputs) == 1:
                self._own[memory] = is_plain
            if proxy.name not in values.originals and not is_plain:
                self._barred |= {memory, *[values.of(one.name) for one in item.inputs]}

    def _is_written(
        self, index: int, item: BoundSymbol, base: TensorProxy, output: TensorProxy
    ) -> bool:
        """Have a line write `output` to `base` if possible, and enter its steps and values; return whether done."""
        if self.values.root(output.name) != output.name:
            return False
        memory = self.values.of(base.name)
        is_input = memory in self._places.values() and index > self._checked
        in_part = base.name not in self.values.full or _writes_in_part(item.symbol.fn)
        # the trace's own memory, computed as a whole, gains nothing
        is_operator = isinstance(item.symbol.fn, WritingOperator)
        is_own = memory in self._own if is_operator else self._own.get(memory, False)
        if memory in self._barred or not (is_input or (in_part and is_own)):
            return False
        step = self._step(item, base, output)
        chain = None if step is None else self._chain(index, base, output, step)
        if step is None or chain is None or self.values.remaining[memory] != chain.reads:
            return False
        is_of_view = not is_input and _is_computed(item.symbol.fn) and not chain.steps
        # a computed view would keep all of its base's memory alive
        if is_of_view or any(self._is_seen(memory, *value) for value in chain.values):
            return False
        self.steps |= {index: step, **chain.steps}
        fn = item.symbol.fn
        versions = fn.versions(item) if isinstance(fn, WritingOperator) else 1
        line_numbers = index, *chain.steps
        self.writes.append(_Write(memory, line_numbers, in_part, base, output, versions))
        for proxy, source in chain.values:
            self.values.alias(proxy, source)
        return True

    def _is_seen(self, memory: str, proxy: TensorProxy, base: TensorProxy) -> bool:
        """Check whether a value is an output that would share memory, or is read by its place in memory."""
        name, is_full = proxy.name, base.name in self.values.full
        if name in self._strided and self.values.moved(proxy, base) != 0:
            return True
        if memory not in self._own:
            return name in self._returned or (
                name in self._destined and not (is_full and self._destined[name] == {memory})
            )
        return not is_full and (name in self._returned or name in self._destined)

    def _step(self, item: BoundSymbol, base: TensorProxy, output: TensorProxy) -> _Step | None:
        """Return the step that writes a line in place; None if impossible."""
        fn: Any = item.symbol.fn
        if _kind(base) != _kind(output) or base.is_conj or base.is_neg or _repeats(base):
            return None
        if isinstance(fn, WritingOperator):
            memory = self.values.of(base.name)
            readers = sum(self.values.of(proxy.name) == memory for proxy in item.inputs)
            return _Step(base) if readers == 1 and strides(output) == strides(base) else None
        target: TensorProxy = base
        view: TensorProxy | None = None
        if fn in _SCATTERS:
            view = self._view(item, base)
            target = view or base
            if view is None or item.args[1].shape != view.shape or strides(output) != strides(base):
                return None
        elif not _has_twin(fn) or (
            _is_computed(fn) and any(one.dtype not in _EXACT for one in (*item.inputs, output))
        ):
            return None
        for proxy in item.inputs[1:]:
            if self.values.of(proxy.name) == self.values.of(base.name):
                is_itself = _is_computed(fn) and proxy.name == base.name
                is_copied = view is not None or fn is _aten.copy.default
                if not is_itself and not (is_copied and self._are_apart(target, base, proxy)):
                    return None
        if strides(output) != strides(base):
            layout = {"stride": base.stride, "storage_offset": base.storage_offset}
            output = changed_proxy(output, **layout)
        return _Step(base, view, output)

    def _view(self, item: BoundSymbol, base: TensorProxy) -> TensorProxy | None:
        """Return the view of `base` that a scatter writes to; None if a size or place is symbolic."""
        fn = _SCATTERS[item.symbol.fn]
        is_absolute = fn is _aten.as_strided.default
        numbers = (*item.args[2:], *item.kwargs.values())
        if is_symbolic(base, *item.inputs) or has_numbers(numbers):
            return None
        if is_absolute and self.values.shift.get(base.name) != 0:
            return None
        with internals.real_dispatch():
            storage = torch.empty_strided(base.shape, base.stride, device="meta")
            view = fn(storage, *item.args[2:], **item.kwargs)
        offset = view.storage_offset() + (0 if is_absolute else base.storage_offset)
        layout = {"shape": tuple(view.shape), "stride": tuple(view.stride())}
        return changed_proxy(base, **layout, storage_offset=offset)

    def _are_apart(self, target: TensorProxy, base: TensorProxy, other: TensorProxy) -> bool:
        """Check whether two values of one memory have disjoint extents."""
        shift, further = self.values.shift[base.name], self.values.shift[other.name]
        if shift is None or further is None or is_symbolic(target):
            return False
        start, stop = extent(target, shift)
        begin, end = extent(other, further)
        return stop <= begin or end <= start

    def _chain(
        self, index: int, base: TensorProxy, output: TensorProxy, step: _Step
    ) -> _Chain | None:
        """Return the lines that bring a write at `index` back to its base; None if others read omitted values."""
        chain = _Chain([(output, base)])
        part = output if step.view is not None or step.output is None else step.output
        name, place = output.name, self.values.at[base.name]
        # only the next line of the chain may read such a value: its layout differs, or it is omitted
        is_inner = strides(part) != strides(output)
        while (scatter := self._scatter(index, name, place)) is not None:
            number, views, place = scatter
            target, result = self.lines[number].args[0], self.lines[number].output
            is_read = is_inner and self.values.readers[name] != [number]
            if is_read or strides(target) != strides(result):
                return None
            chain.reads += 1
            is_inner = bool(views)
            if is_inner:
                chain.steps |= dict.fromkeys((*views, number), _Step(target, is_dropped=True))
            else:
                chain.steps[number] = _Step(target, part=part)
                chain.values.append((result, target))
                part = result
            name = result.name
        return None if is_inner and self.values.readers[name] else chain

    def _scatter(self, index: int, name: str, place: Place) -> tuple[int, list[int], Place] | None:
        """Return the line that puts a value written at `place` back into an older value.

        Also return the views later than `index` that lead to the older value, and the place of that value.
        """
        for number in self.values.readers[name]:
            item = self.lines[number] if number < len(self.lines) else None
            if item is None or item.symbol.fn not in _SCATTERS or not _is_pytorch(item):
                continue
            root, views = self._reached(index, item.args[0])
            if root is not None and item.args[1].name == name:
                at, target = self._target(item, root, views)
                if target == place:
                    return number, views, at
        return None

    def _target(self, item: BoundSymbol, root: str, views: Sequence[int]) -> tuple[Place, Place]:
        """Return the place of a scatter's base, which is a view of `root` by these lines, and the written place."""
        at, shift = self.values.at[root], self.values.shift[root]
        for line in reversed(views):
            maker = self.lines[line]
            is_number = shift is not None and not is_symbolic(maker.output)
            at = (
                geometry(maker.output, shift)
                if shift is not None and is_number
                else place_of_call(maker.symbol.fn, maker.args[1:], maker.kwargs, at)
            )
        view = None if shift is None else self._view(item, item.args[0])
        if view is not None and shift is not None:
            return at, geometry(view, shift)
        return at, place_of_call(_SCATTERS[item.symbol.fn], item.args[2:], item.kwargs, at)

    def _reached(self, index: int, proxy: TensorProxy) -> tuple[str | None, list[int]]:
        """Return the base that exists at `index` of a later view, and the lines of the view, each read once."""
        views: list[int] = []
        while proxy.name not in self.values.memory:
            maker = self._makers.get(proxy.name, -1)
            item = self.lines[maker]
            viewed = viewed_argument(item) if maker > index and _is_pytorch(item) else None
            if viewed is None or len(item.outputs) > 1 or len(self.values.readers[proxy.name]) > 1:
                return None, []
            views.append(maker)
            proxy = viewed
        return proxy.name, views


def _writes_of(item: BoundSymbol) -> list[tuple[TensorProxy, TensorProxy]]:
    """Return the arguments that a line might write to, each with the new value."""
    if isinstance(item.symbol.fn, WritingOperator):
        targets = item.symbol.fn.targets(item.args, item.kwargs)
        return list(zip(proxies(targets), proxies(item.output[1]), strict=True))
    base, output = item.args[0] if item.args else None, item.output
    if not isinstance(base, TensorProxy) or not isinstance(output, TensorProxy):
        return []
    return [(base, output)] if item.is_leaf and _is_pytorch(item) else []


def _kind(proxy: TensorProxy) -> tuple[object, ...]:
    sizes = proxy.layout[1][: len(proxy.shape)]
    return sizes, proxy.dtype, proxy.device, proxy.is_conj, proxy.is_neg


def _repeats(proxy: TensorProxy) -> bool:
    """Check whether several elements share a place, as after `expand()`."""
    sizes = zip(proxy.shape, proxy.stride, strict=True)
    return any(type(step) is int and step == 0 for _, step in sizes)


def _is_pytorch(item: BoundSymbol) -> bool:
    """Check whether a line is an operator of PyTorch, run by PyTorch if claimed."""
    fn, implementation = item.symbol.fn, item.implementation
    is_own = isinstance(fn, internals.OpOverload) and fn.namespace == "aten"
    return is_own and (implementation is None or implementation.fn is fn)


@cache
def _writes_in_part(fn: Any) -> bool:
    is_part = fn in _SCATTERS or isinstance(fn, WritingOperator)
    return is_part or fn._opname.startswith(_IN_PART)


@cache
def _is_computed(fn: Any) -> bool:
    return not _writes_in_part(fn) and torch.Tag.pointwise in fn.tags


@cache
def _has_twin(fn: Any) -> bool:
    """Check whether an overload writes the result of `fn` to its first argument, and to nothing else."""
    twin = in_place_twin(fn)
    if twin is None or fn._schema.is_mutable or fn._opname in _OF_MEMORY:
        return False
    own, other = fn._schema, twin._schema
    is_written = [one.alias_info is not None and one.alias_info.is_write for one in other.arguments]
    return (
        [(one.name, str(one.type)) for one in own.arguments]
        == [(one.name, str(one.type)) for one in other.arguments]
        and [one.alias_info for one in own.returns] == [None]
        and is_written == [True, *[False] * (len(is_written) - 1)]
    )

"""Lines with DTensors on local tensors: from the second call on, most operators bypass DTensor.

The first call runs the lines on DTensors, and notes the operators that PyTorch dispatches. Later calls with the same
placements repeat them: on local tensors, where DTensor only ran the operator on these, else on DTensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from operator import attrgetter
from typing import Any, TypeAlias

import torch

from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.free_last_used import free_last_used
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol
from switchgear_core.ir.trace import Trace, compile_trace
from switchgear_core.nesting import instances_in, map_instances, map_tensors
from switchgear_core.record.values import metadata_proxy
from switchgear_dtensors import torch_private as internals
from switchgear_dtensors.marks import is_sharded
from switchgear_dtensors.placed import MOVE, MOVE_BACK

#: The largest number of programs for the same lines: a caller chooses the placements of a backward's gradients.
_MOST = 8
#: The placements of inputs, None for plain tensors, and whether they require grad.
_Places: TypeAlias = Sequence[tuple[object, bool]]
#: A program: it takes its inputs in a list, which gets empty.
_Run: TypeAlias = Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]
_LOCAL = Symbol(f"{internals.__name__}.local_of", internals.local_of)
_WHOLE = Symbol("torch.distributed.tensor.DTensor", internals.DTensor)


def join(trace: Trace, *, is_fixed: bool) -> Trace:
    """Return a claimed trace with each series of lines with DTensors as one line.

    Args:
        trace: the trace.
        is_fixed: whether the placements of its inputs are the same in all calls: those of a forward are guarded.
    """
    if trace.numbers:
        return trace
    series = [[*lines] for _, lines in groupby(trace.bound_symbols, _can_join)]
    last = {value.name: place for place, lines in enumerate(series) for line in lines for value in line.inputs}
    last |= {value.name: len(series) for value in trace.outputs if value is not None}
    body: list[BoundSymbol] = []
    for place, lines in enumerate(series):
        if _can_join(lines[0]):
            results = {value.name: value for line in lines for value in line.outputs}
            outputs = tuple([value for name, value in results.items() if last.get(name, place) > place])
            inputs = {value.name: value for line in lines for value in line.inputs if value.name not in results}
            part = Trace("on_dtensors", tuple(inputs.values()), outputs, tuple(lines))
            lines = [_joined(part, OnLocal(part, is_fixed))]
        body += lines
    return replace(trace, bound_symbols=tuple(body))


def _can_join(line: BoundSymbol) -> bool:
    return is_sharded(line) and bool(line.outputs) and not (line.stays or line.symbol in (MOVE, MOVE_BACK))


def _joined(part: Trace, on_local_tensors: OnLocal) -> BoundSymbol:
    """Return one line for the lines of a part."""
    lines = part.bound_symbols
    return BoundSymbol(
        ON_LOCAL,
        (on_local_tensors, *part.inputs),
        {},
        part.outputs,
        lines,
        source=lines[0].source,
        tags=frozenset().union(*(line.tags for line in lines)),
        links=tuple(dict.fromkeys(link for line in lines for link in line.links)),
        implementation=Implementation("torch", on_local, boxed=True),
        choices=tuple(dict.fromkeys(choice for line in lines for choice in line.choices)),
    )


def on_local(args: list[Any]) -> tuple[torch.Tensor, ...]:
    """Return the results of an `OnLocal`, given with its inputs in a list, which gets empty."""
    lines: OnLocal = args[0]
    tensors = args[1:]
    args.clear()
    return lines(tensors)


ON_LOCAL = Symbol(f"{__name__}.on_local", on_local)


class OnLocal:
    """Lines with DTensors, and a program for each of the placements of inputs so far, unless these are fixed.

    A program also belongs to the handlers of operators that DTensor treats specially.
    """

    def __init__(self, trace: Trace, is_fixed: bool) -> None:
        self._trace, self._is_fixed = trace, is_fixed
        self._on_dtensors: _Run = compile_trace(free_last_used(trace), boxed=True)
        #: The traces of the programs so far, None where there is nothing to gain.
        self.traces: list[Trace | None] = []
        self._programs: list[tuple[list[object], _Places, _Run]] = []

    def __repr__(self) -> str:
        return f"lines with DTensors: {', '.join(line.symbol.name for line in self._trace.bound_symbols)}"

    def __reduce__(self) -> tuple[object, ...]:
        return OnLocal, (self._trace, self._is_fixed)

    def __call__(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results for inputs in a list, which gets empty."""
        if internals.dispatch_mode_count() or internals.functorch_active() or internals.forward_mode_active():
            return self._on_dtensors(tensors)
        handlers = internals.special_handlers()
        for own_handlers, places, program in self._programs:
            if own_handlers == handlers and (self._is_fixed or _fits(places, tensors)):
                return program(tensors)
        # one tensor in two places would be one value, and in another call there may be two
        if len(self._programs) == _MOST or len({*map(id, tensors)}) < len(tensors):
            return self._on_dtensors(tensors)
        notes = _Notes()
        inputs = [*map(notes.define, tensors)]
        places = [(value.spec, value.tensor.requires_grad) for value in inputs]
        with notes:
            results = self._on_dtensors(tensors)
        trace = _program(notes, inputs, [*map(notes.value, results)])
        self.traces.append(trace)
        self._programs.append((handlers, places, compile_trace(trace, boxed=True) if trace else self._on_dtensors))
        return results


def _fits(places: _Places, tensors: Sequence[torch.Tensor]) -> bool:
    """Check whether tensors have the given placements, and require grad as given."""
    for (spec, requires_grad), tensor in zip(places, tensors, strict=True):
        now = internals.spec_of(tensor) if type(tensor) is internals.DTensor else None
        if (now is not spec and now != spec) or tensor.requires_grad is not requires_grad:
            return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Value:
    """A tensor of the noted call, and its local tensor; both are one, without a `spec`, where it is plain."""

    tensor: TensorProxy
    local: TensorProxy
    spec: object


#: An operator, its arguments, and those by name, with values in place of tensors.
_Call: TypeAlias = tuple[Any, tuple[object, ...], Mapping[str, object]]


@dataclass(slots=True, eq=False)
class _Operator:
    """A call of an operator.

    Attributes:
        on_dtensors: the call, as PyTorch dispatched it.
        on_local: the call that DTensor made with local tensors; None where it did anything else.
        results: a value, or a flat list of values.
    """

    on_dtensors: _Call
    on_local: _Call | None
    results: object


class _Notes(internals.DispatchMode):
    """Mode that notes the operators of a call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: MutableMapping[torch.Tensor, _Value] = internals.WeakIdKeyDictionary()
        self.operators: list[_Operator] = []
        #: Tensors that PyTorch makes of numbers, by name.
        self.constants: dict[str, torch.Tensor] = {}
        #: Whether nothing was called but operators on noted values.
        self.is_complete = True
        self._numbers = count()

    def define(self, tensor: torch.Tensor) -> _Value:
        """Return the value of an input, or of a result, which may be an argument."""
        if tensor not in self._values:
            number, spec = next(self._numbers), None
            proxy = local = metadata_proxy(f"t{number}", tensor, requires_grad=tensor.requires_grad)
            if type(tensor) is internals.DTensor:
                local, spec = replace(proxy, name=f"local{number}"), internals.spec_of(tensor)
            self._values[tensor] = _Value(proxy, local, spec)
        return self._values[tensor]

    def value(self, tensor: torch.Tensor) -> _Value:
        """Return the value of an argument."""
        if tensor not in self._values:
            self.is_complete &= type(tensor) is torch.Tensor and not tensor.dim()
            self.constants[self.define(tensor).tensor.name] = tensor
        return self._values[tensor]

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        call = func, args, kwargs or {}
        on_dtensors, on_local = map_tensors(self.value, (call, internals.local_operator(*call)))
        result = func(*args, **call[2])
        results = map_tensors(self.define, result)
        self.is_complete &= isinstance(results, (_Value, tuple, list)) and torch.Tag.inplace_view not in func.tags
        self.operators.append(_Operator(on_dtensors, on_local, results))
        return result


def _program(notes: _Notes, inputs: Sequence[_Value], results: Sequence[_Value]) -> Trace | None:
    """Return a trace that repeats the noted call; None if it would not be faster."""
    _keep_views(notes.operators, results)
    if not (notes.is_complete and any(operator.on_local for operator in notes.operators)):
        return None
    body: list[BoundSymbol] = []
    names = {value.tensor.name for value in inputs}.union(notes.constants)

    def local(value: _Value) -> TensorProxy:
        if value.local.name not in names:
            names.add(value.local.name)
            body.append(BoundSymbol(_LOCAL, (value.tensor,), {}, value.local))
        return value.local

    def tensor(value: _Value) -> TensorProxy:
        if value.tensor.name not in names:
            names.add(value.tensor.name)
            body.append(BoundSymbol(_WHOLE, (value.local, value.spec), {"requires_grad": False}, value.tensor))
        return value.tensor

    for operator in notes.operators:
        form = tensor if operator.on_local is None else local
        function, args, kwargs = operator.on_local or operator.on_dtensors
        args, kwargs = map_instances(_Value, form, (args, kwargs))
        output = map_instances(_Value, attrgetter(form.__name__), operator.results)
        output = tuple(output) if isinstance(output, list) else output
        body.append(BoundSymbol(Symbol(str(function), function), args, kwargs, output))
        names.update(proxy.name for proxy in body[-1].outputs)
    outputs = tuple(map(tensor, results))
    trace = Trace("on_local", tuple([value.tensor for value in inputs]), outputs, tuple(body), notes.constants)
    return free_last_used(trace)


def _keep_views(operators: Sequence[_Operator], results: Iterable[_Value]) -> None:
    """Leave the views among the results to DTensor, and the views that these are of: autograd knows their bases."""
    views = {*results}
    for operator in reversed(operators):
        function, args = operator.on_dtensors[:2]
        if internals.is_view(function) and not views.isdisjoint(instances_in(_Value, operator.results)):
            operator.on_local = None
            views.update(instances_in(_Value, args))

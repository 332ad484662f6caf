"""Operators of `torch.library` that write to their arguments: a line that returns the new values.

PyTorch's functionalization refuses them, so they get a kernel there while a function is captured. Autograd does not see
their writes: a written tensor keeps its history. The line carries that history, so that a grad rule may replace it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.purity import is_random
from switchgear_core.ir.symbol import RANDOM, BoundSymbol, Symbol, proxies
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import Change, replaced
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.record.refused_writes import (
    is_in_place,
    refuse_expanded,
    refuse_transposed,
)
from switchgear_core.record.shared_memory import overlap_in_part
from switchgear_core.record.sizes import active_sizes, settled
from switchgear_frontend.features.writing_operators.operator import (
    FunctionalOperator,
    duplicate,
    own_results,
)

#: Namespaces of PyTorch's own operators, and of communication between processes.
_OTHERS = frozenset({"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional", "symm_mem"})
#: The operators called so far, by name: a notebook may define one again.
_OPERATORS: dict[str, internals.OpOverload] = {}
#: Their kernels for functionalization, while registered: outside of a capture, PyTorch has its own way.
_KERNELS: dict[str, Change] = {}


class WritingOperators(Handler):
    """Handler of operators whose schema says that they write."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Register kernels for the operators called so far: derived rules call them again."""
        for overload in _OPERATORS.values():
            if _is_defined(overload):
                _register(overload)
        try:
            yield
        finally:
            for change in [*_KERNELS.values()]:
                change.undo()

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """Register the kernels of an operator, and let the call proceed."""
        fn = call.fn
        if isinstance(fn, internals.OpOverload | internals.OpOverloadPacket):
            operators = [*filter(_writes, _overloads_of(fn))]
            for overload in operators:
                _OPERATORS[overload.name()] = overload
                _register(overload)
            if operators:  # the schema says what it writes to, and not its name
                call.fn = functools.partial(fn)
        elif call.args and id(call.args[0]) in recorder.tracker.writes.late:
            name = getattr(fn, "__name__", "")
            if call.grad_enabled and is_in_place(name):
                raise Unsupported(
                    f"{name} writes to a view through which an operator wrote, in {recorder.here()}; "
                    "make the view again"
                )
        return PASS


def _overloads_of(
    fn: internals.OpOverload | internals.OpOverloadPacket,
) -> list[internals.OpOverload]:
    """Return an overload, or all overloads of a packet."""
    if isinstance(fn, internals.OpOverload):
        return [fn]
    return [getattr(fn, name) for name in fn.overloads()]


@functools.cache
def _writes(overload: internals.OpOverload) -> bool:
    """Check whether an operator writes, and PyTorch neither decomposes it nor makes it functional."""
    has_own_way = any(
        internals.has_kernel(overload, key)
        for key in ("CompositeImplicitAutograd", "Functionalize")
    )
    return overload._schema.is_mutable and overload.namespace not in _OTHERS and not has_own_way


def _register(overload: internals.OpOverload) -> None:
    """Register the kernel of an operator, unless registered: PyTorch 2.11 refuses a second one."""
    name = overload.name()
    if name in _KERNELS:
        return
    library = torch.library.Library(overload.namespace, "IMPL")
    _KERNELS[name] = Change(_unregister, library, name)

    def kernel(*args: object, **kwargs: object) -> Any:
        if any(map(internals.is_wrapper, tensors_in((args, kwargs)))):
            return _write(_OPERATORS[name], args, kwargs)
        with internals.outside_autograd():
            return _OPERATORS[name](*args, **kwargs)

    library.impl(name.partition("::")[2], kernel, "Functionalize")


def _unregister(library: torch.library.Library, name: str) -> None:
    library._destroy()
    _KERNELS.pop(name, None)


def _is_defined(overload: internals.OpOverload) -> bool:
    """Check whether an operator still is the one of its name."""
    packet = getattr(getattr(torch.ops, overload.namespace), overload._opname, None)
    return getattr(packet, overload._overloadname, None) is overload


def _write(
    overload: internals.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Any:
    """Record a call on wrappers, give its targets their new values, and return the results."""
    recorder = active_recorder()
    assert recorder is not None
    operator, tracker = FunctionalOperator(overload), recorder.tracker
    with internals.DisableTorchFunction():
        arguments = tuple(args), dict(kwargs)
        targets = [*tensors_in(operator.targets(*arguments))]
        _refuse(recorder, overload, [*tensors_in(arguments)], targets)
        fakes = map_tensors(tracker.fake_of, arguments)
        values, result = _run(recorder, operator, *fakes)
        grad_enabled = _grad_enabled(recorder, overload)
        if not recorder.tape.is_paused:
            _record(recorder, operator, fakes, result, values, grad_enabled)
        if not operator.is_counted:
            tracker.writes.hidden.update(tracker.current_proxy(one).name for one in targets)
        wrappers: dict[int, torch.Tensor] = {}
        for target, value in zip(targets, tensors_in(values), strict=True):
            tracker.rebind(target, value, aliases=True)
            wrappers[id(value)] = target
        if not recorder.tape.is_paused:
            _follow(recorder, targets, grad_enabled)
        return map_tensors(
            lambda fake: wrappers[id(fake)] if id(fake) in wrappers else internals.wrap(fake),
            result,
        )


def _run(
    recorder: Recorder,
    operator: FunctionalOperator,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], object]:
    """Run an operator on fakes; return the new values of its targets, and its results."""
    with recorder.paused(), internals.outside_autograd():
        values = map_tensors(duplicate, operator.targets(args, kwargs))
        args, kwargs = operator.on(args, kwargs, values)
        try:
            return values, operator.overload(*args, **kwargs)
        except internals.NO_FAKE as error:
            raise Unsupported(
                f"{operator.overload} cannot run on fake tensors, in {recorder.here()}: {error}"
            ) from error


def _grad_enabled(recorder: Recorder, overload: internals.OpOverload) -> bool:
    """Return the grad mode of a call: a custom operator runs in a Function, which turns grad mode off."""
    frame = recorder.tape.frame
    is_called = getattr(frame.fn, "func", None) in (overload, overload.overloadpacket)
    return torch.is_grad_enabled() or (is_called and frame.grad_enabled)


def _record(
    recorder: Recorder,
    operator: FunctionalOperator,
    fakes: Any,
    result: object,
    values: object,
    grad_enabled: bool,
) -> None:
    """Record the line; a new value requires grad if its target does."""
    tape, define, overload = recorder.tape, recorder.values.define, operator.overload
    if active_sizes() is not None:
        fakes = settled(fakes)
    args, kwargs = map_tensors(recorder.values.proxy_of, fakes)
    needs_grad = grad_enabled and any(proxy.requires_grad for proxy in proxies((args, kwargs)))
    flags = iter([proxy.requires_grad for proxy in proxies(operator.targets(args, kwargs))])
    for fake in tensors_in(values):
        define(fake, grad_enabled and next(flags))

    def result_of(fake: torch.Tensor) -> TensorProxy:
        return define(fake, needs_grad and (fake.is_floating_point() or fake.is_complex()))

    results = map_tensors(result_of, own_results(result, values))
    output = _tuples(results), _tuples(map_tensors(recorder.values.proxy_of, values))
    tags = tape.tags | {RANDOM} if is_random(overload, args, kwargs) else tape.tags
    symbol, source = Symbol(str(overload), operator), tape.source()
    tape.lines.append(BoundSymbol(symbol, args, kwargs, output, (), source, grad_enabled, tags))


def _tuples(value: Any) -> Any:
    """Return nested outputs with tuples for lists, as in a trace."""
    return tuple(map(_tuples, value)) if isinstance(value, (tuple, list)) else value


def _follow(recorder: Recorder, targets: Sequence[torch.Tensor], grad_enabled: bool) -> None:
    """Bring the written tensors, and the bases of their memory, up to date.

    The history of a tensor goes on through the line; that of a base written through a view goes past the line.
    """
    tracker = recorder.tracker
    for target in targets:
        carries = grad_enabled and target.requires_grad and not target._is_view()
        with replaced(tracker, "carries_history", carries), torch.enable_grad():
            tracker.reconcile_bases(target)
            if target._is_view() and target.requires_grad:
                tracker.writes.late[id(target)] = True
            else:
                tracker.reconcile(target)
    recorder.tape.frame.wrote = True


def _refuse(
    recorder: Recorder,
    overload: internals.OpOverload,
    tensors: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
) -> None:
    """Refuse calls whose functional form would not be eager's."""
    here = recorder.here()
    tracks = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if tracks and not internals.has_kernel(overload, "Autograd"):
        raise Unsupported(
            f"{overload} has no kernel for autograd, in {here}, which sees the calls that it makes; define it with "
            "torch.library.custom_op, or call it under no_grad"
        )
    for target in targets:
        refuse_expanded(target, recorder.here)
        refuse_transposed(target, (), (), True, recorder.here)
        if target.is_conj() or target.is_neg():
            raise Unsupported(
                f"{overload} writes to a lazily conjugated or negated tensor, in {here}; pass a clone"
            )
        fake = recorder.tracker.fake_of(target)
        others = [recorder.tracker.fake_of(tensor) for tensor in tensors]
        if sum(_overlap(fake, other) for other in others) > 1:
            raise Unsupported(
                f"{overload} writes to memory of another of its arguments, in {here}; pass a clone"
            )


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Check whether two fakes have an element in common."""
    if internals.storage_key(left) != internals.storage_key(right):
        return False
    layouts = [(one.shape, one.stride(), one.storage_offset(), one.dtype) for one in (left, right)]
    return layouts[0] == layouts[1] or overlap_in_part(left, right)

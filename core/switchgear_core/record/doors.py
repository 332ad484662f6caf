"""The two doors of capture, through which the calls of a function come in while it runs on wrappers.

A function mode sees torch-level calls, the *composites*, as the user wrote them. A dispatch mode below autograd and
functionalization sees the operator overloads, the *leaves*, dispatched by each call. Neither mode names a feature:
`handler` does. In-place calls arrive as functional calls. The function takes eager's own path
(`torch.compiler.is_compiling()` is False); values computed from constants alone are simply computed.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from switchgear_core import torch_private as internals
from switchgear_core.errors import NO_DATA_IN_RULES, DataDependent, Unsupported
from switchgear_core.ir.naming import symbol_of
from switchgear_core.ir.symbol import Source, Symbol
from switchgear_core.ir.writes import DRAW_BERNOULLI
from switchgear_core.nesting import instances_in, map_tensors, tensors_in
from switchgear_core.patches import replaced
from switchgear_core.record.call import Call, Operation
from switchgear_core.record.composite import close, note_target, output_of, part_from_former_uses
from switchgear_core.record.handler import PASS, Handlers
from switchgear_core.record.leaves import calls, leaf_symbol, record_leaf
from switchgear_core.record.recorder import Recorder, active, active_recorder
from switchgear_core.record.refused_writes import refuse_casts, refuse_write
from switchgear_core.record.sizes import active_sizes
from switchgear_core.record.stand_ins import run
from switchgear_core.record.user_code import runs_no_user_code
from switchgear_core.record.values import metadata_proxy

_aten = torch.ops.aten
_NOISE = frozenset(
    {
        torch.ops.prim.device.default,
        _aten.is_same_size.default,
        _aten._has_same_storage_numel.default,
    }
)
_WRITES_UNDECLARED = frozenset({_aten.miopen_batch_norm.default})
#: Namespaces of operators that may return nothing: a trace does not need their assertions and marks.
_SILENT = frozenset({"aten", "prim", "prims", "profiler"})
_DATA_MISSING = (
    "data is not allocated yet",
    "unallocated storage",
    "Expected scalars to be on CPU, got meta",
)
#: Messages of eager depending on requires_grad of the root of the views, or on a gradient.
_NO_INVERSE = ("as_strided() is non-compositional", "must have a last dimension with stride 1")
#: Message of eager about a storage offset, which a write may have changed here.
_ODD_PLACE = "must have a storage_offset divisible by"
_REOPENED = frozenset({"torch.nn.functional", "torch.functional"})


class Doors:
    """A recorder, its handlers, and the modes of its doors."""

    def __init__(self, recorder: Recorder, handlers: Handlers) -> None:
        self.recorder = recorder
        self.handlers = handlers
        recorder.states = handlers.states(recorder)
        self._functions = _Functions(recorder, handlers)
        self._operators = _Operators(recorder, handlers)

    @contextlib.contextmanager
    def open(self, source: Source | None = None) -> Iterator[None]:
        """Return a context recording calls; `source` is the source of every line."""
        outer, tape = active_recorder(), self.recorder.tape
        with contextlib.ExitStack() as stack:
            if outer is not None:
                stack.enter_context(outer.paused())
            if outer is None or outer.values.fake_mode is not self.recorder.values.fake_mode:
                stack.enter_context(self.recorder.values.fake_mode)
            stack.enter_context(active(self.recorder))
            stack.enter_context(replaced(tape, "fixed_source", source))
            stack.enter_context(replaced(self.recorder, "reopened", lambda: self._functions))
            # Anomaly mode looks for NaN in each gradient: there is no data to look at.
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
            stack.enter_context(internals.functionalization())
            stack.enter_context(self._operators)
            stack.enter_context(self._functions)
            tape.dispatch_state = internals.dispatch_state()
            yield


class _Functions(TorchFunctionMode):
    """The door of torch-level calls."""

    def __init__(self, recorder: Recorder, handlers: Handlers) -> None:
        super().__init__()
        self.recorder = recorder
        self.handlers = handlers

    def __torch_function__(
        self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if self.recorder.tape.is_paused:
            return func(*args, **(kwargs or {}))
        with self.recorder.isolation:
            call = Call(func, args, kwargs or {}, grad_enabled=torch.is_grad_enabled())
            # a class without `__torch_function__` is not among `kinds`, and may have `__torch_dispatch__`
            kinds = {*kinds, *map(type, instances_in(torch.Tensor, (args, call.kwargs)))}
            if runs_no_user_code(func, kinds, (*args, *call.kwargs.values())):
                return self._recorded(call)
        return self._recorded(call)

    def _recorded(self, call: Call) -> object:
        assert call.fn is not None
        recorder = self.recorder
        if call.kwargs.get("requires_grad") is True:  # a factory of tensors
            tensor = self._recorded(replace(call, kwargs={**call.kwargs, "requires_grad": False}))
            return self._recorded(
                replace(call, fn=torch.Tensor.requires_grad_, args=(tensor,), kwargs={})
            )
        answer = self.handlers.ask("take", recorder, call)
        if answer is not PASS:
            return answer
        call.args, call.kwargs = map_tensors(recorder.adopted, (call.args, call.kwargs))
        call.symbol = symbol_of(call.fn)
        answer = self.handlers.ask("answer", recorder, call)
        if answer is not PASS:
            return answer
        if call.symbol is None:
            return recorder.track_outputs(run(call.fn, call, recorder.here))
        note_target(recorder, call)
        if call.writes and call.grad_enabled:
            part_from_former_uses(recorder, call)
        call.operands = map_tensors(recorder.tracker.current_proxy, (call.args, call.kwargs))
        self.handlers.ask("opened", recorder, call)
        result = self._run(call)
        call.is_unit = not call.wrote
        self.handlers.ask("closing", recorder, call)
        close(recorder, call)
        return result

    def _run(self, call: Call) -> Any:
        """Run the function, and note its parts and its writes in the call."""
        assert call.fn is not None
        recorder, tracker = self.recorder, self.recorder.tracker
        tensors = tensors_in((call.args, call.kwargs))
        before = [(tensor, tracker.last_fake(tensor)) for tensor in tensors]
        function = self._reopened(call.fn)
        recorder.tape.frames.append(call)
        try:
            noticed = internals.writes_noticed(call.fn, recorder.keep_strides)
            with _sizes_decomposed(call), noticed:
                result = run(function, call, recorder.here)
            recorder.track_outputs(result)
            _note_writes(recorder, call, before)
            call.output = output_of(recorder, result)
            return result
        except (RuntimeError, IndexError) as error:
            _refuse_error(recorder, call, error)
            raise
        finally:
            recorder.tape.frames.pop()

    def _reopened(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a Python function of PyTorch as a function whose own calls enter this door."""
        if not isinstance(function, types.FunctionType) or function.__module__ not in _REOPENED:
            return function
        if self.recorder.tape.frame.fn is function:
            return function

        def run(*args: object, **kwargs: object) -> Any:
            with self:
                return _without_override(function)(*args, **kwargs)

        return run


def _sizes_decomposed(call: Call) -> contextlib.AbstractContextManager[None]:
    if active_sizes() is None or call.fn is None:
        return contextlib.nullcontext()
    return internals.composites_of_sizes(call.fn, call.args)


@functools.cache
def _without_override(fn: types.FunctionType) -> types.FunctionType:
    """Return a copy of a PyTorch function that does not defer to function modes, so that its calls are seen."""

    def no_override(*args: object) -> bool:
        return False

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**fn.__globals__, **dict.fromkeys(names, no_override)}
    copy = types.FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _note_writes(
    recorder: Recorder, call: Call, before: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Bring the trace up to date with the writes of a call to its arguments, whose fakes before are given."""
    tracker = recorder.tracker
    for tensor, fake in before:
        tracker.reconcile(tensor)
        if tracker.last_fake(tensor) is fake:
            continue
        call.wrote = True
        if "out" in call.kwargs and tracker.last_fake(tensor).shape != fake.shape:
            raise Unsupported(f"out= is given other sizes, in {recorder.here()}; leave it out")
        tracker.reconcile_bases(tensor)
        if call.writes and (fake.is_conj() or fake.is_neg()):
            raise Unsupported(
                f"a write to a lazily conjugated or negated tensor, in {recorder.here()}; write to a clone"
            )
    if call.wrote:
        is_seen = call.grad_enabled and recorder.tracker.follow_autograd
        refuse_casts(call.lines, is_seen, recorder.here)


def _refuse_error(recorder: Recorder, call: Call, error: Exception) -> None:
    """Turn an error caused only by the stand-in tensors into `Unsupported`."""
    name, message, here = getattr(call.fn, "__name__", str(call.fn)), str(error), recorder.here
    if isinstance(error, IndexError):
        if not call.writes or not recorder.tracker.writes.reshapes:
            return
        raise Unsupported(
            f"{name} writes to a view of a tensor that was given other sizes in place, in {here()}: it cannot "
            "be traced back to its base; make a view in the place of the call in place"
        ) from error
    if call.writes and any(text in message for text in _NO_INVERSE):
        raise Unsupported(
            f"{name} writes to a view of a kind that cannot be traced back to its base, in {here()}; "
            "write to the base, or pass a clone of one"
        ) from error
    if _ODD_PLACE in message:
        raise Unsupported(
            f"{name} of a tensor that begins where it cannot be viewed so, or that was written to, in "
            f"{here()}; call it on a clone"
        ) from error
    if any(text in message for text in _DATA_MISSING):
        raise DataDependent(
            f"{name} needs the data of a tensor, in {here()}, which it takes without an operator; call it outside"
        ) from error
    if active_sizes() is not None:
        # or the user's own error, raised again by a capture with fixed sizes
        raise Unsupported(f"{name} of symbolic sizes fails, in {here()}: {message}") from error


class _Operators(internals.DispatchMode):
    """The door of operator overloads."""

    def __init__(self, recorder: Recorder, handlers: Handlers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.handlers = handlers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if internals.asks_device(func, args):
            return args[0].fake_device
        with internals.DisableTorchFunction():
            call = Operation(func, args, kwargs or {})
            if self.recorder.tape.is_paused or func in _NOISE:
                return self._unrecorded(call)
            return self._recorded(call)

    def _unrecorded(self, call: Operation) -> object:
        try:
            return call.func(*call.args, **call.kwargs)
        except internals.DATA_DEPENDENT as error:
            if call.func is self.recorder.values.known_call[0]:
                return self.recorder.values.known_results()
            if active_recorder() is not self.recorder:
                raise
            reason = "in a backward inside the jitted function, which cannot have it"
            raise DataDependent(
                f"{error} needs the data of a tensor, in {self.recorder.here()}, {reason}"
            ) from error

    def _recorded(self, call: Operation) -> Any:
        recorder, func = self.recorder, call.func
        if func.namespace == "profiler":
            begins, tape = "enter" in func._schema.name, recorder.tape
            tape.ranges = (*tape.ranges, call.args[0]) if begins else tape.ranges[:-1]
        if func is _aten.index_put.default:
            _check_dtypes(recorder, *call.args[:3])
        answer = self.handlers.ask("operator", recorder, call)
        if answer is not PASS:
            return answer
        if func is _aten.lift_fresh.default or func is _aten.lift_fresh_copy.default:
            return _lift(recorder, call)
        _refuse(recorder, func, call.args)
        try:
            result = self._result(call)
        except internals.DATA_DEPENDENT as error:
            return self._of_data(call, error)
        if not call.args or result is not call.args[0]:  # such as an unneeded `resolve_conj`
            record_leaf(recorder, call, result)
        return result

    def _result(self, call: Operation) -> object:
        """Return the result of a call on fakes."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if leaf_symbol(self.recorder, func) == DRAW_BERNOULLI:
            return torch.empty_like(args[0])
        if "generator" in kwargs:
            # fakes draw nothing, and some of PyTorch's decompositions for them take no generator
            kwargs = kwargs | {"generator": None}
        try:
            return func(*_with_dims(self.recorder, func, args), **kwargs)
        except internals.NO_FAKE as error:
            raise Unsupported(
                f"{func} cannot run on fake tensors, in {self.recorder.here()}: {error}"
            ) from error
        except ValueError as error:
            if func is not _aten.view.default:
                raise
            raise RuntimeError(str(error)) from error  # as in eager

    def _of_data(self, call: Operation, error: Exception) -> object:
        """Answer a call with tensor data as its result, or with a data-dependent shape."""
        recorder = self.recorder
        if call.func is recorder.values.known_call[0]:
            results = recorder.values.known_results()
            record_leaf(recorder, call, results)
            return results
        is_item = call.func is _aten._local_scalar_dense.default
        asker = "item(), or a branch on a tensor," if is_item else error
        need = f"{asker} needs the data of a tensor, in {recorder.here()}"
        answer = self.handlers.ask("by_data", recorder, call, need)
        if answer is not PASS:
            return answer
        if recorder.tracker.follow_autograd:
            # libraries use another path when PyTorch compiles, unlike in eager
            raise Unsupported(f"{need}, which no feature answers", splits=False) from error
        raise DataDependent(f"{need}: {NO_DATA_IN_RULES}") from error


def _refuse(recorder: Recorder, func: internals.OpOverload, args: tuple[Any, ...]) -> None:
    """Refuse operators impossible in a trace."""
    frame, here = recorder.tape.frame, recorder.here
    is_direct = frame.fn is func  # evaluating a backward calls overloads
    inside = func in internals.KEEP_PLACE and args[0].storage_offset() and not is_direct
    if inside and calls(recorder, func._schema.name[6:]):
        raise Unsupported(
            f"{func} of a tensor that begins inside its memory, in {here()}; call it on a clone"
        )
    if frame.writes:
        proxies = map(recorder.values.proxy_of, tensors_in(args))
        follows = recorder.tracker.follow_autograd and frame.grad_enabled
        differentiable = follows and any(proxy.requires_grad for proxy in proxies)

        def is_new(fake: torch.Tensor) -> bool:
            proxy = recorder.values.proxy_of(fake)
            return any(proxy in line.outputs for line in frame.lines)

        refuse_write(func, args, frame.out, is_new, differentiable, here)
    returns_nothing, is_mutable = _effects(func)
    if returns_nothing:
        raise Unsupported(
            f"{func} returns nothing, in {here()}: its effect is no value of a trace, and would happen on "
            "the first call alone; call it outside the jitted function"
        )
    if is_mutable:
        raise Unsupported(f"{func} writes to its arguments and has no functional form, in {here()}")


@functools.cache
def _effects(func: internals.OpOverload) -> tuple[bool, bool]:
    """Return whether an overload is called for its effect alone, and whether it writes to its arguments."""
    schema = func._schema
    returns_nothing = not schema.returns and func.namespace not in _SILENT
    return returns_nothing, schema.is_mutable or func in _WRITES_UNDECLARED


def _lift(recorder: Recorder, call: Operation) -> torch.Tensor:
    """Return a constant of the trace, or a fake for an existing value."""
    (tensor,) = call.args
    result: torch.Tensor = call.func(tensor)
    values, constants = recorder.values, recorder.tape.constants
    if tensor in values:
        values.know(result, replace(values.proxy_of(tensor), requires_grad=False))
        return result
    name = recorder.tape.names.claim(f"c{len(constants)}")
    with recorder.paused(), internals.real_dispatch():
        constants[name] = tensor.detach().clone()
    # each call gets its own tensor, to be returned or written to
    arguments = (metadata_proxy(name, constants[name], False),)
    clone = Symbol(str(_aten.clone.default), _aten.clone.default)
    recorder.record(clone, arguments, values.define(result, False))
    return result


def _with_dims(
    recorder: Recorder, func: internals.OpOverload, args: tuple[object, ...]
) -> tuple[object, ...]:
    """Return the arguments padded so that strides match the kernels: dimensions added by broadcasting have stride 0.

    PyTorch's formulas for fakes give such dimensions of size 1 another stride, and order the result's dimensions by it.
    """
    if torch.Tag.pointwise not in func.tags or func is _aten.equal.default:
        return args
    count = max([tensor.dim() for tensor in tensors_in(args)], default=0)
    if all(tensor.dim() in (0, count) for tensor in tensors_in(args)):
        return args

    def padded(fake: torch.Tensor) -> torch.Tensor:
        added = count - fake.dim() if fake.dim() else 0
        if not added:
            return fake
        return fake.as_strided((1,) * added + fake.shape, (0,) * added + fake.stride())

    with recorder.paused():
        return map_tensors(padded, args)  # type: ignore[no-any-return]


def _check_dtypes(
    recorder: Recorder,
    base: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
) -> None:
    """Raise eager's error for values of another dtype; fakes accept any, and the call may be dead code."""
    index_tensors = [index for index in indices if index is not None]
    is_mask = len(index_tensors) == 1 and index_tensors[0].dtype in (torch.bool, torch.uint8)
    if values.dtype != base.dtype and not (is_mask and values.numel() == 1):
        with recorder.paused(), internals.real_dispatch():
            nowhere = torch.empty(0, dtype=torch.int64)
            torch.empty(0, dtype=base.dtype).index_put(
                (nowhere,), torch.empty(0, dtype=values.dtype)
            )

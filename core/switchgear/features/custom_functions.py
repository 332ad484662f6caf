"""`torch.autograd.Function`: its forward is traced, its own backward is its gradient.

It passes every mode by, so its `apply` is redirected: PyTorch's own runs the forward on the wrappers, with a `ctx` of
ours, and PyTorch decides what requires grad and what is an error. A call becomes a composite named after the class,
for which executors and rules are registered. Its parts are what the forward dispatched, without gradients, and then
one symbol, `HISTORY`, that gives the results the class's backward and holds all that it reads. User code runs when it
is traced and never again. Refused: what marks tensors dirty, returns an argument or a view, or keeps a tensor as an
attribute of `ctx`.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from switchgear import torch_private as internals
from switchgear.capture.backward_writes import backward_writes_refused
from switchgear.capture.handler import Handler
from switchgear.capture.recorder import Recorder, active_recorder
from switchgear.capture.structure import flatten
from switchgear.errors import CaptureError, NotDifferentiable, RuleError, Unsupported
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import CUSTOM_FUNCTION, BoundSymbol, RuleOrigin, Symbol, map_proxies
from switchgear.ir.writes import IDENTITY
from switchgear.nesting import map_tensors, tensors_in
from switchgear.patches import redirected
from switchgear.who.rules import Applied, Grads, Pull

_REFUSED = {
    "torch.nn.modules._functions.BackwardHookFunction": "a full backward hook on a module",
    "torch.utils.checkpoint.CheckpointFunction": "reentrant checkpointing",
}


class Context(FunctionCtx):
    """What stands in for `ctx`, in the forward and in the backward."""

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[Any, ...] = ()
    materialize_grads: bool = True
    to_save: tuple[Any, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()

    def attributes(self) -> dict[str, Any]:
        """What the user's code put here."""
        return {name: value for name, value in vars(self).items() if name not in _OWN_ATTRIBUTES}

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """Of PyTorch 2.15: gradients that a backward may add to. There are none; it returns its own."""
        return (None,) * len(self.needs_input_grad)

    def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> NoReturn:
        """Of PyTorch 2.14: grad outputs of another dtype than the results."""
        raise Unsupported("ctx.set_output_grad_dtype() inside a jitted function; cast in backward")

    def maybe_clear_saved_tensors(self) -> None:
        """What is saved is freed after its last use anyway."""


_OWN_ATTRIBUTES = frozenset({*Context.__annotations__, "saved_for_forward"})


@dataclass(frozen=True, slots=True)
class _Result:
    """In place of a saved tensor: the result at this position among those that have a history."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a Function, beside its tensors.

    `tensors` are the positions of the tensors among its `count` arguments. `results` has, for each result, the
    metadata of a tensor and its position among those that have a history, if it is one. `attributes` are of `ctx`.
    """

    function: type[torch.autograd.Function]
    count: int
    tensors: tuple[int, ...]
    results: tuple[tuple[TensorProxy | None, int | None], ...]
    attributes: Mapping[str, Any] = field(repr=False)
    materialize: bool

    def __repr__(self) -> str:
        return f"a call of {_name(self.function)}"

    def context(self, needs: Sequence[bool], saved: Sequence[Any]) -> Context:
        """The `ctx` of the backward."""
        context, needed = Context(), dict(zip(self.tensors, needs, strict=True))
        vars(context).update(self.attributes)
        context.needs_input_grad = tuple(
            needed.get(position, False) for position in range(self.count)
        )
        context.saved_tensors = tuple(saved)
        return context


class _Applied:
    """The callable of a composite: the call on other tensors."""

    def __init__(self, function: type[torch.autograd.Function], args: tuple[Any, ...]) -> None:
        self.__name__ = function.__name__
        self._function = function
        # as they were: an argument in a trace is a plain tuple, list or dict
        self._values = tuple(None if _holds_tensors(arg) else arg for arg in args)

    def __repr__(self) -> str:
        return f"<{self.__name__} as called>"

    def __call__(self, *args: Any) -> Any:
        pairs = zip(args, self._values, strict=True)
        return self._function.apply(*[arg if value is None else value for arg, value in pairs])


class _Forward(torch.autograd.Function):
    """Runs another Function's forward, so that PyTorch decides what becomes of its results."""

    @staticmethod
    def forward(ctx: Any, function: Any, context: Context, *args: Any) -> Any:
        context.needs_input_grad = ctx.needs_input_grad[2:]
        with internals.function_modes_on():
            if _has_setup_context(function):
                result = function.forward(*args)
                function.setup_context(context, args, result)
            else:
                result = function.forward(context, *args)
        if any(not internals.is_wrapper(tensor) for tensor in tensors_in(result)):
            raise Unsupported(
                f"{_name(function)} returns a tensor that it closes over; return a clone"
            )
        wrong = [
            type(saved).__name__
            for saved in context.to_save
            if not isinstance(saved, torch.Tensor | None)
        ]
        if wrong:
            raise TypeError(
                f"save_for_backward can only save variables, but argument is of type {wrong[0]}"
            )
        ctx.mark_dirty(*context.dirty_tensors)
        ctx.mark_non_differentiable(*context.non_differentiable)
        return result


class _Linked(torch.autograd.Function):
    """Links results to arguments for autograd's sake."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Any:
        return tensors[:count]


class _Once(torch.autograd.Function):
    """Gradients, the first `count` arguments, of a backward that is marked `once_differentiable`."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.name_of_function = name
        return tuple([tensor.clone() for tensor in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise NotDifferentiable(
            f"trying to differentiate twice a function that was marked with @once_differentiable: "
            f"{ctx.name_of_function}"
        )


#: By Function, the subclass of `_Forward` that runs it: named like it, for PyTorch's messages.
_RUNNERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_ONCE_CODE = once_differentiable(lambda ctx: None).__code__


class CustomFunctions(Handler):
    """Calls of a Function are recorded by the recorder at work; `apply` bypasses every mode."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """`apply` is replaced."""
        return redirected(torch.autograd.Function, "apply", _apply)


def _apply(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    recorder = active_recorder()
    if recorder is None or recorder.is_paused or internals.inside_functorch():
        return original(function, *args, **kwargs)
    if (
        issubclass(function, (_Forward, _Linked))
        or function.__module__ == "torch._library.autograd"
    ):
        return original(function, *args, **kwargs)
    name = _name(function)
    if name in _REFUSED:
        raise Unsupported(
            f"{_REFUSED[name]} inside a jitted function, in {recorder.here()}: {name} cannot be traced"
        )
    if kwargs or _has_setup_context(function):
        own = () if _has_setup_context(function) else (None,)
        bound = inspect.signature(function.forward).bind(*own, *args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args[len(own) :], bound.kwargs
    args = tuple([recorder.adopted(arg) if isinstance(arg, torch.Tensor) else arg for arg in args])
    given = tuple([_given(recorder, arg) for arg in args])
    context = Context()
    # what PyTorch itself does with the results is no call of the user's
    with recorder.framed() as call, torch._C.DisableTorchFunction():
        runner = _RUNNERS.get(function) or _RUNNERS.setdefault(
            function, type(function.__name__, (_Forward,), {})
        )
        made = original(runner, function, context, *args, **kwargs)
        written = _finish(recorder, function, context, args, given, made)
        call.output = recorder.outputs(made)
    call.symbol, call.given = Symbol(name, _Applied(function, args)), (given, {})
    call.whole = not written and not torch.is_autocast_enabled()
    recorder.close(call, CUSTOM_FUNCTION)
    return made


def _given(recorder: Recorder, arg: Any) -> Any:
    """An argument in a trace: tensors in it as proxies."""
    if not _holds_tensors(arg):
        return arg
    return map_tensors(lambda tensor: recorder.tracker.proxy_of(recorder.adopted(tensor)), arg)


def _refuse_memory(
    recorder: Recorder,
    function: Any,
    context: Context,
    args: tuple[Any, ...],
    results: tuple[Any, ...],
) -> None:
    """Refuse a Function that writes to an argument, returns one or a view, or keeps tensors as attributes."""

    def refuse(what: str, remedy: str) -> NoReturn:
        raise Unsupported(f"{_name(function)}, called in {recorder.here()}, {what}; {remedy}")

    if context.dirty_tensors:
        refuse("marks a tensor dirty", "return a new one")
    fresh = [result for result in results if isinstance(result, torch.Tensor)]
    distinct = {id(tensor): tensor for tensor in (*fresh, *tensors_in(args))}
    memories = [internals.storage_key(tensor) for tensor in distinct.values()]
    if any(
        result._is_view() or memories.count(internals.storage_key(result)) > 1 for result in fresh
    ):
        refuse("returns an argument, a view, or results that share memory", "return clones")
    if any(isinstance(leaf, torch.Tensor) for leaf in flatten(context.attributes())[0]):
        refuse("keeps a tensor as an attribute of ctx", "use ctx.save_for_backward")


def _finish(
    recorder: Recorder,
    function: Any,
    context: Context,
    args: tuple[Any, ...],
    given: tuple[Any, ...],
    made: Any,
) -> bool:
    """Record what gives the results their history; returns whether the forward wrote to an argument."""
    results = made if isinstance(made, tuple) else (made,)
    fixed = {id(tensor) for tensor in context.non_differentiable}
    _refuse_memory(recorder, function, context, args, results)
    # of a tensor that is returned twice the last result counts, as in PyTorch
    last = {
        id(result): position
        for position, result in enumerate(results)
        if isinstance(result, torch.Tensor)
    }

    def has_history(result: torch.Tensor) -> bool:
        if not recorder.follow_autograd:
            # the grad pass records for whoever differentiates its backward
            return id(result) not in fixed and (result.is_floating_point() or result.is_complex())
        # PyTorch gives a view, or what it was told is constant, another node or none
        return result.requires_grad and issubclass(
            getattr(result.grad_fn, "_forward_cls", object), _Forward
        )

    linked = [
        i
        for i, r in enumerate(results)
        if isinstance(r, torch.Tensor) and last[id(r)] == i and has_history(r)
    ]
    if linked:
        at = {id(results[position]): _Result(k) for k, position in enumerate(linked)}
        kept: list[Any] = [at.get(id(saved), saved) for saved in context.to_save]
        kept = [recorder.adopted(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in kept]
        tensors = tuple(
            position for position, arg in enumerate(args) if isinstance(arg, torch.Tensor)
        )
        # values, not results: nothing is told of autograd's part in them yet
        proxies = [
            _value(recorder, result) if isinstance(result, torch.Tensor) else None
            for result in results
        ]
        places = tuple((p, linked.index(i) if i in linked else None) for i, p in enumerate(proxies))
        call = Call(
            function, len(args), tensors, places, context.attributes(), context.materialize_grads
        )
        _record(
            recorder,
            call,
            [given[i] for i in tensors],
            [results[i] for i in linked],
            kept,
            aliases=True,
        )
    for result in results:
        if (
            isinstance(result, torch.Tensor)
            and _value(recorder, result).requires_grad > result.requires_grad
        ):
            recorder.tracker.track(
                result
            )  # made under enable_grad, and PyTorch detached it in place
    written = False
    for arg, before in zip(args, given, strict=True):
        if isinstance(arg, torch.Tensor) and recorder.tracker.proxy_of(arg) != before:
            written = True
            recorder.tracker.reconcile_bases(arg)
    return written


def _value(recorder: Recorder, tensor: torch.Tensor) -> TensorProxy:
    return recorder.tracker.proxy_of_fake(recorder.tracker.fake_of(tensor))


def _record(
    recorder: Recorder,
    call: Call,
    inputs: Sequence[TensorProxy],
    results: Sequence[torch.Tensor],
    kept: Sequence[Any],
    *,
    aliases: bool,
) -> None:
    """Record `HISTORY`, and let the results, and `aliases` of them, stand for what it makes."""
    values = tuple([_value(recorder, result) for result in results])
    held = tuple(
        [_value(recorder, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in kept]
    )
    outputs = []
    for result in results:
        with recorder.paused(), internals.outside_autograd():
            fake = internals.unwrap(result).detach()
        outputs.append(recorder.tracker.new_proxy(fake, result.requires_grad))
        recorder.tracker.rebind(result, fake, aliases=aliases)
    recorder.record(HISTORY, (call, tuple(inputs), values, held), tuple(outputs))
    for result in results:
        recorder.tracker.reconcile(result)


def _history(
    call: Call,
    inputs: tuple[torch.Tensor, ...],
    values: tuple[torch.Tensor, ...],
    kept: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:
    """The values; while recording, with a history that is recorded anew."""
    recorder = active_recorder()
    if recorder is None:
        return values
    results: tuple[torch.Tensor, ...] = _Linked.apply(
        len(values), *[value.detach() for value in values], *inputs
    )  # type: ignore[no-untyped-call]
    arguments = {id(tensor) for tensor in inputs}
    # what the forward computed on its way is constant for whoever differentiates the backward
    kept = tuple(
        k.detach() if isinstance(k, torch.Tensor) and id(k) not in arguments else k for k in kept
    )
    with torch._C.DisableTorchFunction():
        _record(
            recorder,
            call,
            [recorder.tracker.proxy_of(tensor) for tensor in inputs],
            results,
            kept,
            aliases=False,
        )
    return results


class _Gradient:
    """The class's own backward is the gradient of `HISTORY`: an `OwnGradient`."""

    def origin(self, item: BoundSymbol) -> RuleOrigin:
        return RuleOrigin(item.args[0].function.__qualname__, "autograd.Function")

    def saved(self, item: BoundSymbol) -> tuple[TensorProxy, ...]:
        return tuple([value for value in _held(item) if isinstance(value, TensorProxy)])

    def constant(self, item: BoundSymbol) -> tuple[BoundSymbol, ...]:
        pairs = zip(item.args[2], item.outputs, strict=True)
        return tuple(
            BoundSymbol(IDENTITY, (value,), {}, made, source=item.source) for value, made in pairs
        )

    def linearise(self, item: BoundSymbol, recorder: Recorder, higher_order: bool) -> Applied:
        forward = (item,) if higher_order else self.constant(item)
        return Applied(forward, item.outputs, _pullback(item, recorder, higher_order))


HISTORY = Symbol("switchgear.autograd_function", _history, gradient=_Gradient())


def _held(item: BoundSymbol) -> list[Any]:
    """What `save_for_backward` was given."""
    return [item.outputs[k.position] if isinstance(k, _Result) else k for k in item.args[3]]


def _pullback(item: BoundSymbol, recorder: Recorder, higher_order: bool) -> Pull:
    call: Call = item.args[0]
    inputs, results = item.args[1], item.outputs

    def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
        made: dict[str, torch.Tensor] = {}

        def tensor(proxy: TensorProxy) -> torch.Tensor:
            if proxy.name not in made:
                made[proxy.name] = recorder.tracker.wrapper_for(proxy)
            return made[proxy.name]

        with _traced(item, call, recorder):
            held = _held(item)
            kept = map_proxies(tensor, held)
            if higher_order:
                seen = {proxy.name for proxy in (*inputs, *results)}
                kept = [
                    _as_autograd_sees(value, proxy, seen)
                    for value, proxy in zip(kept, held, strict=True)
                ]
            given = [
                _grad_output(call, proxy, None if k is None else grads[k], tensor)
                for proxy, k in call.results
            ]
            context = call.context([proxy.requires_grad for proxy in inputs], kept)
            with backward_writes_refused(recorder.tracker, [*made.values()], "it"):
                found = _gradients(call, inputs, _backward(call, context, given))
            _refuse_writes(recorder)
            if (
                higher_order
                and getattr(_user_backward(call.function), "__code__", None) is _ONCE_CODE
            ):
                inside = [*(grad for grad in given if grad is not None), *map(tensor, inputs)]
                found = _differentiable_once(call, found, inside)
            proxies = [None if grad is None else recorder.tracker.proxy_of(grad) for grad in found]
        return recorder.take(), (*proxies, *[None] * (len(item.inputs) - len(inputs)))

    return pull


def _as_autograd_sees(value: Any, proxy: Any, seen: set[str]) -> Any:
    """What the forward computed on its way is constant for whoever differentiates the backward."""
    return value.detach() if isinstance(proxy, TensorProxy) and proxy.name not in seen else value


def _differentiable_once(call: Call, found: list[Any], given: list[torch.Tensor]) -> list[Any]:
    """The gradients, which cannot be differentiated. PyTorch takes them for constant where no grad output is not."""
    defined = [grad.detach() for grad in found if grad is not None]
    marked = iter(_Once.apply(_name(call.function), len(defined), *defined, *given))  # type: ignore[no-untyped-call]
    return [None if grad is None else next(marked) for grad in found]


def _grad_output(
    call: Call, result: TensorProxy | None, grad: TensorProxy | None, tensor: Any
) -> torch.Tensor | None:
    if grad is not None:
        return tensor(grad)  # type: ignore[no-any-return]
    if result is None or not call.materialize:
        return None
    return torch.zeros(result.shape, dtype=result.dtype, device=result.device)


def _user_backward(function: Any) -> Any:
    own, vjp = function.backward, function.vjp
    return own if vjp is torch.autograd.Function.vjp else vjp


def _backward(call: Call, context: Context, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    boxed = getattr(call.function, "boxed_grads_call", False)
    result = _user_backward(call.function)(context, *([list(grads)] if boxed else grads))
    found = result if isinstance(result, tuple) else (result,)
    while len(found) > call.count and found[-1] is None:
        found = found[:-1]
    if len(found) != call.count:
        raise RuleError(
            f"returned an incorrect number of gradients (expected {call.count}, got {len(found)})"
        )
    return found


def _gradients(
    call: Call, inputs: tuple[TensorProxy, ...], found: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """A gradient or None per tensor among the arguments, as PyTorch's engine passes it on."""
    for position, grad in enumerate(found):
        if grad is not None and position not in call.tensors:
            raise RuleError(
                f"returned a gradient different from None for argument {position}, which is no tensor"
            )
        if grad is not None and not isinstance(grad, torch.Tensor):
            raise RuleError(
                f"returned a {type(grad).__name__} as the gradient of argument {position}"
            )
    return [
        _fitting(found[position], proxy, position)
        if proxy.requires_grad and found[position] is not None
        else None
        for position, proxy in zip(call.tensors, inputs, strict=True)
    ]


def _fitting(grad: torch.Tensor, proxy: TensorProxy, position: int) -> torch.Tensor:
    if tuple(grad.shape) != proxy.shape:
        try:
            reducible = torch.broadcast_shapes(grad.shape, proxy.shape) == grad.shape
        except RuntimeError:
            reducible = False
        if not reducible:
            shapes = f"shape {tuple(grad.shape)}, the argument {proxy.shape}"
            raise RuleError(
                f"returned an invalid gradient for argument {position}: it has {shapes}"
            )
        grad = grad.sum_to_size(proxy.shape)
    if grad.is_complex() and not proxy.dtype.is_complex:
        raise RuleError(f"returned a complex gradient for argument {position}, which is real")
    if grad.device != proxy.device and grad.dim():
        raise RuleError(
            f"returned a gradient on {grad.device} for argument {position}, which is on {proxy.device}"
        )
    return grad.to(proxy.device, proxy.dtype)


def _refuse_writes(recorder: Recorder) -> None:
    for found in recorder.inputs:
        if recorder.tracker.proxy_of(found.wrapper) != found.proxy:
            raise Unsupported(
                "it writes in place to a tensor that it closes over; return a new one instead"
            )


@contextlib.contextmanager
def _traced(item: BoundSymbol, call: Call, recorder: Recorder) -> Iterator[None]:
    devices = {proxy.device.type for proxy in item.inputs}
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorder.recording(item.source))
        stack.enter_context(torch.no_grad())
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        try:
            yield
        except NotDifferentiable:
            raise
        except CaptureError as error:
            raise type(error)(
                f"the backward of {_name(call.function)}, called at {item.source}: {error}"
            ) from error
        except Exception as error:
            hint = "; under torch.no_grad() it is not needed"
            what = (
                str(error)
                if type(error) is RuleError
                else f"raised {type(error).__name__}: {error}{hint}"
            )
            raise RuleError(
                f"the backward of {_name(call.function)}, called at {item.source}, {what}"
            ) from error


def _has_setup_context(function: Any) -> bool:
    return function.setup_context is not torch.autograd.Function.setup_context


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _holds_tensors(value: Any) -> bool:
    return next(tensors_in(value), None) is not None

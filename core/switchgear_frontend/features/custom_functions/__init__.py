"""`torch.autograd.Function`: the forward is traced, and the class's own backward is the gradient.

`apply` bypasses every mode, so `apply` is redirected. PyTorch's own `apply` runs the forward on the wrappers, with a
substitute `ctx`; PyTorch decides about requires_grad and errors. A call becomes a composite named after the class, so
executors and rules can be registered for the name. Its parts are the operators of the forward, without gradients, and
then one symbol, `HISTORY`. `HISTORY` attaches the class's backward to the results and holds every value read by the
backward. User code runs once, at the capture. Functions that mark tensors dirty, return an argument or a view, or
keep a tensor as an attribute of `ctx` are refused.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.symbol import CUSTOM_FUNCTION, Symbol
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import redirected
from switchgear_core.record.call import Call
from switchgear_core.record.composite import close, output_of
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.record.structure import flatten
from switchgear_frontend.features.custom_functions.call import (
    Context,
    Function,
    FunctionCall,
    Result,
    has_setup_context,
    holds_tensors,
    name_of,
)
from switchgear_frontend.features.custom_functions.history import Linked, record_history, value_of

_REFUSED = {
    "torch.nn.modules._functions.BackwardHookFunction": "a full backward hook on a module",
    "torch.utils.checkpoint.CheckpointFunction": "checkpointing with use_reentrant=True (pass False)",
}


class _Applied:
    """The callable of a composite: repeats the call on other tensors."""

    def __init__(self, function: Function, args: tuple[object, ...]) -> None:
        self.__name__ = function.__name__
        self._function = function
        # the original arguments: a trace holds plain tuples, lists and dicts
        self._values = tuple(None if holds_tensors(arg) else arg for arg in args)

    def __repr__(self) -> str:
        return f"<{self.__name__} as called>"

    def __call__(self, *args: object) -> object:
        pairs = zip(args, self._values, strict=True)
        return self._function.apply(*[arg if value is None else value for arg, value in pairs])


class _Forward(torch.autograd.Function):
    """A Function that runs another Function's forward: PyTorch decides about requires_grad of the results."""

    @staticmethod
    def forward(ctx: Any, function: Any, context: Context, *args: Any) -> Any:
        context.needs_input_grad = ctx.needs_input_grad[2:]
        with internals.function_modes_on():
            if has_setup_context(function):
                result = function.forward(*args)
                function.setup_context(context, args, result)
            else:
                result = function.forward(context, *args)
        if any(not internals.is_wrapper(tensor) for tensor in tensors_in(result)):
            raise Unsupported(
                f"{name_of(function)} returns a tensor that it closes over; return a clone"
            )
        for saved in context.to_save:
            if not isinstance(saved, torch.Tensor | None):
                reason = "save_for_backward can only save variables, but argument is of type"
                raise TypeError(f"{reason} {type(saved).__name__}")
        ctx.mark_dirty(*context.dirty_tensors)
        ctx.mark_non_differentiable(*context.non_differentiable)
        return result


#: The subclass of `_Forward` that runs each Function, with the Function's name, for PyTorch's messages.
_RUNNERS: weakref.WeakKeyDictionary[object, object] = weakref.WeakKeyDictionary()


class CustomFunctions(Handler):
    """Handler of calls of a Function, which the active recorder records: `apply` bypasses every mode."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Redirect `apply`."""
        return redirected(torch.autograd.Function, "apply", _apply)


def _apply(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> object:
    recorder = active_recorder()
    if recorder is None or recorder.tape.is_paused or internals.inside_functorch():
        return original(function, *args, **kwargs)
    if issubclass(function, (_Forward, Linked)) or function.__module__ == "torch._library.autograd":
        return original(function, *args, **kwargs)
    name = name_of(function)
    if name in _REFUSED:
        raise Unsupported(
            f"{_REFUSED[name]} inside a jitted function, in {recorder.here()}: {name} cannot be traced",
            splits="Checkpoint" not in name,  # TorchDynamo would run it as if not reentrant
        )
    if kwargs or has_setup_context(function):
        placeholder = () if has_setup_context(function) else (None,)
        bound = inspect.signature(function.forward).bind(*placeholder, *args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args[len(placeholder) :], bound.kwargs
    args = tuple([recorder.adopted(arg) if isinstance(arg, torch.Tensor) else arg for arg in args])
    operands = tuple([_traced_argument(recorder, arg) for arg in args])
    context = Context()
    # operators that PyTorch itself dispatches on the results are not calls of the user
    call = Call(None, grad_enabled=torch.is_grad_enabled())
    with recorder.tape.framed(call), internals.DisableTorchFunction():
        runner = _RUNNERS.get(function) or _RUNNERS.setdefault(
            function, type(function.__name__, (_Forward,), {})
        )
        try:
            result = original(runner, function, context, *args, **kwargs)
            is_written = _finish(recorder, function, context, args, operands, result)
        except Unsupported as error:
            # a later graph would pass None as its gradient where eager does not run it, and None would be read as zeros
            error.splits &= not context.dirty_tensors
            raise
        call.output = output_of(recorder, recorder.track_outputs(result))
    call.symbol, call.operands = Symbol(name, _Applied(function, args)), (operands, {})
    call.is_unit = not is_written and not torch.is_autocast_enabled()
    close(recorder, call, CUSTOM_FUNCTION)
    return result


def _traced_argument(recorder: Recorder, arg: object) -> object:
    """Return an argument for a trace: tensors in it become proxies."""
    if not holds_tensors(arg):
        return arg
    return map_tensors(lambda tensor: recorder.tracker.proxy_of(recorder.adopted(tensor)), arg)


def _refuse_memory(
    recorder: Recorder,
    function: Any,
    context: Context,
    args: tuple[Any, ...],
    results: tuple[Any, ...],
) -> None:
    """Refuse a Function that writes to an argument, returns an argument or a view, or keeps tensors as attributes."""

    def refuse(reason: str, remedy: str) -> NoReturn:
        raise Unsupported(f"{name_of(function)}, called in {recorder.here()}, {reason}; {remedy}")

    if context.dirty_tensors:
        refuse("marks a tensor dirty", "return a new one")
    homes = [recorder.inputs.of(leaf._base) for leaf in tensors_in(args) if leaf.requires_grad]
    if any(entry is not None and not entry.proxy.requires_grad for entry in homes):
        reason = (
            f"{name_of(function)} takes a view of an input that was made to require grad in place"
        )
        # for TorchDynamo an existing view does not require grad
        raise Unsupported(f"{reason}, in {recorder.here()}; give it a new tensor", splits=False)
    outputs = [result for result in results if isinstance(result, torch.Tensor)]
    tensors_by_id = {id(tensor): tensor for tensor in tensors_in(args)}
    memories = [internals.storage_key(tensor) for tensor in (*outputs, *tensors_by_id.values())]
    if any(
        result._is_view() or memories.count(internals.storage_key(result)) > 1 for result in outputs
    ):
        refuse("returns an argument, a view, or results that share memory", "return clones")
    if any(isinstance(leaf, torch.Tensor) for leaf in flatten(context.attributes())[0]):
        refuse("keeps a tensor as an attribute of ctx", "use ctx.save_for_backward")


def _finish(
    recorder: Recorder,
    function: Any,
    context: Context,
    args: tuple[Any, ...],
    operands: tuple[Any, ...],
    output: Any,
) -> bool:
    """Record the history of the results; return whether the forward wrote to an argument."""
    results = output if isinstance(output, tuple) else (output,)
    fixed = {id(tensor) for tensor in context.non_differentiable}
    _refuse_memory(recorder, function, context, args, results)

    def has_history(result: torch.Tensor) -> bool:
        if not recorder.tracker.follow_autograd:
            # the grad pass records a backward, which a second grad pass may differentiate
            return id(result) not in fixed and (result.is_floating_point() or result.is_complex())
        # PyTorch gives a view, or a result marked constant, another node or none
        return result.requires_grad and issubclass(
            getattr(result.grad_fn, "_forward_cls", object), _Forward
        )

    linked = [i for i, r in enumerate(results) if isinstance(r, torch.Tensor) and has_history(r)]
    if linked:
        at = {id(results[position]): Result(k) for k, position in enumerate(linked)}
        values: list[Any] = [at.get(id(saved), saved) for saved in context.to_save]
        values = [recorder.adopted(arg) if isinstance(arg, torch.Tensor) else arg for arg in values]
        tensors = tuple(
            position for position, arg in enumerate(args) if isinstance(arg, torch.Tensor)
        )
        # values, not results: autograd's part in the results is not recorded yet
        proxies = [
            value_of(recorder, result) if isinstance(result, torch.Tensor) else None
            for result in results
        ]
        places = tuple((p, linked.index(i) if i in linked else None) for i, p in enumerate(proxies))
        call = FunctionCall(
            function, len(args), tensors, places, context.attributes(), context.materialize_grads
        )
        record_history(
            recorder,
            call,
            [operands[i] for i in tensors],
            [results[i] for i in linked],
            values,
            aliases=True,
        )
    for result in results:
        if (
            isinstance(result, torch.Tensor)
            and value_of(recorder, result).requires_grad > result.requires_grad
        ):
            recorder.tracker.track(result)  # made under enable_grad; PyTorch detached it in place
    is_written = False
    for arg, before in zip(args, operands, strict=True):
        if isinstance(arg, torch.Tensor) and recorder.tracker.proxy_of(arg) != before:
            is_written = True
            recorder.tracker.reconcile_bases(arg)
    return is_written

"""The backward of an `autograd.Function`, traced: the user code runs once, while it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.autograd.function import once_differentiable

from switchgear_core.errors import CaptureError, NotDifferentiable, RuleError, Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, map_proxies
from switchgear_core.patches import replaced
from switchgear_core.record.doors import Doors
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.refused_writes import backward_writes_refused
from switchgear_core.registry.rules import Grads, Pull
from switchgear_frontend.features.custom_functions.call import (
    Context,
    FunctionCall,
    Result,
    name_of,
)
from switchgear_frontend.known_calls import refuse_call, refuse_start
from switchgear_frontend.running_code import RunningCode
from switchgear_frontend.session import reason_of_stand_ins

_ONCE_CODE = once_differentiable(lambda ctx: None).__code__


class _Once(torch.autograd.Function):
    """A Function that returns its first `count` arguments, gradients of a backward marked `once_differentiable`."""

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


def held_by(item: BoundSymbol) -> list[object]:
    """Return the arguments of `save_for_backward`."""
    return [item.outputs[k.position] if isinstance(k, Result) else k for k in item.args[3]]


def pullback(item: BoundSymbol, doors: Doors, higher_order: bool) -> Pull:
    """Return the backward of the call whose history a line holds."""
    call: FunctionCall = item.args[0]
    recorder = doors.recorder
    inputs, results = item.args[1], item.outputs

    def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
        wrappers: dict[str, torch.Tensor] = {}

        def tensor(proxy: TensorProxy) -> torch.Tensor:
            if proxy.name not in wrappers:
                wrappers[proxy.name] = recorder.tracker.wrapper_for(proxy)
            return wrappers[proxy.name]

        with _traced(item, call, doors):
            tensors = held_by(item)
            saved = map_proxies(tensor, tensors)
            if higher_order:
                names = {proxy.name for proxy in (*inputs, *results)}
                saved = [
                    _as_autograd_sees(value, proxy, names)
                    for value, proxy in zip(saved, tensors, strict=True)
                ]
            grad_outputs = [
                _grad_output(call, proxy, None if k is None else grads[k], tensor)
                for proxy, k in call.results
            ]
            context = call.context([proxy.requires_grad for proxy in inputs], saved)
            with backward_writes_refused(recorder.tracker, [*wrappers.values()], "it"):
                gradients = _gradients(call, inputs, _backward(call, context, grad_outputs))
            _refuse_writes(recorder)
            if (
                higher_order
                and getattr(_user_backward(call.function), "__code__", None) is _ONCE_CODE
            ):
                inside = [*(g for g in grad_outputs if g is not None), *map(tensor, inputs)]
                gradients = _differentiable_once(call, gradients, inside)
            proxies = [None if g is None else recorder.tracker.proxy_of(g) for g in gradients]
        return recorder.tape.take(), (*proxies, *[None] * (len(item.inputs) - len(inputs)))

    return pull


def _as_autograd_sees(value: Any, proxy: Any, names: set[str]) -> object:
    """Detach intermediates of the forward: they are constant when the backward is differentiated."""
    return value.detach() if isinstance(proxy, TensorProxy) and proxy.name not in names else value


def _differentiable_once(
    call: FunctionCall, gradients: list[Any], dependencies: list[torch.Tensor]
) -> list[Any]:
    """Return gradients without a derivative; for PyTorch they are constant if every grad output is constant."""
    defined = [grad.detach() for grad in gradients if grad is not None]
    marked = iter(_Once.apply(name_of(call.function), len(defined), *defined, *dependencies))  # type: ignore[no-untyped-call]
    return [None if grad is None else next(marked) for grad in gradients]


def _grad_output(
    call: FunctionCall, result: TensorProxy | None, grad: TensorProxy | None, tensor: Any
) -> torch.Tensor | None:
    if grad is not None:
        return tensor(grad)  # type: ignore[no-any-return]
    if result is None or not call.materialize:
        return None
    return torch.zeros(result.shape, dtype=result.dtype, device=result.device)


def _user_backward(function: Any) -> Any:
    backward, vjp = function.backward, function.vjp
    return backward if vjp is torch.autograd.Function.vjp else vjp


def _backward(
    call: FunctionCall, context: Context, grads: list[torch.Tensor | None]
) -> tuple[Any, ...]:
    boxed = getattr(call.function, "boxed_grads_call", False)
    result = _user_backward(call.function)(context, *([list(grads)] if boxed else grads))
    gradients = result if isinstance(result, tuple) else (result,)
    while len(gradients) > call.count and gradients[-1] is None:
        gradients = gradients[:-1]
    if len(gradients) != call.count:
        raise RuleError(
            f"returned an incorrect number of gradients (expected {call.count}, got {len(gradients)})"
        )
    return gradients


def _gradients(
    call: FunctionCall, inputs: tuple[TensorProxy, ...], gradients: tuple[Any, ...]
) -> list[torch.Tensor | None]:
    """Return a gradient or None for each tensor argument, as PyTorch's engine passes gradients on."""
    proxies = dict(zip(call.tensors, inputs, strict=True))
    for position, grad in enumerate(gradients):
        proxy = proxies.get(position)
        if grad is not None and not (proxy is not None and _fits(grad, proxy)):
            of = "no tensor" if proxy is None else f"{proxy.dtype} {proxy.shape} on {proxy.device}"
            raise RuleError(
                f"returned an invalid gradient for argument {position}: a {type(grad).__name__} "
                f"{tuple(getattr(grad, 'shape', ()))} for {of}"
            )
    return [
        gradients[position].sum_to_size(proxy.shape).to(proxy.device, proxy.dtype)
        if proxy.requires_grad and gradients[position] is not None
        else None
        for position, proxy in proxies.items()
    ]


def _fits(grad: object, proxy: TensorProxy) -> bool:
    """Check whether a gradient can be summed and cast to its input, as PyTorch's engine does."""
    if not isinstance(grad, torch.Tensor) or not proxy.requires_grad:
        return isinstance(grad, torch.Tensor)
    try:
        is_wider = torch.broadcast_shapes(grad.shape, proxy.shape) == grad.shape
    except RuntimeError:
        return False
    is_there = grad.device == proxy.device or not grad.dim()
    return is_wider and is_there and grad.is_complex() <= proxy.dtype.is_complex


def _refuse_writes(recorder: Recorder) -> None:
    for entry in recorder.inputs:
        if recorder.tracker.proxy_of(entry.wrapper) != entry.proxy:
            raise Unsupported(
                "it writes in place to a tensor that it closes over; return a new one instead"
            )


@contextlib.contextmanager
def _traced(item: BoundSymbol, call: FunctionCall, doors: Doors) -> Iterator[None]:
    devices = {proxy.device.type for proxy in item.inputs}
    place = f"the backward of {name_of(call.function)}, called at {item.source}"
    running = RunningCode(refuse_start, refuse_call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(doors.open(item.source))
        stack.enter_context(replaced(doors.recorder, "isolation", running))
        stack.enter_context(running.active())
        stack.enter_context(torch.no_grad())
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        try:
            yield
        except NotDifferentiable:
            raise
        except CaptureError as error:
            raise type(error)(f"{place}: {error}") from error
        except Exception as error:
            if reason := reason_of_stand_ins(error):
                raise Unsupported(f"{place}: {reason}") from error
            hint = "; under torch.no_grad() it is not needed"
            text = (
                str(error)
                if type(error) is RuleError
                else f"raised {type(error).__name__}: {error}{hint}"
            )
            raise RuleError(f"{place}, {text}") from error

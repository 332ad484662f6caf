"""Application of grad rules: the three forms of a rule, each converted to one form."""

from __future__ import annotations

import contextvars
import functools
import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from switchgear_core.errors import RuleError, SwitchgearError
from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.composites import splice_escaping
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, RuleOrigin, map_proxies, proxies, renamed
from switchgear_core.ir.writes import IDENTITY
from switchgear_core.nesting import tensors_in
from switchgear_core.patches import Change
from switchgear_core.record.doors import Doors
from switchgear_core.record.recorder import Recorder
from switchgear_core.registry.registry import GradRule, describe

Grads: TypeAlias = tuple[TensorProxy | None, ...]
#: From a gradient or None per output to the recorded backward, and a gradient or None per tensor argument.
Pull: TypeAlias = Callable[[Grads], tuple[tuple[BoundSymbol, ...], Grads]]


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A rule applied to a bound symbol: the recorded forward, the new outputs, and the pullback."""

    forward: tuple[BoundSymbol, ...]
    outputs: tuple[TensorProxy, ...]
    pull: Pull


class OwnGradient(Protocol):
    """The derivative of a feature's symbol, inexpressible as a rule (`Symbol.gradient`)."""

    def origin(self, item: BoundSymbol) -> RuleOrigin:
        """Return the origin of the rule."""
        ...

    def saved(self, item: BoundSymbol) -> tuple[TensorProxy, ...]:
        """Return the values saved for the backward, which may read fewer of them than the rule's own backward."""
        ...

    def constant(self, item: BoundSymbol) -> tuple[BoundSymbol, ...]:
        """Return the lines of a call without need for a gradient."""
        ...

    def linearise(self, item: BoundSymbol, doors: Doors, higher_order: bool) -> Applied:
        """Return a call with its pullback."""
        ...


@dataclass(slots=True)
class _Transform:
    """State of `get_grad` and `put_grad` while a grad transform runs: grad outputs by output, and gradients."""

    recorder: Recorder
    grad_outputs: dict[torch.Tensor, TensorProxy] = field(default_factory=dict)
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)


_transform: contextvars.ContextVar[_Transform | None] = contextvars.ContextVar(
    "switchgear_transform", default=None
)


def get_grad(output: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a value, inside a grad transform.

    Args:
        output: a value returned by the transform.

    Returns:
        Its gradient, with the same shape, dtype and device.
    """
    state = _running("get_grad")
    names, tracker = state.recorder.tape.names, state.recorder.tracker
    proxy = tracker.proxy_of(output)
    if output not in state.grad_outputs:
        dense = tuple(
            math.prod(max(size, 1) for size in proxy.shape[i + 1 :])
            for i in range(len(proxy.shape))
        )
        cotangent = replace(
            proxy, name=names.fresh(), stride=dense, storage_offset=0, requires_grad=False
        )
        state.grad_outputs[output] = cotangent
    return tracker.wrapper_for(state.grad_outputs[output])


def put_grad(argument: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Add to the gradient of an argument, inside a grad transform.

    Args:
        argument: a tensor argument of the transform.
        gradient: a tensor of its shape, dtype and device; None for no gradient.
    """
    _running("put_grad").gradients.append((argument, gradient))


def _running(name: str) -> _Transform:
    state = _transform.get()
    if state is None:
        raise SwitchgearError(
            f"{name} was called outside of a grad rule; call it in one that @table.grad_transform(operator) declares"
        )
    return state


def apply_rule(
    rule: GradRule, bound_symbol: BoundSymbol, doors: Doors, higher_order: bool
) -> Applied:
    """Run a rule's forward under the recorder, and check its result.

    Its pullback runs in the grad mode of a backward: enabled if that backward is differentiated.
    """
    application = _Application(rule, bound_symbol, doors, higher_order)
    return application.transform() if rule.form == "transform" else application.pair()


class _Application:
    def __init__(
        self, rule: GradRule, bound_symbol: BoundSymbol, doors: Doors, higher_order: bool
    ) -> None:
        self.rule = rule
        #: The running half of the rule: `fn`, or its backward.
        self.running: Callable[..., Any] = rule.fn
        self.higher_order = higher_order
        self.bound_symbol = bound_symbol
        self.doors = doors
        self.recorder = doors.recorder
        self.tracker = self.recorder.tracker
        with self._recording():
            arguments = bound_symbol.args, dict(bound_symbol.kwargs)
            self.args, self.kwargs = map_proxies(self.tracker.wrapper_for, arguments)
            self.tensors = list(tensors_in((self.args, self.kwargs)))
            self.argument_proxies = self._standing(self.tensors)

    def pair(self) -> Applied:
        """Apply the core form, `rule(*args, **kwargs) -> (outputs, pullback)`, or an augmented pair.

        A pair is `forward(*args, **kwargs) -> (outputs, residuals)`, `backward(*residuals, *grad_outputs) ->
        gradients`.
        """
        backward = self.rule.backward
        if self.rule.form == "augmented" and backward is None:
            raise self._error("has no backward")
        second = "pullback" if backward is None else "residuals"
        with self._recording(), torch.enable_grad():
            result = self.rule.fn(*self.args, **self.kwargs)
            if (
                not isinstance(result, tuple)
                or len(result) != 2
                or (backward is None and not callable(result[1]))
            ):
                raise self._error(f"must return (outputs, {second})")
            results = self._outputs(result[0])
        pullback: Callable[..., Any] = result[1]
        half = pullback if backward is None else backward
        if backward is not None:
            residuals = result[1] if isinstance(result[1], (tuple, list)) else (result[1],)
            pullback = functools.partial(backward, *residuals)
        forward, outputs = self._named(self.recorder.tape.take(), results)

        def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
            self.running = half
            with self._recording():
                grad_outputs = [
                    self._materialised(grad, output)
                    for grad, output in zip(grads, outputs, strict=True)
                ]
                tensors = [*self.tensors, *tensors_in(result[0])]
                before = self._standing(tensors)
                with torch.set_grad_enabled(self.higher_order):
                    gradients = self._gradients(pullback(*grad_outputs))
                if self._standing(tensors) != before:
                    raise self._error(
                        "has a pullback that writes in place to an argument or a result; write to a clone"
                    )
            return splice_escaping(self.recorder.tape.take(), proxies(gradients)), gradients

        return Applied(forward, outputs, pull)

    def transform(self) -> Applied:
        """Apply `rule(*args, **kwargs) -> outputs`, with calls of `get_grad` and `put_grad` inside."""
        state = _Transform(self.recorder)
        change = Change(_transform.set, _transform.get())
        try:
            _transform.set(state)
            with self._recording(), torch.enable_grad():
                results = self._outputs(self.rule.fn(*self.args, **self.kwargs))
                grad_outputs = self._grad_outputs(state, results)
                gradients = self._put(state)
        finally:
            change.undo()
        spliced = splice_escaping(self.recorder.tape.take(), proxies((results, gradients)))
        recorded, outputs = self._named(spliced, results)
        forward, backward = _split(recorded, proxies(grad_outputs))

        def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
            env: dict[str, TensorProxy] = {}
            with self._recording():
                for cotangent, grad, output in zip(grad_outputs, grads, outputs, strict=True):
                    if (
                        cotangent is not None
                        and (tensor := self._materialised(grad, output)) is not None
                    ):
                        env[cotangent.name] = self.tracker.proxy_of(tensor.contiguous())
            body = (*self.recorder.tape.take(), *(renamed(item, env) for item in backward))
            return body, map_proxies(lambda gradient: env.get(gradient.name, gradient), gradients)

        return Applied(forward, outputs, pull)

    def _named(
        self, recorded: tuple[BoundSymbol, ...], outputs: tuple[TensorProxy, ...]
    ) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy, ...]]:
        """Return the recorded forward, with the operator's own names for outputs computed there."""
        local_names = {proxy.name for item in recorded for proxy in item.outputs}
        env: dict[str, TensorProxy] = {}
        proxies: list[TensorProxy] = []
        identities: list[BoundSymbol] = []
        theirs, places = storages([self.bound_symbol]), storages(recorded)
        names = {proxy.name for proxy in self.argument_proxies}
        for output, original in zip(outputs, self.bound_symbol.outputs, strict=True):
            if original.name not in theirs and places.get(output.name, output.name) in names:
                raise self._error("returns an argument or a view of it; return a clone")
            proxies.append(
                replace(output, name=original.name, requires_grad=original.requires_grad)
            )
            if output.name in local_names and output.name not in env:
                env[output.name] = proxies[-1]
                self.recorder.values.rename(output, proxies[-1])
            else:
                value = env.get(output.name, output)
                identities.append(
                    BoundSymbol(
                        IDENTITY, (value,), {}, proxies[-1], source=self.bound_symbol.source
                    )
                )
        forward = [renamed(item, env) for item in recorded]
        return (*forward, *identities), tuple(proxies)

    def _materialised(self, grad: TensorProxy | None, output: TensorProxy) -> torch.Tensor | None:
        if grad is not None:
            return self.tracker.wrapper_for(grad)
        if not output.is_differentiable:
            return None
        return torch.zeros(output.shape, dtype=output.dtype, device=output.device)

    def _standing(self, tensors: Iterable[torch.Tensor]) -> list[TensorProxy]:
        """Return the current proxies of tensors."""
        return [self.tracker.proxy_of(tensor) for tensor in tensors]

    def _outputs(self, result: object) -> tuple[TensorProxy, ...]:
        if self._standing(self.tensors) != self.argument_proxies:
            raise self._error("writes in place to an argument; write to a clone")
        tensors, expected = list(tensors_in(result)), self.bound_symbol.outputs
        if len(tensors) != len(expected):
            raise self._error(f"returns {len(tensors)} outputs, the operator has {len(expected)}")
        pairs = enumerate(zip(tensors, expected, strict=True))
        return tuple(
            self._checked(tensor, proxy, f"output {index}") for index, (tensor, proxy) in pairs
        )

    def _gradients(self, result: object) -> Grads:
        grads = result if isinstance(result, (tuple, list)) else (result,)
        count = len(self.tensors)
        if len(grads) != count:
            raise self._error(
                f"gives {len(grads)} gradients for {count} tensor arguments (None where there is none)"
            )
        results: list[TensorProxy | None] = []
        for index, (grad, argument) in enumerate(zip(grads, self.bound_symbol.inputs, strict=True)):
            if grad is not None and not isinstance(grad, torch.Tensor):
                raise self._error(
                    f"gives a {type(grad).__name__} as the gradient of argument {index}"
                )
            subject = f"the gradient of tensor argument {index}"
            results.append(None if grad is None else self._checked(grad, argument, subject))
        return tuple(results)

    def _checked(self, tensor: torch.Tensor, expected: TensorProxy, subject: str) -> TensorProxy:
        proxy = self.tracker.proxy_of(tensor)
        for attribute in ("shape", "dtype", "device"):
            actual, reference = getattr(proxy, attribute), getattr(expected, attribute)
            if actual != reference:
                raise self._error(f"{subject} has {attribute} {actual}, expected {reference}")
        return proxy

    def _grad_outputs(self, state: _Transform, outputs: tuple[TensorProxy, ...]) -> Grads:
        """Return the grad output of each output, or None where the transform did not ask."""
        grad_outputs = {
            self.tracker.proxy_of(tensor).name: cotangent
            for tensor, cotangent in state.grad_outputs.items()
        }
        by_output = tuple(grad_outputs.pop(proxy.name, None) for proxy in outputs)
        if grad_outputs:
            raise self._error("calls get_grad on something that it does not return")
        return by_output

    def _put(self, state: _Transform) -> Grads:
        """Return the gradient of each tensor argument, or None where the transform gave none."""
        sums: dict[torch.Tensor, torch.Tensor | None] = {}
        for argument, gradient in state.gradients:
            if not any(argument is tensor for tensor in self.tensors):
                raise self._error("calls put_grad on something that is no tensor argument")
            total = sums.get(argument)
            sums[argument] = gradient if total is None or gradient is None else total + gradient
        for index, (tensor, proxy) in enumerate(
            zip(self.tensors, self.bound_symbol.inputs, strict=True)
        ):
            if proxy.requires_grad and tensor not in sums:
                raise self._error(
                    f"never calls put_grad for tensor argument {index}, which requires grad"
                )
        return self._gradients([sums.get(tensor) for tensor in self.tensors])

    @contextmanager
    def _recording(self) -> Iterator[None]:
        with self.doors.open(self.bound_symbol.source), torch.no_grad():
            try:
                yield
            except RuleError:
                raise
            except Exception as error:
                where = _line_in(self.running, error)
                raise self._error(f"raised {type(error).__name__}: {error}{where}") from error

    def _error(self, message: str) -> RuleError:
        item, remedy = self.bound_symbol, self.rule.remedy
        way_out = f"; to go on without it, {remedy}" if remedy else ""
        is_backward = self.running is not self.rule.fn
        half = f"{describe(self.running)}, backward of " if is_backward else ""
        return RuleError(
            f"{half}{self.rule} for {item.symbol.name}, called at {item.source}, {message}{way_out}"
        )


def _line_in(function: Callable[..., Any], error: Exception) -> str:
    """Return the place in the file of a function, where an error was raised."""
    while isinstance(function, functools.partial):
        function = function.func
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", in {Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""


def _split(
    recorded: tuple[BoundSymbol, ...], cotangents: Iterable[TensorProxy]
) -> tuple[tuple[BoundSymbol, ...], tuple[BoundSymbol, ...]]:
    """Return the lines independent of the grad outputs, and the dependent lines."""
    dependent = {proxy.name for proxy in cotangents}
    forward: list[BoundSymbol] = []
    backward: list[BoundSymbol] = []
    for item in recorded:
        if dependent.isdisjoint(proxy.name for proxy in item.inputs):
            forward.append(item)
        else:
            dependent.update(proxy.name for proxy in item.outputs)
            backward.append(item)
    return tuple(forward), tuple(backward)

"""Grad rules at work: the three forms in which a rule can be written, each brought to one."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .composites import splice_escaping
from .errors import RuleError, SwitchgearError
from .nesting import tensors_in
from .proxy import TensorProxy
from .recorder import Recorder
from .registry import GradRule
from .symbol import BoundSymbol, map_proxies
from .trace import Names
from .writes import IDENTITY

Grads = tuple[TensorProxy | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A rule applied to a bound symbol: the forward it recorded, the outputs that it made, and its pullback.

    `pull` takes a gradient or None per output and gives the recorded backward with a gradient or None per tensor
    argument.
    """

    forward: tuple[BoundSymbol, ...]
    outputs: tuple[TensorProxy, ...]
    pull: Callable[[Grads], tuple[tuple[BoundSymbol, ...], Grads]]


@dataclass(slots=True)
class _Transform:
    """What `get_grad` and `put_grad` do while a grad transform runs."""

    recorder: Recorder
    asked: list[tuple[torch.Tensor, TensorProxy]] = field(default_factory=list)
    put: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)


_transform: contextvars.ContextVar[_Transform | None] = contextvars.ContextVar("switchgear_transform", default=None)


def get_grad(output: torch.Tensor) -> torch.Tensor:
    """Inside a grad transform: the gradient of a value that the transform returns, of its shape, dtype and device."""
    state = _running("get_grad")
    proxy = state.recorder.tracker.proxy_of(output)
    for known, cotangent in state.asked:
        if known is output:
            return state.recorder.tracker.wrapper_for(cotangent)
    cotangent = replace(proxy, name=state.recorder.names.fresh(), stride=_contiguous(proxy.shape), storage_offset=0)
    cotangent = replace(cotangent, requires_grad=False)
    state.asked.append((output, cotangent))
    return state.recorder.tracker.wrapper_for(cotangent)


def put_grad(argument: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Inside a grad transform: add `gradient` to that of an argument, which has its shape, dtype and device.

    None says that the argument gets no gradient.
    """
    _running("put_grad").put.append((argument, gradient))


def _running(name: str) -> _Transform:
    state = _transform.get()
    if state is None:
        raise SwitchgearError(f"{name} was called outside of a grad transform")
    return state


def apply_rule(rule: GradRule, bound_symbol: BoundSymbol, recorder: Recorder) -> Applied:
    """Run a rule's forward under the recorder, and check what it returns."""
    application = _Application(rule, bound_symbol, recorder)
    return {"pullback": application.pullback, "transform": application.transform, "augmented": application.augmented}[
        rule.form
    ]()


class _Application:
    def __init__(self, rule: GradRule, bound_symbol: BoundSymbol, recorder: Recorder) -> None:
        self.rule = rule
        self.bound_symbol = bound_symbol
        self.recorder = recorder
        self.names: Names = recorder.names
        with self._recording():
            self.args, self.kwargs = map_proxies(
                self.recorder.tracker.wrapper_for, (bound_symbol.args, dict(bound_symbol.kwargs))
            )
        self.tensors = list(tensors_in((self.args, self.kwargs)))

    def pullback(self) -> Applied:
        """The core form: `rule(*args, **kwargs) -> (outputs, pullback)`."""
        with self._recording():
            result = self.rule.fn(*self.args, **self.kwargs)
            if not isinstance(result, tuple) or len(result) != 2 or not callable(result[1]):
                raise self._error("must return (outputs, pullback)")
            outputs = self._outputs(result[0])
        return self._applied(outputs, result[1])

    def augmented(self) -> Applied:
        """`forward(*args, **kwargs) -> (outputs, residuals)` and `backward(*residuals, *grad_outputs) -> gradients`."""
        with self._recording():
            result = self.rule.fn(*self.args, **self.kwargs)
            if not isinstance(result, tuple) or len(result) != 2:
                raise self._error("must return (outputs, residuals)")
            outputs = self._outputs(result[0])
        residuals = result[1] if isinstance(result[1], (tuple, list)) else (result[1],)
        backward = self.rule.backward
        if backward is None:
            raise self._error("has no backward")
        return self._applied(outputs, lambda *grads: backward(*residuals, *grads))

    def transform(self) -> Applied:
        """`rule(*args, **kwargs) -> outputs`, with calls of `get_grad` and `put_grad` on the way."""
        state = _Transform(self.recorder)
        token = _transform.set(state)
        try:
            with self._recording():
                outputs = self._outputs(self.rule.fn(*self.args, **self.kwargs))
                asked = self._asked(state, outputs)
                gradients = self._put(state)
        finally:
            _transform.reset(token)
        ends = (*outputs, *(gradient for gradient in gradients if gradient is not None))
        recorded, outputs = self._named(splice_escaping(self.recorder.take(), ends), outputs)
        forward, backward = _split(recorded, [cotangent for cotangent in asked if cotangent is not None])
        return Applied(forward, outputs, lambda grads: self._substitute(backward, asked, gradients, grads))

    def _applied(self, outputs: tuple[TensorProxy, ...], pullback: Callable[..., Any]) -> Applied:
        forward, outputs = self._named(self.recorder.take(), outputs)

        def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
            with self._recording():
                given = [self._materialised(grad, out) for grad, out in zip(grads, outputs, strict=True)]
                result = pullback(*given)
                found = self._gradients(result)
            return splice_escaping(self.recorder.take(), [g for g in found if g is not None]), found

        return Applied(forward, outputs, pull)

    def _named(
        self, recorded: tuple[BoundSymbol, ...], outputs: tuple[TensorProxy, ...]
    ) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy, ...]]:
        """The recorded forward with the operator's own names for the outputs, where it makes them."""
        made = {proxy.name for item in recorded for proxy in item.outputs}
        env: dict[str, TensorProxy] = {}
        named: list[TensorProxy] = []
        identities: list[BoundSymbol] = []
        for output, original in zip(outputs, self.bound_symbol.outputs, strict=True):
            named.append(replace(output, name=original.name, requires_grad=original.requires_grad))
            if output.name in made and output.name not in env:
                env[output.name] = named[-1]
                self.recorder.tracker.rename(output, named[-1])
            else:
                value = env.get(output.name, output)
                identities.append(BoundSymbol(IDENTITY, (value,), {}, named[-1], source=self.bound_symbol.source))
        forward = [replace(_substituted(item, env), grad_enabled=True) for item in recorded]
        return (*forward, *identities), tuple(named)

    def _materialised(self, grad: TensorProxy | None, output: TensorProxy) -> torch.Tensor | None:
        if grad is not None:
            return self.recorder.tracker.wrapper_for(grad)
        if not output.is_differentiable:
            return None
        return torch.zeros(output.shape, dtype=output.dtype, device=output.device)

    def _outputs(self, result: Any) -> tuple[TensorProxy, ...]:
        made = tuple(self.recorder.tracker.proxy_of(tensor) for tensor in tensors_in(result))
        expected = self.bound_symbol.outputs
        if len(made) != len(expected):
            raise self._error(f"returns {len(made)} outputs, the operator has {len(expected)}")
        for index, (proxy, right) in enumerate(zip(made, expected, strict=True)):
            self._same(proxy, right, f"output {index}")
        return made

    def _gradients(self, result: Any) -> Grads:
        found = result if isinstance(result, (tuple, list)) else (result,)
        if len(found) != len(self.tensors):
            raise self._error(
                f"gives {len(found)} gradients for {len(self.tensors)} tensor arguments (None where there is none)"
            )
        return tuple(self._gradient(grad, index) for index, grad in enumerate(found))

    def _gradient(self, grad: Any, index: int) -> TensorProxy | None:
        if grad is None:
            return None
        if not isinstance(grad, torch.Tensor):
            raise self._error(f"gives a {type(grad).__name__} as the gradient of argument {index}")
        proxy = self.recorder.tracker.proxy_of(grad)
        self._same(proxy, self.bound_symbol.inputs[index], f"the gradient of tensor argument {index}")
        return proxy

    def _same(self, proxy: TensorProxy, right: TensorProxy, what: str) -> None:
        for attribute in ("shape", "dtype", "device"):
            got, wanted = getattr(proxy, attribute), getattr(right, attribute)
            if got != wanted:
                raise self._error(f"{what} has {attribute} {got}, expected {wanted}")

    def _asked(self, state: _Transform, outputs: tuple[TensorProxy, ...]) -> Grads:
        asked: list[TensorProxy | None] = [None] * len(outputs)
        names = [proxy.name for proxy in outputs]
        for tensor, cotangent in state.asked:
            name = self.recorder.tracker.proxy_of(tensor).name
            if name not in names:
                raise self._error("calls get_grad on something that it does not return")
            asked[names.index(name)] = cotangent
        return tuple(asked)

    def _put(self, state: _Transform) -> Grads:
        sums: dict[int, torch.Tensor | None] = {}
        for argument, gradient in state.put:
            index = next((i for i, tensor in enumerate(self.tensors) if tensor is argument), None)
            if index is None:
                raise self._error("calls put_grad on something that is no tensor argument")
            known = sums.get(index)
            sums[index] = gradient if known is None or gradient is None else known + gradient
        for index, proxy in enumerate(self.bound_symbol.inputs):
            if proxy.requires_grad and index not in sums:
                raise self._error(f"never calls put_grad for tensor argument {index}, which requires grad")
        return tuple(self._gradient(sums.get(index), index) for index in range(len(self.tensors)))

    def _substitute(
        self, backward: tuple[BoundSymbol, ...], asked: Grads, gradients: Grads, grads: Grads
    ) -> tuple[tuple[BoundSymbol, ...], Grads]:
        env: dict[str, TensorProxy] = {}
        with self._recording():
            for cotangent, grad, output in zip(asked, grads, self.bound_symbol.outputs, strict=True):
                if cotangent is not None:
                    tensor = self._materialised(grad, output)
                    if tensor is not None:
                        env[cotangent.name] = self.recorder.tracker.proxy_of(tensor.contiguous())
        body = (*self.recorder.take(), *(_substituted(item, env) for item in backward))
        return body, tuple(None if g is None else env.get(g.name, g) for g in gradients)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        with self.recorder.recording(self.bound_symbol.source), torch.no_grad():
            try:
                yield
            except RuleError:
                raise
            except Exception as error:
                raise self._error(f"raised {type(error).__name__}: {error}") from error

    def _error(self, message: str) -> RuleError:
        return RuleError(
            f"{self.rule} for {self.bound_symbol.symbol.name}, called at {self.bound_symbol.source}, {message}"
        )


def _split(
    recorded: tuple[BoundSymbol, ...], cotangents: list[TensorProxy]
) -> tuple[tuple[BoundSymbol, ...], tuple[BoundSymbol, ...]]:
    """What does not depend on the cotangents, and what does."""
    dependent = {proxy.name for proxy in cotangents}
    forward: list[BoundSymbol] = []
    backward: list[BoundSymbol] = []
    for item in recorded:
        if any(proxy.name in dependent for proxy in item.inputs):
            dependent.update(proxy.name for proxy in item.outputs)
            backward.append(item)
        else:
            forward.append(item)
    return tuple(forward), tuple(backward)


def _substituted(bound_symbol: BoundSymbol, env: Mapping[str, TensorProxy]) -> BoundSymbol:
    def read(proxy: TensorProxy) -> TensorProxy:
        return env.get(proxy.name, proxy)

    args, kwargs, output = map_proxies(read, (bound_symbol.args, dict(bound_symbol.kwargs), bound_symbol.output))
    parts = tuple(_substituted(part, env) for part in bound_symbol.subsymbols)
    return replace(bound_symbol, args=args, kwargs=kwargs, output=output, subsymbols=parts)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))

"""The handler of calls with tensors of subclasses.

The function gets a *stand-in* for each tensor of a subclass: a tensor of the subclass around inner tensors that are
inputs or values of the trace. Code of the subclass runs during the capture, and the operators on inner tensors are
recorded. The inner tensors of a stand-in have no gradient, as in eager; `State.values` has those with gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.nesting import instances_in, map_tensors, tensors_in
from switchgear_core.patches import redirected
from switchgear_core.record.call import Call
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import PASS, Handler, getter
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.record.signature import Argument, Closure, Held, Part
from switchgear_core.torch_private import pytree
from switchgear_subclasses import nested
from switchgear_subclasses import torch_private as internals
from switchgear_subclasses.changes import Attributes, attributes_of, refuse_changes, shelled_in
from switchgear_subclasses.formulas import gradients_agree, own_parts
from switchgear_subclasses.functions import of_inner_tensors
from switchgear_subclasses.shells import Subclass, has_shell, inner_of, opened, plain_parts, shell_of

#: Attributes of a tensor that its stand-in does not share.
_OWN = frozenset(map(getter, ("data", "grad", "grad_fn", "is_leaf", "_base", "_version")))


@dataclass(slots=True)
class State:
    """The tensors of subclasses in one capture, by id.

    Attributes:
        stand_ins: tensors from outside with their stand-ins.
        owners: the owners of inner tensors from outside, with the number there.
        values: stand-ins, and placeholders of plain results, with their values.
        inner: values of subclasses, which their own code gets.
        attributes: of stand-ins for tensors from outside.
        offsets: the positions of offsets of nested tensors among the inputs.
        is_used: whether there are any.
        backends: the settings of attention around the jitted function.
    """

    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    owners: dict[int, tuple[torch.Tensor, Subclass, int]] = field(default_factory=dict)
    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    inner: dict[int, torch.Tensor] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    is_used: bool = False
    backends: object = field(default_factory=internals.attention_backends)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a stand-in or placeholder, with its gradient; also of one around stand-ins."""
        if id(tensor) in self.values or not has_shell(tensor) or id(tensor) in self.inner:
            return self.values.get(id(tensor), (tensor, tensor))[1]
        parts = inner_of(tensor)
        values = [*map(self.value_of, parts)]
        if all(map(operator.is_, values, parts)):
            return tensor
        value = shell_of(tensor).around(values)
        self.values[id(tensor)], self.inner[id(value)] = (tensor, value), value
        return value


class Subclasses(Handler):
    """Runs the functions of subclasses, as eager does; the calls on inner tensors enter the door again."""

    def begin(self, recorder: Recorder) -> State:
        """Begin without tensors."""
        state, others = State(), recorder.closed

        def closed(shell: Any, parts: Sequence[torch.Tensor]) -> torch.Tensor:
            if not isinstance(shell, Subclass):
                return others(shell, parts)
            state.is_used = True
            at_work: Any = active_recorder()  # not `recorder`, which holds this function
            return _input(at_work, state, shell, [*map(state.value_of, parts)])

        recorder.closed = closed
        return state

    def around(self) -> AbstractContextManager[None]:
        """Redirect `apply` of Functions, which bypasses every mode."""
        return redirected(torch.autograd.Function, "apply", self._apply)

    def _apply(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active_recorder()
        if recorder is None or recorder.tape.is_paused or not any(map(has_shell, args)):
            return original(function, *args, **kwargs)
        state, here = recorder.state(self), recorder.here
        values = [
            state.value_of(_from_outside(recorder, state, arg)) if isinstance(arg, torch.Tensor) else arg
            for arg in args
        ]
        needs_grad = torch.is_grad_enabled() and any(has_shell(value) and _needs_grad(value) for value in values)
        if needs_grad or kwargs or function.setup_context is not torch.autograd.Function.setup_context:
            raise Unsupported(
                f"{function.__qualname__} takes a tensor of a subclass that requires grad, or by name, or has a "
                f"setup_context, in {here()}",
                splits=False,
            )
        runner, leaves = of_inner_tensors(function, tuple(values))
        return original(runner, *leaves)

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> Part | None:
        """Return the place of an inner tensor in its owner."""
        owner = recorder.state(self).owners.get(id(tensor))
        return None if owner is None else Part(recorder.origin(recorder, owner[0]), owner[1], owner[2])

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Run the function of the subclass, or its operators."""
        if call.fn is torch.Tensor.storage_offset and recorder.state(self).is_used:
            # read by constructors of subclasses; later calls have inputs at the same places
            recorder.matters.offsets = True
            return recorder.tracker.proxy_of(recorder.adopted(call.args[0])).storage_offset
        state = recorder.state(self)
        answer = nested.before_inputs(recorder, call, lambda value: _result(recorder, state, value))
        if answer is not PASS:
            return answer
        tensors = instances_in(torch.Tensor, (call.args, call.kwargs))
        if not any(type(tensor) is not torch.Tensor and has_shell(tensor) for tensor in tensors):
            return PASS
        if call.fn in _OWN:
            raise Unsupported(
                f"{getattr(call.fn, '__self__', call.fn)} of a tensor of a subclass is read, in {recorder.here()}",
                splits=False,
            )

        def inside(tensor: torch.Tensor) -> torch.Tensor:
            return _from_outside(recorder, state, tensor) if has_shell(tensor) else recorder.adopted(tensor)

        args, kwargs = map_tensors(inside, (call.args, call.kwargs))
        answer = nested.answer(recorder, replace(call, args=args, kwargs=kwargs), state.value_of, state.backends)
        if answer is not PASS:
            return answer
        kinds = _kinds((args, kwargs))
        if internals.subclass_functions_enabled():
            for kind in kinds:
                if kind.__torch_function__ is internals.DISABLED:
                    continue
                with recorder.reopened():
                    result = kind.__torch_function__(call.fn, kinds, args, kwargs)
                if result is not NotImplemented:
                    return result
        with internals.above_subclasses(_Operators(recorder, state)):
            result = call.fn(*args, **kwargs)  # type: ignore[misc]
        return map_tensors(lambda tensor: tensor if has_shell(tensor) else state.value_of(tensor), result)

    def finish(self, recorder: Recorder, result: Any) -> Any:
        """Return the result with gradients; refuse changes that no call repeats."""
        state = recorder.state(self)
        if len(state.offsets) > 1:
            recorder.guards.append(nested.guard_on_lengths(recorder, state.offsets))
        pairs = [(tensor, _from_outside(recorder, state, tensor)) for tensor in shelled_in(result)]
        refuse_changes(state.attributes, [stand_in for _, stand_in in pairs])
        if not pairs:
            return result
        leaves, spec = pytree.tree_flatten(result)  # a class of containers stays
        values = [state.value_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(values, spec)


def _kinds(value: object) -> tuple[Any, ...]:
    """Return the classes of the subclasses' tensors, subclasses before their bases."""
    kinds = dict.fromkeys(type(tensor) for tensor in tensors_in(value) if has_shell(tensor))
    return tuple(sorted(kinds, key=lambda kind: -len(kind.__mro__)))


def _stand_in(state: State, value: torch.Tensor) -> torch.Tensor:
    """Return the stand-in for a value of a subclass."""
    state.inner[id(value)] = value  # before its own code reads it
    if not _needs_grad(value):
        return value
    parts, shell = opened(value), shell_of(value)
    bare = [
        _stand_in(state, part) if has_shell(part) else part if name in shell.SHARED else part.detach()
        for name, part in zip(shell.names, parts, strict=True)
    ]
    stand_in = shell.around(bare)
    state.values[id(stand_in)] = stand_in, value
    return stand_in


def _input(recorder: Recorder, state: State, shell: Subclass, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the stand-in for a tensor from outside, which requires grad as that does.

    Raises:
        Unsupported: the tensor has attributes that a tensor around other inner tensors lacks.
    """
    if shell.kind is internals.NestedTensor:
        nested.note_lengths(recorder, state.offsets, parts)
    stand_in: Any = _stand_in(state, shell.around(parts))
    if "_is_param" in shell.attributes:
        stand_in._is_param = True
    if missing := shell.attributes.difference(vars(stand_in)):
        name, kind = min(missing), shell.kind.__qualname__
        raise Unsupported(f"a {kind} has the attribute {name}, which __tensor_unflatten__ does not set", splits=False)
    if shell.requires_grad:
        with recorder.paused(), internals.DisableTorchFunction():
            stand_in.requires_grad_() if shell.is_leaf else internals.make_non_leaf(stand_in)
    state.attributes += attributes_of(stand_in)
    result: torch.Tensor = stand_in
    return result


def _result(recorder: Recorder, state: State, value: torch.Tensor) -> torch.Tensor:
    """Return the stand-in for a value that the function makes of tensors, with their gradients."""
    stand_in = _stand_in(state, value)
    if _needs_grad(value):
        with recorder.paused(), internals.DisableTorchFunction():
            internals.make_non_leaf(stand_in)
    return stand_in


def _needs_grad(tensor: torch.Tensor) -> bool:
    return any(part.requires_grad for part in plain_parts(tensor))


def _from_outside(recorder: Recorder, state: State, tensor: torch.Tensor) -> torch.Tensor:
    """Return the stand-in for a tensor from outside; any other tensor unchanged.

    Raises:
        Unsupported: the function has made the tensor around tensors that require grad.
    """
    if not has_shell(tensor) or id(tensor) in state.inner or id(tensor) in state.values:
        return tensor
    if any(map(internals.is_wrapper, plain_parts(tensor))):
        if torch.is_grad_enabled() and _needs_grad(tensor):
            reason = f"a {type(tensor).__qualname__} is made around tensors that require grad"
            raise Unsupported(f"{reason}, in {recorder.here()}; make it outside of the function", splits=False)
        return tensor
    if id(tensor) in state.stand_ins:
        return state.stand_ins[id(tensor)][1]
    state.is_used = True
    origin = recorder.origin(recorder, tensor)
    stand_in = tensor
    if not isinstance(origin, Closure):
        with recorder.paused(), internals.outside(recorder.tape.dispatch_state):
            shell, parts = shell_of(tensor), opened(tensor)
        state.owners |= {id(part): (tensor, shell, number) for number, part in enumerate(parts)}
        inner = [
            state.value_of(_from_outside(recorder, state, part)) if has_shell(part) else recorder.adopted(part)
            for part in parts
        ]
        with recorder.isolation:
            stand_in = _input(recorder, state, shell, inner)
        if not isinstance(origin, Part):
            recorder.guards.append(_guard(shell, origin, len(recorder.guards)))
    state.stand_ins[id(tensor)] = tensor, stand_in
    return stand_in


def _guard(shell: Subclass, origin: Any, number: int) -> Guard:
    """Return the guard on a tensor from outside."""
    owner = origin.owner if isinstance(origin, Held) else None
    argument = f"a{owner.index}" if isinstance(owner, Argument) else ""
    name, scope = f"shell{number}", {f"shell{number}": shell.checking(), f"fetch_shell{number}": origin.fetch}
    return Guard(f"{name}(fetch_{name}({argument}))", f"{origin}, a {shell.kind.__qualname__},", scope)


class _Operators(internals.DispatchMode):
    """Mode that gets the operators on tensors of subclasses, and runs the handlers of the subclasses."""

    def __init__(self, recorder: Recorder, state: State) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder, self._state = recorder, state

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, state = self._recorder, self._state
        if func in nested.METADATA:
            return called(func, args, kwargs or {})  # asked by PyTorch's C code, which takes no errors
        tensors = [*tensors_in((args, kwargs))]
        if torch.is_grad_enabled() and any(
            has_shell(one) and one.requires_grad and not _needs_grad(state.value_of(one)) for one in tensors
        ):
            raise Unsupported(
                f"{func} of a tensor of a subclass that requires grad inside of the function alone, or that no guard "
                f"finds, in {recorder.here()}; pass it as an argument",
                splits=False,
            )
        stand_ins = {id(state.value_of(tensor)): tensor for tensor in tensors}
        args, kwargs = map_tensors(state.value_of, (args, kwargs or {}))
        kinds = _kinds((args, kwargs))
        if kinds and torch.Tag.inplace_view in func.tags:
            raise Unsupported(f"{func} changes the sizes of a {kinds[0].__qualname__} in place, in {recorder.here()}")
        needs_grad = torch.is_grad_enabled() and any(map(_needs_grad, tensors_in((args, kwargs))))
        run = nested.formula(func, args, kwargs) if needs_grad else None
        if run is None:
            self._check_gradient(func, kinds, args, kwargs)
        with internals.back_inside(recorder.tape.dispatch_state), recorder.reopened():
            result = called(func, args, kwargs) if run is None else run(*args, **kwargs)
            nested.refuse_copied_offsets([*tensors_in((args, kwargs))], [*tensors_in(result)], recorder.here)

            def returned(tensor: torch.Tensor) -> torch.Tensor:
                return stand_ins[id(tensor)] if id(tensor) in stand_ins else self._placeholder(tensor)

            return map_tensors(returned, result)

    def _check_gradient(self, func: Any, kinds: Sequence[Any], args: Any, kwargs: Any) -> None:
        """Refuse an operator whose gradient is not that of the operators on inner tensors."""
        if not kinds or not torch.is_grad_enabled():
            return
        recorder, reason = self._recorder, ""
        needs_grad = any(map(_needs_grad, tensors_in((args, kwargs))))
        if func._schema.is_mutable:
            key = internals.storage_key
            inputs = {key(entry.wrapper) for entry in recorder.inputs if needs_grad or entry.proxy.requires_grad}
            if not inputs.isdisjoint(map(key, own_parts(args[0]))):
                reason = "writes to an input"
            elif needs_grad and not _needs_grad(args[0]):
                reason = "writes to one that does not"
        if needs_grad and not reason:
            with recorder.paused(), internals.dispatch_from_top(recorder.tape.dispatch_state):
                try:
                    agree = gradients_agree(called, func, args, kwargs)
                except Exception:  # the class lacks an operator of the formula
                    agree = False
            reason = "" if agree else "has another gradient than the operators on its inner tensors"
        if reason:
            raise Unsupported(
                f"{func} of a {kinds[0].__qualname__} that requires grad {reason}, in {recorder.here()}", splits=False
            )

    def _placeholder(self, result: torch.Tensor) -> torch.Tensor:
        """Return a tensor without history for a result: autograd gives it the history of the whole operator."""
        if has_shell(result):
            return _stand_in(self._state, self._state.value_of(result))
        if not internals.is_wrapper(result):
            return result
        placeholder = internals.wrap(internals.unwrap(result))
        self._state.values[id(placeholder)] = placeholder, result
        return placeholder


def called(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operator by the handlers of the subclasses."""
    kinds = _kinds((args, kwargs))
    for kind in kinds:
        result = kind.__torch_dispatch__(func, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    if kinds:
        raise TypeError(f"no implementation of {func} for {', '.join(kind.__qualname__ for kind in kinds)}")
    return func(*args, **kwargs)

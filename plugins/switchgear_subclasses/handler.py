"""The handler of calls with tensors of subclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.record.call import Call
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.shell import Attributes, Shell, attributes_of, has_shell, refuse_changes, shell_of, shelled_in
from switchgear_core.record.signature import Argument, Closure, Held, Part
from switchgear_subclasses import torch_private as internals


@dataclass(slots=True)
class State:
    """Tensors from outside in one capture: their stand-ins by id, and the owners of inner tensors by id."""

    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    owners: dict[int, tuple[torch.Tensor, str]] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=list)


class Subclasses(Handler):
    """Runs the functions of subclasses, as eager does; the calls on inner tensors enter the door again."""

    def begin(self, recorder: Recorder) -> State:
        """Begin without tensors."""
        return State()

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> Part | None:
        """Return the place of an inner tensor in its owner."""
        owner = recorder.state(self).owners.get(id(tensor))
        return None if owner is None else Part(recorder.origin(owner[0]), owner[1])

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Run the function of the subclass, or its operators."""
        if not any(map(has_shell, tensors_in((call.args, call.kwargs)))):
            return PASS
        state = recorder.state(self)

        def stand_in(tensor: torch.Tensor) -> torch.Tensor:
            return _stand_in(recorder, state, tensor) if has_shell(tensor) else tensor

        args, kwargs = map_tensors(stand_in, (call.args, call.kwargs))
        kinds = _kinds((args, kwargs))
        if internals.subclass_functions_enabled():
            for kind in kinds:
                if kind.__torch_function__ is internals.DISABLED:
                    continue
                with recorder.reopened():
                    result = kind.__torch_function__(call.fn, kinds, args, kwargs)
                if result is not NotImplemented:
                    return result
        with internals.above_subclasses(_Operators(recorder)):
            return call.fn(*args, **kwargs)  # type: ignore[misc]

    def finish(self, recorder: Recorder, result: Any) -> Any:
        """Refuse changes that no call repeats."""
        state = recorder.state(self)
        refuse_changes(state.attributes, [_stand_in(recorder, state, tensor) for tensor in shelled_in(result)])
        return result


def _kinds(value: object) -> tuple[Any, ...]:
    """Return the classes of the subclasses' tensors, subclasses before their bases."""
    kinds = dict.fromkeys(type(tensor) for tensor in tensors_in(value) if has_shell(tensor))
    return tuple(sorted(kinds, key=lambda kind: -len(kind.__mro__)))


def _stand_in(recorder: Recorder, state: State, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the subclass around inputs of the trace; a tensor that the function made, unchanged."""
    if id(tensor) in state.stand_ins:
        return state.stand_ins[id(tensor)][1]
    shell = shell_of(tensor)
    parts = {name: getattr(tensor, name) for name in shell.names}
    origin = None if any(map(internals.is_wrapper, _plain(tensor))) else recorder.origin(tensor)
    result = tensor
    if not isinstance(origin, Closure | None):
        state.owners |= {id(part): (tensor, name) for name, part in parts.items()}
        inner = [
            _stand_in(recorder, state, part) if has_shell(part) else recorder.adopted(part) for part in parts.values()
        ]
        with recorder.isolation:
            result = shell.around(inner)
        recorder.guards.append(_guard(shell, origin, len(recorder.guards)))
        state.attributes += attributes_of(result)
    state.stand_ins[id(tensor)] = tensor, result
    return result


def _plain(tensor: Any) -> list[torch.Tensor]:
    """Return the inner tensors of a tensor that are of no subclass."""
    parts = [getattr(tensor, name) for name in shell_of(tensor).names]
    return [inner for part in parts for inner in (_plain(part) if has_shell(part) else [part])]


def _guard(shell: Shell, origin: Any, number: int) -> Guard:
    """Return the guard on a tensor from outside."""
    index, fetch = _fetch(origin)
    argument = "" if index is None else f"a{index}"
    name, scope = f"shell{number}", {f"shell{number}": shell.fits, f"fetch_shell{number}": fetch}
    return Guard(f"{name}(fetch_{name}({argument}))", f"{origin}, a {shell.kind.__qualname__},", scope)


def _fetch(origin: Any) -> tuple[int | None, Callable[..., Any]]:
    """Return a function that finds a tensor in a call, and the index of its argument, if it has one."""
    if isinstance(origin, Part):
        index, fetch = _fetch(origin.of)
        return index, lambda *argument: origin.fetch(fetch(*argument))
    owner = origin.owner if isinstance(origin, Held) else None
    return owner.index if isinstance(owner, Argument) else None, origin.fetch


class _Operators(internals.DispatchMode):
    """Mode that gets the operators on tensors of subclasses, and runs the handlers of the subclasses."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, kwargs = self._recorder, kwargs or {}
        kinds = _kinds((args, kwargs))
        needs_grad = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if kinds and needs_grad and torch.is_grad_enabled():
            raise Unsupported(
                f"a gradient through {func} of a {kinds[0].__qualname__}, in {recorder.here()}", splits=False
            )
        with internals.back_inside(recorder.tape.dispatch_state), recorder.reopened():
            if not kinds:
                return func(*args, **kwargs)
            for kind in kinds:
                result = kind.__torch_dispatch__(func, kinds, args, kwargs)
                if result is not NotImplemented:
                    return result
        raise TypeError(f"no implementation of {func} for {', '.join(kind.__qualname__ for kind in kinds)}")

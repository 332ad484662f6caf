"""The handler of calls with DTensors.

Each DTensor from outside, and each result, is one value of the trace, with the sizes of the whole. The function gets a
*stand-in* for it: a DTensor around a fake local tensor. A call runs on the stand-ins first, so that the function sees
the mesh and the placements of the result; then it is recorded on their values.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import redirected, together
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler, getter
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.torch_private import pytree
from switchgear_dtensors.marks import SHARDED

#: Functions and attributes of a tensor whose result its stand-in does not share.
_OWN = frozenset(map(getter, ("data", "grad", "grad_fn", "is_leaf", "_base", "_version")))
_OWN |= {torch.Tensor.requires_grad_, torch.Tensor.backward, torch.autograd.grad, torch.autograd.backward}
_SHARDED = (
    "is sharded by fully_shard, whose Python reads and writes the parameters in every call; sg.jit the parts first and "
    "shard their results: fully_shard(sg.jit(layer))"
)


def _placed() -> Any:
    """Return the module of DTensors' values, or None as long as there is no DTensor: PyTorch's takes half a second."""
    if "torch.distributed.tensor" not in sys.modules:
        return None
    return importlib.import_module("switchgear_dtensors.placed")


def shell_of(value: object) -> Any:
    """Return the shell of a DTensor, or None of any other value."""
    placed = _placed()
    return placed and placed.shell_of(value)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.size(), tensor.stride(), tensor.dtype, tensor.device


class DTensors(Handler):
    """Records calls with DTensors as calls on whole tensors."""

    def begin(self, recorder: Recorder) -> list[Any]:
        """Begin without tensors; the list holds the state once there is a DTensor."""
        others = recorder.closed

        def closed(shell: Any, parts: Sequence[torch.Tensor]) -> torch.Tensor:
            placed = _placed()
            if placed is None or not isinstance(shell, placed.Placed):
                return others(shell, parts)
            at_work: Any = active_recorder()  # not `recorder`, which holds this function
            return self._state(at_work).input(at_work, shell, parts[0])  # type: ignore[no-any-return]

        recorder.closed = closed
        return []

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Redirect `apply` of Functions, which bypasses every mode, and `to_local`, which may call no Function."""
        redirections = [redirected(torch.autograd.Function, "apply", self._apply)]
        if placed := _placed():
            redirections.append(redirected(placed.internals.DTensor, "to_local", self._to_local))
        with together(redirections):
            yield

    @contextlib.contextmanager
    def running(self, recorder: Recorder, roots: Sequence[object], arguments: Mapping[int, object]) -> Iterator[None]:
        """Refuse a module of `fully_shard` whose parameters are sharded now; leave no masks of fakes behind."""
        fsdp, placed = sys.modules.get("torch.distributed.fsdp"), _placed()
        for root in roots if fsdp and placed else ():
            for path, module in root.named_modules() if isinstance(root, torch.nn.Module) else ():
                names = module.named_parameters(path) if isinstance(module, fsdp.FSDPModule) else ()  # type: ignore[union-attr]
                for name, tensor in names:
                    if type(tensor) is placed.internals.DTensor:
                        raise Unsupported(f"the parameter {name} of {type(root).__name__} {_SHARDED}")
        try:
            yield
        finally:
            for state in recorder.state(self):
                for stand_in, _ in state.values.values():
                    _placed().internals.release_fake_masks(stand_in)

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Run a call with DTensors on the stand-ins, then record it on their values."""
        placed = _placed()
        if placed is None:
            return PASS
        states, dtensor = recorder.state(self), placed.internals.DTensor
        tensors = [*tensors_in((call.args, call.kwargs))]
        if not any(type(one) is dtensor or (states and states[0].is_local(one)) for one in tensors):
            return PASS
        state = self._state(recorder)
        here = recorder.here
        if call.fn in _OWN:
            name = getattr(call.fn, "__self__", call.fn)
            raise Unsupported(f"{name} of a DTensor, in {here()}; call it outside", splits=False)
        if placed.internals.replicates_implicitly():
            raise Unsupported(f"plain tensors count as replicas, in {here()}; distribute them", splits=False)
        args, kwargs = map_tensors(functools.partial(state.stand_in_of, recorder), (call.args, call.kwargs))
        with state.unrecorded(recorder):
            fakes = map_tensors(state.fake_of, (args, kwargs))
            expected = call.fn(*fakes[0], **fakes[1])  # type: ignore[misc]
        if not [*tensors_in(expected)]:
            return expected
        if any(map(state.is_local, tensors)):
            raise Unsupported(f"the local tensor of a DTensor is used, in {here()}; call to_local()", splits=False)
        return self._recorded(recorder, call.fn, map_tensors(state.value_of, (args, kwargs)), expected)

    def finish(self, recorder: Recorder, result: Any) -> Any:
        """Return the result with values in place of stand-ins; refuse writes that reach DTensors from outside."""
        states = recorder.state(self)
        if not states:
            return result
        states[0].refuse_writes(recorder)
        leaves, spec = pytree.tree_flatten(result)  # a class of containers stays
        return pytree.tree_unflatten([states[0].value_of(leaf) for leaf in leaves], spec)

    def _state(self, recorder: Recorder) -> Any:
        states: list[Any] = recorder.state(self)
        if not states:
            states.append(_placed().State())
        return states[0]

    def _recorded(self, recorder: Recorder, function: Any, operands: Any, expected: Any) -> Any:
        """Return the stand-ins of the results of a call on values; `expected` are its results on stand-ins."""
        state, count = self._state(recorder), len(recorder.tape.lines)
        with recorder.tape.tagged(SHARDED), recorder.reopened():
            result = function(*operands[0], **operands[1])
        reason = "draws random numbers" if any(line.is_random for line in recorder.tape.lines[count:]) else ""
        pairs = [*zip(tensors_in(expected), tensors_in(result), strict=True)]
        for stand_in, value in pairs:
            if type(stand_in) is not _placed().internals.DTensor:
                reason = "returns a plain tensor"
            elif _layout(stand_in) != _layout(value):
                reason = "has another layout than of a plain tensor"
        if reason:
            raise Unsupported(f"{function} of a DTensor {reason}, in {recorder.here()}", splits=False)
        stand_ins = {id(value): state.paired(recorder, stand_in, value) for stand_in, value in pairs}
        leaves, spec = pytree.tree_flatten(result)  # `max(dim)` has a class of results
        return pytree.tree_unflatten([stand_ins.get(id(leaf), leaf) for leaf in leaves], spec)

    def _apply(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, placed = active_recorder(), _placed()
        if recorder is None or recorder.tape.is_paused or not placed or function not in placed.internals.FUNCTIONS:
            return original(function, *args, **kwargs)
        return placed.moved(recorder, self._state(recorder), function, args)

    def _to_local(self, original: Callable[..., Any], tensor: Any, **kwargs: Any) -> Any:
        recorder = active_recorder()
        if recorder is None or recorder.tape.is_paused or torch.is_grad_enabled():
            return original(tensor, **kwargs)
        return self._apply(original, _placed().internals.TO_LOCAL, tensor, None)

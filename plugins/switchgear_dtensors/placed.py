"""DTensors as values of a trace: their shells, their stand-ins, and calls of DTensor's Functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import Symbol
from switchgear_core.record.guards import Guard
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.record.signature import PLAIN_TENSORS, Closure
from switchgear_core.record.values import metadata_proxy
from switchgear_dtensors import torch_private as internals
from switchgear_dtensors.marks import SHARDED


@dataclass(frozen=True, slots=True)
class Placed:
    """The mesh, the placements and the local layout of a DTensor, which is a value of a trace itself."""

    spec: Any
    local_shape: torch.Size
    local_stride: tuple[int, ...]
    is_parameter: bool
    kind: ClassVar[type[Any]] = internals.DTensor
    names: ClassVar[tuple[str, ...]] = ("dtensor",)

    def closed(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the DTensor."""
        return parts[0]

    def checking(self) -> Callable[[Any], bool]:
        """Return a function that checks whether a tensor has the same mesh, placements and local layout."""
        kind, spec_of, local_of = internals.DTensor, internals.spec_of, internals.local_of
        spec, shape, stride, is_parameter = self.spec, self.local_shape, self.local_stride, self.is_parameter
        check: Callable[[object], bool] | None = None

        def fits(tensor: Any) -> bool:
            nonlocal check
            if type(tensor) is not kind or ((now := spec_of(tensor)) is not spec and now != spec):
                return False
            local = local_of(tensor)
            if check is None or not check(local):
                if local.shape != shape or local.stride() != stride or type(local) not in _LOCAL:
                    return False
                if check is None:  # outside of the capture, whose state of dispatch the check would remember
                    check = internals.tensor_guards([local])
            return getattr(tensor, "_is_param", False) == is_parameter

        return fits

    def opening(self) -> Callable[[Any], Any]:
        """Return a function from a DTensor to a tuple of it."""
        return lambda tensor: (tensor,)


#: The mesh of the last captured DTensor, for checks.
MESHES: list[Any] = []
PLAIN_TENSORS.add(internals.DTensor)
#: The types of supported local tensors.
_LOCAL = frozenset({torch.Tensor, internals.AsyncCollectiveTensor})


def shell_of(tensor: Any) -> Placed | None:
    """Return the shell of a DTensor around a plain tensor; None of any other value, such as a stand-in.

    Raises:
        Unsupported: a DTensor is around a tensor of another subclass.
    """
    if type(tensor) is not internals.DTensor:
        return None
    local = internals.local_of(tensor)
    if internals.is_fake(local):
        return None
    if type(local) not in _LOCAL:
        raise Unsupported(f"there is a DTensor around a {type(local).__qualname__}; use plain tensors", splits=False)
    with internals.DisableTorchFunction():
        layout = local.size(), local.stride()
    return Placed(internals.spec_of(tensor), *layout, getattr(tensor, "_is_param", False))


@dataclass(slots=True)
class State:
    """The DTensors in one capture.

    Attributes:
        values: stand-ins, by id, with the wrappers of their values.
        stand_ins: wrappers, and DTensors from outside, by id, with their stand-ins.
        shared: wrappers that share memory with other values in a way that the trace does not tell, and their values.
        fakes: the mode of the local tensors of stand-ins.
    """

    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    shared: list[tuple[torch.Tensor, TensorProxy]] = field(default_factory=list)
    fakes: Any = field(default_factory=internals.new_local_mode)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a stand-in; any other tensor unchanged."""
        return self.values.get(id(tensor), (tensor, tensor))[1]

    def is_local(self, tensor: Any) -> bool:
        """Check whether a tensor is the local tensor of a stand-in."""
        return getattr(tensor, "fake_mode", None) is self.fakes

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake for a plain tensor; a stand-in unchanged."""
        if id(tensor) in self.values or self.is_local(tensor):
            return tensor
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def note_shared(self, recorder: Recorder, *wrappers: torch.Tensor) -> None:
        """Note that wrappers share memory with other values in a way that the trace does not tell."""
        self.shared += [(wrapper, recorder.tracker.proxy_of(wrapper)) for wrapper in wrappers]

    def refuse_writes(self, recorder: Recorder) -> None:
        """Refuse writes to noted wrappers."""
        if any(recorder.tracker.proxy_of(wrapper).name != proxy.name for wrapper, proxy in self.shared):
            raise Unsupported(
                "the function writes to a DTensor from outside, or to memory that one shares with its local tensor; "
                "write to a clone",
                splits=False,
            )

    @contextlib.contextmanager
    def unrecorded(self, recorder: Recorder) -> Iterator[None]:
        """Return a context in which calls run on stand-ins, without communication.

        Raises:
            Unsupported: a call fails; eager's error, if it has one, is raised by eager.
        """
        with recorder.paused(), internals.outside(), self.fakes:
            try:
                yield
            except Exception as error:
                reason = f"a call with DTensors fails while it is captured, in {recorder.here()}: {error}"
                raise Unsupported(reason, splits=False) from error

    def paired(self, recorder: Recorder, stand_in: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of a value, which is new unless the value has one."""
        if id(value) not in self.stand_ins:
            with recorder.paused(), internals.outside():
                stand_in.requires_grad_(value.requires_grad)
            self.stand_ins[id(value)], self.values[id(stand_in)] = (value, stand_in), (stand_in, value)
        return self.stand_ins[id(value)][1]

    def input(self, recorder: Recorder, shell: Placed, value: torch.Tensor) -> torch.Tensor:
        """Return the stand-in for an input."""
        self.note_shared(recorder, value)
        MESHES[:] = [shell.spec.mesh]
        with self.unrecorded(recorder):
            layout = shell.local_shape, shell.local_stride
            local = torch.empty_strided(*layout, dtype=value.dtype, device=value.device)
            stand_in: Any = internals.around(local, shell.spec)
        if shell.is_parameter:
            stand_in._is_param = True
        return self.paired(recorder, stand_in, value)

    def stand_in_of(self, recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in for a DTensor from outside; any other tensor unchanged.

        Raises:
            Unsupported: the function has made the DTensor.
        """
        if id(tensor) in self.values or type(tensor) is not internals.DTensor:
            return tensor
        if id(tensor) in self.stand_ins:
            return self.stand_ins[id(tensor)][1]
        shell = shell_of(tensor)
        if shell is None or internals.is_wrapper(internals.local_of(tensor)):
            raise Unsupported(f"a DTensor is made in {recorder.here()}; use DTensor.from_local", splits=False)
        origin = recorder.origin(recorder, tensor)
        stand_in = self.input(recorder, shell, recorder.adopted(tensor))
        if not isinstance(origin, Closure):
            place = next(place for place, entry in enumerate(recorder.inputs) if entry.tensor is tensor)
            why, name = f"{origin}, a DTensor,", f"placed{place}"
            recorder.guards.append(Guard(f"{name}(inputs[{place}])", why, {name: shell.checking()}))
        self.stand_ins[id(tensor)] = tensor, stand_in
        return stand_in


class _Context(SimpleNamespace):
    """The `ctx` of a Function that saves no tensors."""

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: a trace has no undefined gradient here."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A call of a Function of DTensor, without its tensor.

    Attributes:
        function: the Function.
        args: its other arguments.
        context: the `ctx` of its backward.
        result: the metadata of the result.
    """

    function: Any
    args: tuple[Any, ...]
    context: Any
    result: TensorProxy

    def is_whole(self, symbol: Symbol) -> bool:
        """Check whether the result of a symbol of such a call is a DTensor."""
        return internals.FUNCTIONS[self.function] != ("to_local" if symbol == MOVE else "from_local")

    def __repr__(self) -> str:
        return f"{internals.FUNCTIONS[self.function]}{self.args}"


def move(tensor: torch.Tensor, step: Move) -> torch.Tensor:
    """Return a DTensor with other placements, its local tensor, or a DTensor around a tensor."""
    return _at_hand(step.function.apply(tensor, *step.args))


def move_back(grad: torch.Tensor, step: Move) -> torch.Tensor:
    """Return the gradient of the tensor of a `move`."""
    recorder = active_recorder()
    if recorder is not None and not recorder.tape.is_paused:
        raise Unsupported(f"a backward of {step} is differentiated; call eager mode", splits=False)
    return _at_hand(step.function.backward(step.context, grad)[0])


def _at_hand(tensor: Any) -> torch.Tensor:
    """Return a tensor after its communication, if it is plain: kernels of executors read its memory."""
    is_pending = type(tensor) is internals.AsyncCollectiveTensor and not tensor.requires_grad
    return tensor.wait() if is_pending else tensor  # type: ignore[no-any-return]


def moved(recorder: Recorder, state: State, function: Any, args: tuple[Any, ...]) -> torch.Tensor:
    """Record a call of a Function of DTensor; return its result."""
    tensor = state.stand_in_of(recorder, args[0])
    value = recorder.adopted(state.value_of(tensor))
    context = _Context()
    with state.unrecorded(recorder):
        result = function.forward(context, state.fake_of(tensor), *args[1:])
        layout = metadata_proxy("", result, requires_grad=False)
    recorded = _recorded(recorder, MOVE, value, Move(function, args[1:], context, layout), layout)
    state.note_shared(recorder, value, recorded)
    return state.paired(recorder, result, recorded) if type(result) is internals.DTensor else recorded


def _pullback(tensor: torch.Tensor, step: Move) -> Any:
    recorder = active_recorder()
    assert recorder is not None
    argument = recorder.tracker.proxy_of(tensor)
    result = _recorded(recorder, MOVE, tensor, step, step.result)
    return result, lambda grad: _recorded(recorder, MOVE_BACK, grad, step, argument)


class _Linked(torch.autograd.Function):
    """From a tensor to the result of a `move`, for autograd's answers to the function."""

    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor, like: TensorProxy) -> torch.Tensor:
        return tensor.new_empty_strided(like.shape, like.stride, dtype=like.dtype)


def _recorded(recorder: Recorder, symbol: Symbol, tensor: torch.Tensor, step: Move, like: TensorProxy) -> torch.Tensor:
    with recorder.paused():
        result: torch.Tensor = _Linked.apply(tensor, like)  # type: ignore[no-untyped-call]
        with internals.DisableTorchFunction():
            proxy = recorder.values.define(internals.unwrap(result), result.requires_grad)
    recorder.record(symbol, (recorder.tracker.proxy_of(tensor), step), proxy, SHARDED)
    recorder.track_outputs(result)
    return result


MOVE = Symbol(f"{__name__}.move", move, _pullback)
MOVE_BACK = Symbol(f"{__name__}.move_back", move_back)

"""The recorder: state of a capture, as features and grad rules see it.

Every tensor that the function uses becomes an input: arguments by position, parameters and buffers by module and name,
other tensors by reference. Calls come in through the `doors`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import Symbol
from switchgear_core.ir.trace import Names
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import replaced
from switchgear_core.record.guards import Guard
from switchgear_core.record.inputs import Inputs, RecordedInput
from switchgear_core.record.shell import closed
from switchgear_core.record.sizes import active_sizes
from switchgear_core.record.tape import Tape
from switchgear_core.record.tracker import Tracker, history_of, version_of
from switchgear_core.record.values import Values


@dataclass(slots=True)
class Matters:
    """Properties of the inputs, other than their metadata, on which a trace depends."""

    #: Leaves of autograd: gradients requested inside might flow through an input's history.
    leaves: bool = False
    #: Bases requiring grad.
    bases: bool = False
    #: Storage offsets.
    offsets: bool = False

    def __ior__(self, inner: Matters) -> Matters:
        """Add the flags of an inner capture, whose inputs are values here; the trace determines their offsets."""
        self.leaves |= inner.leaves
        self.bases |= inner.bases
        return self


class _Thread(threading.local):
    recorder: Recorder | None = None


_THREAD = _Thread()


def active_recorder() -> Recorder | None:
    """Return the recorder at work on the current thread, if any."""
    return _THREAD.recorder


def active(recorder: Recorder | None) -> contextlib.AbstractContextManager[None]:
    """Return a context with the recorder, or none, active on the current thread."""
    return replaced(_THREAD, "recorder", recorder)


def active_line() -> str:
    """Return the user's line if a recorder is active."""
    return _THREAD.recorder.here() if _THREAD.recorder is not None else ""


def _fake_mode(enclosing: Recorder | None) -> internals.FakeMode:
    if enclosing is not None:
        return enclosing.values.fake_mode
    sizes = active_sizes()
    return internals.new_fake_mode(sizes and sizes.env)


class Recorder:
    """Recorder of a function running on wrappers instead of tensors.

    Args:
        names: names of the values of the trace.
        adopt: makes an input of an outside tensor that the function uses, by `enter`.
        module_path: returns the path of the module being called.
        follow_autograd: whether gradients flow as in eager mode; false for grad rules.
        reads_inputs: whether values and shapes may depend on the data of inputs; None for branches on masks alone.
    """

    def __init__(
        self,
        names: Names,
        adopt: Callable[[Recorder, torch.Tensor], torch.Tensor] | None = None,
        module_path: Callable[[], str] = str,
        follow_autograd: bool = True,
        reads_inputs: bool | None = False,
    ) -> None:
        self.enclosing = active_recorder()
        self.tape = Tape(names, module_path)
        self.inputs = Inputs()
        if self.enclosing is not None:
            self.inputs.generators |= self.enclosing.inputs.generators
        fake_mode = _fake_mode(self.enclosing)
        self.values = Values(names, fake_mode, self.tape.here)
        self.tracker = Tracker(self.tape, self.values, self.inputs, follow_autograd)
        self.reads_inputs = reads_inputs
        self.matters = Matters()
        #: State of each handler for the capture.
        self.states: dict[Any, Any] = {}
        #: Conditions for later calls, and functions that later calls apply to their result and inputs.
        self.guards: list[Guard] = []
        self.after: list[Callable[[Any, Sequence[Any]], Any]] = []
        #: Entered while a call of PyTorch's C code is recorded: none of the user's code runs then.
        self.isolation: contextlib.AbstractContextManager[None] = (
            contextlib.nullcontext() if self.enclosing is None else self.enclosing.isolation
        )
        #: Packages whose code runs inside and is not part of the function.
        self.packages_of_features: tuple[str, ...] = ()
        #: Guards the structure of a module: its submodules, flags and hooks.
        self.enter_module: Callable[[torch.nn.Module], None] = lambda module: None
        #: Returns the present content of changed Python objects, comparable.
        self.changed_objects: Callable[[], Sequence[tuple[int, Sequence[tuple[object, int]]]]] = (
            tuple
        )
        #: The flattened arguments of the call.
        self.leaves: Sequence[object] = ()
        #: Makes the tensors with inner tensors that the function gets.
        self.closed: Callable[..., torch.Tensor] = closed
        #: Returns the source of a tensor from outside, for this recorder.
        self.origin: Callable[[Recorder, torch.Tensor], Any] = lambda recorder, tensor: None
        #: Opens the door of torch-level calls again, for code that runs inside a call.
        self.reopened: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._adopt = adopt

    def here(self) -> str:
        """Describe the user's line, for messages.

        Returns:
            The file and the line.
        """
        return self.tape.here()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Let calls pass unrecorded.

        Returns:
            A context.
        """
        return self.tape.paused()

    def record(self, symbol: Symbol, args: tuple[object, ...], output: object, *tags: str) -> None:
        """Record a call unseen by the modes, of values of the trace.

        Args:
            symbol: its operation.
            args: its arguments, with proxies for tensors.
            output: its result, with proxies for tensors.
            tags: tags of the line.
        """
        self.tape.record(symbol, args, output, *tags)

    def recorded(
        self, symbol: Symbol, args: tuple[object, ...], output: TensorProxy, *tags: str
    ) -> torch.Tensor:
        """Record a call of a symbol of Switchgear.

        Args:
            symbol: its operation.
            args: its arguments, with wrappers or outside tensors.
            output: the proxy of its result.
            tags: tags of the line.

        Returns:
            The wrapper of the result.

        Raises:
            Unsupported: an argument is from outside and cannot be an input.
        """
        operands = map_tensors(self.adopted, args)
        self.record(symbol, map_tensors(self.tracker.proxy_of, operands), output, *tags)
        return self.tracker.wrapper_for(output)

    def keep_strides(self, wrapper: torch.Tensor, stride: tuple[int, ...]) -> None:
        """Note the strides of a tensor created and written by a composite of PyTorch.

        Args:
            wrapper: the tensor.
            stride: its strides in eager mode, in elements.
        """
        if active_recorder() is self and not self.tape.is_paused and wrapper not in self.tracker:
            self.tracker.restrided(wrapper, stride, True)

    def state(self, handler: object) -> Any:
        """Look up the state of a handler for the capture.

        Args:
            handler: the handler.

        Returns:
            The result of its `begin`.
        """
        return self.states[handler]

    def input_of(self, tensor: torch.Tensor) -> RecordedInput | None:
        """Look up the input for a tensor.

        Args:
            tensor: an outside tensor, or a wrapper.

        Returns:
            The input, or None for a value computed by the trace.

        Raises:
            Unsupported: the tensor is from outside and cannot be an input.
        """
        if not self._is_own(tensor):
            self.adopted(tensor)
        return self.inputs.of(tensor)

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring an argument of a call up to date; a tensor from outside becomes an input.

        Args:
            tensor: an outside tensor, or a wrapper.

        Returns:
            The wrapper.

        Raises:
            Unsupported: the tensor is from outside and cannot be an input.
        """
        if not self._is_own(tensor):
            wrapper = self.inputs.wrapper_of(tensor)
            if wrapper is not None:
                self.inputs.reached_otherwise.add(id(tensor))
                tensor = wrapper
            elif self._adopt is None or internals.is_fake(tensor):
                subject = "a tensor from outside of the trace, or a tensor subclass made inside,"
                raise Unsupported(f"{subject} was used in {self.here()}")
            else:
                with internals.DisableTorchFunction():
                    return self._adopt(self, tensor)
        with internals.DisableTorchFunction():
            self.tracker.refuse_outdated(tensor)
            self.tracker.reconcile(tensor, is_used=True)
        return tensor

    def enter(
        self, tensor: torch.Tensor, proxy: TensorProxy, view: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Make a tensor from outside an input.

        Args:
            tensor: the tensor.
            proxy: its proxy.
            view: its wrapper, if it is a view of another input.

        Returns:
            The wrapper.
        """
        with internals.DisableTorchFunction():
            wrapper = view
            if wrapper is None:
                wrapper = self.tracker.wrapper_for(proxy, leaf=tensor.is_leaf, autograd=True)
            self.tracker.reconcile(wrapper)
            history, is_view = history_of(wrapper), view is not None
            storage, version = internals.storage_key(wrapper), version_of(wrapper)
            self.inputs.add(
                RecordedInput(tensor, wrapper, proxy, history, is_view, storage, version)
            )
        return wrapper

    def track_outputs(self, result: object) -> object:
        """Note the tensors returned by a call.

        Args:
            result: the result of the call, with wrappers for tensors.

        Returns:
            The same result.
        """
        for tensor in tensors_in(result):
            if self._is_own(tensor):
                self.tracker.reconcile(tensor)
        return result

    def known_generator(self, value: object) -> Any:
        """Replace a generator, or its stand-in, by the generator among the arguments.

        Args:
            value: any argument of a call.

        Returns:
            The generator; any other value unchanged.

        Raises:
            Unsupported: the generator is no argument of the function.
        """
        # a grad rule uses the generators of the trace
        if not isinstance(value, torch.Generator) or not self.tracker.follow_autograd:
            return value
        return self.inputs.generator(value, self.here)

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Check whether a tensor is a wrapper of the recorder, not of an enclosing one."""
        if not internals.is_wrapper(tensor):
            return False
        return self.enclosing is None or tensor not in self.enclosing.tracker

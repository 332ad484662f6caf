"""The protocols between the core and its parts: front ends capture calls, runtimes run the programs made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from switchgear_core.ir.trace import Trace
from switchgear_core.passes.programs import Programs
from switchgear_core.record.handler import Handlers

#: A function from the trace's input tensors to the return value of the captured function.
Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedCall:
    """A captured call, and the use of its trace by other calls.

    Attributes:
        trace: inputs, outputs and lines.
        bind: returns the input tensors of the trace for the arguments of a call, or None if the trace does not hold
            for it.
        finish: returns the function's result, given the outputs of the trace and its inputs.
        guards: what `bind` checks, in words, for `explain`.
    """

    trace: Trace
    bind: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[torch.Tensor] | None]
    finish: Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]
    guards: tuple[str, ...] = ()


class Frontend(Protocol):
    """A way from a function to traces.

    Attributes:
        name: the name for messages.
    """

    name: str

    def capture(
        self,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        handlers: Handlers,
    ) -> CapturedCall:
        """Capture a call.

        Args:
            function: the function.
            args: the arguments of the call.
            kwargs: its keyword arguments.
            handlers: the features of capture that take part in the call.

        Raises:
            CaptureError: this front end has no faithful trace of the call. The next front end is asked.
        """
        ...


class Runtime(Protocol):
    """A way to run the programs of a captured call."""

    def run(self, captured: CapturedCall, programs: Programs) -> Run:
        """Return the path of a call from inputs to result: the programs under autograd, then `captured.finish`."""
        ...

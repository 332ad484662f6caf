"""Front ends of parts, and entries for their captured calls."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import CaptureError, RuleError
from switchgear_core.ir.verify import verify
from switchgear_core.passes.programs import Programs
from switchgear_core.protocols import CapturedCall, Frontend
from switchgear_core.record.attempts import compiles
from switchgear_core.record.signature import Arguments
from switchgear_core.record.structure import Structure, flatten
from switchgear_core.registry.plugin import DISABLE_VARIABLE
from switchgear_core.registry.selection import Selection
from switchgear_frontend.outputs import Outputs
from switchgear_frontend.session import Captured
from switchgear_runtime.autograd_bridge import Bridge
from switchgear_runtime.backwards import Jit
from switchgear_runtime.entry import Entry, give_up
from switchgear_runtime.epilogue import Finisher
from switchgear_runtime.prologue import MISS, generated


def entry_by_parts(
    function: Callable[..., object],
    call: Arguments,
    selection: Selection,
    rejit: Jit,
    drop: Callable[[], Callable[..., None] | None],
) -> Entry | None:
    """Return an entry for a call, captured by the first front end without a refusal; None without any.

    Raises:
        RuleError: a front end raised, or returned something invalid.
    """
    for part in selection.parts.all:
        for frontend in part.ask("switchgear_frontends", selection=selection) or ():
            try:
                captured = _captured(frontend, function, call, selection)
            except CaptureError:
                continue
            except Exception as error:
                raise RuleError(
                    f"front end {frontend.name} of part {part.label}: {type(error).__name__}: {error}; to go on "
                    f"without it, {DISABLE_VARIABLE}={part.name}"
                ) from error
            return FrontendEntry(frontend.name, captured, call.spec, selection, rejit, drop=drop)
    return None


@compiles
def _captured(
    frontend: Frontend, function: Callable[..., object], call: Arguments, selection: Selection
) -> CapturedCall:
    captured = frontend.capture(function, call.args, call.kwargs, selection.handlers)
    if not isinstance(captured, CapturedCall):
        raise TypeError(f"capture returned {captured!r}, not a CapturedCall")
    verify(captured.trace)
    return captured


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """The counterpart of a prologue: a front end's `bind`."""

    name: str
    captured: CapturedCall

    def before(
        self, lines: Sequence[str], scope: Mapping[str, object], miss: object = MISS
    ) -> Callable[..., Any]:
        """Return a function of a call's arguments: it runs `lines` with `inputs` defined, or returns `miss`."""
        body = ["inputs = bind(args, kwargs)", "if inputs is None: return miss", *lines]
        bound = {**scope, "bind": self.captured.bind, "miss": miss}
        return generated("call(args, kwargs)", body, bound)

    def conditions(self) -> list[str]:
        """Return the guards, in words."""
        return [f"{guard} (front end {self.name})" for guard in self.captured.guards]

    def why_not(self, *call: object) -> str:
        """Return the difference by which the entry does not fit a call."""
        return f"something that front end {self.name} checks"


class FrontendEntry(Entry):
    """An entry for calls that a part's front end captured."""

    is_of_frontend = True

    @compiles
    def __init__(
        self,
        name: str,
        captured: CapturedCall,
        spec: Structure,
        selection: Selection,
        rejit: Jit,
        *,
        drop: Callable[[], Callable[..., None] | None],
    ) -> None:
        outputs = Outputs((), (), flatten(())[1], (), (), (), ())
        grad_enabled, after = torch.is_grad_enabled(), (captured.finish,)
        self.captured = Captured(captured.trace, (), outputs, (), grad_enabled, (), after=after)
        self.spec, self._numbers, self._name = spec, [], name
        self.fixed = self.no_part = ""
        self._autocast, self._watched, self._copies = internals.autocast_active(), [], None
        self.is_forward_alone = False
        self.calls_before, self._calls = 0, itertools.count()
        self._prologue: Any = _Bound(name, captured)
        self.prologue = self._prologue.before(["return inputs"], {}, None)
        self._runtime = selection.parts.only("switchgear_runtime", selection=selection)
        with torch.no_grad(), internals.autocast_off():
            programs = self._programs = Programs(captured.trace, selection)
            expected = programs.expected()
            self.bridge = None
            if any(expected) and not torch.is_inference_mode_enabled():
                training = programs.training()
                self._make_forward, self.forward = training.make_forward, training.forward
                modes: dict[str, Any] = {
                    "grad_enabled": grad_enabled,
                    "autocast": self._autocast,
                }
                self.bridge = Bridge(training, selection, rejit, **modes)
                self.bridge.backwards.failed = partial(give_up, weakref.ref(self), drop)
            else:
                self._make_forward = programs.forward()
                self.forward = self._make_forward()
        self._finish()

    def _completing(self, outputs: Outputs, missing: Sequence[int]) -> Finisher:
        """Return the end of a call: the front end's."""
        return self.captured.after[0]

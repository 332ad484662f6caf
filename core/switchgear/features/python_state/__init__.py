"""Python state: what a function reads from Python is guarded, and what it writes there is done again by every call.

Capture runs the function once. Reads of attributes are noted as they happen, what code names is found in the code;
each is a guard of the entry. Content of the objects reached is compared before and after: changes are put back, their
tensors become outputs of the trace, and every call, the first included, makes them after it has run. Refused are
objects whose state cannot be seen: iterators, generators, random streams, what a call could not make again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear.capture.handler import Handler
from switchgear.capture.recorder import Recorder
from switchgear.capture.signature import InputSource
from switchgear.errors import Unsupported
from switchgear.features.python_state.frozen import leaves
from switchgear.features.python_state.reached import Reached
from switchgear.features.python_state.reads import Read, guard_on, reads_made
from switchgear.features.python_state.rebuilding import Packing, Results, Template, build, is_odd
from switchgear.features.python_state.recording import Recording
from switchgear.features.python_state.writes import Write, changes


@dataclass(slots=True, eq=False)
class _World:
    """What one capture knows of Python."""

    reached: Reached
    recording: Recording
    arguments: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What every call does once its trace has run: writes, and the return value around its leaves."""

    writes: tuple[Write, ...]
    result: Template
    arguments: tuple[int, ...]

    def __call__(self, leaves: Sequence[Any], objects: Sequence[Any]) -> Any:
        """The return value."""
        results = Results(leaves, dict(zip(self.arguments, objects, strict=False)))
        for write in self.writes:
            write.do(results)
        return build(self.result, results)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Replay) or len(self.writes) != len(other.writes):
            return False
        pairs = zip(self.writes, other.writes, strict=True)
        return self.result == other.result and all(one.matches(two) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]


class PythonState(Handler):
    """Attributes, global variables, closures and containers."""

    def begin(self, recorder: Recorder) -> _World | None:
        """Nothing inside of another capture, which sees what is reached."""
        if recorder.enclosing is not None:
            return None
        reached = Reached()
        return _World(reached, Recording(reached))

    @contextlib.contextmanager
    def running(
        self, recorder: Recorder, roots: Sequence[Any], arguments: Mapping[int, Any]
    ) -> Iterator[None]:
        """Note what is read, and put back what is written."""
        world = recorder.state(self)
        if world is None:
            yield
            return
        reached = world.reached
        for root in roots:
            reached.reach(root, getattr(root, "__name__", type(root).__name__))
        world.arguments = arguments
        for index, value in arguments.items():
            reached.reach_argument(index, value)
        try:
            with world.recording.active():
                yield
        finally:
            for holder in reached.holders.values():
                if holder.changed():
                    holder.put(holder.before)

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> InputSource | None:
        """Where in Python's objects a tensor lies."""
        world = recorder.state(self)
        return None if world is None else world.reached.tensors.get(id(tensor))

    def finish(self, recorder: Recorder, result: Any) -> Any:
        """The leaves of the result and of what was written, where a call has more to do than return them."""
        world = recorder.state(self)
        if world is None:
            return result
        reached = world.reached
        packing = Packing(reached, recorder)
        writes = tuple(changes(reached, packing))
        reads = reads_made(reached.reads, reached.links, world.recording.code_that_ran())
        _refuse_opaque(reads, reached)
        if reads:
            recorder.guards.append(guard_on(reads, world.arguments))
        if not writes and not is_odd(result, reached):
            return result
        template = packing.pack(result, "what it returns")
        recorder.after.append(Replay(writes, template, tuple(world.arguments)))
        return packing.leaves


def _refuse_opaque(reads: Sequence[Read], reached: Reached) -> None:
    for read in reads if reached.opaque else ():
        for value in leaves(read.value):
            if id(value) in reached.opaque:
                raise Unsupported(
                    f"the function uses {read.label}, a {type(value).__name__}, which every use changes and no guard "
                    "can see; use it outside of the function"
                )

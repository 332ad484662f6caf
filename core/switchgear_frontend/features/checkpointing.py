"""Regions of `torch.utils.checkpoint`: recorded with a tag for the backward to recompute.

Values saved by a selective policy have another tag. Reentrant regions (`custom_functions`) and nested regions are
refused. So is a region whose reads are changed afterwards: eager's backward would read the new values.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.symbol import CHECKPOINT, SAVED
from switchgear_core.patches import replaced
from switchgear_core.record.call import Call
from switchgear_core.record.handler import Handler
from switchgear_core.record.inputs import RecordedInput
from switchgear_core.record.recorder import Recorder, active_recorder


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A region, its place in the code, and the variables of enclosing functions read by the region, with contents."""

    tag: str
    here: str
    variables: Sequence[tuple[str, types.CellType, object]]

    def refuse_changes(self, recorder: Recorder) -> None:
        """Refuse the region if running it again now, as eager's backward does, would use other values."""
        for name, cell, content in self.variables:
            if _content(cell) is not content:
                self._refuse(f"{name}, a variable of an enclosing function, is assigned")
        lines = [line for line in recorder.tape.lines if self.tag in line.tags]
        results = {proxy.name for line in lines for proxy in line.outputs}
        tracker = recorder.tracker
        inputs = {
            tracker.proxy_of(entry.wrapper).name: entry.proxy.name for entry in recorder.inputs
        }
        for proxy in (proxy for line in lines for proxy in line.inputs):
            if proxy.name not in results and tracker.is_overwritten(proxy):
                self._refuse(f"{proxy.name}, which it reads, is written to")
            # the caller may write to the held input too, and the value in the trace would not show the write
            if inputs.get(proxy.name, proxy.name) != proxy.name:
                self._refuse(
                    f"{inputs[proxy.name]}, an input that was written to before, may be again"
                )

    def _refuse(self, action: str) -> NoReturn:
        raise Unsupported(
            f"after a region of torch.utils.checkpoint in {self.here} {action}; eager's backward runs the region once "
            "more, on the changed value: pass it as an argument, and change a copy",
            splits=False,
        )


@dataclass
class Regions:
    """The regions so far, and the memory of the inputs at the start of the open region."""

    regions: list[Region] = field(default_factory=list)
    memory: dict[int, int] | None = None


class Checkpointing(Handler):
    """Handler of regions: tags the lines for the backward to recompute. The state holds the regions."""

    def begin(self, recorder: Recorder) -> Regions:
        """Return a state without regions."""
        return Regions()

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Refuse a write to an input inside a region."""
        memory = recorder.state(self).memory
        if call.wrote and memory is not None:
            _refuse_writes(recorder, memory)

    def finish(self, recorder: Recorder, result: object) -> object:
        """Refuse regions that read values changed after the region."""
        with internals.DisableTorchFunction():
            for region in recorder.state(self).regions:
                region.refuse_changes(recorder)
        return result

    def around(self) -> AbstractContextManager[None]:
        """Redirect the function that runs a region."""
        return internals.checkpoint_regions(self._region)

    def _region(
        self, function: Callable[..., object], context_fn: Callable[[], object]
    ) -> AbstractContextManager[None]:
        """Return a context that records a region; `function` and `context_fn` are the arguments of `checkpoint`."""
        recorder = active_recorder()
        if recorder is None or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        if any(tag.startswith(CHECKPOINT) for tag in recorder.tape.tags):
            raise Unsupported(
                f"a region of torch.utils.checkpoint inside another, in {recorder.here()}; mark one of them alone",
                splits=False,
            )
        saves = internals.selective_policy(context_fn)
        if saves is NotImplemented:
            raise Unsupported(
                f"torch.utils.checkpoint with a context_fn of its own, in {recorder.here()}: the recomputation is "
                "compiled, so no context could act on it; use create_selective_checkpoint_contexts, or none",
                splits=False,
            )
        regions = recorder.state(self).regions
        region = Region(f"{CHECKPOINT}{len(regions)}", recorder.here(), _variables(function))
        regions.append(region)
        return self._recorded(recorder, region.tag, saves)

    @contextlib.contextmanager
    def _recorded(
        self, recorder: Recorder, tag: str, saves: Callable[..., bool] | None
    ) -> Iterator[None]:
        """Tag the lines recorded inside; values for which the policy `saves` is true get the tag `SAVED`."""
        tape, regions = recorder.tape, recorder.state(self)

        def saved(*call: object) -> frozenset[str]:
            return frozenset({SAVED} if saves is not None and saves(*call) else ())

        tags_of = tape.tags_of if saves is None else saved
        memory = {id(entry): _memory(recorder, entry) for entry in recorder.inputs}
        objects = recorder.changed_objects()
        with (
            tape.tagged(tag),
            replaced(tape, "tags_of", tags_of),
            replaced(regions, "memory", memory),
        ):
            yield
            _refuse_writes(recorder, memory)
            if recorder.changed_objects() != objects:
                _refuse_write(recorder, "an object of Python's")


def _variables(function: Any) -> list[tuple[str, types.CellType, object]]:
    """Return the variables of enclosing functions that a function reads, with their contents."""
    if isinstance(function, functools.partial):
        return _variables(function.func)
    function = getattr(function, "__func__", function)
    cells = getattr(function, "__closure__", None)
    if not cells:
        return []
    names = function.__code__.co_freevars
    return [(name, cell, _content(cell)) for name, cell in zip(names, cells, strict=True)]


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell


def _memory(recorder: Recorder, entry: RecordedInput) -> int:
    """Return the storage key of an input's current content; a write changes the key."""
    with internals.DisableTorchFunction():
        recorder.tracker.reconcile(entry.wrapper)
        return internals.storage_key(recorder.tracker.last_fake(entry.wrapper))


def _first_memory(recorder: Recorder, entry: RecordedInput) -> int:
    with internals.DisableTorchFunction():
        return internals.storage_key(recorder.values.fake_of(entry.proxy))


def _refuse_writes(recorder: Recorder, memory: dict[int, int]) -> None:
    """Refuse inputs written since the region began, when they lay in `memory`: the backward would repeat the writes."""
    for entry in recorder.inputs:
        if entry.is_view:
            continue
        if id(entry) not in memory:
            memory[id(entry)] = _first_memory(recorder, entry)
        if _memory(recorder, entry) != memory[id(entry)]:
            _refuse_write(recorder, f"{entry.proxy.name}, an input or a buffer,")


def _refuse_write(recorder: Recorder, action: str) -> NoReturn:
    raise Unsupported(
        f"in {recorder.here()} {action} is written to inside a region of torch.utils.checkpoint; eager's backward runs "
        "the region, and so the write, once more (running statistics count a batch twice): move the write, such as a "
        "BatchNorm in training, out of the region",
        splits=False,
    )

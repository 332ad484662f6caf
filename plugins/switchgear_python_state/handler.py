"""Python state: reads of Python objects are guarded, and writes to Python objects are repeated by every call.

Capture runs the function once. Attribute reads are recorded as they happen, and the names in code are looked up when
the code starts; each read is a guard of the entry. The content of reached objects is compared before and after. Changes
are undone, their tensors become outputs of the trace, and every call, the first included, repeats the changes after it
has run. Objects with invisible state are refused: iterators, generators, random streams, and objects that a call could
not rebuild.
"""

from __future__ import annotations

import contextlib
import re
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import CaptureError, Unsupported
from switchgear_core.nesting import tensors_in
from switchgear_core.patches import Change, replaced
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import InputSource
from switchgear_core.record.sizes import Sizes, active_sizes
from switchgear_frontend.floats import Float
from switchgear_frontend.seeding import random_states
from switchgear_frontend.session import Again
from switchgear_python_state.identity import Place
from switchgear_python_state.made import (
    note_later,
    note_set,
    reads_made,
    start_later,
)
from switchgear_python_state.reached import Reached
from switchgear_python_state.reads import State, guard_on
from switchgear_python_state.rebuilding import (
    Packing,
    Results,
    Template,
    needs_rebuilding,
)
from switchgear_python_state.recording import Recording
from switchgear_python_state.unforeseen import (
    refuse_unforeseen,
    refuse_unknown_reads,
)
from switchgear_python_state.user_objects import (
    compared_by_identity,
    globals_in,
    names_in,
)
from switchgear_python_state.writes import Write, changes

#: Prefixes of TorchDynamo's marks on tensors, as set by transformers' caches; no result depends on a mark.
_MARKS = ("_dynamo_", "_has_dynamo_", "_specialize_on")


@dataclass(slots=True, eq=False)
class _World:
    """The Python state of one capture."""

    reached: Reached
    recording: Recording
    #: Whether inference mode is on around the call.
    infers: bool
    arguments: Mapping[int, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Work of every call after its trace: writes to Python objects, and the return value built from its leaves."""

    writes: tuple[Write, ...]
    result: Template
    places: tuple[Place, ...]
    arguments: tuple[int, ...]
    sizes: Sizes | None

    def __call__(self, leaves: Sequence[object], inputs: Sequence[torch.Tensor]) -> Any:
        """Return the return value."""
        objects = dict(zip(self.arguments, getattr(inputs, "objects", ()), strict=False))
        results = Results(leaves, [place.fetch(objects) for place in self.places])
        if self.sizes is not None:
            sizes = self.sizes.binding(self.sizes.measure(inputs))
            results = replace(results, sizes=sizes)
        for write in self.writes:
            write.do(results)
        return self.result(results)


class PythonState(Handler):
    """Attributes, global variables, closures and containers."""

    def begin(self, recorder: Recorder) -> _World | None:
        """Begin a capture. Inside another capture do nothing: the outer capture sees all reads."""
        if recorder.enclosing is not None:
            return None
        sizes = active_sizes()
        varying = sizes.marks if sizes is not None else {}
        handle = weakref.proxy(recorder)  # or modules would live until garbage is collected
        reached = Reached(varying, partial(_size_of, handle))
        recording = Recording(reached, lambda module: handle.enter_module(module), recorder.packages_of_features)
        return _World(reached, recording, torch.is_inference_mode_enabled())

    @contextlib.contextmanager
    def running(self, recorder: Recorder, roots: Sequence[object], arguments: Mapping[int, object]) -> Iterator[None]:
        """Record reads inside, and undo writes at the end."""
        world = recorder.state(self)
        if world is None:
            yield
            return
        reached = world.reached
        draws = random_states()
        reached.places.has_objects = bool(arguments)
        world.arguments = arguments
        change = Change(_put_back, reached)
        try:
            for root in roots:
                reached.reach(root, getattr(root, "__name__", type(root).__name__))
            for index, value in arguments.items():
                reached.reach_argument(index, value)
            with (
                world.recording.active(),
                replaced(recorder, "isolation", world.recording.code),
                replaced(recorder, "changed_objects", partial(_changed, reached)),
            ):
                yield
            if random_states() != draws:
                raise Unsupported(
                    "the function draws random numbers of Python or NumPy, which the first call alone would do; draw "
                    "them outside of the function",
                    splits=False,
                )
        except AttributeError:
            _refuse_attributes_of_tensors(recorder, reached)
            raise
        except CaptureError as error:
            # TorchDynamo would assume, without a guard, that both are as in the first call
            uses = [stream.put_back() for stream in reached.streams.values()]
            error.splits &= not (any(uses) or reached.reads_environment)
            raise
        finally:
            change.undo()

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> InputSource | None:
        """Return the path to a tensor from Python objects, None for an input."""
        world = recorder.state(self)
        return None if world is None else world.reached.tensors.get(id(tensor))

    def finish(self, recorder: Recorder, result: Any) -> Any:
        """Return the leaves of the result and of the writes, if calls have to rebuild the result or write."""
        world = recorder.state(self)
        if world is None:
            return result
        reached, running = world.reached, world.recording.code
        if world.recording.failure is not None:
            raise world.recording.failure
        if world.recording.loads:
            raise Again
        ran = running.ran()
        user_code = {key: code for key, code in ran.items() if key not in running.internal_ids}
        reached_code = [code for key, code in reached.codes.items() if key in ran]
        packing = Packing(reached, recorder)
        writes = tuple(changes(reached, packing))
        note_set(reached, reached_code)
        refuse_unknown_reads(reached, user_code.values())
        symbolic = active_sizes()
        if symbolic is not None:
            kinds = {"int", "float"} if symbolic.has_floats else {"int"}
            _refuse_exact_types(reached_code, symbolic.has_arguments, kinds)
        _refuse_identity(reached, reached_code)
        replaced_call = {"Module", "__call__"}
        if replaced_call <= reached.names and any(replaced_call <= names_in(code) for code in reached_code):
            raise Unsupported("the function asks for Module.__call__, which capture replaces")
        refuse_unforeseen(reached, user_code, recorder.packages_of_features)
        later = start_later(reached)
        reached.runs_later = bool(later)
        ran |= later
        note_later(reached, later)
        entered = [(index, recorder.inputs.of(leaf)) for index, leaf in enumerate(recorder.leaves)]
        wrappers = {index: entry.wrapper for index, entry in entered if entry is not None}
        indices = {*reached.ask_arguments(wrappers)}
        arguments = {
            index: leaf for index, leaf in enumerate(recorder.leaves) if index in indices or index in world.arguments
        }
        reads = reads_made(reached, ran)
        for stream in reached.streams.values():
            stream.refuse_use()
        _refuse_attributes_of_tensors(recorder, reached)
        written_ids = {id(write.holder.target) for write in writes if write.place is None}
        written_ids |= packing.places.keys() - reached.places.of_call.keys()
        is_plain = not writes and not needs_rebuilding(result, reached)
        template = None if is_plain else packing.pack(result, "what it returns")
        results = (*tensors_in(result if is_plain else packing.leaves),)
        _refuse_attributes_of_results(results)
        if not world.infers:
            _refuse_inference(results)
        identities = reached.identities(packing.places)
        state = State(reads, arguments, written_ids, identities)
        recorder.guards.append(guard_on(state, arguments, reached.settle))
        stays: list[tuple[str, Any]] = [("{}() is not None", ref) for ref in reached.references]
        memos = filter(None, (stream.results_stay() for stream in reached.streams.values()))
        stays += [("{}()", memo) for memo in memos]
        stays += [("{}()", reached.class_checks.stay)] * bool(reached.class_checks)
        for number, (condition, check) in enumerate(stays):
            name = f"stays{number}"
            why = "whether an object lives, what a memo holds, or what an abstract base class answers"
            recorder.guards.append(Guard(condition.format(name), why, {name: check}))
        if template is None:
            return result
        sizes = active_sizes() if packing.has_numbers else None
        places = tuple(packing.places.values())
        recorder.after.append(Replay(writes, template, places, tuple(world.arguments), sizes))
        return packing.leaves


def _put_back(reached: Reached) -> None:
    reached.holdings.put_back()
    for stream in reached.streams.values():
        stream.put_back()


def _changed(reached: Reached) -> list[tuple[int, list[tuple[object, int]]]]:
    """Return the objects held by containers that changed, by id."""
    changed = reached.holdings.changed()
    return [(id(holder.target), [(key, id(value)) for key, value in holder.content().items()]) for holder in changed]


def _size_of(recorder: Recorder, tensor: torch.Tensor) -> Any:
    """Return the symbolic number of a tensor, and make the tensor an input."""
    wrapper = recorder.adopted(tensor)
    if not tensor.dim():
        sizes = active_sizes()
        assert sizes is not None
        sizes.has_floats = True
        return Float(wrapper)
    entered = recorder.inputs.of(tensor)
    assert entered is not None
    return entered.proxy.shape[0]


def _refuse_exact_types(codes: Iterable[types.CodeType], arguments: bool, kinds: Set[str]) -> None:
    """Refuse `type(n) is int`, false for a symbolic number; `kinds` are the numeric types in use.

    With symbolic `arguments`, refuse other code that tells such numbers from integers: any `type`, `is`, NumPy.
    """
    for code in codes:
        global_names = globals_in(code)
        if "type" in global_names and global_names & kinds:
            raise Unsupported(f"{code.co_name} asks for type(), where numbers are symbolic")
        names = global_names & {"type", "np", "numpy"} or compared_by_identity(code)
        if arguments and names:
            problem = f"{code.co_name} may ask for {min(names)} of an integer among the arguments"
            raise Unsupported(f"{problem}, where that is symbolic")


def _refuse_identity(reached: Reached, codes: Iterable[types.CodeType]) -> None:
    """Refuse `x is self.last` for a tensor: no guard covers its identity, and arguments are stand-ins."""
    compared = frozenset().union(*map(compared_by_identity, codes))
    for source in reached.tensors.values() if compared else ():
        if not compared.isdisjoint(re.findall(r"[^\W\d]\w*", source.path.rpartition(".")[2])):
            raise Unsupported(f"{source.path}, a tensor, may be compared by `is`; pass the result of the comparison")


def _refuse_attributes_of_results(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse attributes set on tensors created by the function: calls would create bare tensors."""
    for tensor in filter(internals.is_wrapper, tensors):
        for name in vars(tensor):
            if not name.startswith(_MARKS):
                raise Unsupported(
                    f"the function gives a tensor that it makes an attribute, {name}; return that as a second result"
                )


def _refuse_inference(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse to return or store tensors created under `torch.inference_mode()` inside the function."""
    with internals.DisableTorchFunction():
        if any(tensor.is_inference() for tensor in filter(internals.is_wrapper, tensors)):
            raise Unsupported(
                "the function returns or keeps a tensor made in an inference mode of its own, which a trace runs "
                "without; use torch.no_grad inside, or inference mode around the call",
                splits=False,
            )


def _refuse_attributes_of_tensors(recorder: Recorder, reached: Reached) -> None:
    """Refuse reads of attributes of argument tensors; attributes of other tensors have guards."""
    for entry in recorder.inputs:
        tensor = entry.tensor
        if type(tensor) is not torch.Tensor or id(vars(tensor)) in reached.holders:
            continue
        names = {*vars(tensor), *vars(entry.wrapper)}
        of_user = sorted(name for name in names if not name.startswith(_MARKS))
        if of_user:
            raise Unsupported(
                f"{entry.proxy.name} has, or is given, an attribute of its own, {of_user[0]}; pass the value "
                "as an argument"
            )

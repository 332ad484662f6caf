"""Capture: from a function and its arguments to a trace."""

from __future__ import annotations

import contextlib
import operator
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import CAPTURE_ERRORS, CaptureError, DataDependent, Unsupported
from switchgear_core.ir.composites import splice_escaping
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.patches import redirected, replaced
from switchgear_core.record.attempts import CAPTURE_LOCK, draws_undone, modes_kept
from switchgear_core.record.doors import Doors
from switchgear_core.record.guards import Guard, Known, still_there
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import Matters, Recorder, active_line, active_recorder
from switchgear_core.record.shared_memory import Home
from switchgear_core.record.signature import InputSource, check_devices, has_attributes, is_object
from switchgear_core.record.sizes import Marks, Sizes, active_sizes, symbolic
from switchgear_core.record.stand_ins import reads_memory
from switchgear_core.record.structure import Structure, containers_in, flatten
from switchgear_core.record.user_code import is_own_file, raising_line, raising_module
from switchgear_frontend.modules import Modules
from switchgear_frontend.outputs import Outputs, outputs_of
from switchgear_frontend.seeding import StandIn, stand_in
from switchgear_frontend.sharing import SharedMemory, find_shared, refuse_views_of_constants
from switchgear_frontend.sources import Sources

P = ParamSpec("P")
R = TypeVar("R")

#: Maximal number of attempts to capture a function, each with more knowledge than the one before.
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A trace and its relation to the captured call.

    `sources` are the origins of the trace's inputs; `outputs` are the steps that finish a call. `identical` pairs the
    position of an argument with an object of the same identity: an earlier argument, by position, or a reached tensor.
    """

    trace: Trace
    sources: tuple[InputSource, ...]
    outputs: Outputs
    identical: tuple[tuple[int, int | weakref.ref[torch.Tensor]], ...]
    grad_enabled: bool
    #: Modules that are called, passed, or whose state is used; their parts are guarded.
    modules: tuple[Known, ...]
    #: Properties of the inputs, other than metadata, on which the trace depends.
    matters: Matters = field(default_factory=Matters)
    #: The symbolic sizes, if any.
    sizes: Sizes | None = None
    #: Assumptions of features about a call.
    guards: tuple[Guard, ...] = ()
    #: Functions of features, applied in turn to the results and inputs of a call.
    after: tuple[Callable[[Any, Sequence[Any]], Any], ...] = ()
    #: The places of the objects among the arguments.
    objects: tuple[int, ...] = ()
    #: The names of values that were overwritten through `.data`.
    hidden: frozenset[str] = frozenset()
    #: Becomes non-empty when a guarded module has been collected.
    dead: list[object] = field(default_factory=list)

    def parts(self) -> list[torch.nn.Module]:
        """Return the modules still alive, with their parts."""
        modules = still_there(self.modules)
        return [*dict.fromkeys(part for module in modules for part in module.modules())]


def capture(
    function: Callable[..., object],
    leaves: list[object],
    spec: Structure,
    handlers: Handlers,
    module: torch.nn.Module | None = None,
    differentiable: frozenset[int] | None = None,
    reads_inputs: bool | None = False,
    marks: Marks = MappingProxyType({}),
    containers_are_leaves: bool = False,
) -> Captured:
    """Return the trace of `function` at these arguments, flattened as by `flatten_arguments`.

    The function runs as in eager. If it needs tensor data, a second run has `torch.compiler.is_compiling()` True, as
    libraries then use another path.

    Args:
        module: the module whose state the function uses, for names, paths and write-back.
        differentiable: the arguments that require grad; by default, as their tensors do.
        reads_inputs: True makes the trace specific to calls with the same data; None, with the same masks.
        containers_are_leaves: the option with which `flatten_arguments` made the leaves.

    Raises:
        ContainerMatters: `containers_are_leaves` is needed.
        CaptureError: a trace cannot hold the function. Exceptions of the function itself are raised unchanged.
    """

    check_devices(leaves)
    outer = active_recorder()
    if outer is not None and internals.inside_functorch():
        raise Unsupported(
            f"a derivative of sg inside a torch.func transform, in {outer.here()}; use those of one kind"
        )
    if outer is not None:
        reads_inputs = outer.reads_inputs
    submodules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    # the method was assigned if the module's class lacks it
    code = function.__func__ if isinstance(function, types.MethodType) else None
    is_own = code is None or getattr(type(module), code.__name__, None) is code
    assigned = () if is_own else (code,)
    root = function if module is None else module
    kinds = {shell.kind for shell in spec.shells()}
    roots = (root, *assigned, *submodules, *filter(has_attributes, leaves), *kinds)
    objects = {index: leaf for index, leaf in enumerate(leaves) if is_object(leaf)}

    def attempt(compiling: bool, homes: Mapping[int, Home]) -> Captured:
        start = time.perf_counter()
        names, modules = Names(), Modules(module, submodules)
        sizes = Sizes(active_line, marks) if marks else active_sizes()
        inputs = Sources(names, modules, differentiable, homes, sizes, marks, handlers)
        with symbolic(sizes):
            recorder = Recorder(names, inputs.outside, modules.path, reads_inputs=reads_inputs)
            recorder.enter_module = modules.enter
            recorder.packages_of_features = handlers.packages
            recorder.leaves = leaves
            recorder.origin = inputs.origin
            doors = Doors(recorder, handlers)
        with symbolic(sizes), _environment(modules, handlers, compiling), doors.open():
            with modes_kept():
                try:
                    with handlers.entered("running", recorder, roots, objects):
                        with _caught_refusals_raised():
                            recorder.tape.root = _run.__code__
                            result = _run(
                                function, leaves, spec, recorder, inputs, containers_are_leaves
                            )
                        with recorder.isolation:  # the function has run
                            result = handlers.finish(recorder, result)
                        _refuse_generators(result)
                except RuntimeError:
                    # in eager they are views, possibly without an error
                    refuse_views_of_constants(recorder)
                    raise
            with internals.DisableTorchFunction():
                outputs = outputs_of(recorder, result, views=differentiable is None)
                find_shared(recorder, inputs, outputs)
                body = splice_escaping(recorder.tape.take(), outputs.proxies)
        proxies, constants = (
            tuple(entry.proxy for entry in recorder.inputs),
            recorder.tape.constants,
        )
        numbers = tuple(sizes.numbers) if marks and sizes is not None else ()
        trace = Trace("computation", proxies, outputs.proxies, body, constants, numbers=numbers)
        trace = trace.with_provenance("capture", time.perf_counter() - start)
        matters = recorder.matters
        matters.bases |= bool(outputs.mutations or outputs.metadata)
        if matters.bases:
            refuse_views_of_constants(recorder)
        if outer is not None:
            outer.matters |= matters
        identical, grad_enabled = tuple(_identical(leaves, recorder)), torch.is_grad_enabled()
        sources, entered = tuple(inputs.sources), tuple(map(Known, modules.entered))
        used_sizes = sizes if numbers else None  # floats alone are ordinary inputs
        hidden = frozenset(recorder.tracker.writes.hidden)
        after = tuple(recorder.guards), tuple(recorder.after), tuple(objects), hidden
        return Captured(
            trace, sources, outputs, identical, grad_enabled, entered, matters, used_sizes, *after
        )

    compiling, homes = False, dict[int, Home]()
    with CAPTURE_LOCK:
        for _ in range(_ATTEMPTS):
            try:
                with (
                    draws_undone(),
                    _errors_of_stand_ins(),
                ):
                    return attempt(
                        compiling,
                        {key: replace(address, wrapper=None) for key, address in homes.items()},
                    )
            except DataDependent:
                if compiling or reads_inputs:
                    raise
                compiling = True
            except SharedMemory as error:
                homes.update(error.homes)
            except Again:
                pass
    raise Unsupported("every call of the function loads modules anew; import them outside of it")


def _as_written(
    original: Callable[..., object], scripted: object, *args: object, **kwargs: object
) -> object:
    """Call the original of a scripted function: TorchScript creates tensors that no mode records."""
    function = getattr(scripted, "_torchdynamo_inline", None)
    return original(scripted, *args, **kwargs) if function is None else function(*args, **kwargs)


@contextlib.contextmanager
def _errors_of_stand_ins() -> Iterator[None]:
    """Refuse a function that fails only because of stand-ins for tensors."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        reason = reason_of_stand_ins(error)
        if not reason:
            raise
        raise Unsupported(reason) from error


def reason_of_stand_ins(error: Exception) -> str:
    """Return why a function with this error cannot be captured; empty for an error of the user."""
    text = str(error)
    if "in the TorchScript interpreter" in text:
        line = text.strip().rpartition("<--- HERE")[0].rpartition("\n")[0].rpartition("\n")[2]
        return (
            f"scripted code fails where tensors are recorded, in: {line.strip()}; "
            "call the function that was scripted"
        )
    if reads_memory(error):
        return (
            f"the memory of a tensor is asked for, in {raising_line(error)}, which has none while the function is "
            "captured; compute with torch, or move the call outside the jitted function"
        )
    if internals.is_functionalization_error(error):
        reason = (
            "through some views, to memory that set_() has replaced, or one that resizes a storage"
        )
        return f"a write that PyTorch cannot make functional ({reason}): {text}"
    # specific to wrappers and modes: operators that call functions, tensors created elsewhere
    is_of_fakes = isinstance(error, (NotImplementedError, AssertionError))
    places = "torch._ops", "torch._subclasses", "torch.storage"
    if is_of_fakes and raising_module(error).startswith(places):
        return f"the function cannot be captured: {text.splitlines()[0]}"
    return ""


def _identical(
    leaves: list[object], recorder: Recorder
) -> Iterator[tuple[int, int | weakref.ref[torch.Tensor]]]:
    first: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in first:
                yield index, first[id(leaf)]
            elif id(leaf) in recorder.inputs.reached_otherwise:
                yield index, weakref.ref(leaf)
            first.setdefault(id(leaf), index)


def _run(
    function: Callable[..., object],
    leaves: list[object],
    spec: Structure,
    recorder: Recorder,
    inputs: Sources,
    containers_are_leaves: bool,
) -> Any:
    wrappers = list(leaves)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            # derivatives are taken with respect to each argument separately
            wrapper = recorder.inputs.wrapper_of(leaf) if inputs.differentiable is None else None
            if wrapper is None:
                with internals.DisableTorchFunction():
                    wrapper = inputs.argument(recorder, index, leaf)
            wrappers[index] = wrapper
        elif isinstance(leaf, torch.Generator):
            wrappers[index] = stand_in(leaf)
            recorder.inputs.generators |= dict.fromkeys(
                map(internals.stream_key, (leaf, wrappers[index])), leaf
            )
        elif type(leaf) in (int, float):
            wrappers[index] = inputs.number(recorder, index, leaf)
    with recorder.isolation:
        args, kwargs = spec.unflatten(wrappers, recorder.closed)
    result = function(*args, **kwargs)
    containers = {id(part) for part in containers_in((args, *kwargs.values()))}
    if containers and not containers_are_leaves:
        after, spec_after = flatten((args, kwargs))
        is_same = spec_after == spec and all(map(operator.is_, after, wrappers))
        ids = {id(part) for part in containers_in(result)}
        ids |= {part for _, content in recorder.changed_objects() for _, part in content}
        if not is_same or not ids.isdisjoint(containers):
            raise ContainerMatters
    return result


@contextlib.contextmanager
def _caught_refusals_raised() -> Iterator[None]:
    """Raise the first capture error that the function itself has caught in a `try`, unlike in eager."""
    errors: list[CaptureError] = []
    with replaced(CAPTURE_ERRORS, "errors", errors):
        try:
            yield
        except Exception as other:
            refusals = [error for error in errors if error.final and error is not other]
            if isinstance(other, CaptureError) or not refusals:
                raise
            raise refusals[0].with_traceback(None) from other
        for error in errors:
            trace = error.__traceback__
            if error.final or (trace and not is_own_file(trace.tb_frame.f_code.co_filename)):
                raise error.with_traceback(None)
        errors.clear()


def is_of_the_function(error: Exception) -> bool:
    """Check whether the function raised an error while it was captured, as in eager or because of wrappers."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _run.__code__ for frame, _ in frames)


def _refuse_generators(result: object) -> None:
    if any(isinstance(leaf, StandIn) for leaf in flatten(result, objects=True)[0]):
        raise Unsupported("the function returns a torch.Generator; return numbers drawn from it")


class ContainerMatters(Exception):
    """The function changes, returns or keeps a container among its arguments; the capture must keep it whole."""


class Again(Exception):
    """The function has loaded modules to be inspected before a run: the capture is repeated."""


@contextlib.contextmanager
def _environment(modules: Modules, handlers: Handlers, compiling: bool) -> Iterator[None]:
    """Set the process-wide state of a capture; an inner capture uses the state of the outer one."""
    if active_recorder() is not None:
        yield
        return
    if internals.dispatch_mode_count():
        raise Unsupported(
            "a __torch_dispatch__ mode is active, which would not see the operators as in eager, in their forms and "
            "order; call the original function under it, or the jitted one outside of it"
        )
    with (
        internals.imports_aside(),
        internals.outside_inference_mode(),
        internals.autocast_cache_cleared(),
        redirected(torch.nn.Module, "__call__", modules.call),
        redirected(torch.nn.Module, "__init__", modules.make),
        redirected(torch.nn.Module, "__setstate__", modules.make),
        redirected(torch.jit.ScriptFunction, "__call__", _as_written),
        handlers.entered("around"),
        internals.exact_functionalization(),
        internals.compiling_flag(compiling),
        internals.compiled_run_plainly(),
        # a backward inside must run on the thread of the modes
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield

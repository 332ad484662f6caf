"""Capture: a function and its arguments become a trace."""

from __future__ import annotations

import contextlib
import gc
import operator
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.active import ACTIVE
from switchgear.capture.attempts import modes_kept, undone_on
from switchgear.capture.guards import Guard
from switchgear.capture.handler import Handlers
from switchgear.capture.outputs import Outputs, differentiable_outputs, outputs_of
from switchgear.capture.recorder import Recorder, active_recorder
from switchgear.capture.seeding import StandIn, stand_in
from switchgear.capture.shared_memory import (
    Home,
    base_of,
    home_of,
    is_view_of_constant,
    memory_of,
    overlaps_itself,
    sharing,
)
from switchgear.capture.signature import (
    Argument,
    Base,
    Closure,
    Held,
    InputSource,
    ModuleState,
    OwnSource,
    check_tensor,
    is_object,
    state_of,
)
from switchgear.capture.sizes import Marks, Sizes, symbolic
from switchgear.capture.structure import Structure, flatten
from switchgear.capture.tracking import metadata_proxy
from switchgear.errors import CaptureError, DataDependent, Unsupported
from switchgear.ir.composites import splice_escaping
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.trace import Names, Trace
from switchgear.nesting import containers_in
from switchgear.patches import redirected

#: Held while capturing and differentiating: the patches and flags below are process-wide.
CAPTURE_LOCK = threading.RLock()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Hold the lock, and keep the garbage collector from looking at the many objects made, again and again."""
    with CAPTURE_LOCK:
        enabled = gc.isenabled()
        gc.disable()
        try:
            with internals.saved_tensors_hooks_off():
                yield
        finally:
            if enabled:
                gc.enable()


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A trace and how it hangs together with the call it came from.

    `sources` says where each input of the trace comes from; `outputs` how a call is finished with what the trace
    gives. `identical` pairs the position of an argument with that of an earlier one, or with a tensor reached
    otherwise, that it must be the same as.
    """

    trace: Trace
    sources: tuple[InputSource, ...]
    outputs: Outputs
    identical: tuple[tuple[int, int | weakref.ref[torch.Tensor]], ...]
    grad_enabled: bool
    modules: tuple[torch.nn.Module, ...]
    #: The function asks for gradients, so the trace depends on which inputs are leaves of autograd.
    leaves_matter: bool = False
    #: The function writes, or makes views under no_grad: of an input that is a view, the base has to require grad.
    bases_matter: bool = False
    #: The function reads the storage offset of an input.
    offsets_matter: bool = False
    #: The symbolic sizes, if there are any.
    sizes: Sizes | None = None
    #: What features take for granted of a call.
    guards: tuple[Guard, ...] = ()
    #: What features make of what a call returns and its objects, one after another.
    after: tuple[Callable[[Any, Sequence[Any]], Any], ...] = ()
    #: The places of the objects among the arguments.
    objects: tuple[int, ...] = ()


class _Inputs:
    """Names the trace's inputs and says where each comes from, in the order in which the function reaches for them.

    `homes` are the bases of those that share memory, by storage.
    """

    def __init__(
        self,
        names: Names,
        modules: _Modules,
        differentiable: frozenset[int] | None,
        homes: Mapping[int, Home],
        sizes: Sizes | None,
        marks: Marks,
    ) -> None:
        self.sizes = sizes
        self.marks = marks
        self.names = names
        self.modules = modules
        self.differentiable = differentiable
        self.homes = homes
        self.sources: list[InputSource] = []
        self.recorder: Recorder

    def argument(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """The wrapper of the argument whose position among the flattened arguments is `index`."""
        requires_grad = (
            tensor.requires_grad if self.differentiable is None else index in self.differentiable
        )
        return self._enter(tensor, Argument(index), f"t_{index}", requires_grad)

    def outside(self, tensor: torch.Tensor) -> torch.Tensor:
        """The wrapper of a tensor that is no argument: module state, or something closed over."""
        if not internals.is_wrapper(tensor):
            check_tensor(tensor, "a tensor that the function closes over")
        found = self.modules.state.get(id(tensor))
        if found is not None:
            return self._enter(
                tensor, found, "t_" + re.sub(r"\W", "_", found.path), tensor.requires_grad
            )
        held = self.recorder.handlers.source(self.recorder, tensor)
        if isinstance(held, Held):
            name = "t_" + re.sub(r"\W", "_", held.path)
            return self._enter(tensor, held, name, tensor.requires_grad)
        return self._enter(
            tensor, Closure(tensor), f"t_closure_{len(self.sources)}", tensor.requires_grad
        )

    def _enter(
        self,
        tensor: torch.Tensor,
        source: OwnSource,
        name: str,
        requires_grad: bool,
    ) -> torch.Tensor:
        home = self.homes.get(internals.storage_key(tensor)) if self.homes else None
        view = None
        if home is not None and not (home.wrapper is None and tensor is home.tensor):
            if home.wrapper is None:
                base = Base(home.source, memory_of if home.flat else base_of)
                proxy = self._proxy(home.tensor, base, f"{name}_base", home.tensor.requires_grad)
                home.wrapper = self.recorder.enter(home.tensor, proxy)
            view = home.view(tensor)
        wrapper = self.recorder.enter(
            tensor, self._proxy(tensor, source, name, requires_grad), view
        )
        if home is not None and tensor is home.tensor:
            home.wrapper = wrapper
        return wrapper

    def _proxy(
        self, tensor: torch.Tensor, source: InputSource, name: str, requires_grad: bool
    ) -> TensorProxy:
        self.sources.append(source)
        proxy = metadata_proxy(self.names.claim(name), tensor, requires_grad)
        dims = self.marks.get(source.place) if isinstance(source, (Argument, Held)) else None
        # what shares memory with an input that is written to is made as a view of it, by numbers
        if self.sizes is None or not dims or internals.storage_key(tensor) in self.homes:
            return proxy
        shape, stride = self.sizes.layout(proxy.name, tensor, dims)
        return replace(proxy, shape=shape, stride=stride)


def capture(
    function: Callable[..., Any],
    leaves: list[Any],
    spec: Structure,
    handlers: Handlers,
    module: torch.nn.Module | None = None,
    differentiable: frozenset[int] | None = None,
    reads_inputs: bool | None = False,
    marks: Marks = MappingProxyType({}),
    whole: bool = False,
) -> Captured:
    """The trace of `function` at these arguments, flattened as `flatten_arguments` does.

    `module` is the one whose state the function uses, for names, paths and write-back. `differentiable` says which
    arguments require grad, if not those whose tensors do. The function is run as eager would; only if that needs the
    data of a tensor, it is run again with `torch.compiler.is_compiling()` True, for libraries have another way then;
    or, with `reads_inputs`, the trace is for calls with such data alone; where that is None, with such masks.
    `whole`: the leaves are those that `flatten_arguments` gives with it.
    Raises `ContainerMatters` where they have to be.
    Raises `CaptureError` and its kinds for what a trace cannot hold, and the function's own exceptions as they are.
    """

    outer = active_recorder()
    if outer is not None and internals.inside_functorch():
        raise Unsupported(
            f"a derivative of sg inside a torch.func transform, in {outer.here()}; use those of one kind"
        )
    if outer is not None:
        reads_inputs = outer.data.of_inputs
    given = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    roots = (function if module is None else module, *given)
    objects = {index: leaf for index, leaf in enumerate(leaves) if is_object(leaf)}

    def attempt(compiling: bool, homes: Mapping[int, Home]) -> Captured:
        start = time.perf_counter()
        names, modules = Names(), _Modules(module, given)
        sizes = Sizes() if marks else ACTIVE.sizes
        inputs = _Inputs(names, modules, differentiable, homes, sizes, marks)
        with symbolic(sizes):
            recorder = Recorder(
                names, handlers, inputs.outside, modules.path, reads_inputs=reads_inputs
            )
        inputs.recorder = weakref.proxy(recorder)
        with (
            symbolic(sizes),
            _environment(modules, handlers, compiling),
            recorder.recording(),
        ):
            with modes_kept():
                try:
                    with handlers.running(recorder, roots, objects):
                        result = _run(function, leaves, spec, recorder, inputs, whole)
                        result = handlers.finish(recorder, result)
                        _refuse_generators(result)
                except RuntimeError:
                    _refuse_views_of_constants(
                        recorder
                    )  # to eager they are views, and may be no error
                    raise
            with torch._C.DisableTorchFunction():
                outputs = outputs_of(recorder, result, views=differentiable is None)
                _find_shared(recorder, inputs, outputs)
                if differentiable_outputs(outputs):
                    recorder.refuse_hidden_writes()
                body = splice_escaping(recorder.take(), outputs.proxies)
        proxies = tuple(found.proxy for found in recorder.inputs)
        numbers = tuple(sizes.numbers) if marks and sizes is not None else ()
        trace = Trace(
            "computation", proxies, outputs.proxies, body, recorder.constants, numbers=numbers
        )
        trace = trace.with_provenance("capture", time.perf_counter() - start)
        if outer is not None and recorder.leaves_matter:
            outer.leaves_matter = True
        bases_matter = recorder.bases_matter or bool(outputs.mutations or outputs.metadata)
        if bases_matter:
            _refuse_views_of_constants(recorder)
            if outer is not None:
                outer.bases_matter = True
        identical, grad_enabled = tuple(_identical(leaves, recorder)), torch.is_grad_enabled()
        sources, entered = tuple(inputs.sources), tuple(modules.entered)
        matter = recorder.leaves_matter, bases_matter, recorder.offsets_matter
        found = sizes if numbers else None
        after = tuple(recorder.guards), tuple(recorder.after), tuple(objects)
        return Captured(
            trace, sources, outputs, identical, grad_enabled, entered, *matter, found, *after
        )

    compiling, homes = False, dict[int, Home]()
    with CAPTURE_LOCK:
        while True:
            try:
                with (
                    undone_on((CaptureError, _SharedMemory, ContainerMatters)),
                    _errors_of_fakes(),
                    _functional_writes(),
                ):
                    return attempt(
                        compiling, {key: replace(home, wrapper=None) for key, home in homes.items()}
                    )
            except DataDependent:
                if compiling or reads_inputs:
                    raise
                compiling = True
            except _SharedMemory as found:
                homes.update(found.homes)


@contextlib.contextmanager
def _functional_writes() -> Iterator[None]:
    """Refuse what PyTorch's functionalization says that it cannot do."""
    try:
        yield
    except RuntimeError as error:
        if not internals.is_functionalization_error(error):
            raise
        what = (
            "through some views, to memory that set_() has replaced, or one that resizes a storage"
        )
        raise Unsupported(
            f"a write that PyTorch cannot make functional ({what}): {error}"
        ) from error


def _identical(
    leaves: list[Any], recorder: Recorder
) -> Iterator[tuple[int, int | weakref.ref[torch.Tensor]]]:
    first: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in first:
                yield index, first[id(leaf)]
            elif id(leaf) in recorder.reached_otherwise:
                yield index, weakref.ref(leaf)
            first.setdefault(id(leaf), index)


def _run(
    function: Callable[..., Any],
    leaves: list[Any],
    spec: Structure,
    recorder: Recorder,
    inputs: _Inputs,
    whole: bool,
) -> Any:
    wrappers = list(leaves)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            # derivatives are taken with respect to each argument by itself
            known = recorder.known_input(leaf) if inputs.differentiable is None else None
            if known is None:
                with torch._C.DisableTorchFunction():
                    known = inputs.argument(index, leaf)
            wrappers[index] = known
        elif isinstance(leaf, torch.Generator):
            wrappers[index] = stand_in(leaf)
            recorder.generators |= dict.fromkeys(
                map(internals.stream_key, (leaf, wrappers[index])), leaf
            )
    args, kwargs = spec.unflatten(wrappers)
    result = function(*args, **kwargs)
    if not whole:
        containers = {id(part) for part in containers_in((args, kwargs))}
        after, spec_after = flatten((args, kwargs))
        is_same = spec_after == spec and all(map(operator.is_, after, wrappers))
        if not is_same or any(id(part) in containers for part in containers_in(result)):
            raise ContainerMatters
    return result


@contextlib.contextmanager
def _errors_of_fakes() -> Iterator[None]:
    """Refuse what PyTorch says of wrappers and modes alone: operators that call functions, tensors made elsewhere."""
    try:
        yield
    except (NotImplementedError, AssertionError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
        if not module.startswith(("torch._ops", "torch._subclasses", "torch.storage")):
            raise
        raise Unsupported(
            f"the function does what no trace can hold: {str(error).splitlines()[0]}"
        ) from error


def _refuse_generators(result: Any) -> None:
    if any(isinstance(leaf, StandIn) for leaf in flatten(result, objects=True)[0]):
        raise Unsupported("the function returns a torch.Generator; return what is drawn from it")


class ContainerMatters(Exception):
    """The function changes or returns a container among its arguments, which is to be captured as a whole."""


def _refuse_views_of_constants(recorder: Recorder) -> None:
    """Refuse inputs that require grad and are views of what does not: eager loses their history at a write."""
    with torch._C.DisableTorchFunction():  # of the tensors themselves, not of their wrappers
        views = [found for found in recorder.inputs if is_view_of_constant(found.tensor)]
    for found in views[:1]:
        raise Unsupported(
            f"{found.proxy.name} is a view that requires_grad_() was called on, and the function writes to an input, "
            "or makes views under no_grad; pass it as view.detach().requires_grad_()"
        )


class _SharedMemory(Exception):
    """The function writes to inputs that share memory with others: it is captured again, these as views of a base."""

    def __init__(self, homes: dict[int, Home]) -> None:
        self.homes = homes


def _find_shared(recorder: Recorder, inputs: _Inputs, outputs: Outputs) -> None:
    """Raise `_SharedMemory` where the function writes to what overlaps another input."""
    mutations = outputs.mutations
    own = [index for index, found in enumerate(recorder.inputs) if not found.is_view]
    tensors = [recorder.inputs[index].tensor for index in own]
    for mutation in mutations:
        found = recorder.inputs[mutation.input]
        if overlaps_itself(found.tensor):
            raise Unsupported(
                f"the function writes to {found.proxy.name}, several elements of which are in one place (as after "
                "expand); pass a clone"
            )
        source = inputs.sources[mutation.input]
        if mutation.tracked and isinstance(source, Base) and source.find is memory_of:
            raise Unsupported(
                "the function writes a value that requires grad to an input that shares memory with another, of which "
                "autograd knows nothing; pass a clone of one"
            )
    keys = [internals.storage_key(tensor) for tensor in tensors]
    pairs = [*sharing(tensors, [own.index(mutation.input) for mutation in mutations])]
    shared = {keys[index] for index, _, concerned in pairs if concerned}
    if shared and inputs.differentiable is not None:
        what = "a function inside sg.grad writes to an argument that shares memory with another"
        raise Unsupported(f"{what}; pass a clone of one")
    members = zip(tensors, (inputs.sources[index] for index in own), keys, strict=True)
    together: dict[int, list[tuple[torch.Tensor, InputSource]]] = {key: [] for key in shared}
    for tensor, source, key in members:
        if key in shared:
            together[key].append((tensor, source))
    if together:
        raise _SharedMemory({key: home_of(found) for key, found in together.items()})


class _Modules:
    """The modules that were entered, and the path of the one being called, from the names that its root gives it."""

    def __init__(self, root: torch.nn.Module | None, given: list[torch.nn.Module]) -> None:
        self.entered: list[torch.nn.Module] = []
        self.state: dict[int, ModuleState] = {}
        self._paths: dict[int, str] = {}
        self._stack = [""]
        if root is not None:
            self._enter(root, "")
        for module in given:
            self._enter(module, type(module).__name__)

    def path(self) -> str:
        """The innermost module's path, or an empty string."""
        return self._stack[-1]

    def _enter(self, root: torch.nn.Module, prefix: str) -> None:
        self.entered.append(root)
        self._paths.update((id(part), path) for path, part in root.named_modules(prefix=prefix))
        self.state = state_of(root, prefix) | self.state

    def call(
        self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a module; it may be no part of the root, but one that the function closes over or makes."""
        if id(module) not in self._paths:
            self._enter(module, type(module).__name__)
        path = self._paths[id(module)]
        if isinstance(module, torch.jit.ScriptModule):
            raise Unsupported(
                f"{path or 'the module'} is a scripted {module.original_name}, whose parameters and operators capture "
                "does not see; use the module that was scripted, or call the scripted one outside"
            )
        self._stack.append(path)
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()


@contextlib.contextmanager
def _environment(modules: _Modules, handlers: Handlers, compiling: bool) -> Iterator[None]:
    """The process-wide state of a capture; one inside another finds it in place."""
    if active_recorder() is not None:
        yield
        return
    if internals.dispatch_mode_count():
        raise Unsupported(
            "a __torch_dispatch__ mode is active, which would not see the operators as in eager, in their forms and "
            "order; call the original function under it, or the jitted one outside of it"
        )
    with (
        internals.outside_inference_mode(),
        internals.autocast_cache_cleared(),
        redirected(torch.nn.Module, "__call__", modules.call),
        handlers.around(),
        internals.exact_functionalization(),
        internals.compiling_flag(compiling),
        # a backward inside runs where the modes are
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield

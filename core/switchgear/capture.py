"""Capture: a function and its arguments become a trace."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import torch_internals as internals
from .composites import splice_escaping
from .errors import DataDependent, Unsupported
from .nesting import tensors_in
from .proxy import TensorProxy
from .recorder import Recorder, active_recorder
from .signature import (
    Argument,
    Closure,
    InputSource,
    ModuleState,
    Returned,
    check_returned,
    check_tensor,
    state_of,
)
from .structure import Structure, flatten
from .symbol import CHECKPOINT
from .trace import Names, Trace
from .tracking import history_of, metadata_proxy, same_history

#: Held while capturing and differentiating: the patches and flags below are process-wide.
CAPTURE_LOCK = threading.RLock()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Hold the lock, and keep the garbage collector from looking at the many objects made, again and again."""
    with CAPTURE_LOCK:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


@dataclass(frozen=True, slots=True)
class Mutation:
    """An input whose data the function wrote: the trace's output at `output` is copied back into it.

    `tracked`: autograd saw the write, so the copy is made under it.
    """

    input: int
    output: int
    tracked: bool


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A trace and how it hangs together with the call it came from.

    `sources` says where each input of the trace comes from; `returned` with `spec` how the return value is put
    together. The trace's outputs beyond those that `returned` names are the final values of mutated inputs.
    `identical` pairs the position of an argument with that of an earlier one, or with a tensor reached otherwise,
    that it must be the same as.
    """

    trace: Trace
    sources: tuple[InputSource, ...]
    returned: tuple[Returned, ...]
    spec: Structure
    mutations: tuple[Mutation, ...]
    identical: tuple[tuple[int, int | weakref.ref[torch.Tensor]], ...]
    grad_enabled: bool
    modules: tuple[torch.nn.Module, ...]


class _Inputs:
    """Names the trace's inputs and says where each comes from, in the order in which the function reaches for them."""

    def __init__(
        self, names: Names, state: Mapping[int, ModuleState], differentiable: frozenset[int] | None = None
    ) -> None:
        self.names = names
        self.differentiable = differentiable
        self.state = state
        self.sources: list[InputSource] = []

    def argument(self, index: int, tensor: torch.Tensor) -> TensorProxy:
        """The argument whose position among the flattened arguments is `index`."""
        proxy = self._add(tensor, Argument(index), f"t_{index}")
        return proxy if self.differentiable is None else replace(proxy, requires_grad=index in self.differentiable)

    def outside(self, tensor: torch.Tensor) -> TensorProxy:
        """A tensor that is no argument: module state, or something closed over."""
        if not internals.is_wrapper(tensor):
            check_tensor(tensor, "a tensor that the function closes over")
        found = self.state.get(id(tensor))
        if found is not None:
            return self._add(tensor, found, "t_" + re.sub(r"\W", "_", found.path))
        return self._add(tensor, Closure(tensor), f"t_closure_{len(self.sources)}")

    def _add(self, tensor: torch.Tensor, source: InputSource, name: str) -> TensorProxy:
        self.sources.append(source)
        return metadata_proxy(self.names.claim(name), tensor, tensor.requires_grad)


def capture(
    function: Callable[..., Any],
    leaves: list[Any],
    spec: Structure,
    module: torch.nn.Module | None = None,
    differentiable: frozenset[int] | None = None,
) -> Captured:
    """The trace of `function` at these arguments, flattened as `flatten_arguments` does.

    `module` is the one whose state the function uses, for names, paths and write-back. `differentiable` says which
    arguments require grad, if not those whose tensors do. The function is run as eager would; only if that needs the
    data of a tensor, it is run again with `torch.compiler.is_compiling()` True, for libraries have another way then.
    Raises `CaptureError` and its kinds for what a trace cannot hold, and the function's own exceptions as they are.
    """
    with CAPTURE_LOCK:
        try:
            return _capture(function, leaves, spec, module, differentiable, compiling=False)
        except DataDependent:
            return _capture(function, leaves, spec, module, differentiable, compiling=True)


def _capture(
    function: Callable[..., Any],
    leaves: list[Any],
    spec: Structure,
    module: torch.nn.Module | None,
    differentiable: frozenset[int] | None,
    compiling: bool,
) -> Captured:
    start = time.perf_counter()
    names = Names()
    state = state_of(module) if module is not None else {}
    inputs = _Inputs(names, state, differentiable)
    paths = _ModulePaths(module, state)
    recorder = Recorder(names, inputs.outside, paths.current)
    with _environment(paths, compiling), _unchanged(module, recorder), recorder.recording():
        with _grad_mode_kept():
            result = _run(function, leaves, spec, recorder, inputs)
        with torch._C.DisableTorchFunction():
            trace, returned, out_spec, mutations = _finish(recorder, result)
    trace = trace.with_provenance("capture", time.perf_counter() - start)
    identical = tuple(_identical(leaves, recorder))
    modules = tuple(paths.others) if module is None else (module, *paths.others)
    grad_enabled = torch.is_grad_enabled()
    return Captured(trace, tuple(inputs.sources), returned, out_spec, mutations, identical, grad_enabled, modules)


def _identical(leaves: list[Any], recorder: Recorder) -> Iterator[tuple[int, int | weakref.ref[torch.Tensor]]]:
    first: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in first:
                yield index, first[id(leaf)]
            elif id(leaf) in recorder.reached_otherwise:
                yield index, weakref.ref(leaf)
            first.setdefault(id(leaf), index)


def _run(function: Callable[..., Any], leaves: list[Any], spec: Structure, recorder: Recorder, inputs: _Inputs) -> Any:
    wrappers = list(leaves)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            # derivatives are taken with respect to each argument by itself
            known = recorder.known_input(leaf) if inputs.differentiable is None else None
            if known is None:
                known = recorder.adopt(leaf, functools.partial(inputs.argument, index))
            wrappers[index] = known
    args, kwargs = spec.unflatten(wrappers)
    result = function(*args, **kwargs)
    after, spec_after = flatten((args, kwargs))
    if spec_after != spec or any(new is not old for new, old in zip(after, wrappers, strict=True)):
        raise Unsupported("the function changes a container among its arguments; return a new one instead")
    return result


def _finish(recorder: Recorder, result: Any) -> tuple[Trace, tuple[Returned, ...], Structure, tuple[Mutation, ...]]:
    leaves, spec = flatten(result, objects=True)
    outputs: dict[str, TensorProxy] = {}
    returned = tuple([_returned(recorder, leaf, outputs) for leaf in leaves])
    mutations: list[Mutation] = []
    for index, found in enumerate(recorder.inputs):
        if internals.metadata_mutated(found.wrapper):
            raise Unsupported(
                f"the function changes sizes or strides of {found.proxy.name} in place; make a view instead"
            )
        final = recorder.tracker.proxy_of(found.wrapper)
        if (final.shape, final.dtype, final.device) != (found.proxy.shape, found.proxy.dtype, found.proxy.device):
            raise Unsupported(
                f"the function gives {found.proxy.name} another shape, dtype or device; return a new tensor"
            )
        if final is not found.proxy:
            outputs.setdefault(final.name, final)
            tracked = not same_history(history_of(found.wrapper), found.history)
            mutations.append(Mutation(index, list(outputs).index(final.name), tracked))
    _refuse_aliases_of_written(recorder, leaves, mutations)
    proxies = tuple(found.proxy for found in recorder.inputs)
    body = splice_escaping(recorder.take(), outputs.values())
    trace = Trace("computation", proxies, tuple(outputs.values()), body, recorder.constants)
    return trace, returned, spec, tuple(mutations)


def _returned(recorder: Recorder, leaf: Any, outputs: dict[str, TensorProxy]) -> Returned:
    if not isinstance(leaf, torch.Tensor):
        check_returned(leaf)
        return Returned("value", value=leaf)
    itself = recorder.input_of(leaf)
    if itself is not None:
        return Returned("input", recorder.inputs.index(itself))
    proxy = recorder.tracker.proxy_of(leaf)
    outputs.setdefault(proxy.name, proxy)
    return Returned("output", list(outputs).index(proxy.name))


def _refuse_aliases_of_written(recorder: Recorder, leaves: list[Any], mutations: list[Mutation]) -> None:
    if not mutations:
        return
    written = {internals.storage_key(recorder.inputs[mutation.input].wrapper) for mutation in mutations}
    for leaf in leaves:
        if (
            isinstance(leaf, torch.Tensor)
            and recorder.input_of(leaf) is None
            and internals.storage_key(leaf) in written
        ):
            raise Unsupported("the function returns a view of an input that it writes to; return a clone of the view")
    real = [internals.storage_key(found.tensor) for found in recorder.inputs]
    for mutation in mutations:
        if real.count(real[mutation.input]) > 1:
            name = recorder.inputs[mutation.input].proxy.name
            raise Unsupported(
                f"the function writes to {name}, which shares storage with another input; pass a clone of one"
            )


class _ModulePaths:
    """The path of the module being called, from the names that its root gives it."""

    def __init__(self, root: torch.nn.Module | None, state: dict[int, ModuleState]) -> None:
        self.state = state
        self.root = root
        self.names = {id(module): name for name, module in root.named_modules()} if root is not None else {}
        self.others: list[torch.nn.Module] = []
        self.stack: list[str] = []
        self.thread = threading.get_ident()

    def current(self) -> str:
        """The innermost module's path, or an empty string."""
        return self.stack[-1] if self.stack else ""

    def _enter_other(self, module: torch.nn.Module) -> None:
        """A module that is no part of the root, but that the function closes over or makes."""
        name = type(module).__name__
        self.others.append(module)
        self.names.update((id(part), path) for path, part in module.named_modules(prefix=name))
        for key, state in state_of(module, name).items():
            self.state.setdefault(key, state)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the module calls of this thread."""
        original = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return original(module, *args, **kwargs)
            if id(module) not in self.names:
                self._enter_other(module)
            self.stack.append(self.names[id(module)])
            try:
                return original(module, *args, **kwargs)
            finally:
                self.stack.pop()

        kind: Any = torch.nn.Module
        kind.__call__ = call
        try:
            yield
        finally:
            kind.__call__ = original


@contextlib.contextmanager
def _environment(paths: _ModulePaths, compiling: bool) -> Iterator[None]:
    """The process-wide state of a capture; one inside another finds it in place."""
    if active_recorder() is not None:
        yield
        return
    if internals.dispatch_mode_count():
        raise Unsupported("a __torch_dispatch__ mode is active; call the jitted function once outside of it first")
    with (
        internals.outside_inference_mode(),
        paths.followed(),
        _no_custom_functions(),
        internals.checkpoint_regions(_tagged_region),
        internals.seeding_refused(_refuse_seeding),
        internals.exact_batch_norm(),
        internals.compiling_flag(compiling),
    ):
        yield


@contextlib.contextmanager
def _grad_mode_kept() -> Iterator[None]:
    """Refuse a function that leaves grad mode other than it found it."""
    before = torch.is_grad_enabled()
    try:
        yield
        if torch.is_grad_enabled() is not before:
            raise Unsupported("the function leaves grad mode changed; set it in a `with` block, or outside")
    finally:
        torch._C._set_grad_enabled(before)


@contextlib.contextmanager
def _no_custom_functions() -> Iterator[None]:
    """`torch.autograd.Function.apply` bypasses every mode: refuse it while this thread captures."""
    original = torch.autograd.Function.__dict__["apply"]
    thread = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and cls.__module__ != "torch._library.autograd":
            raise Unsupported(
                f"torch.autograd.Function {cls.__module__}.{cls.__qualname__} inside a jitted function: its backward "
                "would be lost. Make it a torch.library.custom_op with register_autograd, or call it outside"
            )
        return original.__get__(None, cls)(*args, **kwargs)

    function: Any = torch.autograd.Function
    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = original


@contextlib.contextmanager
def _tagged_region() -> Iterator[None]:
    """What runs in a region of `torch.utils.checkpoint` is recorded with a tag."""
    recorder = active_recorder()
    if recorder is None:
        yield
        return
    with recorder.tagged(CHECKPOINT):
        yield


def _refuse_seeding(name: str) -> None:
    raise Unsupported(
        f"torch.{name} inside a jitted function: it would seed when the function is captured, and never again; "
        "call it outside"
    )


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module | None, recorder: Recorder) -> Iterator[None]:
    """Put back what the function assigned to the module while it ran on fakes, and refuse it where tensors were."""
    if module is None:
        yield
        return
    before = [(part, _copied(part.__dict__)) for part in module.modules()]
    changed = ""
    try:
        yield
    finally:
        for part, attributes in before:
            changed = _restore(part, attributes, recorder) or changed
    if changed:
        raise Unsupported(f"the function puts a tensor into the module's {changed}; write into a buffer in place")


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a module, those that are lists or dicts as pairs with a copy of their content."""
    return {
        name: (value, value.copy()) if isinstance(value, (dict, list)) else (value, None)
        for name, value in attributes.items()
    }


def _restore(part: torch.nn.Module, attributes: dict[str, Any], recorder: Recorder) -> str:
    """Undo changes of a module that hold tensors of the capture; the name of one, or an empty string."""
    changed = ""
    for name, value in tuple(part.__dict__.items()):
        old, content = attributes.get(name, (None, None))
        if not any(map(internals.is_wrapper, tensors_in(value))):
            continue
        if value is not old:
            part.__dict__[name] = old
            changed = f"{type(part).__name__}.{name}"
        elif isinstance(value, dict):
            written = [key for key in value if value[key] is not content.get(key)]
            # `self.steps += 1` assigns the buffer that it wrote to
            if any(not _is_itself(value[key], content.get(key), recorder) for key in written):
                changed = f"{type(part).__name__}.{written[0]}"
            value.clear()
            value.update(content)
        else:
            value[:] = content
            changed = f"{type(part).__name__}.{name}"
        if name not in attributes:
            del part.__dict__[name]
    return changed


def _is_itself(value: Any, old: Any, recorder: Recorder) -> bool:
    return isinstance(old, torch.Tensor) and recorder.known_input(old) is value

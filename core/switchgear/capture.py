"""Capture: a function and its arguments become a trace."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import torch_internals as internals
from .composites import splice_escaping
from .errors import DataDependent, Unsupported
from .nesting import tensors_in
from .patches import redirected
from .proxy import TensorProxy
from .recorder import RecordedInput, Recorder, active_recorder
from .seeding import seeding_recorded
from .signature import Argument, Closure, InputSource, ModuleState, Returned, check_returned, check_tensor, state_of
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

    def __init__(self, names: Names, modules: _Modules, differentiable: frozenset[int] | None) -> None:
        self.names = names
        self.modules = modules
        self.differentiable = differentiable
        self.sources: list[InputSource] = []

    def argument(self, index: int, tensor: torch.Tensor) -> TensorProxy:
        """The argument whose position among the flattened arguments is `index`."""
        proxy = self._add(tensor, Argument(index), f"t_{index}")
        return proxy if self.differentiable is None else replace(proxy, requires_grad=index in self.differentiable)

    def outside(self, tensor: torch.Tensor) -> TensorProxy:
        """A tensor that is no argument: module state, or something closed over."""
        if not internals.is_wrapper(tensor):
            check_tensor(tensor, "a tensor that the function closes over")
        found = self.modules.state.get(id(tensor))
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

    def attempt(compiling: bool) -> Captured:
        start = time.perf_counter()
        names, modules = Names(), _Modules(module)
        inputs = _Inputs(names, modules, differentiable)
        recorder = Recorder(names, inputs.outside, modules.path)
        with _environment(modules, compiling), _unchanged(module, recorder), recorder.recording():
            with _modes_kept():
                result = _run(function, leaves, spec, recorder, inputs)
            with torch._C.DisableTorchFunction():
                recorder.refuse_own_generators()
                trace, returned, out_spec, mutations = _finish(recorder, result)
        trace = trace.with_provenance("capture", time.perf_counter() - start)
        identical, grad_enabled = tuple(_identical(leaves, recorder)), torch.is_grad_enabled()
        sources, entered = tuple(inputs.sources), tuple(modules.entered)
        return Captured(trace, sources, returned, out_spec, mutations, identical, grad_enabled, entered)

    with CAPTURE_LOCK:
        try:
            return attempt(compiling=False)
        except DataDependent:
            return attempt(compiling=True)


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

    def position(proxy: TensorProxy) -> int:
        """Where among the outputs the proxy is, from now on at least."""
        outputs.setdefault(proxy.name, proxy)
        return list(outputs).index(proxy.name)

    def returned(leaf: Any) -> Returned:
        if not isinstance(leaf, torch.Tensor):
            check_returned(leaf)
            return Returned("value", value=leaf)
        itself = recorder.input_of(leaf)
        if itself is not None:
            return Returned("input", recorder.inputs.index(itself))
        return Returned("output", position(recorder.tracker.proxy_of(leaf)))

    parts = tuple([returned(leaf) for leaf in leaves])
    mutations: list[Mutation] = []
    for index, found in enumerate(recorder.inputs):
        wrapper, first = found.wrapper, found.proxy
        if internals.metadata_mutated(wrapper):
            raise Unsupported(f"the function changes sizes or strides of {first.name} in place; make a view instead")
        final = recorder.tracker.proxy_of(wrapper)
        if (final.shape, final.dtype, final.device) != (first.shape, first.dtype, first.device):
            raise Unsupported(f"the function gives {first.name} another shape, dtype or device; return a new tensor")
        if final is not first:
            tracked = not same_history(history_of(wrapper), found.history)
            mutations.append(Mutation(index, position(final), tracked))
    _refuse_aliases(recorder, leaves, [recorder.inputs[mutation.input] for mutation in mutations])
    proxies = tuple(found.proxy for found in recorder.inputs)
    body = splice_escaping(recorder.take(), outputs.values())
    trace = Trace("computation", proxies, tuple(outputs.values()), body, recorder.constants)
    return trace, parts, spec, tuple(mutations)


def _refuse_aliases(recorder: Recorder, leaves: list[Any], written: list[RecordedInput]) -> None:
    if not written:
        return
    storages = {internals.storage_key(found.wrapper) for found in written}
    made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and recorder.input_of(leaf) is None]
    if any(internals.storage_key(leaf) in storages for leaf in made):
        raise Unsupported("the function returns a view of an input that it writes to; return a clone of the view")
    real = [internals.storage_key(found.tensor) for found in recorder.inputs]
    for found in written:
        if real.count(internals.storage_key(found.tensor)) > 1:
            what = f"{found.proxy.name}, which shares storage with another input"
            raise Unsupported(f"the function writes to {what}; pass a clone of one")


class _Modules:
    """The modules that were entered, and the path of the one being called, from the names that its root gives it."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self.entered: list[torch.nn.Module] = []
        self.state: dict[int, ModuleState] = {}
        self._paths: dict[int, str] = {}
        self._stack = [""]
        if root is not None:
            self._enter(root, "")

    def path(self) -> str:
        """The innermost module's path, or an empty string."""
        return self._stack[-1]

    def _enter(self, root: torch.nn.Module, prefix: str) -> None:
        self.entered.append(root)
        self._paths.update((id(part), path) for path, part in root.named_modules(prefix=prefix))
        self.state = state_of(root, prefix) | self.state

    def call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a module; it may be no part of the root, but one that the function closes over or makes."""
        if id(module) not in self._paths:
            self._enter(module, type(module).__name__)
        self._stack.append(self._paths[id(module)])
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()


@contextlib.contextmanager
def _environment(modules: _Modules, compiling: bool) -> Iterator[None]:
    """The process-wide state of a capture; one inside another finds it in place."""
    if active_recorder() is not None:
        yield
        return
    if internals.dispatch_mode_count():
        raise Unsupported("a __torch_dispatch__ mode is active; call the jitted function once outside of it first")
    with (
        internals.outside_inference_mode(),
        internals.autocast_cache_cleared(),
        redirected(torch.nn.Module, "__call__", modules.call),
        redirected(torch.autograd.Function, "apply", _apply),
        internals.checkpoint_regions(_tagged_region),
        seeding_recorded(),
        internals.exact_batch_norm(),
        internals.compiling_flag(compiling),
    ):
        yield


#: Global modes that a function may change for a while: what they are called, how to ask, and how to set them.
_MODES: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
    ("grad mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)


@contextlib.contextmanager
def _modes_kept() -> Iterator[None]:
    """Refuse a function that leaves a global mode other than it found it."""
    before = [ask() for _, ask, _ in _MODES]
    changed: list[str] = []
    try:
        yield
        changed = [name for (name, ask, _), value in zip(_MODES, before, strict=True) if ask() != value]
    finally:
        for (_, ask, put), value in zip(_MODES, before, strict=True):
            if ask() != value:
                put(value)
    if changed:
        raise Unsupported(f"the function leaves {changed[0]} changed; change it back at its end, or change it outside")


def _apply(original: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply` bypasses every mode: refuse it."""
    if cls.__module__ != "torch._library.autograd":
        raise Unsupported(
            f"torch.autograd.Function {cls.__module__}.{cls.__qualname__} inside a jitted function: its backward "
            "would be lost. Make it a torch.library.custom_op with register_autograd, or call it outside"
        )
    return original(cls, *args, **kwargs)


def _tagged_region() -> contextlib.AbstractContextManager[None]:
    """What runs in a region of `torch.utils.checkpoint` is recorded with a tag."""
    recorder = active_recorder()
    return recorder.tagged(CHECKPOINT) if recorder is not None else contextlib.nullcontext()


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module | None, recorder: Recorder) -> Iterator[None]:
    """Put back what the function assigned to the module while it ran on fakes, and refuse it where tensors were."""
    parts = module.modules() if module is not None else ()
    # a module's `__dict__`, and what it holds that can be changed in place: its buffers, for one
    before = [
        (f"{type(part).__name__}.", name, holder, holder.copy())
        for part in parts
        for name, holder in (("", vars(part)), *vars(part).items())
        if isinstance(holder, (dict, list))
    ]
    changed: list[str] = []
    try:
        yield
    finally:
        for owner, name, holder, content in before:
            changed += [f"{owner}{key}" for key in _restored(name, holder, content, recorder)]
    if changed:
        raise Unsupported(f"the function puts a tensor into the module's {changed[-1]}; write into a buffer in place")


def _restored(name: str, holder: Any, content: Any, recorder: Recorder) -> list[str]:
    """Undo the changes of a dict or list that hold tensors of the capture; the names of those to refuse."""
    if isinstance(holder, list):
        if not _holds_wrappers(holder):
            return []
        holder[:] = content
        return [name]
    written = {key: value for key, value in holder.items() if value is not content.get(key) and _holds_wrappers(value)}
    for key in written:
        if key in content:
            holder[key] = content[key]
        else:
            del holder[key]
    # `self.steps += 1` assigns the buffer that it wrote to
    return [key for key, value in written.items() if not _is_itself(value, content.get(key), recorder)]


def _holds_wrappers(value: Any) -> bool:
    return any(map(internals.is_wrapper, tensors_in(value)))


def _is_itself(value: Any, old: Any, recorder: Recorder) -> bool:
    return isinstance(old, torch.Tensor) and recorder.known_input(old) is value

"""Records the operators that a Python function dispatches while it runs on fake tensors.

Two modes work together. A function mode sees torch-level calls, the *composites*, as the user wrote them; a dispatch
mode below autograd and functionalization sees the operator overloads, the *leaves*, that each of them dispatches.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import torch_internals as internals
from .errors import DataDependent, InvalidInput, Unsupported
from .naming import pack_dims, symbol_of
from .proxy import TensorProxy
from .symbol import GRAD_OFF_INSIDE, RANDOM, BoundSymbol, Source, Symbol, map_proxies, proxies
from .trace import Names

_aten = torch.ops.aten
_NOISE = frozenset({torch.ops.prim.device.default, _aten.is_same_size.default, _aten._has_same_storage_numel.default})
_WRITES_UNDECLARED = frozenset({_aten.cudnn_batch_norm.default, _aten.miopen_batch_norm.default})
_OWN_FILES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
#: Torch-level functions that would be captured wrongly, and what to do instead.
_REFUSED = {
    "torch.autograd.grad": "differentiate outside the jitted function, or with sg.grad inside it",
    "torch.autograd.functional": "use sg.grad or sg.vjp",
    "torch.Tensor.backward": "call backward() on what the jitted function returns",
    "torch.Tensor.register_hook": "register the hook outside the jitted function, on its inputs or outputs",
    "torch.Tensor.register_post_accumulate_grad_hook": "register the hook outside the jitted function",
    "torch.Tensor.retain_grad": "call retain_grad() outside the jitted function",
    "torch.Tensor.requires_grad_": "set requires_grad outside the jitted function",
    "torch.Tensor.numpy": "compute with torch, or move the NumPy part outside the jitted function",
    "torch.Tensor.set_": "assign a new tensor instead",
    "torch.Tensor.resize_": "make a new tensor instead",
    "torch.Tensor.data_ptr": "move the call outside the jitted function",
    "torch.Tensor.share_memory_": "move the call outside the jitted function",
}


def set_value(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The value of `new` with the history of `old`: a write that autograd did not see."""
    return new


SET_VALUE = Symbol("switchgear.set_value", set_value)


@dataclass(slots=True)
class _Tracked:
    """What was last known of a wrapper: the fake it stood for, and its autograd history."""

    wrapper: torch.Tensor
    fake: torch.Tensor
    history: Any
    is_base: bool


@dataclass(frozen=True, slots=True, eq=False)
class RecordedInput:
    """A tensor from outside, the wrapper that stands for it, and the proxy and history that it came with."""

    tensor: torch.Tensor
    wrapper: torch.Tensor
    proxy: TensorProxy
    history: Any


class _RandomStates:
    """The default random generators' states: fakes draw nothing, so a change means that the function seeds."""

    def __init__(self) -> None:
        self._states = internals.random_states()

    def check(self, here: Callable[[], str]) -> None:
        """Raise if a state is another than at the start."""
        if internals.random_states() != self._states:
            raise Unsupported(
                f"the function seeds or restores a random generator before {here()}: that would happen at capture "
                "alone. Seed outside the jitted function"
            )

    def restore(self) -> None:
        """Put the states of the start back."""
        internals.set_random_states(self._states)


@dataclass(slots=True)
class _Frame:
    """The open call of a torch-level function."""

    fn: Callable[..., Any] | None
    recorded: list[BoundSymbol]
    grad_enabled: bool = False


class _FunctionMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.on_function(func, args, kwargs or {})


class _DispatchMode(internals.TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.recorder.on_dispatch(func, args, kwargs or {})


class _Active(threading.local):
    recorder: Recorder | None = None


_active = _Active()


def active_recorder() -> Recorder | None:
    """The recorder at work on this thread, if any."""
    return _active.recorder


class Recorder:
    """Turns the calls made while it is active into bound symbols.

    `adopt` gives the proxy of a tensor from outside that the function reaches for. `module_path` tells the path of
    the module being called. `follow_autograd`: find writes that autograd did not see, and compare its requires_grad
    with the trace's own.
    """

    def __init__(
        self,
        names: Names,
        adopt: Callable[[torch.Tensor], TensorProxy] | None = None,
        module_path: Callable[[], str] = str,
        follow_autograd: bool = True,
    ) -> None:
        self.names = names
        self._follow_autograd = follow_autograd
        self.constants: dict[str, torch.Tensor] = {}
        self._adopt = adopt
        self._module_path = module_path
        self._source: Source | None = None
        self._frames = [_Frame(None, [])]
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._fakes: dict[str, torch.Tensor] = {}
        self._tracked: dict[int, _Tracked] = {}
        self.inputs: list[RecordedInput] = []
        #: Tensors from outside, by id, that the function reached without being handed their wrapper.
        self.reached_otherwise: set[int] = set()
        self._input_of: dict[int, RecordedInput] = {}
        self._bases: dict[int, list[_Tracked]] = {}
        self._paused = 0
        self._outer = _active.recorder
        self.fake_mode: internals.FakeMode = self._outer.fake_mode if self._outer else internals.new_fake_mode()
        self._function_mode = _FunctionMode(self)
        self._dispatch_mode = _DispatchMode(self)
        self._dispatch_state: tuple[Any, Any] = (None, None)
        self._random_states: _RandomStates = self._outer._random_states if self._outer else _RandomStates()

    # -- sessions ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, source: Source | None = None) -> Iterator[None]:
        """Record what runs inside; `source` is what every bound symbol gets as its source."""
        outer, before = _active.recorder, self._source
        self._source = source or before
        with contextlib.ExitStack() as stack:
            if outer is not None:
                stack.enter_context(outer.paused())
            if outer is None or outer.fake_mode is not self.fake_mode:
                stack.enter_context(self.fake_mode)
            _active.recorder = self
            stack.callback(setattr, _active, "recorder", outer)
            stack.callback(setattr, self, "_source", before)
            stack.enter_context(internals.functionalization())
            stack.enter_context(self._dispatch_mode)
            stack.enter_context(self._function_mode)
            self._dispatch_state = internals.dispatch_state()
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let what runs inside pass unrecorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def check_random_states(self) -> None:
        """Raise, and restore, if the function changed the state of a random generator."""
        try:
            self._random_states.check(lambda: "its end")
        finally:
            self._random_states.restore()

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Look at tensors without recording what the looking dispatches, pending writes excepted."""
        with torch._C.DisableTorchFunction():
            yield

    def settle(self) -> None:
        """Bring the trace up to date with every pending write."""
        with torch._C.DisableTorchFunction():
            for tracked in tuple(self._tracked.values()):
                self._reconcile(tracked.wrapper)

    def take(self) -> tuple[BoundSymbol, ...]:
        """The bound symbols recorded since the last call of `take`."""
        recorded, self._frames[0].recorded = tuple(self._frames[0].recorded), []
        return recorded

    # -- proxies and wrappers ------------------------------------------------------------------------------------------

    def wrapper_for(self, proxy: TensorProxy, *, leaf: bool = True, autograd: bool = False) -> torch.Tensor:
        """A wrapper that stands for `proxy`; under `autograd` it requires grad if the proxy does."""
        fake = self._fakes.get(proxy.name)
        if fake is None:
            with self.paused():
                fake = internals.make_fake(self.fake_mode, proxy)
            self._know(fake, proxy)
        with self.paused(), torch._C.DisableTorchFunction():
            wrapper = internals.wrap(fake)
            if autograd and proxy.requires_grad and leaf:
                wrapper.requires_grad_()
            elif autograd and proxy.requires_grad:
                internals.make_non_leaf(wrapper)
            self._track(wrapper)
        return wrapper

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of what a wrapper stands for now."""
        self._reconcile(tensor)
        return self._proxy_of_fake(internals.unwrap(tensor))

    def input_of(self, tensor: torch.Tensor) -> RecordedInput | None:
        """The input that a tensor is itself, be it the tensor from outside or its wrapper."""
        if not internals.is_wrapper(tensor) or self._is_foreign(tensor):
            self._adopted_wrapper(tensor)
        return self._input_of.get(id(tensor))

    def rename(self, proxy: TensorProxy, renamed: TensorProxy) -> None:
        """Call what was recorded as `proxy` by another name from now on."""
        fake = self._fakes.pop(proxy.name)
        self._know(fake, renamed)
        self._fakes[renamed.name] = fake

    def _know(self, fake: torch.Tensor, proxy: TensorProxy) -> None:
        self._proxies[id(fake)] = (fake, proxy)
        self._fakes.setdefault(proxy.name, fake)

    def _proxy_of_fake(self, fake: torch.Tensor) -> TensorProxy:
        known = self._proxies.get(id(fake))
        if known is None:
            raise Unsupported(
                f"a tensor appeared that no recorded operator made, in {self._here()}; "
                "tensor subclasses and tensors made behind PyTorch's dispatcher cannot be captured"
            )
        return known[1]

    def _new_proxy(self, fake: torch.Tensor, requires_grad: bool, name: str | None = None) -> TensorProxy:
        known = self._proxies.get(id(fake))
        if known is not None:
            return known[1]
        proxy = metadata_proxy(name or self.names.fresh(), fake, requires_grad)
        self._know(fake, proxy)
        return proxy

    # -- the tensors that autograd and functionalization look after ----------------------------------------------------

    def _adopted_wrapper(self, tensor: torch.Tensor) -> torch.Tensor:
        """The wrapper of a tensor in the arguments of a call; one from outside is adopted as an input."""
        if internals.is_wrapper(tensor) and not self._is_foreign(tensor):
            if id(tensor) not in self._tracked:
                self._track(tensor)
            return tensor
        known = self._input_of.get(id(tensor))
        if known is not None:
            self.reached_otherwise.add(id(tensor))
            return known.wrapper
        if self._adopt is None or internals.is_fake(tensor):
            raise Unsupported(f"a tensor from outside of what is being traced was used in {self._here()}")
        return self.adopt(tensor, self._adopt)

    def _is_foreign(self, wrapper: torch.Tensor) -> bool:
        """Whether a wrapper is an enclosing recorder's."""
        return self._outer is not None and id(wrapper) in self._outer._tracked

    def known_input(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The wrapper of a tensor from outside that is an input already."""
        found = self._input_of.get(id(tensor))
        return found.wrapper if found else None

    def adopt(self, tensor: torch.Tensor, proxy_for: Callable[[torch.Tensor], TensorProxy]) -> torch.Tensor:
        """Make a tensor from outside an input, wherever the function reaches for it; returns its wrapper."""
        with self.paused(), torch._C.DisableTorchFunction():
            proxy, is_leaf = proxy_for(tensor), tensor.is_leaf
            wrapper = self.wrapper_for(proxy, leaf=is_leaf, autograd=True)
            found = RecordedInput(tensor, wrapper, proxy, history_of(wrapper))
        self.inputs.append(found)
        self._input_of[id(tensor)] = self._input_of[id(wrapper)] = found
        return wrapper

    def _track(self, wrapper: torch.Tensor) -> None:
        fake = internals.unwrap(wrapper)
        known = self._proxies.get(id(fake))
        if known is None:
            raise Unsupported(f"a tensor appeared that no recorded operator made, in {self._here()}")
        proxy = known[1]
        if not self._follow_autograd:
            pass
        elif proxy.requires_grad and not wrapper.requires_grad:
            # `x.data` shares the fake of `x` and none of its history
            fake = self._record_alias(wrapper, Symbol(str(_aten.detach.default), _aten.detach.default), (proxy,), False)
        elif proxy.requires_grad != wrapper.requires_grad:
            raise self._disagreement(proxy, wrapper)
        tracked = _Tracked(wrapper, fake, history_of(wrapper), not wrapper._is_view())
        self._tracked[id(wrapper)] = tracked
        if tracked.is_base:
            self._bases.setdefault(internals.storage_key(wrapper), []).append(tracked)

    def _record_alias(self, wrapper: torch.Tensor, symbol: Symbol, args: tuple[Any, ...], commit: bool) -> torch.Tensor:
        with self.paused(), internals.outside_autograd():
            fake = internals.unwrap(wrapper).detach()
        output = self._new_proxy(fake, wrapper.requires_grad)
        self._frames[-1].recorded.append(BoundSymbol(symbol, args, {}, output, source=self._find_source()))
        internals.rebind(wrapper, fake, aliases=commit)
        return fake

    def _reconcile(self, wrapper: torch.Tensor) -> None:
        """Bring the trace up to date with writes to a wrapper since it was last seen."""
        tracked = self._tracked.get(id(wrapper))
        if tracked is None:
            self._track(wrapper)
            return
        fake = internals.unwrap(wrapper)
        if not self._follow_autograd:
            tracked.fake = fake
            return
        if fake is tracked.fake and wrapper.requires_grad == self._proxy_of_fake(fake).requires_grad:
            return
        new, old = self._proxy_of_fake(fake), self._proxy_of_fake(tracked.fake)
        history = history_of(wrapper)
        unseen = new is not old and same_history(history, tracked.history)
        if unseen and (wrapper.requires_grad or new.requires_grad):
            fake = self._record_alias(wrapper, SET_VALUE, (old, new), tracked.is_base)
            new = self._proxy_of_fake(fake)
        if wrapper.requires_grad != new.requires_grad:
            raise self._disagreement(new, wrapper)
        tracked.fake, tracked.history = fake, history

    def _reconcile_bases(self, written: torch.Tensor) -> None:
        """After a write, set the value of every other autograd base that shares the storage."""
        for tracked in tuple(self._bases.get(internals.storage_key(written), ())):
            if tracked.wrapper is not written:
                self._reconcile(tracked.wrapper)

    def _disagreement(self, proxy: TensorProxy, wrapper: torch.Tensor) -> Unsupported:
        return Unsupported(
            f"in {self._here()} autograd says requires_grad={wrapper.requires_grad} where the trace says "
            f"requires_grad={proxy.requires_grad} ({proxy.name}): a change of requires_grad inside a jitted function, "
            "or a write through an alias that autograd does not connect, is not supported; make it outside, "
            "or on a clone"
        )

    # -- torch-level calls ---------------------------------------------------------------------------------------------

    def on_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one call that the function mode saw."""
        if self._paused or _active.recorder is not self:
            return func(*args, **kwargs)
        self._refuse(func)
        args, kwargs = _map_tensors(self._adopted_wrapper, args), _map_tensors(self._adopted_wrapper, kwargs)
        tensors = list(tensors_in((args, kwargs)))
        for tensor in tensors:
            self._reconcile(tensor)
        symbol = symbol_of(func)
        if symbol is None:
            return self._track_outputs(func(*args, **kwargs))
        given = self._to_proxies(args), self._to_proxies(kwargs)
        frame = _Frame(func, [], torch.is_grad_enabled())
        result, written = self._run_in_frame(frame, func, args, kwargs, tensors)
        keep = not written and not torch.is_autocast_enabled()
        self._frames[-1].recorded.extend(self._close(symbol, given, frame, result, keep))
        return result

    def _run_in_frame(
        self, frame: _Frame, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> tuple[Any, bool]:
        reentered = self._frames[-1].fn is func
        before = [self._tracked[id(tensor)].fake for tensor in tensors]
        self._frames.append(frame)
        try:
            if isinstance(func, types.FunctionType) and not reentered and func.__module__ in _REOPENED:
                with self._function_mode:
                    result = _reopened(func)(*args, **kwargs)
            else:
                result = func(*args, **kwargs)
            self._track_outputs(result)
            written = False
            for tensor, fake in zip(tensors, before, strict=True):
                self._reconcile(tensor)
                if self._tracked[id(tensor)].fake is not fake:
                    written = True
                    self._reconcile_bases(tensor)
        except RuntimeError as error:
            if "data is not allocated yet" not in str(error):
                raise
            raise DataDependent(f"{func.__name__} needs the data of a tensor, in {self._here()}: {_NO_DATA}") from error
        finally:
            self._frames.pop()
        return result, written

    def _track_outputs(self, result: Any) -> Any:
        for tensor in tensors_in(result):
            if internals.is_wrapper(tensor) and not self._is_foreign(tensor):
                self._reconcile(tensor)
        return result

    def _close(
        self, symbol: Symbol, given: tuple[Any, Any], frame: _Frame, result: Any, keep: bool
    ) -> list[BoundSymbol]:
        """The call as one composite, or its parts where it cannot be kept whole."""
        recorded = frame.recorded
        if not recorded:
            return []
        args, kwargs = pack_dims(symbol, given[0]), given[1]
        if len(recorded) == 1 and recorded[0].symbol == symbol:
            return recorded
        output = self._output_proxies(result)
        hidden = _turns_grad_off(frame)
        if not keep or not _is_closed((args, kwargs), recorded, output, self.constants):
            if hidden:
                raise Unsupported(
                    f"{symbol.name} turns grad mode off inside, in {self._here()}, and cannot be kept whole here; "
                    "call it without autocast, and not on what it writes to"
                )
            return recorded
        tags = frozenset({GRAD_OFF_INSIDE} if hidden else ()).union(*(part.tags for part in recorded))
        return [
            BoundSymbol(
                symbol, args, kwargs, output, tuple(recorded), self._find_source(), torch.is_grad_enabled(), tags
            )
        ]

    def _output_proxies(self, result: Any) -> Any:
        """The nested output of a composite, or NotImplemented where it holds more than tensors and None."""
        if isinstance(result, torch.Tensor):
            return self._proxy_of_fake(internals.unwrap(result)) if internals.is_wrapper(result) else NotImplemented
        if result is None:
            return None
        if isinstance(result, (tuple, list)):
            items = tuple([self._output_proxies(item) for item in result])
            return NotImplemented if NotImplemented in items else items
        return NotImplemented

    def _to_proxies(self, value: Any) -> Any:
        return _map_tensors(lambda tensor: self._proxy_of_fake(internals.unwrap(tensor)), value)

    def _refuse(self, func: Any) -> None:
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__ is torch.Tensor.grad:
            raise Unsupported(
                f"the function reads .grad of a tensor, in {self._here()}; pass the gradient as an argument"
            )
        if name in _REFUSED_NAMES:
            full = torch.overrides.resolve_name(func) or f"{getattr(func, '__module__', '')}.{name}"
            if full in _REFUSED:
                raise Unsupported(f"{full} inside a jitted function, in {self._here()}; {_REFUSED[full]}")
        if internals.inside_functorch():
            raise Unsupported(
                f"a torch.func transform inside a jitted function, in {self._here()}; use sg.grad or sg.vjp"
            )

    # -- operator overloads --------------------------------------------------------------------------------------------

    def on_dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one operator overload that the dispatch mode saw."""
        if self._paused or _active.recorder is not self or func in _NOISE:
            return func(*args, **kwargs)
        if func is _aten.lift_fresh.default or func is _aten.lift_fresh_copy.default:
            return self._lift(func, args[0])
        if func._schema.is_mutable or func in _WRITES_UNDECLARED:
            raise Unsupported(f"{func} writes to its arguments and has no functional form, in {self._here()}")
        if func is _aten._local_scalar_dense.default and (value := self._known_value(args[0])) is not None:
            return value
        try:
            result = func(*args, **kwargs)
        except internals.DATA_DEPENDENT as error:
            raise DataDependent(f"{error} needs the data of a tensor, in {self._here()}: {_NO_DATA}") from error
        except internals.NO_FAKE as error:
            raise Unsupported(f"{func} cannot run on fake tensors, in {self._here()}: {error}") from error
        self._record_leaf(func, args, kwargs, result)
        return result

    def _known_value(self, fake: torch.Tensor) -> Any:
        """The value of a 0-dim tensor that was computed from constants alone, by computing it; None for any other."""
        wanted = self._proxy_of_fake(fake)
        recorded = [item for frame in self._frames for item in leaves_of(frame.recorded)]
        needed, program = {wanted.name}, []
        for item in reversed(recorded):
            if needed.isdisjoint(proxy.name for proxy in item.outputs):
                continue
            if item.is_random or item.symbol == SET_VALUE:
                return None
            needed.difference_update(proxy.name for proxy in item.outputs)
            needed.update(proxy.name for proxy in item.inputs)
            program.append(item)
        if not needed.issubset(self.constants):
            return None
        values: dict[str, Any] = {name: self.constants[name] for name in needed}
        with internals.real_dispatch(), torch.no_grad():
            for item in reversed(program):
                args, kwargs = map_proxies(lambda proxy: values[proxy.name], (item.args, dict(item.kwargs)))
                bind_outputs(item.output, item.symbol.fn(*args, **kwargs), values)
            return values[wanted.name].item()

    def _lift(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        if (known := self._proxies.get(id(tensor))) is not None:
            result: torch.Tensor = func(tensor)
            self._know(result, replace(known[1], requires_grad=False))
            return result
        result = func(tensor)
        name = self.names.claim(f"c{len(self.constants)}")
        with self.paused(), internals.real_dispatch():
            self.constants[name] = tensor.detach().clone()
        self._new_proxy(result, False, name)
        return result

    def _record_leaf(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = _map_tensors(self._proxy_of_fake, args), _map_tensors(self._proxy_of_fake, kwargs)
        frame = self._frames[-1]
        # a custom operator's autograd is a Function, which turns grad mode off while the operator itself runs
        grad_enabled = torch.is_grad_enabled() or (frame.fn is func and frame.grad_enabled)
        if grad_enabled and any(proxy.requires_grad for proxy in proxies(given)):
            flags = iter(self._differentiable_outputs(func, args, kwargs, given, result))
        else:
            flags = iter(())
        output = _map_tensors(lambda fake: self._new_proxy(fake, next(flags, False)), result)
        if isinstance(output, list):
            output = tuple(output)
        if not any(proxies(output)):
            return
        tags = frozenset({RANDOM}) if is_random(func) else frozenset()
        if tags:
            self._random_states.check(self._here)
        self._frames[-1].recorded.append(
            BoundSymbol(Symbol(str(func), func), *given, output, (), self._find_source(), grad_enabled, tags)
        )

    def _differentiable_outputs(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[Any, Any], made: Any
    ) -> tuple[bool, ...]:
        mask = tuple((proxy.requires_grad, proxy.dtype) for proxy in proxies(given))
        key = func, mask, tuple(tensor.dtype for tensor in tensors_in(made))
        if (known := _DIFFERENTIABLE.get(key)) is not None:
            return known
        flags = iter(mask)

        def as_leaf(fake: torch.Tensor) -> torch.Tensor:
            return fake.detach().requires_grad_(next(flags)[0])

        with self.paused(), internals.dispatch_from_top(self._dispatch_state):
            args, kwargs = _map_tensors(as_leaf, args), _map_tensors(as_leaf, kwargs)
            result = func(*args, **kwargs)
        answer = tuple(tensor.requires_grad for tensor in tensors_in(result))
        _DIFFERENTIABLE[key] = answer
        return answer

    # -- where the user is ---------------------------------------------------------------------------------------------

    def _find_source(self) -> Source | None:
        if self._source is not None:
            return self._source
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_OWN_FILES):
                return Source(frame.f_code.co_filename, frame.f_lineno, self._module_path())
            frame = frame.f_back
        return None

    def _here(self) -> str:
        source = self._find_source()
        return f"{source.file}:{source.line}" if source else "the jitted function"


_NO_DATA = (
    "a trace holds no data. Compute it outside the jitted function and pass it in, or rewrite it with masks "
    "(torch.where)"
)
#: Which outputs of an overload are differentiable: facts about PyTorch, found once per process.
_DIFFERENTIABLE: dict[Any, tuple[bool, ...]] = {}
_REFUSED_NAMES = frozenset(name.rpartition(".")[2] for name in _REFUSED)
_REOPENED = frozenset({"torch.nn.functional", "torch.functional"})


def _turns_grad_off(frame: _Frame) -> bool:
    """Whether a function of PyTorch's C++ turned grad mode off for a part that gradients might flow through.

    What it writes in place there shows in no wrapper, so its parts cannot be differentiated one by one.
    """
    return (
        frame.grad_enabled
        and isinstance(frame.fn, types.BuiltinFunctionType | types.MethodDescriptorType)
        and any(
            part.is_leaf
            and not part.grad_enabled
            and any(proxy.requires_grad for proxy in part.inputs)
            and any(proxy.is_differentiable for proxy in part.outputs)
            for part in frame.recorded
        )
    )


@functools.cache
def is_random(overload: Any) -> bool:
    """Whether an overload draws from a random stream."""
    return torch.Tag.nondeterministic_seeded in overload.tags


def history_of(tensor: torch.Tensor) -> Any:
    """What autograd knows of a tensor's past, for comparison by `_same_history`."""
    if not tensor.requires_grad:
        return None
    return (tensor.grad_fn, tensor.output_nr)


def same_history(left: Any, right: Any) -> bool:
    """Whether two answers of `history_of` are the same past."""
    if left is None or right is None:
        return left is right
    return left[0] is right[0] and left[1] == right[1]


def metadata_proxy(name: str, tensor: torch.Tensor, requires_grad: bool) -> TensorProxy:
    """A proxy with the metadata of a tensor."""
    return TensorProxy(
        name,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        requires_grad,
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )


@functools.cache
def _reopened(fn: types.FunctionType) -> types.FunctionType:
    """A copy of a function of PyTorch that does not hand over to function modes: the calls it makes are seen."""

    def no_override(*args: Any) -> bool:
        return False

    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**fn.__globals__, **dict.fromkeys(names, no_override)}
    copy = types.FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _is_closed(given: Any, recorded: list[BoundSymbol], output: Any, constants: Mapping[str, torch.Tensor]) -> bool:
    """Whether a call's parts read only its arguments, and its outputs, all different, are made by its parts."""
    if output is NotImplemented:
        return False
    known = {proxy.name for proxy in proxies(given)} | constants.keys()
    made: set[str] = set()
    for part in recorded:
        if any(proxy.name not in known for proxy in part.inputs):
            return False
        made.update(proxy.name for proxy in part.outputs)
        known |= made
    names = [proxy.name for proxy in proxies(output)]
    return bool(names) and len(set(names)) == len(names) and made.issuperset(names)


def splice_escaping(recorded: tuple[BoundSymbol, ...], outputs: Iterable[TensorProxy]) -> tuple[BoundSymbol, ...]:
    """Put the parts of a composite in its place where something outside of it reads a value that it does not return."""
    needed = {proxy.name for proxy in outputs}
    kept: list[BoundSymbol] = []
    pending = list(recorded)
    while pending:
        bound_symbol = pending.pop()
        if bound_symbol.subsymbols:
            inner = _made(bound_symbol.subsymbols) - {proxy.name for proxy in bound_symbol.outputs}
            if not needed.isdisjoint(inner):
                pending.extend(bound_symbol.subsymbols)
                continue
            parts = splice_escaping(bound_symbol.subsymbols, bound_symbol.outputs)
            bound_symbol = replace(bound_symbol, subsymbols=parts)
        needed.update(proxy.name for proxy in bound_symbol.inputs)
        kept.append(bound_symbol)
    return tuple(reversed(kept))


def leaves_of(bound_symbols: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """The leaves of bound symbols, in order."""
    for item in bound_symbols:
        if item.is_leaf:
            yield item
        else:
            yield from leaves_of(item.subsymbols)


def bind_outputs(output: Any, result: Any, values: dict[str, Any]) -> None:
    """Enter what a call returned under the names of its outputs."""
    if isinstance(output, TensorProxy):
        values[output.name] = result
    elif isinstance(output, tuple):
        for part, value in zip(output, result, strict=True):
            bind_outputs(part, value, values)


def _made(bound_symbols: Iterable[BoundSymbol]) -> set[str]:
    made: set[str] = set()
    for bound_symbol in bound_symbols:
        made.update(proxy.name for proxy in bound_symbol.outputs)
        made |= _made(bound_symbol.subsymbols)
    return made


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest of tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def _map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, torch.Size):
        return value
    if type(value) is tuple:
        return tuple([_map_tensors(function, item) for item in value])
    if isinstance(value, tuple):
        items = [_map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_map_tensors(function, item) for item in value]
    if isinstance(value, dict):
        return {key: _map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[_map_tensors(function, item) for item in (value.start, value.stop, value.step)])
    if isinstance(value, types.GeneratorType):
        raise InvalidInput("a generator was passed to a PyTorch function; pass a list")
    return value

"""Records the operators that a Python function dispatches while it runs on fake tensors.

Two modes work together. A function mode sees torch-level calls, the *composites*, as the user wrote them; a dispatch
mode below autograd and functionalization sees the operator overloads, the *leaves*, that each of them dispatches. A
composite holds its leaves as its decomposition, and is kept whole only if it wrote to nothing, reads only its
arguments, and nothing outside reads its insides; otherwise its parts stand in its place. Neither door names a feature:
that is what `handler` is for. Every tensor that the function reaches for becomes an input: arguments by position,
parameters and buffers by module and name, anything else by reference. In-place calls arrive as functional ones. The
function takes eager's own path (`torch.compiler.is_compiling()` is False); what is computed from constants alone is
simply computed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from switchgear import torch_private as internals
from switchgear.capture.active import ACTIVE
from switchgear.capture.data import CHECK_LAYOUT, CHECK_RESULT, Data
from switchgear.capture.guards import Guard
from switchgear.capture.handler import PASS, Call, Handler, Handlers
from switchgear.capture.shared_memory import reaches_outside
from switchgear.capture.sizes import settled
from switchgear.capture.tracking import Tracker, history_of, metadata_proxy, version_of
from switchgear.capture.user_code import user_frame
from switchgear.capture.write_back import (
    INVERSES,
    is_in_place,
    refuse_casts,
    refuse_expanded,
    refuse_write,
)
from switchgear.errors import DataDependent, Unsupported
from switchgear.ir.aliasing import storages
from switchgear.ir.composites import is_closed, leaves_of, read_first_views, turns_grad_off
from switchgear.ir.naming import pack_dims, symbol_of
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import (
    CHECK,
    CHECKPOINT,
    GRAD_OFF_INSIDE,
    RANDOM,
    SAVED,
    BoundSymbol,
    Source,
    Symbol,
    map_proxies,
    proxies,
)
from switchgear.ir.trace import Names
from switchgear.ir.writes import DRAW_BERNOULLI, SET_VALUE
from switchgear.nesting import map_tensors, tensors_in
from switchgear.patches import replaced

_aten = torch.ops.aten
_NOISE = frozenset(
    {
        torch.ops.prim.device.default,
        _aten.is_same_size.default,
        _aten._has_same_storage_numel.default,
    }
)
#: Refuse what begins where the view would not be aligned.
_ALIGNED = frozenset({_aten.view_as_complex.default, _aten.view.dtype})
_WRITES_UNDECLARED = frozenset({_aten.cudnn_batch_norm.default, _aten.miopen_batch_norm.default})
#: Namespaces of operators that may return nothing: their assertions and marks are of no value to a trace.
_SILENT = frozenset({"aten", "prim", "prims", "profiler"})


@dataclass(frozen=True, slots=True, eq=False)
class RecordedInput:
    """A tensor from outside, the wrapper that stands for it, and the proxy and history that it came with.

    `is_view`: the wrapper is a view of another input's, and the proxy is not used. `storage` is the key of its storage.
    """

    tensor: torch.Tensor
    wrapper: torch.Tensor
    proxy: TensorProxy
    history: Any
    is_view: bool
    storage: int
    version: int


class _FunctionMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        # weak, so that a recorder is freed by reference count alone
        self.recorder: Recorder = weakref.proxy(recorder)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.on_function(func, args, kwargs or {})


class _DispatchMode(internals.TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder: Recorder = weakref.proxy(recorder)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if internals.asks_device(func, args):
            return args[0].fake_device
        with torch._C.DisableTorchFunction():
            return self.recorder.on_dispatch(func, args, kwargs or {})


def active_recorder() -> Recorder | None:
    """The recorder at work on this thread, if any."""
    return ACTIVE.recorder


class Recorder:
    """Turns the calls made while it is active into bound symbols.

    `adopt` makes a tensor from outside that the function reaches for an input, by `enter`. `module_path` tells the
    path of the module being called. `follow_autograd`: find writes that autograd did not see, and compare its
    requires_grad with the trace's own. `reads_inputs`: values and shapes may depend on the data of the
    inputs; None: branches may, on masks.
    """

    def __init__(
        self,
        names: Names,
        handlers: Handlers,
        adopt: Callable[[torch.Tensor], torch.Tensor] | None = None,
        module_path: Callable[[], str] = str,
        follow_autograd: bool = True,
        reads_inputs: bool | None = False,
    ) -> None:
        self.names = names
        self.follow_autograd = follow_autograd
        self.tracker = Tracker(weakref.proxy(self))
        self.constants: dict[str, torch.Tensor] = {}
        self.data = Data(weakref.proxy(self), reads_inputs)
        #: An overload whose results' shapes depend on data, and what it is known to make.
        self.known_call: tuple[Any, tuple[TensorProxy, ...]] = (None, ())
        self._adopt = adopt
        self._module_path = module_path
        self._source: Source | None = None
        self._frames = [Call(None)]
        self.inputs: list[RecordedInput] = []
        #: What features take for granted of other calls, and what they do to what the trace's call returns.
        self.guards: list[Guard] = []
        self.after: list[Callable[[Any, Sequence[Any]], Any]] = []
        #: Calls that changed sizes or strides of an input in place, or its version alone.
        self.metadata_calls: list[BoundSymbol] = []
        #: Tensors from outside, by id, that the function reached without being handed their wrapper.
        self.reached_otherwise: set[int] = set()
        #: Whether gradients are asked for inside, which might flow through the history of an input.
        self.leaves_matter = False
        #: Whether it matters if what an input is a view of requires grad.
        self.bases_matter = False
        #: Whether it matters where in its memory an input begins.
        self.offsets_matter = False
        #: Whether a tensor was taken by `.data`, writes to which raise no version.
        self.takes_data = False
        #: Whether any tensor was given other sizes or strides in place.
        self.reshapes = False
        #: The names of inputs that were written to where autograd did not see it.
        self.unseen: set[str] = set()
        #: The names of values that were overwritten without a new version of the tensor: through `.data`.
        self.hidden: set[str] = set()
        #: Views, by name: the calls that make them.
        self._views: dict[str, str] = {}
        self._input_of: dict[int, RecordedInput] = {}
        self._paused = 0
        self.enclosing = ACTIVE.recorder
        #: The generators among the arguments, by the address of each and of its stand-in.
        self.generators: dict[int, torch.Generator] = (
            dict(self.enclosing.generators) if self.enclosing else {}
        )
        self.fake_mode: internals.FakeMode = (
            self.enclosing.fake_mode
            if self.enclosing
            else internals.new_fake_mode(ACTIVE.sizes and ACTIVE.sizes.env)
        )
        self._function_mode = _FunctionMode(self)
        self._dispatch_mode = _DispatchMode(self)
        self._dispatch_state: tuple[Any, Any] = (None, None)
        self._tags: frozenset[str] = frozenset()
        self.handlers = handlers
        self._states = handlers.states(self)
        self._regions = itertools.count()
        self._policy: Callable[..., bool] | None = None

    # -- sessions ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, source: Source | None = None) -> Iterator[None]:
        """Record what runs inside; `source` is what every bound symbol gets as its source."""
        outer = ACTIVE.recorder
        with contextlib.ExitStack() as stack:
            if outer is not None:
                stack.enter_context(outer.paused())
            if outer is None or outer.fake_mode is not self.fake_mode:
                stack.enter_context(self.fake_mode)
            stack.enter_context(replaced(ACTIVE, "recorder", self))
            stack.enter_context(replaced(self, "_source", source or self._source))
            # Anomaly mode looks for NaN in each gradient: there is no data to look at.
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
            stack.enter_context(internals.functionalization())
            stack.enter_context(self._dispatch_mode)
            stack.enter_context(self._function_mode)
            self._dispatch_state = internals.dispatch_state()
            yield

    @property
    def is_paused(self) -> bool:
        """Whether calls pass unrecorded."""
        return self._paused > 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let what runs inside pass unrecorded."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def tagged(self, tag: str) -> contextlib.AbstractContextManager[None]:
        """Give what is recorded inside a tag."""
        return replaced(self, "_tags", self._tags | {tag})

    def program(self) -> tuple[BoundSymbol, ...]:
        """The bound symbols recorded so far, and not taken."""
        return tuple(self._frames[0].lines)

    def open_lines(self) -> list[list[BoundSymbol]]:
        """What is recorded so far, by the calls that are open."""
        return [frame.lines for frame in self._frames]

    @contextlib.contextmanager
    def region(self, saves: Callable[..., bool] | None) -> Iterator[None]:
        """Record what runs inside as a region of `torch.utils.checkpoint`; `saves` is its policy, if it has one."""
        with self.tagged(f"{CHECKPOINT}{next(self._regions)}"), replaced(self, "_policy", saves):
            yield

    @property
    def inside_region(self) -> bool:
        """Whether a region of `torch.utils.checkpoint` is being recorded."""
        return any(tag.startswith(CHECKPOINT) for tag in self._tags)

    @contextlib.contextmanager
    def rewritten(
        self, rewrite: Callable[[list[BoundSymbol], Names], list[BoundSymbol]]
    ) -> Iterator[None]:
        """Put what `rewrite` makes of what is recorded inside in its place."""
        recorded = self._frames[-1].lines
        start = len(recorded)
        yield
        recorded[start:] = rewrite(recorded[start:], self.names)

    def state(self, handler: Handler) -> Any:
        """What a handler keeps for this capture."""
        return self._states[handler]

    def take(self) -> tuple[BoundSymbol, ...]:
        """The bound symbols recorded since the last call of `take`."""
        recorded, self._frames[0].lines = tuple(self._frames[0].lines), []
        return recorded

    # -- proxies and wrappers ------------------------------------------------------------------------------------------

    def _is_own(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a wrapper, and none of an enclosing recorder's."""
        return internals.is_wrapper(tensor) and (
            self.enclosing is None or tensor not in self.enclosing.tracker
        )

    def input_of(self, tensor: torch.Tensor) -> RecordedInput | None:
        """The input that a tensor is itself, be it the tensor from outside or its wrapper."""
        if not self._is_own(tensor):
            self.adopted(tensor)
        return self._input_of.get(id(tensor))

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        """The wrapper, up to date, of a tensor in the arguments of a call; one from outside is adopted as an input."""
        if not self._is_own(tensor):
            known = self.known_input(tensor)
            if known is not None:
                self.reached_otherwise.add(id(tensor))
                tensor = known
            elif self._adopt is None or internals.is_fake(tensor):
                what = "a tensor from outside of what is being traced, or a tensor subclass made inside,"
                raise Unsupported(f"{what} was used in {self.here()}")
            else:
                with torch._C.DisableTorchFunction():
                    return self._adopt(tensor)
        with torch._C.DisableTorchFunction():
            self.tracker.refuse_outdated(tensor)
            self.tracker.reconcile(tensor)
        return tensor

    def known_input(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The wrapper of a tensor from outside that is an input already."""
        found = self._input_of.get(id(tensor))
        return found.wrapper if found else None

    def input_if_known(self, value: Any) -> torch.Tensor | None:
        """The wrapper of a tensor from outside that is an input; None for any other value."""
        return self.known_input(value) if isinstance(value, torch.Tensor) else None

    def entered(self, tensor: torch.Tensor) -> RecordedInput | None:
        """The input that a tensor is itself, if it is one already."""
        return self._input_of.get(id(tensor))

    def enter(
        self, tensor: torch.Tensor, proxy: TensorProxy, view: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Make a tensor from outside an input; returns its wrapper, which is `view` if it is one of another input."""
        with torch._C.DisableTorchFunction():
            wrapper = view
            if wrapper is None:
                wrapper = self.tracker.wrapper_for(proxy, leaf=tensor.is_leaf, autograd=True)
            self.tracker.reconcile(wrapper)
            wrapper.__class__ = type(tensor)  # a Parameter shows that it is one
            storage = internals.storage_key(wrapper)
            version = version_of(wrapper)
            found = RecordedInput(
                tensor, wrapper, proxy, history_of(wrapper), view is not None, storage, version
            )
        self.inputs.append(found)
        self._input_of[id(tensor)] = found
        self._input_of.setdefault(id(wrapper), found)
        return wrapper

    # -- torch-level calls ---------------------------------------------------------------------------------------------

    def on_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one call that the function mode saw."""
        if self._paused:
            return func(*args, **kwargs)
        call = Call(func, args, kwargs, grad_enabled=torch.is_grad_enabled())
        answer = self.handlers.take(self, call)
        if answer is not PASS:
            return answer
        call.args, call.kwargs = map_tensors(self.adopted, (call.args, call.kwargs))
        call.symbol = symbol_of(func)
        answer = self.handlers.answer(self, call)
        if answer is not PASS:
            return answer
        if call.symbol is None:
            return self.track_outputs(func(*call.args, **call.kwargs))
        call.given = map_tensors(self._proxy_now, (call.args, call.kwargs))
        self._note_target(call)
        self.handlers.opened(self, call)
        result = self._run(call)
        call.whole = not call.wrote
        self.handlers.closing(self, call)
        self._frames[-1].lines.extend((*call.before, *self._close(call)))
        return result

    def _proxy_now(self, tensor: torch.Tensor) -> TensorProxy:
        return self.tracker.proxy_of_fake(self.tracker.fake_of(tensor))

    def _note_target(self, call: Call) -> None:
        """Take note of whether a call writes to its first argument, or to `out`."""
        target = call.kwargs.get("out")
        call.writes = "out" in call.kwargs or is_in_place(getattr(call.fn, "__name__", ""))
        if isinstance(target, torch.Tensor) and internals.is_wrapper(target):
            call.out = internals.unwrap(target)
        written = target if "out" in call.kwargs else next(iter(call.args), None)
        if call.writes and isinstance(written, torch.Tensor):
            refuse_expanded(written, self.here)

    @contextlib.contextmanager
    def spliced(self, call: Call) -> Iterator[None]:
        """Record the parts of a call inside, of which no composite is kept."""
        self._note_target(call)
        self._frames.append(call)
        try:
            yield
        finally:
            self._frames.pop()
            self._frames[-1].lines.extend(call.lines)

    @contextlib.contextmanager
    def framed(self) -> Iterator[Call]:
        """Keep what is recorded inside apart, for `close`."""
        frame = Call(None, grad_enabled=torch.is_grad_enabled())
        self._frames.append(frame)
        try:
            yield frame
        finally:
            self._frames.pop()

    def outputs(self, result: Any) -> Any:
        """The nested output of the composite whose frame is open, or NotImplemented where it can be none."""
        return self._output_proxies(self.track_outputs(result))

    def close(self, call: Call, tag: str) -> None:
        """Record a call as one composite with a tag, or its parts where it cannot be kept whole."""
        lines = self._close(call)
        whole = len(lines) == 1 and lines[0].symbol == call.symbol
        self._frames[-1].lines.extend(
            replace(line, tags=line.tags | {tag}) if whole else line for line in lines
        )

    def _run(self, call: Call) -> Any:
        """What the function returns; its parts, and whether it wrote to its arguments, are noted in the call."""
        assert call.fn is not None
        before = [
            (tensor, self.tracker.last_fake(tensor))
            for tensor in tensors_in((call.args, call.kwargs))
        ]
        with self._running(call), self._errors_refused(call):
            function = call.fn
            if isinstance(function, types.FunctionType) and function.__module__ in _REOPENED:
                reentered = self._frames[-2].fn is function
                function = (
                    function if reentered else functools.partial(self._run_reopened, function)
                )
            with (
                internals.composites_of_sizes(call.fn)
                if ACTIVE.sizes is not None
                else contextlib.nullcontext()
            ):
                result = function(*call.args, **call.kwargs)
            self.track_outputs(result)
            self._note_writes(call, before)
            call.output = self._output_proxies(result)
            return result

    def _run_reopened(self, function: types.FunctionType, *args: Any, **kwargs: Any) -> Any:
        with self._function_mode:
            return _reopened(function)(*args, **kwargs)

    @contextlib.contextmanager
    def _running(self, call: Call) -> Iterator[None]:
        self._frames.append(call)
        try:
            yield
        finally:
            self._frames.pop()

    def _note_writes(self, call: Call, before: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Bring the trace up to date with what a call wrote to its arguments, which stood for these fakes before."""
        for tensor, fake in before:
            self.tracker.reconcile(tensor)
            if self.tracker.last_fake(tensor) is fake:
                continue
            call.wrote = True
            self.tracker.reconcile_bases(tensor)
            if call.writes and (fake.is_conj() or fake.is_neg()):
                raise Unsupported(
                    f"a write to a lazily conjugated or negated tensor, in {self.here()}; write to a clone"
                )
        if call.wrote and call.grad_enabled and self.follow_autograd:
            refuse_casts(call.lines, self.here)

    @contextlib.contextmanager
    def _errors_refused(self, call: Call) -> Iterator[None]:
        """Refuse a call that fails for what wrappers lack, where the tensors that they stand for have it."""
        name = getattr(call.fn, "__name__", str(call.fn))
        try:
            yield
        except RuntimeError as error:
            if call.writes and any(text in str(error) for text in _NO_INVERSE):
                raise Unsupported(
                    f"{name} writes to a view of a kind that cannot be traced back to its base, in {self.here()}; "
                    "write to the base, or pass a clone of one"
                ) from error
            if _ODD_PLACE in str(error):
                raise Unsupported(
                    f"{name} of a tensor that begins where it cannot be viewed so, or that was written to, in "
                    f"{self.here()}; call it on a clone"
                ) from error
            if not any(text in str(error) for text in _DATA_MISSING):
                if ACTIVE.sizes is None:
                    raise
                # or the user's own error, which capturing with fixed sizes raises
                raise Unsupported(
                    f"{name} of symbolic sizes fails, in {self.here()}: {error}"
                ) from error
            need = f"{name} needs the data of a tensor, in {self.here()}"
            raise DataDependent(
                f"{need}, which it takes without an operator; call it outside"
            ) from error
        except IndexError as error:
            if not call.writes or not self.reshapes:
                raise
            raise Unsupported(
                f"{name} writes to a view of a tensor that was given other sizes in place, in {self.here()}: it cannot "
                "be traced back to its base; make a view in the place of the call in place"
            ) from error

    def track_outputs(self, result: Any) -> Any:
        """Take note of the tensors that a call returned."""
        for tensor in tensors_in(result):
            if self._is_own(tensor):
                self.tracker.reconcile(tensor)
        return result

    def _close(self, call: Call) -> list[BoundSymbol]:
        """The call as one composite, or its parts where it cannot be kept whole."""
        lines, symbol = call.lines, call.symbol
        assert symbol is not None
        if self.tracker.remakes_views:
            lines = read_first_views(lines, proxies(call.given), self._views)
        if not lines or (
            len(lines) == 1 and (lines[0].symbol == symbol or self._is_constant(lines[0]))
        ):
            return lines
        hidden = call.grad_enabled and turns_grad_off(call.fn, lines)
        checked = any(CHECK in line.tags for line in lines)
        if call.whole and not checked and is_closed(call.given, lines, call.output, self.constants):
            tags = frozenset({GRAD_OFF_INSIDE} if hidden else ()).union(
                *(line.tags for line in lines)
            )
            args, source, grad_enabled = (
                pack_dims(symbol, call.given[0]),
                self._find_source(),
                torch.is_grad_enabled(),
            )
            return [
                BoundSymbol(
                    symbol,
                    args,
                    call.given[1],
                    call.output,
                    tuple(lines),
                    source,
                    grad_enabled,
                    tags,
                )
            ]
        if hidden:
            raise Unsupported(
                f"{symbol.name} turns grad mode off inside, in {self.here()}, and cannot be kept whole here; "
                "call it without autocast, and not on what it writes to"
            )
        return lines

    def _is_constant(self, part: BoundSymbol) -> bool:
        """Whether it is all that is left of a call that made a tensor of Python's numbers, read at capture."""
        return any(proxy.name in self.constants for proxy in part.inputs)

    def _output_proxies(self, result: Any) -> Any:
        """The nested output of a composite, or NotImplemented where it holds more than tensors and None."""
        if isinstance(result, torch.Tensor) and internals.is_wrapper(result):
            return self.tracker.proxy_of_fake(self.tracker.fake_of(result))
        if isinstance(result, (tuple, list)):
            items = tuple([self._output_proxies(item) for item in result])
            return NotImplemented if NotImplemented in items else items
        return None if result is None else NotImplemented

    # -- operator overloads --------------------------------------------------------------------------------------------

    def on_dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one operator overload that the dispatch mode saw."""
        if self._paused or func in _NOISE:
            return self._unrecorded(func, args, kwargs)
        answer = self.handlers.operator(self, func, args, kwargs)
        if answer is not PASS:
            return answer
        if func is _aten.index_put.default:
            self._check_dtypes(*args[:3])
            if self.tracker.proxy_of_fake(args[2]).requires_grad:
                with contextlib.suppress(
                    DataDependent
                ):  # how many values a mask takes is data for their gradient
                    args = (args[0], self._positions(args[1]), *args[2:])
        if func is _aten.lift_fresh.default or func is _aten.lift_fresh_copy.default:
            return self._lift(func, args[0])
        own = self._frames[-1].fn is func  # a backward that is evaluated calls overloads
        if (
            func in internals.KEEP_PLACE
            and args[0].storage_offset()
            and not own
            and self._calls(func._schema.name[6:])
        ):
            raise Unsupported(
                f"{func} of a tensor that begins inside its memory, in {self.here()}; call it on a clone"
            )
        frame = self._frames[-1]
        if frame.writes:
            differentiable = (
                self.follow_autograd and frame.grad_enabled and self._is_differentiable(args)
            )
            refuse_write(
                func,
                args,
                frame.out,
                functools.partial(self._made_in, frame),
                differentiable,
                self.here,
            )
        if not func._schema.returns and func.namespace not in _SILENT:
            raise Unsupported(
                f"{func} returns nothing, in {self.here()}: what it does is no value of a trace, and would be done on "
                "the first call alone; call it outside the jitted function"
            )
        if func._schema.is_mutable or func in _WRITES_UNDECLARED:
            raise Unsupported(
                f"{func} writes to its arguments and has no functional form, in {self.here()}"
            )
        try:
            if self._leaf_symbol(func) == DRAW_BERNOULLI:
                result = torch.empty_like(args[0])
            else:
                # nothing is drawn on fakes, and some of PyTorch's decompositions for them take no generator
                shown = self._with_dims(func, args)
                result = func(
                    *shown, **(kwargs | {"generator": None} if "generator" in kwargs else kwargs)
                )
        except internals.DATA_DEPENDENT as error:
            return self._on_data(func, args, kwargs, error)
        except internals.NO_FAKE as error:
            raise Unsupported(
                f"{func} cannot run on fake tensors, in {self.here()}: {error}"
            ) from error
        except ValueError as error:
            if func is not _aten.view.default:
                raise
            raise RuntimeError(str(error)) from error  # as in eager
        if not args or result is not args[0]:  # as `resolve_conj` of what needs none
            self._record_leaf(func, args, kwargs, result)
        return result

    def _with_dims(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, for strides as the kernels have them: dimensions that broadcasting adds have stride 0.

        PyTorch's formulas for fakes give those of size 1 another one, and then order the result's dimensions by it.
        """
        if torch.Tag.pointwise not in func.tags or func is _aten.equal.default:
            return args
        count = max([tensor.dim() for tensor in tensors_in(args)], default=0)
        if all(tensor.dim() in (0, count) for tensor in tensors_in(args)):
            return args

        def padded(fake: torch.Tensor) -> torch.Tensor:
            added = count - fake.dim() if fake.dim() else 0
            return (
                fake.as_strided((1,) * added + fake.shape, (0,) * added + fake.stride())
                if added
                else fake
            )

        with self.paused():
            return map_tensors(padded, args)  # type: ignore[no-any-return]

    def _check_dtypes(self, base: torch.Tensor, indices: list[Any], values: torch.Tensor) -> None:
        """Raise what eager raises for values of another dtype; fakes take any, and the call may be dead code."""
        given = [index for index in indices if index is not None]
        filled = (
            values.numel() == 1 and len(given) == 1 and given[0].dtype in (torch.bool, torch.uint8)
        )
        if values.dtype != base.dtype and not filled:
            with self.paused(), internals.real_dispatch():
                nowhere = torch.empty(0, dtype=torch.int64)
                torch.empty(0, dtype=base.dtype).index_put(
                    (nowhere,), torch.empty(0, dtype=values.dtype)
                )

    def _is_differentiable(self, args: tuple[Any, ...]) -> bool:
        return any(self.tracker.proxy_of_fake(fake).requires_grad for fake in tensors_in(args))

    def _made_in(self, frame: Call, fake: torch.Tensor) -> bool:
        proxy = self.tracker.proxy_of_fake(fake)
        return any(proxy in item.outputs for item in frame.lines)

    def _unrecorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except internals.DATA_DEPENDENT as error:
            if func is self.known_call[0]:
                return self._known_results()
            if ACTIVE.recorder is not self:
                raise
            what = "in a backward inside the jitted function, which cannot have it"
            raise DataDependent(
                f"{error} needs the data of a tensor, in {self.here()}, {what}"
            ) from error

    def _on_data(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
    ) -> Any:
        """A call that gives what is in a tensor, or a result whose shape depends on that."""
        if func is _aten.index.Tensor:
            return self.on_dispatch(func, (args[0], self._positions(args[1])), {})
        if func is self.known_call[0]:
            made = self._known_results()
            self._record_leaf(func, args, kwargs, made)
            return made
        given: tuple[Any, Any] = map_tensors(self.tracker.proxy_of_fake, (args, kwargs))
        result, from_inputs = self.data.call(
            func, *given, f"{error} needs the data of a tensor, in {self.here()}"
        )
        if not any(True for _ in tensors_in(result)):
            if from_inputs:
                self.record(CHECK_RESULT, (result, func, *given[0]), None, CHECK)
            return result
        layouts = tuple([metadata_proxy("", tensor, False) for tensor in tensors_in(result)])
        with replaced(self, "known_call", (func, layouts)):
            made = self._known_results()
            self._record_leaf(func, args, kwargs, made)
        for proxy in map(self.tracker.proxy_of_fake, tensors_in(made) if from_inputs else ()):
            self.record(CHECK_LAYOUT, (proxy, proxy.shape, proxy.stride), None, CHECK)
        return made

    def _known_results(self) -> Any:
        func, layouts = self.known_call
        made = tuple([proxy.fake(self.fake_mode) for proxy in layouts])
        return made if len(func._schema.returns) > 1 else made[0]

    def _positions(self, indices: list[Any]) -> list[Any]:
        """Indices with masks as the positions that they select, as PyTorch's kernels have them."""
        positions: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                positions.append(index)
                continue
            found = self.on_dispatch(_aten.nonzero.default, (index,), {})
            columns = range(index.dim())
            positions += [
                self.on_dispatch(_aten.select.int, (found, 1, column), {}) for column in columns
            ]
        return positions

    def read(self, name: str, tensor: torch.Tensor) -> Any:
        """What is in a tensor, as numbers in lists."""
        proxy, read = self.tracker.proxy_of(tensor), torch.Tensor.tolist
        need = f"{name} needs the data of a tensor, in {self.here()}"
        value, from_inputs = self.data.call(read, (proxy,), {}, need)
        if from_inputs:
            self.record(CHECK_RESULT, (value, read, proxy), None, CHECK)
        return value

    def _lift(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = func(tensor)
        if self.tracker.knows(tensor):
            self.tracker.know(
                result, replace(self.tracker.proxy_of_fake(tensor), requires_grad=False)
            )
            return result
        name = self.names.claim(f"c{len(self.constants)}")
        with self.paused(), internals.real_dispatch():
            self.constants[name] = tensor.detach().clone()
        # each call has a tensor of its own, which it may return and be written to
        given = (metadata_proxy(name, self.constants[name], False),)
        self.record(
            Symbol(str(_aten.clone.default), _aten.clone.default),
            given,
            self.tracker.new_proxy(result, False),
        )
        return result

    def _record_leaf(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        frame = self._frames[-1]
        if frame.generator is not None and torch.Tag.nondeterministic_seeded in func.tags:
            kwargs = kwargs | {"generator": frame.generator}
        args = tuple([self.known_generator(arg) for arg in args])
        kwargs = {name: self.known_generator(arg) for name, arg in kwargs.items()}
        if ACTIVE.sizes is not None:
            args, kwargs = settled((args, kwargs))
        given: tuple[Any, Any] = map_tensors(self.tracker.proxy_of_fake, (args, kwargs))
        # a custom operator's autograd is a Function, which turns grad mode off while the operator itself runs
        is_called = frame.fn in (func, func.overloadpacket)
        grad_enabled = torch.is_grad_enabled() or (is_called and frame.grad_enabled)
        flags: Iterator[bool] = iter(())
        self.offsets_matter |= func in _ALIGNED
        # nothing is known of what called it (compiled code of TorchScript's) if no call of a function is open
        ACTIVE.rare_modes_matter |= frame.fn is None and self.follow_autograd
        if any(proxy.requires_grad for proxy in proxies(given)):
            if grad_enabled:
                flags = iter(self._differentiable_outputs(func, args, kwargs, given, result))
            elif makes_views(func):
                # under no_grad eager calls a view of what requires grad a leaf that requires grad, if its base does
                flags = itertools.repeat(True)
                self.bases_matter = True
                if self.follow_autograd and any(map(self.tracker.is_written, tensors_in(args))):
                    raise Unsupported(
                        f"a view of what was written to and requires grad is made under no_grad, in {self.here()}; "
                        "make it in grad mode, or of a clone"
                    )
        made: set[str] = set()

        def define(fake: torch.Tensor) -> TensorProxy:
            proxy = self.tracker.new_proxy(fake, next(flags, False))
            if proxy.name in made:
                return replace(proxy, name=self.names.fresh())
            made.add(proxy.name)
            return proxy

        output = map_tensors(define, result)
        if isinstance(output, list):
            output = tuple(output)
        if not any(proxies(output)):
            return
        tags = self._tags | {RANDOM} if is_random(func, given) else self._tags
        if self._policy is not None:
            with self.paused():
                tags = tags | {SAVED} if self._policy(func, args, kwargs, result) else tags
        symbol, source = self._leaf_symbol(func), self._find_source()
        if func is _aten.as_strided.default and any(
            proxy.requires_grad for proxy in proxies(output)
        ):
            self._refuse_odd_gradient(result, args[0])
        frame.lines.append(BoundSymbol(symbol, *given, output, (), source, grad_enabled, tags))
        if self.tracker.remakes_views and makes_views(func):
            seen = map_proxies(lambda proxy: self._views.get(proxy.name, proxy.name), given)
            self._views.update(
                (proxy.name, f"{func} {index} {seen}")
                for index, proxy in enumerate(proxies(output))
            )

    def _leaf_symbol(self, func: Any) -> Symbol:
        if func is _aten.bernoulli.p and not self._calls("bernoulli"):  # `bernoulli_`
            return DRAW_BERNOULLI
        return Symbol(str(func), func)

    def _calls(self, name: str) -> bool:
        """Whether the function of PyTorch that the user called goes by that name."""
        fn = self._frames[-1].fn
        called = symbol_of(fn) if fn is not None else None
        return called is not None and name in called.name.split(".")

    def _refuse_odd_gradient(self, view: torch.Tensor, viewed: torch.Tensor) -> None:
        if not self._calls("as_strided") and reaches_outside(view, viewed):
            raise Unsupported(
                f"in {self.here()} a view made with as_strided() is used, after a write to its base, that has elements "
                "which the view that it was made of has not: autograd lets their gradient through from then on; make "
                "it of the base"
            )

    def _differentiable_outputs(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: tuple[Any, Any],
        made: Any,
    ) -> tuple[bool, ...]:
        mask = tuple((proxy.requires_grad, proxy.dtype) for proxy in proxies(given))
        key = func, mask, tuple(tensor.dtype for tensor in tensors_in(made))
        if (known := _DIFFERENTIABLE.get(key)) is not None:
            return known
        if (
            func is _aten.as_strided_scatter.default
        ):  # what PyTorch has of it asks for contiguous arguments, and logs that
            return (True,)
        flags = iter(mask)
        with self.paused(), internals.dispatch_from_top(self._dispatch_state):
            leaves = map_tensors(
                lambda fake: fake.detach().requires_grad_(next(flags)[0]), (args, kwargs)
            )
            leaves[1].pop("generator", None)
            try:
                result = func(*leaves[0], **leaves[1])
            except RuntimeError:  # no formula of its own for complex numbers: `slice_scatter`
                result = [
                    tensor.detach().requires_grad_(is_inexact(tensor))
                    for tensor in tensors_in(made)
                ]
        _DIFFERENTIABLE[key] = answer = tuple(tensor.requires_grad for tensor in tensors_in(result))
        return answer

    def refuse_hidden_writes(self) -> None:
        """Refuse writes through `.data` to what autograd may have saved: eager's backward reads what is there then."""
        leaves = (
            [*leaves_of(item for lines in self.open_lines() for item in lines)]
            if self.hidden
            else []
        )
        homes = storages(leaves)
        overwritten = {homes.get(name, name) for name in self.hidden}
        for item in leaves:
            saves = (
                item.symbol != SET_VALUE and item.symbol.fn not in INVERSES and item.grad_enabled
            )
            if not saves or not any(proxy.requires_grad for proxy in item.outputs):
                continue
            if not overwritten.isdisjoint(
                [homes.get(proxy.name, proxy.name) for proxy in item.inputs]
            ):
                raise Unsupported(
                    f"the function writes through .data to what {item.symbol.name} has read, at {item.source}: "
                    "autograd may have saved it for the backward; write under torch.no_grad()"
                )

    # -- where the user is ---------------------------------------------------------------------------------------------

    def _find_source(self) -> Source | None:
        if self._source is not None:
            return self._source
        frame, _ = user_frame()
        return frame and Source(frame.f_code.co_filename, frame.f_lineno, self._module_path())

    def record(self, symbol: Symbol, args: tuple[Any, ...], output: Any, *tags: str) -> None:
        """Record a call that no mode saw."""
        made = BoundSymbol(
            symbol, args, {}, output, source=self._find_source(), tags=self._tags.union(tags)
        )
        self._frames[-1].lines.append(made)

    def recorded(
        self, symbol: Symbol, args: tuple[Any, ...], output: TensorProxy, *tags: str
    ) -> torch.Tensor:
        """Record a call of a symbol of our own; the wrapper that stands for its output."""
        given = map_tensors(self.adopted, args)
        self.record(symbol, map_tensors(self.tracker.proxy_of, given), output, *tags)
        return self.tracker.wrapper_for(output)

    def known_generator(self, value: Any) -> Any:
        """A value, or the generator among the arguments that it is or stands for."""
        if (
            not isinstance(value, torch.Generator) or not self.follow_autograd
        ):  # a grad rule has those of the trace
            return value
        known = self.generators.get(internals.stream_key(value))
        if known is None:
            raise Unsupported(
                f"{self.here()} draws from a torch.Generator that is no argument of the jitted function: whether it is "
                "seeded inside, or made anew by each call, is not known; make it an argument"
            )
        return known

    def here(self) -> str:
        """The user's line, for messages."""
        source = self._find_source()
        return f"{source.file}:{source.line}" if source else "the jitted function"


_DATA_MISSING = (
    "data is not allocated yet",
    "unallocated storage",
    "Expected scalars to be on CPU, got meta",
)
#: What eager says only if the root of the views requires grad, or only of a gradient.
_NO_INVERSE = ("as_strided() is non-compositional", "must have a last dimension with stride 1")
#: What eager says of where a tensor begins, which a write may have changed here.
_ODD_PLACE = "must have a storage_offset divisible by"
#: Which outputs of an overload are differentiable: facts about PyTorch, found once per process.
_DIFFERENTIABLE: dict[Any, tuple[bool, ...]] = {}
_REOPENED = frozenset({"torch.nn.functional", "torch.functional"})


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether a tensor can require grad."""
    return tensor.is_floating_point() or tensor.is_complex()


@functools.cache
def makes_views(overload: Any) -> bool:
    """Whether the outputs of an overload are differentiable views of an argument."""
    returns = overload._schema.returns
    return overload is not _aten.detach.default and any(
        made.alias_info is not None for made in returns
    )


def is_random(overload: Any, given: tuple[Any, Any]) -> bool:
    """Whether a call of an overload draws from a random stream; attention is tagged so, but draws for dropout alone.

    What other processes take part in counts too: like a draw, it is made once, in order, and whoever reads it.
    """
    if overload.namespace == "_c10d_functional":
        return True
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    declared = overload._schema.arguments
    values = {argument.name: argument.default_value for argument in declared}
    values.update(
        (argument.name, value) for argument, value in zip(declared, given[0], strict=False)
    )
    return {**values, **given[1]}.get("dropout_p") != 0.0


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

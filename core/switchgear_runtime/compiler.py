"""The compiler of one function: the choice of the entry for a call, compilation, and fallback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.errors import DataDependent, SwitchgearError, Unsupported
from switchgear_core.patches import Lock
from switchgear_core.record.attempts import undoing
from switchgear_core.record.guards import FailedAssertion, OtherData
from switchgear_core.record.recorder import active_recorder
from switchgear_core.record.signature import Arguments, flatten_arguments, number_place
from switchgear_core.record.sizes import Dynamic, Marks, check_dynamic, marked
from switchgear_core.registry.selection import Selection
from switchgear_core.showing import counted
from switchgear_core.torch_private.names import check_names
from switchgear_frontend.session import ContainerMatters, is_of_the_function
from switchgear_frontend.unread import unread
from switchgear_runtime.cache import Cache, Key, call_key, sizes_of
from switchgear_runtime.entry import Entry
from switchgear_runtime.fallback import Fallback, Fallbacks, LastFallback, fault
from switchgear_runtime.frontends import entry_by_parts
from switchgear_runtime.jitted import MISSES
from switchgear_runtime.module_state import is_uninitialised
from switchgear_runtime.prologue import MISS
from switchgear_runtime.splitting import Splitting
from switchgear_runtime.tracebacks import place_of
from switchgear_runtime.varying import VaryingSizes

#: The limit on different data outcomes of a kind of calls, beyond which entries do not specialise on data.
_MOST_DATA = 4


#: An entry, its inputs in a call, and whether the entry is new.
_Found: TypeAlias = tuple[Entry, Sequence[torch.Tensor], bool]


class Compiler:
    """A compiler of one function on demand, with the cache of its entries."""

    def __init__(
        self,
        function: Callable[..., Any],
        module: nn.Module | None,
        selection: Selection,
        options: dict[str, Any],
    ) -> None:
        self.function = function
        self.module = module
        self.selection = selection
        self.options = options
        self.link: bool = options["link"]
        self.specialize_on_data: bool | None = options["specialize_on_data"]
        self.dynamic: Dynamic | None = options["dynamic"]
        self._parameters = check_dynamic(self.dynamic, function)
        label = options.get("name") or getattr(function, "__qualname__", None)
        self.name: str = label or repr(function)
        self.strict: bool = options["strict"] or options["fallback"] == "error"
        self._fallback: str = options["fallback"]
        self._is_part: bool = options.get("is_part", False)
        #: Functions as split, by function: a module's forward may be replaced.
        self.splits: dict[Callable[..., object], Splitting] = {}
        sizes = options["cache_size"], options["recompile_limit"]
        self.cache = Cache(self.name, *sizes, function)
        self.fallbacks = Fallbacks(self.name, *sizes)
        #: The number of calls.
        self.calls = 0
        #: Calls without existing code, each counted once: calls that compiled, fell back, raised before the
        #: end of the lookup, or initialised a lazy module.
        self.misses = 0
        self.last: Entry | None = None
        #: The most recent call that fell back: a similar call falls back without being described.
        self._last_fallback: LastFallback | None = None
        #: Whether features inspect containers among the arguments, because their identities matter.
        self._containers_are_leaves = False
        self._varying = VaryingSizes()
        self._rejit = lambda function: Compiler(
            function, None, selection, options | {"dynamic": False}
        )
        # the code that split the function reports a refusal
        graphs = options | {"strict": False, "fallback": "quiet", "is_part": True}
        self._compile_graph = lambda graph, dynamic, name: Compiler(
            graph.forward, graph, selection, graphs | {"dynamic": dynamic, "name": name}
        )
        self._lock = Lock()

    def state(self) -> str:
        """Return the number of calls and their outcomes, in one line."""
        entries = sum(1 for _ in self.cache.entries())
        reasons = self.fallbacks.reasons.values()
        splits = sum(one.splits for one in reasons)
        eager = sum(one.calls for one in reasons) - splits
        if not self.calls:
            return "not called yet"
        text = f"{counted(self.calls, 'call')}, {counted(entries, 'compiled entry', 'compiled entries')}"
        text += f", {counted(splits, 'call')} split" if splits else ""
        return f"{text}, {eager:,} in eager"

    @internals.opaque
    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the entry that fits, the most recent first, or compile a new entry."""
        entry = self.last
        if entry is not None:
            try:
                result = entry.call(args, kwargs)
                if result is not MISS:
                    self.calls += 1
                    return result
                result = self.take_turns(args, kwargs)
                if result is not MISS:
                    return result
            except MISSES:
                pass  # `look_up` repeats the check, together with other guards
        return self.look_up(args, kwargs)

    def look_up(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the entry that fits, by its key, or compile a new entry; where capture refuses, run the original."""
        if active_recorder() is not None or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return self.function(*args, **kwargs)
        if any(isinstance(value, torch.fx.Proxy) for value in (*args, *kwargs.values())):
            return self.function(*args, **kwargs)  # a part of a torch.fx trace
        self.calls += 1
        if self.calls == 1 and self.module is not None and is_uninitialised(self.module):
            self.misses += 1
            return self.function(*args, **kwargs)
        unfit: dict[Entry, str] = {}
        failure: Exception | None = None
        is_new = False
        alike = self._alike(args, kwargs)
        while True:
            try:
                answer = alike or self._find(args, kwargs, unfit)
            except Exception as error:
                if not _is_for_eager(error):
                    self.misses += 1
                    raise
                failure = error
                break
            if isinstance(answer, Fallback):
                # without private names of PyTorch, calls have no key, and no call is like another
                if alike is None and answer.kinds:
                    self._last_fallback = LastFallback(answer, args, kwargs, self.module)
                break
            entry, inputs, is_new = answer
            self.misses += is_new
            try:
                result = entry.run(inputs)
                if result is not MISS:
                    self.cache.use(entry, sizes_of(args, kwargs))
                    return result
                reason = "under forward-mode differentiation of a tensor that requires grad"
                answer = self._refused(Unsupported(reason, splits=False))
                break
            except OtherData as error:
                unfit[entry] = f"{error}{place_of(error)}"
            if is_new:
                answer = self._refused(
                    DataDependent(
                        f"{unfit[entry]}: an executor computes other values than PyTorch's operators gave when the "
                        "call was captured, so no entry can be specialised on it; give the 'torch' executor alone"
                    )
                )
                break
        self.misses += not is_new
        if failure is not None:
            try:
                return self._run_original(failure, args, kwargs)
            finally:
                failure = None  # its traceback holds this frame, and so the arguments
        assert isinstance(answer, Fallback)
        may_split = self._fallback == "split" and answer.error.splits
        split = self._split((args, kwargs)) if may_split else None
        doubt = split.trust() if split is not None else ""
        is_split = split is not None and not doubt
        self.fallbacks.count(answer, is_split, self._fallback == "quiet", doubt)
        return (self.function if split is None or doubt else split.run)(*args, **kwargs)

    def take_turns(
        self, args: tuple[object, ...], kwargs: dict[str, object], is_alone: bool = False
    ) -> object:
        """Run another recent entry for calls of these sizes; return `MISS` if none fits.

        `is_alone`: only entries for a module's forward and nothing else.
        """
        last, sizes = self.last, sizes_of(args, kwargs)
        for entry in self.cache.recent(sizes):
            if entry is last or (is_alone and not entry.is_forward_alone):
                continue
            result = entry.call(args, kwargs)
            if result is not MISS:
                self.calls += 1
                self.cache.use(entry, sizes)
                self.last = entry
                return result
        return MISS

    def _run_original(
        self, failure: Exception, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run the function, which raises eager's own error; otherwise the fault is Switchgear's."""
        result = self.function(*args, **kwargs)
        if isinstance(failure, FailedAssertion):
            return result  # the function catches the error of the failed assertion
        answer = self._refused(fault(failure))
        self.fallbacks.count(answer, False, self._fallback == "quiet")
        return result

    @property
    def hits(self) -> int:
        """The number of calls answered by existing code; the current call counts until it falls back or compiles."""
        return self.calls - self.misses

    def examined(
        self, selection: Selection, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Entry | Fallback:
        """Return the entry that a call would run with another selection, or the fallback; nothing runs or is kept."""
        options = self.options | {"strict": False, "fallback": "quiet"}
        fresh = Compiler(self.function, self.module, selection, options)
        answer = fresh._find(args, kwargs, {})
        return answer if isinstance(answer, Fallback) else answer[0]

    def _split(self, call: object) -> Splitting | None:
        """Return the function as split, inspected with the arguments of its first call; None if no part splits it."""
        if internals.tracing():
            return None
        function = getattr(self.function, "now", lambda: self.function)()
        if function not in self.splits:
            split = self.selection.parts.first(
                "switchgear_split",
                function=function,
                compile_graph=self._compile_graph,
                dynamic=True if self.dynamic is True else None,
                call=call,
            )
            if split is None:
                return None
            split.name = getattr(self.function, "__qualname__", "") or split.name
            self.splits[function] = split
        return self.splits[function]

    def _alike(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Fallback | None:
        """Return the fallback of a call similar to the most recent call that fell back."""
        last = self._last_fallback
        if last is None:
            return None
        with (
            self._lock
        ):  # wait while another thread captures: that capture undoes writes of the function
            return last.fallback if last.is_for(args, kwargs, self.module) else None

    @undoing
    def _find(
        self, args: tuple[object, ...], kwargs: dict[str, object], unfit: dict[Entry, str]
    ) -> _Found | Fallback:
        """Return the entry for a call, its inputs and whether it is new, or the fallback. Skip entries in `unfit`."""
        key: Key | None = None
        with self._lock:
            if self.fallbacks.always is not None and not self.cache.entries():
                return self.fallbacks.always
            try:
                check_names()
                call = flatten_arguments(args, kwargs, self._containers_are_leaves)
                call.unread = unread(self.function, self.module, call)
                varies = self.dynamic is None
                marks = self._varying.marks(call.kind) if varies else self._marked(call)
                key = call_key(call, self.module, {} if varies else marks)
                general = call_key(call, self.module, marks) if marks and varies else key
                fallback = self.fallbacks.known(key) or self.fallbacks.known(general)
                is_crowded = fallback is not None and fallback.is_crowded
                for one in dict.fromkeys((key, general)):
                    if match := self.cache.find(one, call, unfit, is_crowded):
                        self.last = match[0]
                        return (*match, False)
                is_due = fallback is not None and fallback.is_due()
                if fallback is not None and not is_due:
                    return fallback
                reason = next(iter(unfit.values()), "") or self.cache.why_not(general, call)
                crowd = "" if unfit or is_due else self.cache.crowd(general, reason)
                if crowd:
                    return self._refused(Unsupported(crowd, splits=False), general).crowded()
                return self._compiled(call, key, marks, unfit, reason)
            except ContainerMatters:
                if self._containers_are_leaves:
                    text = "a function inside changes a container among its arguments"
                    return self._refused(Unsupported(text), key)
                self._containers_are_leaves = True
                return self._find(args, kwargs, unfit)
            except (Unsupported, DataDependent) as error:
                return self._refused(error, key)
            except Exception as error:
                is_refused = self.strict and isinstance(error, SwitchgearError)
                if is_refused or _is_for_eager(error) or is_of_the_function(error):
                    raise
                return self._refused(fault(error), key)

    def _compiled(
        self, call: Arguments, key: Key, marks: Marks, unfit: dict[Entry, str], reason: str
    ) -> _Found | Fallback:
        """Return a new entry."""
        if self.dynamic is None:
            marks = self._varying.notice(call, self.cache.entries())
        on_data = self.specialize_on_data
        if on_data is None and (
            len(unfit) >= _MOST_DATA or (self.hits <= len(unfit) and any(map(_is_for_few, unfit)))
        ):
            on_data = False  # the values seem to differ in each call
        drop = weakref.WeakMethod(self._drop)
        new = entry_by_parts(self.function, call, self.selection, self._rejit, drop)
        if new is None:
            options = self.selection, self._rejit, on_data, marks
            new = Entry(self.function, call, self.module, *options, drop=drop)
        if self._is_part and new.no_part:
            raise Unsupported(new.no_part)
        if new.fixed and self.dynamic is None:
            self._varying.give_up(call.kind)
        elif marks:
            key = call_key(call, self.module, marks)
            self._varying.decide(call.kind, new.decided())
        inputs = new.prologue(call.args, call.kwargs)
        if inputs is None:
            why = new.why_not(call)
            text = f"the program compiled for a call does not fit it ({why}); please report this"
            return self._refused(Unsupported(text), key)
        self.cache.add(key, new, reason)
        self.last = new
        return new, inputs, True

    def _drop(self, entry: Entry, fault: str = "") -> None:
        """Drop an entry, at any time. After a fault, later calls of its kind run in eager mode."""
        key = self.cache.drop(entry)
        if self.last is entry:
            self.last = None
        if fault and key is not None and not self.strict:
            self.fallbacks.add(Unsupported(fault, splits=False), key)

    def _marked(self, call: Arguments) -> Marks:
        """Return the dimensions that the option `dynamic` marks, and numbers passed to a TorchDynamo graph."""
        marks: Marks = {}
        if self.dynamic:
            marks = marked(self.dynamic, self._parameters, call.args, call.kwargs, call.leaves)
        if not self._is_part:
            return marks
        numbers = [place for place, leaf in enumerate(call.leaves) if type(leaf) is int]
        return {**marks, **{number_place(n): frozenset({0}) for n in numbers}}

    def _refused(self, error: Unsupported | DataDependent, key: object = None) -> Fallback:
        if self.strict:
            raise error
        return self.fallbacks.add(error, key)


def _is_for_eager(error: Exception) -> bool:
    """Check whether the original function may raise its own error in place of an error of the capture."""
    if isinstance(error, SwitchgearError):
        return isinstance(error, FailedAssertion)
    return is_of_the_function(error)


def _is_for_few(entry: Entry) -> bool:
    """Check whether few calls match the data of an entry: numbers, counts, or many booleans, as in a loop."""
    checks = [line for line in entry.captured.trace.bound_symbols if line.is_check]
    return len(checks) > _MOST_DATA or any(not isinstance(line.args[0], bool) for line in checks)

"""The executor's choice of operators, and the compiled regions that are alive."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

import switchgear as sg

from . import environment, loading
from .grad_rules import rules
from .variants import Compiled, Variants

#: Operators from a library called by Inductor: allowed in a region, but no reason for a region.
_EXTERN = frozenset(f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"))
#: Overloads known to have Inductor code without its import; so are pointwise operators of PyTorch's core set.
_SURE_NAMES = """
t.default embedding.default native_layer_norm.default native_group_norm.default _softmax.default _log_softmax.default
_native_batch_norm_legit_functional.default nll_loss_forward.default sum.default sum.dim_IntList mean.default mean.dim
view.default _unsafe_view.default expand.default permute.default unsqueeze.default slice.Tensor select.int
amax.default cat.default gather.default index.Tensor max_pool2d_with_indices.default avg_pool2d.default"""
_SURE = frozenset({*(f"{name}.default" for name in _EXTERN), *(f"aten.{name}" for name in _SURE_NAMES.split())})
#: Its fourth result is bytes for the backward; the decomposition invents them.
_KEEPING = "aten._batch_norm_with_update_functional.default"
#: Integer division by zero is an error in PyTorch, and ends the process in Inductor's code.
_DIVIDES = frozenset(f"aten.{name}" for name in ("div", "floor_divide", "remainder", "fmod"))


class InductorExecutor(sg.FusionExecutor):
    """Executor of regions through Inductor, on CPU and CUDA.

    Similar regions, as in repeated layers, are compiled once. The cache on disk serves other processes. A region of
    symbolic sizes is compiled in its first call, and again for sizes that break a decision of Inductor's.

    Args:
        name: the name of the executor.
        progress: show the progress of a long compilation, on a terminal by a bar and in a log by lines.
        **options: Inductor's own (`torch._inductor.config`), such as `max_autotune=True`; a name with a dot is passed
            as `**{"cpp.simdlen": 1}`.

    Raises:
        InvalidInput: Inductor has no such option.
    """

    runs_everywhere = True
    symbolic_sizes = True
    boxed = True
    #: Inductor's compile time grows faster than a region, and similar parts are compiled once.
    maximum = 256

    def __init__(self, name: str = "inductor", *, progress: bool = True, **options: Any) -> None:
        super().__init__(name, priority=-200, table=rules)
        if options:
            _check_options(options)
        self.options = options
        self.progress = progress
        self._alive: WeakValueDictionary[str, Callable[..., Any]] = WeakValueDictionary()
        self._failed: dict[str, sg.Declined] = {}
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self.name, progress=self.progress, **self.options), ()

    def unavailable(self) -> str | None:
        """Return why Inductor cannot run: it needs a working C++ compiler and a folder to write to."""
        return environment.fault()

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        """Accept the overloads for which Inductor generates code, or calls a library inside generated code."""
        if not bound_symbol.is_leaf:
            return sg.Declined("its operators are claimed one by one")
        if bound_symbol.is_random:
            return sg.Declined("it draws random numbers, and Inductor draws others than PyTorch")
        name = bound_symbol.symbol.name
        for proxy in (*bound_symbol.inputs, *bound_symbol.outputs):
            if proxy.device.type not in ("cpu", "cuda"):
                return sg.Declined(f"not on {proxy.device.type}")
            if proxy.dtype.is_complex or proxy.is_conj or proxy.is_neg:
                return sg.Declined("Inductor generates no code for complex numbers")
        kinds = [proxy.dtype.is_floating_point for proxy in bound_symbol.inputs]
        if name.rpartition(".")[0] in _DIVIDES and not any(kinds):
            return sg.Declined("integers divided by zero end the process")
        if name == _KEEPING and bound_symbol.outputs[3].shape != (0,):
            return sg.Declined("the tensor that cuDNN saves for its backward is made by its own kernel alone")
        if (names := loading.lowered()) is not None:
            is_lowered = str(bound_symbol.symbol.fn) in names
        elif _is_surely_lowered(bound_symbol.symbol.fn):
            is_lowered = True
        else:
            internals = _internals()
            if isinstance(internals, sg.Declined):
                return internals
            is_lowered = internals.is_lowered(bound_symbol.symbol.fn)
        return None if is_lowered else sg.Declined("Inductor would call PyTorch's own kernel")

    def supports_region(self, region: sg.Trace) -> sg.Declined | None:
        """Decline a region in which Inductor would generate code for fewer than two operators."""
        generated = [item for item in self.operators(region) if item.symbol.name.rpartition(".")[0] not in _EXTERN]
        if len(generated) < self.minimum:
            return sg.Declined(
                f"a region with code to generate for {len(generated)} operators, fewer than {self.minimum}"
            )
        return None

    def fingerprint(self) -> str:
        """Return Inductor's options, including process-wide changes; its version is PyTorch's."""
        return repr((sorted(self.options.items()), loading.changes()))

    def load(self, region: sg.Trace) -> Callable[..., Any] | None:
        """Return Inductor's code for a region from disk, or None."""
        key = region.canonical()
        with self._lock:
            code = self._alive.get(key) or self._stored_code(region, key)
            if code is not None:
                self._alive[key] = code
            return code

    def _stored_code(self, trace: sg.Trace, key: str) -> Callable[..., Any] | None:
        if loading.is_off():
            return None
        place = loading.place(key, loading.around(self.options, trace.devices))
        try:
            return self._recorded(trace, place, loading.records(place))
        except Exception:  # a record that fails, or has lost its files, is useless
            sg.disk_cache.drop(place)
            return None

    def _recorded(self, trace: sg.Trace, place: str, records: list[dict[str, Any]]) -> Callable[..., Any] | None:
        names = [number.name for number in trace.numbers]
        compiled = [entry for record in records if (entry := loading.loaded(record, names)) is not None]
        if trace.numbers:
            return Variants(None, trace.function(boxed=True), len(names), compiled) if compiled else None
        if not compiled and records and not isinstance(internals := _internals(), sg.Declined):
            compiled = [internals.restore(records[0], internals.Region(trace, place), self.options)]
        return compiled[0].run if compiled and compiled[0] is not None else None

    def compile_all(self, regions: Sequence[sg.Trace]) -> Sequence[Callable[..., Any] | sg.Declined]:
        """Compile regions in sequence, because Inductor compiles in a single thread.

        A failing region is left to others, with one warning.
        """
        with sg.executors.Progress(len(regions), self.name, is_shown=self.progress) as progress:
            return [progress.after(self._made_of(region)) for region in regions]

    def compile(self, region: sg.Trace) -> Callable[..., Any] | sg.Declined:
        """Return Inductor's code for one region."""
        return self.compile_all([region])[0]

    def _made_of(self, region: sg.Trace) -> Callable[..., Any] | sg.Declined:
        key = region.canonical()
        with self._lock:
            previous = self._alive.get(key) or self._failed.get(key)
            if previous is not None:
                return previous
            code = self._compile(region, key)
            if isinstance(code, sg.Declined):
                self._failed[key] = code
            else:
                self._alive[key] = code
            return code

    def _compile(self, trace: sg.Trace, key: str) -> Callable[..., Any] | sg.Declined:
        def compiled(sizes: Sequence[int]) -> Compiled:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                result: Compiled = _internals().compile_region(region, sizes, self.options)
                return result

        def or_pytorch(sizes: Sequence[int]) -> Compiled:
            try:
                return compiled(sizes)
            except Exception as error:
                self._warn(trace, "PyTorch runs instead", error)
                return Compiled(region.function(boxed=True))

        try:
            code = None if trace.numbers else self._stored_code(trace, key)
            if code is not None:
                return code
            internals = _internals()
            if isinstance(internals, sg.Declined):
                return internals
            around = loading.around(self.options, trace.devices)
            region = internals.Region(trace, None if internals.keeps_nothing() else loading.place(key, around))
            if trace.numbers:
                return Variants(or_pytorch, region.function(boxed=True), len(trace.numbers))
            return compiled(()).run
        except Exception as error:
            self._warn(trace, "is left to others", error)
            return sg.Declined(f"Inductor fails on its region: {_reason(error)}")

    def _warn(self, trace: sg.Trace, then: str, error: Exception) -> None:
        operators = ", ".join(dict.fromkeys(item.symbol.name for item in self.operators(trace)))
        warnings.warn(
            f"executor {self.name}: Inductor fails on a region, which {then} ({operators}): {_reason(error)}",
            sg.errors.PluginWarning,
            stacklevel=2,
        )


def _check_options(options: Iterable[str]) -> None:
    import torch._inductor  # noqa: PLC0415 - only who gives options needs it this early

    names = torch._inductor.list_options()
    for name in options:
        if name not in names:
            hint = sg.errors.did_you_mean(name, [*names, "progress"])
            raise sg.errors.InvalidInput(
                f"Inductor has no option {name}{hint} (progress=, and those that torch._inductor.list_options() lists)"
            )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _is_surely_lowered(fn: Any) -> bool:
    """Check whether every version of Inductor has code for an overload: the first call need not wait for its import."""
    return str(fn) in _SURE or {torch.Tag.core, torch.Tag.pointwise} <= {*getattr(fn, "tags", ())}


@functools.cache
def _internals() -> Any:
    """Return Inductor by its private names; `Declined`, after one warning, if a name is missing or fails to load."""
    try:
        with warnings.catch_warnings():
            # Inductor uses deprecated names of PyTorch, and causes FutureWarnings meant for users
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            from . import internals  # noqa: PLC0415 - importing Inductor takes seconds
    except Exception as error:
        reason = f"Inductor of PyTorch {torch.__version__} cannot be used: {_reason(error)}"
        warnings.warn(f"executor inductor takes nothing: {reason}", sg.errors.PluginWarning, stacklevel=2)
        return sg.Declined(reason)
    loading.keep_lowered(internals.lowered())
    return internals

"""Which operators Inductor takes, and the compiled regions that are alive."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

import switchgear as sg

from .progress import Progress
from .variants import Compiled, Variants

#: Run by a library that Inductor calls: they join a region, but make none worthwhile.
_EXTERN = frozenset(f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"))
#: An integer divided by zero is an error of PyTorch's, and the end of the process in Inductor's code.
_DIVIDES = frozenset(f"aten.{name}" for name in ("div", "floor_divide", "remainder", "fmod"))
_NAME = re.compile(r"\w+")


class InductorExecutor(sg.FusionExecutor):
    """Runs regions through Inductor, on CPU and CUDA.

    `options` are Inductor's own (`torch._inductor.config`), such as `{"max_autotune": True}`. A long compilation shows
    how far it is, on a terminal by a bar and in a log by lines; `progress=False` switches that off. Regions that are
    alike, in layers that repeat, are compiled once; Inductor's cache on disk serves other processes. One of symbolic
    sizes is compiled when it is first called, and once more for sizes that Inductor decided otherwise by.
    """

    symbolic_sizes = True

    def __init__(
        self, name: str = "inductor", *, options: Mapping[str, Any] | None = None, progress: bool = True
    ) -> None:
        super().__init__(name, priority=-200)
        self.options = dict(options or {})
        self.progress = progress
        self._alive: WeakValueDictionary[str, Callable[..., Any]] = WeakValueDictionary()
        self._failed: set[str] = set()
        self._lock = threading.RLock()

    def unavailable(self) -> str | None:
        """Inductor needs a C++ compiler, on every device."""
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            return f"no C++ compiler: {compiler} is not on the path; install one, or name it in the variable CXX"
        return None

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        """Take the overloads that Inductor generates code for, or calls a library for inside that code."""
        if not bound_symbol.is_leaf:
            return sg.Declined("its leaves are taken, one by one")
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
        known = _internals().is_lowered(bound_symbol.symbol.fn)
        return None if known else sg.Declined("Inductor would call PyTorch's own kernel")

    def supports_region(self, region: sg.Trace) -> sg.Declined | None:
        """Decline a region in which Inductor would generate code for less than two operators."""
        generated = [item for item in self.operators(region) if item.symbol.name.rpartition(".")[0] not in _EXTERN]
        if len(generated) < self.minimum:
            return sg.Declined(
                f"a region with code to generate for {len(generated)} operators, fewer than {self.minimum}"
            )
        return None

    def compile_all(self, regions: Sequence[sg.Trace]) -> Sequence[Callable[..., Any]]:
        """What `compile` makes of each region, one after another, for Inductor compiles in one thread."""
        with Progress(len(regions), self.name, shown=self.progress) as progress:
            return [progress.after(self.compile(region)) for region in regions]

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        """Inductor's code for a region; where it fails, PyTorch runs the region's operators, with one warning."""
        key = _structure(region)
        with self._lock:
            function = self._alive.get(key)
            if function is None:
                function = self._alive[key] = self._compile(region, key)
            return function

    def _compile(self, trace: sg.Trace, key: str) -> Callable[..., Any]:
        if key in self._failed:
            return trace.function()
        region = _internals().Region(trace)
        operators = ", ".join(dict.fromkeys(item.symbol.name for item in self.operators(trace)))

        def compiled(sizes: Sequence[int]) -> Compiled:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                try:
                    made: Compiled = _internals().compile_region(region, sizes, self.options)
                    return made
                except Exception as error:
                    self._failed.add(key)
                    warnings.warn(
                        f"executor {self.name}: Inductor fails on a region, which PyTorch runs instead ({operators}): "
                        f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
                        sg.errors.PluginWarning,
                        stacklevel=2,
                    )
                    return Compiled(region.function)

        return Variants(compiled, region.function, len(trace.numbers)) if trace.numbers else compiled(()).run


@functools.cache
def _internals() -> Any:
    with warnings.catch_warnings():
        # Inductor uses what PyTorch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        from . import internals  # noqa: PLC0415 - importing Inductor takes seconds
    return internals


def _structure(region: sg.Trace) -> str:
    """What regions have in common for which Inductor generates the same code."""
    numbers: dict[str, int] = {}
    sizes = {number.name: f"size{index}" for index, number in enumerate(region.numbers)}

    def plain(value: Any) -> Any:
        if isinstance(value, sg.TensorProxy):
            known = value.name in numbers
            number = numbers.setdefault(value.name, len(numbers))
            layout = plain((value.shape, value.stride))
            return f"%{number}" if known else (f"%{number}", value.dtype, value.device, layout)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return _NAME.sub(lambda name: sizes.get(name[0], name[0]), _internals().python(value))
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        return {key: plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    lines = [
        (item.symbol.name, plain(item.args), plain(item.kwargs), plain(item.output)) for item in region.bound_symbols
    ]
    return repr((len(sizes), plain(region.inputs), lines, plain(region.outputs)))

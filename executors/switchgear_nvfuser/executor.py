"""Which operators and regions nvFuser takes, and the definitions that are alive."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch

import switchgear as sg

from .availability import inexecutable
from .definition import Definition
from .execution import Fused, fused
from .grad_rules import rules
from .lowering import define, lowered
from .translation import Untranslatable

#: Makes of a definition what runs it: a function of the tensors, in order, that returns a list of them.
Runner: TypeAlias = Callable[[Definition], Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]]


class NvfuserExecutor(sg.FusionExecutor):
    """Runs regions of pointwise operators, reductions, norms, views and indexing as kernels of nvFuser's.

    A definition is for any sizes, as far as no operator of its region spells them, so that other sizes run what is
    compiled; `static_sizes=True` makes one for each. With a `runner`, nothing is executed on a GPU: the executor takes
    tensors of the CPU too, and gives what it would define to the runner, so that claiming, regions and definitions can
    be looked at, and replayed, anywhere.
    """

    def __init__(self, *, static_sizes: bool = False, runner: Runner | None = None) -> None:
        super().__init__("nvfuser", priority=-150, table=rules)
        self.static_sizes = static_sizes
        self.runner = runner
        self._alive: WeakValueDictionary[Any, Fused] = WeakValueDictionary()
        self._lock = threading.RLock()

    def unavailable(self) -> str | None:
        """Whether nvFuser is installed, loads into this PyTorch, and has a device to execute on."""
        return inexecutable() if self.runner is None else None

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        """Take what is translated, as it is or by PyTorch's decomposition, and means there what it means here."""
        if not bound_symbol.is_leaf:
            return sg.Declined("its leaves are taken, one by one")
        if bound_symbol.is_random:
            return sg.Declined("it draws random numbers, and nvFuser draws others than PyTorch")
        for proxy in (*bound_symbol.inputs, *bound_symbol.outputs):
            if proxy.device.type != "cuda" and (self.runner is None or proxy.device.type != "cpu"):
                return sg.Declined(f"a tensor on {proxy.device.type}, where nvFuser runs nothing")
        try:
            lowered(bound_symbol)
        except Untranslatable as reason:
            return sg.Declined(str(reason))
        return None

    def supports_region(self, region: sg.Trace) -> sg.Declined | None:
        """Decline a region of views alone, and one of a single operator, which starts faster by itself."""
        if not self.operators(region):
            return sg.Declined("a region of views alone")
        return super().supports_region(region)

    def fingerprint(self) -> str:
        """Whether definitions are for static sizes."""
        return f"static_sizes={self.static_sizes}"

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        """nvFuser's kernels for a region; where it fails, PyTorch runs the region's operators, with one warning."""
        try:
            return _Region(region, self._fused(self.definition(region)))
        except (RuntimeError, TypeError, ValueError, sg.errors.SwitchgearError) as error:
            return _left_to_pytorch(region, error)

    def definition(self, region: sg.Trace) -> Definition:
        """What is defined for a region."""
        calls = tuple([call for item in region.bound_symbols for call in lowered(item)])
        return define(replace(region, bound_symbols=calls), static=self.static_sizes)

    def _fused(self, definition: Definition) -> Fused:
        key = definition.key
        with self._lock:
            found = self._alive.get(key)
            if found is None:
                run = self.runner(definition) if self.runner else fused(definition)
                found = self._alive[key] = Fused(run)
            return found


class _Region:
    """What runs a region: it gives fresh tensors in their proxies' strides, whatever comes out of the fusion."""

    def __init__(self, region: sg.Trace, fused: Fused) -> None:
        self.region = region
        self.fused = fused
        self.strides = [proxy.stride for proxy in region.outputs if proxy is not None]
        self.others: Callable[..., Any] | None = None
        #: The outputs that are copied; found out by the first call, for layouts and kernels are then settled.
        self.copied: list[int] | None = None

    def __call__(self, *args: torch.Tensor) -> Any:
        if self.others is not None:
            return self.others(*args)
        if self.copied is None:
            return self._first(args)
        results = self.fused.run(args)
        return self._laid_out(list(results)) if self.copied else results

    def _first(self, args: tuple[torch.Tensor, ...]) -> Any:
        try:
            results = list(self.fused.run(args))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.others = _left_to_pytorch(self.region, error)
            return self.others(*args)
        taken = {arg.untyped_storage().data_ptr() for arg in args}
        copied = []
        for index, (value, stride) in enumerate(zip(results, self.strides, strict=True)):
            memory = value.untyped_storage().data_ptr()
            if memory in taken or value.stride() != stride:
                copied.append(index)
            taken.add(memory)
        self.copied = copied
        return self._laid_out(results)

    def _laid_out(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        for index in self.copied or ():
            value = results[index]
            fresh = torch.empty_strided(value.shape, self.strides[index], dtype=value.dtype, device=value.device)
            results[index] = fresh.copy_(value)
        return results


def _left_to_pytorch(region: sg.Trace, error: Exception) -> Callable[..., Any]:
    operators = ", ".join(dict.fromkeys(item.symbol.name for item in region.bound_symbols))
    text = str(error).strip().splitlines()
    warnings.warn(
        f"executor nvfuser: nvFuser fails on a region, which PyTorch runs instead ({operators}): "
        f"{type(error).__name__}: {text[0] if text else ''}",
        sg.errors.PluginWarning,
        stacklevel=3,
    )
    return region.function()

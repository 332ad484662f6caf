"""The executor's choice of operators and regions, and the definitions that are alive."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch

import switchgear as sg

from .availability import inexecutable, installed_version
from .definition import Definition
from .execution import Fused, fused
from .grad_rules import rules
from .internals import laid_out
from .lowering import define, lowered
from .translation import Untranslatable

#: Errors that are not failures of a region: too little memory, and an error of the device.
_OUT_OF_HAND = (torch.OutOfMemoryError, torch.AcceleratorError)
#: Function from a definition to its runner: a function of the tensors, in order, that returns a list of tensors.
Runner: TypeAlias = Callable[[Definition], Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]]


class NvfuserExecutor(sg.FusionExecutor):
    """Executor of pointwise operators, reductions, norms, views and indexing, in regions run by nvFuser.

    A definition serves any sizes, unless an operator of its region contains them.

    Args:
        static_sizes: make one definition for each combination of sizes.
        runner: runs definitions in place of nvFuser. The executor then accepts CPU tensors too. Claiming, regions and
            definitions can be inspected and replayed on any machine.
    """

    def __init__(self, *, static_sizes: bool = False, runner: Runner | None = None) -> None:
        super().__init__("nvfuser", priority=-150, table=rules)
        self.static_sizes = static_sizes
        self.runner = runner
        self._alive: WeakValueDictionary[Any, Fused] = WeakValueDictionary()
        self._lock = threading.RLock()

    def unavailable(self) -> str | None:
        """Return why nvFuser cannot run: it is not installed, does not load into this PyTorch, or has no device."""
        return inexecutable() if self.runner is None else None

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        """Accept operators translated with PyTorch's meaning, directly or by PyTorch's decomposition."""
        if not bound_symbol.is_leaf:
            return sg.Declined("its operators are claimed one by one")
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
        """Decline a region of views alone, and a region of a single operator, which starts faster by itself."""
        if not self.operators(region):
            return sg.Declined("a region of views alone")
        return super().supports_region(region)

    def fingerprint(self) -> str:
        """Return whether definitions are for static sizes, and nvFuser's version."""
        return f"static_sizes={self.static_sizes}, {installed_version()}"

    def compile(self, region: sg.Trace) -> Callable[..., Any] | sg.Declined:
        """Return nvFuser's kernels for a region. A failing region is left to others, with one warning.

        nvFuser compiles, and may fail, in its first run, so the region runs once on tensors of zeros.
        """
        try:
            kernels = _Region(region, self._fused(self.definition(region)))
            kernels(*[laid_out(proxy).zero_() for proxy in region.inputs])
        except torch.AcceleratorError:
            raise
        except (RuntimeError, TypeError, ValueError, sg.errors.SwitchgearError) as error:
            reason = _warn(region, "is left to others", error)
            return sg.Declined(f"nvFuser fails on its region: {reason}")
        return kernels

    def definition(self, region: sg.Trace) -> Definition:
        """Translate a region.

        Args:
            region: calls that the executor supports.

        Returns:
            The definition of the region.

        Raises:
            Untranslatable: a call has no translation.
        """
        calls = tuple([call for item in region.bound_symbols for call in lowered(item)])
        return define(replace(region, bound_symbols=calls), static=self.static_sizes)

    def _fused(self, definition: Definition) -> Fused:
        key = definition.key
        with self._lock:
            entry = self._alive.get(key)
            if entry is None:
                run = self.runner(definition) if self.runner else fused(definition)
                entry = self._alive[key] = Fused(run)
            return entry


class _Region:
    """Callable that runs a region and returns fresh tensors in their proxies' strides, whatever the fusion returns."""

    def __init__(self, region: sg.Trace, fused: Fused) -> None:
        self.region = region
        self.fused = fused
        self.strides = [proxy.stride for proxy in region.outputs if proxy is not None]
        #: The substitute for nvFuser after a failure.
        self.others: Callable[..., Any] | None = None
        #: The outputs to copy; determined by the first call, when layouts and kernels are settled.
        self.copied: list[int] | None = None

    def __call__(self, *args: torch.Tensor) -> Any:
        if self.others is not None:
            return self.others(*args)
        try:
            results = self.fused.run(args)
        except _OUT_OF_HAND:
            raise
        except RuntimeError as error:
            if self.copied is None:
                raise
            # a new compilation, for other alignments or sizes
            _warn(self.region, "PyTorch runs instead", error)
            self.others = self.region.function()
            return self.others(*args)
        if self.copied is None:
            self.copied = self._to_copy(args, results)
        return self._laid_out(list(results)) if self.copied else results

    def _to_copy(self, args: tuple[torch.Tensor, ...], results: Sequence[torch.Tensor]) -> list[int]:
        memories = {arg.untyped_storage().data_ptr() for arg in args}
        copied = []
        for index, (value, stride) in enumerate(zip(results, self.strides, strict=True)):
            memory = value.untyped_storage().data_ptr()
            if memory in memories or value.stride() != stride:
                copied.append(index)
            memories.add(memory)
        return copied

    def _laid_out(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        for index in self.copied or ():
            value = results[index]
            copy = torch.empty_strided(value.shape, self.strides[index], dtype=value.dtype, device=value.device)
            results[index] = copy.copy_(value)
        return results


def _warn(region: sg.Trace, then: str, error: Exception) -> str:
    """Warn that nvFuser fails on a region, with the consequence; return the reason."""
    operators = ", ".join(dict.fromkeys(item.symbol.name for item in region.bound_symbols))
    text = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {text[0] if text else ''}"
    warnings.warn(
        f"executor nvfuser: nvFuser fails on a region, which {then} ({operators}): {reason}",
        sg.errors.PluginWarning,
        stacklevel=3,
    )
    return reason

"""An entry: one compiled specialisation of a jitted function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import Captured, capture, compiling
from switchgear.composites import leaves_of
from switchgear.errors import InvalidInput
from switchgear.passes.pipeline import Program, compile_forward, compile_training, expected_grad, prepare
from switchgear.selection import Selection
from switchgear.signature import Argument, Closure, InputSource
from switchgear.structure import Structure

from .autograd_bridge import Bridge
from .epilogue import make_epilogue
from .execution import run_program
from .modes import modes_guard
from .module_state import module_guard
from .prologue import make_prologue


class Entry:
    """A captured call, compiled; `prologue` says whether it fits another call, `run` runs it."""

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        spec: Structure,
        module: torch.nn.Module | None,
        selection: Selection,
    ) -> None:
        with compiling():
            self.captured: Captured = capture(function, leaves, spec, module)
            with torch.no_grad():
                self._compile(selection)
        tensors = [_tensor(source, leaves) for source in self.captured.sources]
        self.prologue = make_prologue(leaves, spec, self.captured, tensors, _state_guard(self.captured.modules))
        self._epilogue = make_epilogue(self.captured.returned, self.captured.spec, self.captured.mutations)
        self._fits = self._alias_check(tensors)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the inputs alias each other as they did at capture, as far as the trace depends on it."""
        return self._fits is None or self._fits(inputs)

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """What the function returns for these inputs, as `prologue` gives them."""
        if self.bridge is not None:
            outputs = self.bridge(inputs)
        elif self._hides_autograd:
            with torch.no_grad():
                outputs = run_program(self.forward, inputs)
        else:
            outputs = run_program(self.forward, inputs)
        return self._epilogue(outputs, inputs)

    def _compile(self, selection: Selection) -> None:
        trace = self.captured.trace
        stages = prepare(trace, selection)
        grad_outputs = tuple(None if proxy is None else expected_grad(proxy) for proxy in stages[-1].outputs)
        self.bridge: Bridge | None = None
        self._hides_autograd = self.captured.grad_enabled and any(proxy.requires_grad for proxy in trace.inputs)
        if not any(grad_outputs):
            self.forward: Program = compile_forward(stages, selection)
            return
        overwritten = frozenset(trace.inputs[mutation.input].name for mutation in self.captured.mutations)
        training = compile_training(stages, selection, grad_outputs, overwritten)
        self.forward = training.forward
        self.bridge = Bridge(training, selection)

    def _alias_check(self, tensors: list[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], bool] | None:
        checks: list[Callable[[Sequence[torch.Tensor]], bool]] = []
        written = tuple(mutation.input for mutation in self.captured.mutations)
        if written:
            leaves = tuple(tensor.is_leaf for tensor in tensors)
            checks.append(lambda inputs: _unshared(written, inputs))
            checks.append(lambda inputs: tuple(tensor.is_leaf for tensor in inputs) == leaves)
        if any(item.symbol.name.startswith("aten.as_strided") for item in leaves_of(self.captured.trace.bound_symbols)):
            offsets = tuple(tensor.storage_offset() for tensor in tensors)
            checks.append(lambda inputs: tuple(tensor.storage_offset() for tensor in inputs) == offsets)
        if not checks:
            return None
        return lambda inputs: all(check(inputs) for check in checks)


def _tensor(source: InputSource, leaves: list[Any]) -> torch.Tensor:
    if isinstance(source, Argument):
        return leaves[source.index]  # type: ignore[no-any-return]
    if isinstance(source, Closure):
        return source.tensor
    tensor = source.fetch()
    if tensor is None:
        raise InvalidInput(f"{source.path} vanished from its module while it was captured")
    return tensor


def _unshared(written: tuple[int, ...], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether no other input shares storage with one that is written to."""
    storages = [internals.storage_key(tensor) for tensor in inputs]
    return all(storages.count(storages[index]) == 1 for index in written)


def _state_guard(modules: tuple[torch.nn.Module, ...]) -> Callable[[], bool]:
    same_modes = modes_guard()
    if not modules:
        return same_modes
    guards = [module_guard(module) for module in modules]
    return lambda: same_modes() and all(same() for same in guards)

"""Sources: the origins of the inputs of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.trace import Names
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.shared_memory import Home
from switchgear_core.record.signature import (
    Argument,
    Base,
    Closure,
    Held,
    HeldNumber,
    InputSource,
    OwnSource,
    Part,
    can_vary,
    check_tensor,
)
from switchgear_core.record.sizes import Marks, Sizes
from switchgear_core.record.values import metadata_proxy
from switchgear_frontend.floats import Float
from switchgear_frontend.modules import Modules


class Sources:
    """Names and origins of the trace's inputs, in the order of first use.

    `homes` are the bases of inputs that share memory, by storage.
    """

    def __init__(
        self,
        names: Names,
        modules: Modules,
        differentiable: frozenset[int] | None,
        homes: Mapping[int, Home],
        sizes: Sizes | None,
        marks: Marks,
        handlers: Handlers,
    ) -> None:
        self.handlers = handlers
        self.sizes = sizes
        self.marks = marks
        self.names = names
        self.modules = modules
        self.differentiable = differentiable
        self.homes = homes
        self.sources: list[InputSource] = []

    def argument(self, recorder: Recorder, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the wrapper of the argument at position `index` of the flattened arguments."""
        requires_grad = (
            tensor.requires_grad if self.differentiable is None else index in self.differentiable
        )
        return self._enter(recorder, tensor, Argument(index), f"t_{index}", requires_grad)

    def number(self, recorder: Recorder, index: int, value: object) -> Any:
        """Return a number among the flattened arguments, or a symbolic number if it varies."""
        source = HeldNumber.argument(index)
        if source.place not in self.marks or not can_vary(value) or self.sizes is None:
            return value
        self.sizes.has_arguments = True
        with internals.DisableTorchFunction():
            with internals.real_dispatch():
                tensor = source.fetch(value)
            wrapper = self._enter(recorder, tensor, source, f"t_{index}", False)
        if type(value) is float:
            self.sizes.has_floats = True
            return Float(wrapper)
        entered = recorder.inputs.of(tensor)
        return value if entered is None else entered.proxy.shape[0]

    def outside(self, recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
        """Return the wrapper of a tensor outside the arguments: module state, or closed over."""
        if not internals.is_wrapper(tensor):
            check_tensor(tensor, "a tensor that the function closes over")
        source = self.origin(recorder, tensor)
        name = f"closure_{len(self.sources)}" if isinstance(source, Closure) else str(source)
        return self._enter(recorder, tensor, source, f"t_{name}", tensor.requires_grad)

    def origin(self, recorder: Recorder, tensor: torch.Tensor) -> OwnSource:
        """Return the source of a tensor that is no argument."""
        state = self.modules.state.get(id(tensor))
        if state is not None:
            return state
        source = self.handlers.source(recorder, tensor)
        return source if isinstance(source, Held | Part) else Closure(tensor)

    def _enter(
        self,
        recorder: Recorder,
        tensor: torch.Tensor,
        source: OwnSource,
        name: str,
        requires_grad: bool,
    ) -> torch.Tensor:
        owner = self.homes.get(internals.storage_key(tensor)) if self.homes else None
        view = None
        if owner is not None and not (owner.wrapper is None and tensor is owner.tensor):
            if owner.wrapper is None:
                base = Base(owner.source)
                proxy = self._proxy(owner.tensor, base, f"{name}_base", owner.tensor.requires_grad)
                owner.wrapper = recorder.enter(owner.tensor, proxy)
            view = owner.view(tensor)
        wrapper = recorder.enter(tensor, self._proxy(tensor, source, name, requires_grad), view)
        if owner is not None and tensor is owner.tensor:
            owner.wrapper = wrapper
        return wrapper

    def _proxy(
        self, tensor: torch.Tensor, source: InputSource, name: str, requires_grad: bool
    ) -> TensorProxy:
        self.sources.append(source)
        proxy = metadata_proxy(self.names.claim(name), tensor, requires_grad)
        dims = self.marks.get(source.place) if isinstance(source, (Argument, Held)) else None
        # an input that shares memory with a written input becomes its view, by numbers
        if self.sizes is None or not dims or internals.storage_key(tensor) in self.homes:
            return proxy
        shape, stride = self.sizes.layout(proxy.name, tensor, dims)
        return replace(proxy, shape=shape, stride=stride)

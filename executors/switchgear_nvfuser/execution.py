"""Execution of definitions by nvFuser's own objects, created in their first run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .availability import load
from .definition import DTYPES, Definition

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class Fused:
    """Runner of a definition, shared by similar regions."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run


def types(nvfuser: Any) -> Mapping[torch.dtype, Any]:
    """Return nvFuser's dtypes."""
    return {dtype: getattr(nvfuser.DataType, name) for dtype, name in DTYPES.items()}


def fusion(definition: Definition) -> Any:
    """Return an nvFuser `FusionDefinition`."""
    nvfuser = load()
    fault: Exception | None = None
    with nvfuser.FusionDefinition() as program:
        # nvFuser would also print an exception raised here
        try:
            definition.define(program, types(nvfuser))
        except Exception as error:
            fault = error
    if fault is not None:
        raise fault
    return program


def fused(definition: Definition) -> Run:
    """Return nvFuser's own execution, on the device of the tensors; new sizes may compile other kernels."""
    program = fusion(definition)
    device = definition.device
    return lambda args: program.execute(list(args), **({} if device is None else {"device": device.index or 0}))

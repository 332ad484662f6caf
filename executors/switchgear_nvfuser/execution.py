"""Definitions at work: nvFuser's own objects, made when they first run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .availability import load
from .definition import DTYPES, Definition

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class Fused:
    """What runs a definition; regions that are alike share one."""

    __slots__ = ("__weakref__", "run")

    def __init__(self, run: Run) -> None:
        self.run = run


def types(nvfuser: Any) -> Mapping[torch.dtype, Any]:
    """nvFuser's dtypes."""
    return {dtype: getattr(nvfuser.DataType, name) for dtype, name in DTYPES.items()}


def fusion(definition: Definition) -> Any:
    """An nvFuser `FusionDefinition`."""
    nvfuser = load()
    fault: Exception | None = None
    with nvfuser.FusionDefinition() as made:
        # raised in here, nvFuser would print it too
        try:
            definition.define(made, types(nvfuser))
        except Exception as error:
            fault = error
    if fault is not None:
        raise fault
    return made


def fused(definition: Definition) -> Run:
    """nvFuser's own execution, on the device of the tensors; sizes that are new to it may compile other kernels."""
    made = fusion(definition)
    device = definition.device
    return lambda args: made.execute(list(args), **({} if device is None else {"device": device.index or 0}))

"""Calls under capture: of a torch-level function, and of an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear_core.ir.symbol import BoundSymbol, Symbol
from switchgear_core.torch_private import OpOverload


@dataclass(slots=True, eq=False)
class Call:
    """Call of a torch-level function during its recording.

    Attributes:
        fn: the function.
        args: its arguments by position, with wrappers for tensors.
        kwargs: its arguments by name.
        symbol: the symbol of the resulting composite, None for an unrecorded call.
        operands: arguments by position and by name, with proxies for tensors.
        lines: bound symbols recorded inside the call.
        before: bound symbols recorded inside that stay in front of the composite.
        output: result, with proxies for tensors.
        grad_enabled: whether the call is made in grad mode.
        wrote: whether the call wrote to an argument.
        is_unit: whether its lines become a single composite.
        writes: whether the function writes to its first argument, or to `out`.
        out: the tensor passed as `out=`.
        generator: the generator of a drawing operator; the call itself runs without a generator.
    """

    fn: Callable[..., Any] | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    symbol: Symbol | None = None
    operands: tuple[Any, Any] = ((), {})
    lines: list[BoundSymbol] = field(default_factory=list)
    before: list[BoundSymbol] = field(default_factory=list)
    output: Any = None
    grad_enabled: bool = False
    wrote: bool = False
    is_unit: bool = True
    writes: bool = False
    out: torch.Tensor | None = None
    generator: torch.Generator | None = None


@dataclass(slots=True, eq=False)
class Operation:
    """Call of an operator overload on fake tensors.

    Attributes:
        func: the overload.
        args: its arguments by position.
        kwargs: its arguments by name.
    """

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

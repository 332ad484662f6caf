"""One call under capture, of a torch-level function or of an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear.ir.symbol import BoundSymbol, Symbol
from switchgear.torch_private import OpOverload


@dataclass(slots=True, eq=False)
class Call:
    """One call of a torch-level function, as long as it is open.

    `given` are its arguments as a trace holds them, positional and by name; `lines` its parts, as recorded; `before`
    what stays outside of the composite that these become if it is `whole`. `wrote`: to one of its arguments.
    """

    fn: Callable[..., Any] | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    symbol: Symbol | None = None
    given: tuple[Any, Any] = ((), {})
    lines: list[BoundSymbol] = field(default_factory=list)
    before: list[BoundSymbol] = field(default_factory=list)
    output: Any = None
    grad_enabled: bool = False
    wrote: bool = False
    whole: bool = True
    #: Whether it writes to its first argument, or to `out` if that is given.
    writes: bool = False
    out: torch.Tensor | None = None
    #: What the operator that draws is recorded with, where the call itself is made without it.
    generator: torch.Generator | None = None


@dataclass(slots=True, eq=False)
class Operation:
    """One call of an operator overload, on fakes."""

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

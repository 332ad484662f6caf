"""A region of symbolic sizes, and what was compiled for which of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import switchgear as sg

#: How often a region is compiled.
LIMIT = 8


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a region: `run` takes a list of numbers and inputs, which it empties.

    `holds` says for which numbers, None for any.
    """

    run: Callable[..., Any]
    holds: Callable[..., bool] | None = None


class Variants:
    """Runs a region by the first of what was compiled for it that holds for the `count` numbers of a call.

    Where none does, `compile` makes another for these numbers; without it, and once there are `LIMIT`, PyTorch's
    `function` runs it.
    """

    def __init__(
        self,
        compile: Callable[[Sequence[int]], Compiled] | None,
        function: Callable[..., Any],
        count: int,
        compiled: Sequence[Compiled] = (),
    ) -> None:
        self._compiled = [*compiled]
        self._compile = compile
        self._function = function
        self._count = count

    def __call__(self, args: list[Any]) -> Any:
        """The region's outputs for a list of numbers and inputs, which is emptied."""
        numbers = args[: self._count]
        for one in self._compiled:
            if one.holds is None or one.holds(*numbers):
                return self._run(one, args)
        if self._compile is None:
            return self._function(args)
        self._compiled.append(self._another(numbers, self._compile))
        return self._run(self._compiled[-1], args)

    def _run(self, compiled: Compiled, args: list[Any]) -> Any:
        given = [*args]
        try:
            return compiled.run(args)
        except AssertionError:  # a tensor has other strides than the trace says, which Inductor's code does not read
            return self._function(given)

    def _another(self, numbers: Sequence[int], compile: Callable[[Sequence[int]], Compiled]) -> Compiled:
        if len(self._compiled) < LIMIT:
            return compile(numbers)
        warnings.warn(
            f"Inductor compiled a region {LIMIT} times, each time for some sizes only; PyTorch runs it for all others",
            sg.errors.PluginWarning,
            stacklevel=3,
        )
        return Compiled(self._function)

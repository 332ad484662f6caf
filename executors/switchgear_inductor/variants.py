"""Variants of a region of symbolic sizes, each compiled for some sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import switchgear as sg

#: Maximal number of compilations of a region.
LIMIT = 8


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled region: `run` takes a list of numbers and inputs, and empties it.

    `holds` is the condition on the numbers, None for any.
    """

    run: Callable[..., Any]
    holds: Callable[..., bool] | None = None


class Variants:
    """Callable that runs a region by its first variant valid for the `count` numbers of a call.

    Without a valid variant, `compile` makes another for these numbers. Without `compile`, or after `LIMIT` variants,
    PyTorch's `function` runs the region.
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
        """Return the region's outputs for a list of numbers and inputs, which is emptied."""
        numbers = args[: self._count]
        for candidate in self._compiled:
            if candidate.holds is None or candidate.holds(*numbers):
                return self._run(candidate, args)
        if self._compile is None:
            return self._function(args)
        self._compiled.append(self._another(numbers, self._compile))
        return self._run(self._compiled[-1], args)

    def _run(self, compiled: Compiled, args: list[Any]) -> Any:
        arguments = [*args]
        try:
            return compiled.run(args)
        except AssertionError:  # strides differ from the trace, and Inductor's code does not read them
            return self._function(arguments)

    def _another(self, numbers: Sequence[int], compile: Callable[[Sequence[int]], Compiled]) -> Compiled:
        if len(self._compiled) < LIMIT:
            return compile(numbers)
        warnings.warn(
            f"Inductor compiled a region {LIMIT} times, each time for some sizes only; PyTorch runs it for all others",
            sg.errors.PluginWarning,
            stacklevel=3,
        )
        return Compiled(self._function)

"""Executors, which run bound symbols."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from switchgear_core.errors import InvalidInput, RegistrationError, did_you_mean
from switchgear_core.ir.aliasing import aliased_argument
from switchgear_core.ir.choice import Declined, Implementation
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.registry import ImplementationEntry, Table, checked_owner


class Executor:
    """Named owner of implementations. Instantiate it with a table, or subclass it to decide in code.

    Args:
        name: the name that users list.
        priority: without an explicit list, higher values are asked first, equal values by name. By default fusion
            executors come before others of priority 0 and less.
        version: shown in messages; by default the version of the plugin's package.
        table: implementations and grad rules of an executor that no plugin registers.

    Attributes:
        runs_everywhere: whether a failure to run is unexpected, so that a default call warns once.
        is_exact: whether results are bit-identical to PyTorch's; other executors compute nothing that decides a branch.
    """

    runs_everywhere = False
    is_exact = False

    def __init__(
        self,
        name: str,
        *,
        priority: int = 0,
        version: str | None = None,
        table: Table | None = None,
    ) -> None:
        self.name = checked_owner(name)
        self.priority = priority
        self.version = version
        self.table = table
        if table is not None and table.owner != name:
            raise RegistrationError(
                f"executor {name} gets a table that belongs to {table.owner}; use Table({name!r})"
            )

    def configured(self, options: Mapping[str, Any]) -> Executor:
        """Make an executor of the same class with options: `type(self)(**options)`.

        Called by `sg.jit(options={name: ...})`. Options are the keyword-only parameters of the class's own `__init__`.
        Override the method in a class with another constructor.

        Args:
            options: values by the names of parameters.

        Returns:
            The new executor; this one without options.

        Raises:
            InvalidInput: there is no such option.
        """
        if not options:
            return self
        kind = type(self)
        has_own = kind.__init__ is not Executor.__init__
        items = inspect.signature(kind).parameters.values() if has_own else ()
        names = [item.name for item in items if item.kind is item.KEYWORD_ONLY]
        takes_any = any(item.kind is item.VAR_KEYWORD for item in items)
        unknown = [name for name in options if name not in names]
        if unknown and not takes_any:
            listing = (
                f"its options are {', '.join(names)}" if names else "it has none: leave them out"
            )
            hint = did_you_mean(unknown[0], names) or f"; {listing}"
            raise InvalidInput(f"executor {self.name} has no option {', '.join(unknown)}{hint}")
        return kind(**options)

    def unavailable(self) -> str | None:
        """Return the reason why the executor cannot run here, such as a missing device, or None."""
        return None

    def limited(self) -> str | None:
        """Return a restriction, such as a missing device, of an executor that can run, or None."""
        return None

    def claim(
        self, bound_symbol: BoundSymbol, entry: ImplementationEntry | None
    ) -> Implementation | Declined:
        """Claim a bound symbol, or decline it.

        Args:
            bound_symbol: the call.
            entry: the registration of the executor for the symbol; None if there is none.

        Returns:
            The implementation that runs the call, or `Declined` with the reason.
        """
        if entry is None:
            return Declined(f"no implementation of {bound_symbol.symbol.name}")
        return entry.declined(bound_symbol) or Implementation(self.name, entry.fn)

    def is_constant_for_vjp(self, bound_symbol: BoundSymbol) -> bool | None:
        """Decide whether a call is excluded from differentiation.

        Args:
            bound_symbol: the call.

        Returns:
            True makes the call a constant, False keeps the call, None passes the question to the next rule.
        """
        return None

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version={self.version!r}"
        return f"{type(self).__name__}({self.name!r}, priority={self.priority}{version})"


class FusionExecutor(Executor):
    """Executor that compiles regions: supported bound symbols, grouped into convex regions.

    A region of fewer than `minimum` operators, without views, goes to the other executors. A region of more than
    `maximum` is cut where the fewest bytes cross.

    Calls with symbolic sizes are offered only with `symbolic_sizes`. Layouts and arguments then hold symbolic numbers,
    made of sizes that are the region's `numbers`.

    A `boxed` executor's compiled function takes numbers and inputs in a list, and empties the list. An input without
    a later reader is then freed after its last use in the region.
    """

    minimum = 2
    maximum = sys.maxsize
    symbolic_sizes = False
    boxed = False

    def supports(self, bound_symbol: BoundSymbol) -> Declined | None:
        """Decide whether a call can be part of a region.

        Args:
            bound_symbol: the call.

        Returns:
            None if it can; else `Declined` with the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say which operators it supports")

    def supports_region(self, region: Trace) -> Declined | None:
        """Decide whether a region is worth compiling.

        Args:
            region: the operators, in order.

        Returns:
            None if it is; else `Declined` with the reason.
        """
        count = len(self.operators(region))
        return (
            Declined(f"a region of {count} operators, fewer than {self.minimum}")
            if count < self.minimum
            else None
        )

    @staticmethod
    def operators(region: Trace) -> tuple[BoundSymbol, ...]:
        """List the bound symbols of a region other than views.

        Args:
            region: the operators, in order.

        Returns:
            The bound symbols, in order.
        """
        return tuple([item for item in region.bound_symbols if aliased_argument(item) is None])

    def compile(self, region: Trace) -> Callable[..., Any] | Declined:
        """Compile a region.

        Args:
            region: the operators, in order. Numbers are sizes of at least 2, and vary between calls.

        Returns:
            A function of the region's numbers and inputs (in a list if `boxed`), with the outputs as a tuple.
            Outputs have the strides of their proxies, and share no memory with each other or with an input. `Declined`,
            with the reason, leaves the region to others.
        """
        raise NotImplementedError(f"{type(self).__name__} compiles nothing")

    def compile_all(self, regions: Sequence[Trace]) -> Sequence[Callable[..., object] | Declined]:
        """Compile all regions of a program; a subclass may do so in parallel.

        Args:
            regions: the regions, in order.

        Returns:
            For each region, the result of `compile`.
        """
        return [self.compile(region) for region in regions]

    def load(self, region: Trace) -> Callable[..., Any] | None:
        """Return the compiled function of an equal region, from this process or another, without compiling.

        With `compile="background"`, a worker process compiles with an executor of the same `fingerprint()` and stores
        the result on disk. Without `load`, the regions that the executor won are compiled again in the current process.

        Args:
            region: the operators, in order.

        Returns:
            The function; None if there is none.
        """
        return None

    @property
    def finds_compiled(self) -> bool:
        """Check whether the class overrides `load`."""
        return type(self).load is not FusionExecutor.load

    def fingerprint(self) -> str:
        """Return the options and library versions affecting speed; part of the key of remembered timings."""
        return ""

    def claim(
        self, bound_symbol: BoundSymbol, entry: ImplementationEntry | None
    ) -> Implementation | Declined:
        """Claim a supported call; the symbol itself runs the call until a region replaces the call.

        Args:
            bound_symbol: the call.
            entry: unused; `supports` decides.

        Returns:
            The implementation that runs the call, or `Declined` with the reason.

        Raises:
            TypeError: `supports` returned neither None nor `Declined`.
        """
        reason = self.supports(bound_symbol)
        if reason is None:
            return Implementation(self.name, bound_symbol.symbol.fn)
        if not isinstance(reason, Declined):
            raise TypeError(f"supports returns None for yes, or Declined(reason), not {reason!r}")
        return reason


def reason_unavailable(executor: Executor) -> str | None:
    """Return `executor.unavailable()`; an exception is a reason too."""
    return _answer(executor.unavailable)


def reason_limited(executor: Executor) -> str | None:
    """Return `executor.limited()`; an exception is a reason too."""
    return _answer(executor.limited)


def _answer(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except (Exception, SystemExit) as error:
        return f"its availability check raised {type(error).__name__}: {error}"

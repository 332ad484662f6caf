"""Executors: who runs bound symbols."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from switchgear.errors import InvalidInput, RegistrationError, did_you_mean
from switchgear.ir.aliasing import aliased_argument
from switchgear.ir.choice import Declined, Implementation
from switchgear.ir.symbol import BoundSymbol
from switchgear.ir.trace import Trace
from switchgear.who.registry import ImplementationEntry, Table, checked_owner


class Executor:
    """A named bringer of implementations; instantiate it, or subclass it to decide in code.

    Without a list of the user's, executors of higher `priority` are asked first, those of equal priority by name; by
    default those that fuse come before the others of 0 and less.
    `table` is for an executor that no plugin registers: its implementations and grad rules are then those of the table.

    One that `runs_everywhere` cannot run only where something is amiss: a default call then says so, once.
    """

    runs_everywhere = False

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
        """One of its kind with these options, as `jit(options={name: ...})` asks for: `type(self)(**options)`.

        Its options are the keyword-only parameters of its class's own `__init__`. A class whose objects are not made
        by options alone overrides this. Raises `InvalidInput` for an option that there is not.
        """
        if not options:
            return self
        kind = type(self)
        has_own = kind.__init__ is not Executor.__init__
        own = inspect.signature(kind).parameters.values() if has_own else ()
        names = [one.name for one in own if one.kind is one.KEYWORD_ONLY]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in own)
        unknown = [name for name in options if name not in names]
        if unknown and not takes_any:
            known = (
                f"its options are {', '.join(names)}" if names else "it has none: leave them out"
            )
            hint = did_you_mean(unknown[0], names) or f"; {known}"
            raise InvalidInput(f"executor {self.name} has no option {', '.join(unknown)}{hint}")
        return kind(**options)

    def unavailable(self) -> str | None:
        """The reason why this executor cannot run here, such as a missing device; None when it can."""
        return None

    def limited(self) -> str | None:
        """What does not work here, such as a device that is missing, though the executor can run; None if all does."""
        return None

    def claim(
        self, bound_symbol: BoundSymbol, entry: ImplementationEntry | None
    ) -> Implementation | Declined:
        """Take the bound symbol or decline it; `entry` is what this executor registered for the symbol."""
        if entry is None:
            return Declined(f"no implementation of {bound_symbol.symbol.name}")
        return entry.declined(bound_symbol) or Implementation(self.name, entry.fn)

    def is_constant_for_vjp(self, bound_symbol: BoundSymbol) -> bool | None:
        """Whether the bound symbol takes no part in differentiation; None leaves that to the next one asked."""
        return None

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version={self.version!r}"
        return f"{type(self).__name__}({self.name!r}, priority={self.priority}{version})"


class FusionExecutor(Executor):
    """An executor that runs regions: bound symbols that it takes together and compiles into one function.

    What it takes, one by one in the user's priority order, the core groups into convex regions. A region of less than
    `minimum` operators, views left out, is left to the executors that are no fusion executors; one of more than
    `maximum` comes in parts, cut where the fewest bytes are handed on.

    Only one that has `symbolic_sizes` is asked about calls whose sizes are symbolic: the layouts and arguments in its
    regions may then hold symbolic numbers, and the sizes that these are made of are the region's `numbers`.

    What a `boxed` one compiles takes numbers and inputs in one list, which it empties. What nothing reads after the
    region is then freed by whoever reads it last in there.
    """

    minimum = 2
    maximum = sys.maxsize
    symbolic_sizes = False
    boxed = False

    def supports(self, bound_symbol: BoundSymbol) -> Declined | None:
        """The reason why the bound symbol cannot be part of a region; None when it can."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it supports")

    def supports_region(self, region: Trace) -> Declined | None:
        """The reason why a region of supported bound symbols is better left to others; None when it is not."""
        count = len(self.operators(region))
        return (
            Declined(f"a region of {count} operators, fewer than {self.minimum}")
            if count < self.minimum
            else None
        )

    @staticmethod
    def operators(region: Trace) -> tuple[BoundSymbol, ...]:
        """What a region computes: its bound symbols without views."""
        return tuple([item for item in region.bound_symbols if aliased_argument(item) is None])

    def compile(self, region: Trace) -> Callable[..., Any] | Declined:
        """A function of the region's numbers and inputs, positional or `boxed`, that returns its outputs as a tuple.

        `Declined` says why there is none, and leaves the region to others. The outputs have the strides of their
        proxies; no two share memory with each other or with an input. Numbers are sizes of 2 and more, others in each
        call.
        """
        raise NotImplementedError(f"{type(self).__name__} compiles nothing")

    def compile_all(self, regions: Sequence[Trace]) -> Sequence[Callable[..., object] | Declined]:
        """What `compile` makes of each of a program's regions, in their order."""
        return [self.compile(region) for region in regions]

    def load(self, region: Trace) -> Callable[..., Any] | None:
        """What `compile` of an alike region made, here or in another process, found without compiling; else None.

        In `compile="background"` a worker process, in which there is another one of the kind with the same
        `fingerprint()`, compiles, and leaves on disk what this finds. Without it, what won is compiled here once more.
        """
        return None

    @property
    def finds_compiled(self) -> bool:
        """Whether it has a `load` of its own."""
        return type(self).load is not FusionExecutor.load

    def fingerprint(self) -> str:
        """The options and library versions that affect speed; part of the key of remembered timings."""
        return ""

    def claim(
        self, bound_symbol: BoundSymbol, entry: ImplementationEntry | None
    ) -> Implementation | Declined:
        """Take what it supports; until a region replaces it, that is run by the symbol itself."""
        reason = self.supports(bound_symbol)
        if reason is None:
            return Implementation(self.name, bound_symbol.symbol.fn)
        if not isinstance(reason, Declined):
            raise TypeError(f"supports returns None for yes, or Declined(reason), not {reason!r}")
        return reason


def reason_unavailable(executor: Executor) -> str | None:
    """`executor.unavailable()`, an exception being a reason too."""
    return _answer(executor.unavailable)


def reason_limited(executor: Executor) -> str | None:
    """`executor.limited()`, an exception being a reason too."""
    return _answer(executor.limited)


def _answer(asked: Callable[[], str | None]) -> str | None:
    try:
        return asked()
    except (Exception, SystemExit) as error:
        return f"its availability check raised {type(error).__name__}: {error}"

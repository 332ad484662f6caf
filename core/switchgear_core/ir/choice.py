"""Choices: the winner for a bound symbol, and the reasons against the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from switchgear_core.showing import Listing, Shown, limited, wrapped


@dataclass(frozen=True, slots=True)
class Declined:
    """Answer that leaves a call to others, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """Callable that runs a bound symbol, and its owner.

    Attributes:
        fn: a function of the symbol's arguments.
        boxed: whether the function takes its arguments in a list, and empties the list.
        path: for an operator overload, the name of a faster function for the same overload.
        gain: seconds by which a region is faster than its operators; 0 if not measured.
    """

    owner: str
    fn: Callable[..., Any]
    boxed: bool = False
    path: str = ""
    gain: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice(Shown):
    """Outcome of one decision about one bound symbol.

    Attributes:
        kind: `execution`, `gradient` or `pattern` (a plugin's pass that replaces several calls by one).
        owner: the winner: an executor, a package of rules, the owner of a table of the call, `constant`,
            `decomposition` or `derived`.
        declined: the others, each with a reason, in the order of asking.
    """

    kind: str
    symbol: str
    owner: str
    reason: str = ""
    declined: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        others = "".join(f"; {owner}: {reason}" for owner, reason in self.declined)
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.symbol}: {self.kind} by {self.owner}{reason}{others}"

    def __repr__(self) -> str:
        return limited(wrapped(f"<{self}>"))


class Choices(Listing[Choice]):
    """A list of choices that shows equal choices together."""

    __slots__ = ()

    def rows(self) -> Iterator[str]:
        """Yield the number and text of each choice, the most frequent first, without executors that have no rule."""
        counts = Counter(str(replace(one, declined=_objections(one))) for one in self)
        yield from [f"{count:4} x {text}" for text, count in counts.most_common()]


def _objections(choice: Choice) -> tuple[tuple[str, str], ...]:
    nothing = f"no grad rule for {choice.symbol}", f"no implementation of {choice.symbol}"
    return tuple([one for one in choice.declined if one[1] not in nothing])


@dataclass(frozen=True, slots=True)
class Saved:
    """Value that a forward saves for its backward.

    Attributes:
        bytes: its size.
        alive: whether the value is an input, which stays alive anyway.
        origin: the operator that computes the value, with its line.
        reason: why the value is not recomputed.
        readers: operators of the backward that read the value, with the number of their calls. Empty if only another
            backward reads it: for other grad outputs, or a second derivative.
    """

    name: str
    type: str
    bytes: int
    alive: bool
    origin: str
    reason: str
    readers: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        calls = [name if count == 1 else f"{count} x {name}" for name, count in self.readers]
        readers = ", ".join(calls) or "other grad outputs, or a second derivative"
        return f"{self.name}: {self.type}, {self.bytes} bytes, {self.origin}; for {readers}; {self.reason}"

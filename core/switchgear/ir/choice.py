"""Who was chosen for a bound symbol, and why everyone else was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from switchgear.showing import Listing, Shown, limited, wrapped


@dataclass(frozen=True, slots=True)
class Declined:
    """A checker's answer: not this call, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """A callable that runs a bound symbol with the symbol's own arguments, and who brought it.

    A `boxed` one takes them in one list, which it empties. Where `fn` is an operator overload, `path` may name a
    function to call in its place: one that comes to the same overload with the same arguments, and costs less to call.
    `gain` are the seconds by which a region is faster than its operators, 0 where nobody measured it.
    """

    owner: str
    fn: Callable[..., Any]
    boxed: bool = False
    path: str = ""
    gain: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice(Shown):
    """The outcome of one decision about one bound symbol.

    `kind` is `execution`, `gradient`, or, where a plugin's pass asks who takes several calls as one, `pattern`. `owner`
    is who was taken: an executor, a package of rules, the owner of a table passed to the call, `constant`,
    `decomposition`, `derived`. `declined` pairs each of the others with its reason, in the order asked.
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
    """Choices, of which it shows equal ones together."""

    __slots__ = ()

    def rows(self) -> Iterator[str]:
        """Yield how often each choice was made, the most frequent first; who brings nothing for it is not named."""
        counts = Counter(str(replace(one, declined=_objections(one))) for one in self)
        yield from [f"{count:4} x {text}" for text, count in counts.most_common()]


def _objections(choice: Choice) -> tuple[tuple[str, str], ...]:
    nothing = f"no grad rule for {choice.symbol}", f"no implementation of {choice.symbol}"
    return tuple([one for one in choice.declined if one[1] not in nothing])


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that a forward keeps for its backward.

    `bytes` are those that it takes as it is saved; an `alive` one is an input, which lives anyway. `origin` is the
    operator that makes it, with its line; `reason` says why it is not made again instead. `readers` pairs the operators
    of the backward that read it with the number of their calls; without any, another backward may read it, as in eager:
    one for other grad outputs, or of a second derivative.
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

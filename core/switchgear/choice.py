"""Who was chosen for a bound symbol, and why everyone else was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Declined:
    """A checker's answer: not this call, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """A callable that runs a bound symbol with the symbol's own arguments, and who brought it."""

    owner: str
    fn: Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The outcome of one decision about one bound symbol.

    `kind` is `execution` or `gradient`; `owner` is who was taken: an executor, a package of rules, `jit` (rules
    passed to the call), `constant`, `decomposition`, `derived`. `declined` pairs each of the others with its reason,
    in the order asked.
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

"""Preferences: for single operators, executors to ask before all others, and executors to leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from switchgear_core.errors import UnknownExecutor, did_you_mean
from switchgear_core.ir.naming import symbols_of

#: The options `prefer` and `avoid` of `jit`: one or more names, by operator as in `symbols_of`.
PerOperator: TypeAlias = Mapping[Any, str | Sequence[str]]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Asked = TypeVar("_Asked", bound=_Named)


@dataclass(frozen=True, slots=True, eq=False)
class Preferences:
    """Preferred and avoided names, by operator."""

    prefer: Mapping[str, Sequence[str]] = field(default_factory=dict)
    avoid: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def prefers(self, name: str, operator: str) -> bool:
        """Check whether an executor is asked about the operator before the others."""
        return name in self.prefer.get(operator, ())

    def participants(
        self, sources: Sequence[_Asked], operator: str, declined: list[tuple[str, str]]
    ) -> Iterable[_Asked]:
        """Return the `sources` to ask about the operator, in order; add the avoided ones to `declined`."""
        avoided, preferred = self.avoid.get(operator, ()), self.prefer.get(operator, ())
        if not avoided and not preferred:
            return sources
        declined += [
            (item.name, "avoid= leaves it to others") for item in sources if item.name in avoided
        ]
        rest = [item for item in sources if item.name not in avoided]
        rank = {name: place for place, name in enumerate(preferred)}
        return sorted(rest, key=lambda item: rank.get(item.name, len(rank)))


def preferences(prefer: PerOperator, avoid: PerOperator, team: Collection[str]) -> Preferences:
    """Return the preferences in the options. Raises `UnknownExecutor` for a name that is not in `team`."""
    return Preferences(_by_name("prefer", prefer, team), _by_name("avoid", avoid, team))


def _by_name(option: str, value: PerOperator, team: Collection[str]) -> dict[str, tuple[str, ...]]:
    result: dict[str, tuple[str, ...]] = {}
    for target, names in value.items():
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            if name not in team:
                raise UnknownExecutor(
                    f"{option}: no executor {name!r} takes part in this call{did_you_mean(name, team)} "
                    f"(those that do: {', '.join(team)})"
                )
        result.update((symbol.name, names) for symbol in symbols_of(target))
    return result

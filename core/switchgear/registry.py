"""Who can run and who can differentiate which operator: tables declared in files, installed on an explicit registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from .choice import Declined
from .errors import RegistrationError
from .naming import symbols_of
from .symbol import BoundSymbol

#: Whether a call is accepted: True, or False, a reason, or `Declined`.
Checker: TypeAlias = Callable[[BoundSymbol], bool | str | Declined]
Form: TypeAlias = Literal["pullback", "transform", "augmented"]

#: What a Choice calls those who are no plugin, so that no plugin may be called so.
RESERVED = frozenset({"jit", "constant", "decomposition", "derived"})

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Entry = TypeVar("_Entry", "ImplementationEntry", "GradRule")


@dataclass(frozen=True, slots=True)
class ImplementationEntry:
    """`fn` runs the symbol, taking the symbol's own arguments; `owner` is an executor's name."""

    owner: str
    symbol: str
    fn: Callable[..., Any]
    checker: Checker | None = None

    def declined(self, bound_symbol: BoundSymbol) -> Declined | None:
        """The checker's objection to this call; None when it accepts."""
        return _objection(self.checker, bound_symbol)


@dataclass(frozen=True, slots=True)
class GradRule:
    """How one symbol is differentiated. `backward` is the second half of an augmented pair, else None.

    `owner` is an executor's name, or the plugin's (or distribution's) for a package of rules alone.
    """

    owner: str
    symbol: str
    form: Form
    fn: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    checker: Checker | None = None

    def declined(self, bound_symbol: BoundSymbol) -> Declined | None:
        """The checker's objection to this call; None when it accepts."""
        return _objection(self.checker, bound_symbol)

    def __str__(self) -> str:
        return f"grad rule {describe(self.fn)} of {self.owner}"


class Registry:
    """Implementations and grad rules, keyed by owner and symbol name."""

    def __init__(self) -> None:
        self._implementations: dict[str, dict[str, ImplementationEntry]] = {}
        self._grad_rules: dict[str, dict[str, GradRule]] = {}
        self._frozen = False

    def add_implementation(self, entry: ImplementationEntry, *, override: bool = False) -> None:
        """Add `entry`; a second one of the same owner and symbol is an error unless `override` says so."""
        self._put(self._implementations, entry, override)

    def add_grad_rule(self, rule: GradRule, *, override: bool = False) -> None:
        """Add `rule`; a second one of the same owner and symbol is an error unless `override` says so."""
        self._put(self._grad_rules, rule, override)

    def implementation(self, owner: str, symbol: str) -> ImplementationEntry | None:
        """The implementation that `owner` brings for the symbol called `symbol`."""
        return self._implementations.get(owner, {}).get(symbol)

    def grad_rule(self, owner: str, symbol: str) -> GradRule | None:
        """The grad rule that `owner` brings for the symbol called `symbol`."""
        return self._grad_rules.get(owner, {}).get(symbol)

    def implementations_of(self, owner: str) -> Mapping[str, ImplementationEntry]:
        """What `owner` implements, by symbol name."""
        return MappingProxyType(self._implementations.get(owner, {}))

    def grad_rules_of(self, owner: str) -> Mapping[str, GradRule]:
        """What `owner` differentiates, by symbol name."""
        return MappingProxyType(self._grad_rules.get(owner, {}))

    @property
    def implementation_owners(self) -> frozenset[str]:
        """Everyone who brings an implementation."""
        return frozenset(self._implementations)

    @property
    def grad_rule_owners(self) -> frozenset[str]:
        """Everyone who brings a grad rule."""
        return frozenset(self._grad_rules)

    def merge(self, other: Registry) -> None:
        """Add everything that `other` holds."""
        for entries in other._implementations.values():
            for entry in entries.values():
                self.add_implementation(entry)
        for rules in other._grad_rules.values():
            for rule in rules.values():
                self.add_grad_rule(rule)

    def freeze(self) -> None:
        """Refuse every later change."""
        self._frozen = True

    def _put(self, store: dict[str, dict[str, _Entry]], entry: _Entry, override: bool) -> None:
        if self._frozen:
            raise RegistrationError(
                f"{entry.owner} registers {describe(entry.fn)} for {entry.symbol} on a registry that is in use; "
                "install tables in the plugin's register hooks, or pass jit an Executor that carries its table"
            )
        entries = store.setdefault(entry.owner, {})
        present = entries.get(entry.symbol)
        if present is not None and not override:
            raise RegistrationError(
                f"{entry.owner} registers two functions for {entry.symbol}: {describe(present.fn)} and "
                f"{describe(entry.fn)}; remove one, or pass override=True to replace the first"
            )
        entries[entry.symbol] = entry


class Table:
    """Implementations and grad rules of one owner, declared in a file; it changes nothing until it is installed.

    `owner` is an executor's name, or the plugin's (or distribution's) name for a package of rules alone. A `target` is
    what `naming.symbols_of` knows: a PyTorch function, an operator overload or packet, a custom operator, or a name.
    """

    def __init__(self, owner: str) -> None:
        self.owner = checked_owner(owner)
        self._registry = Registry()
        self._overriding: set[tuple[type, str]] = set()

    def implementation(
        self, target: Any, checker: Checker | None = None, *, override: bool = False
    ) -> Callable[[_Function], _Function]:
        """Declare a function that runs `target`, with the same arguments."""

        def declare(fn: _Function) -> _Function:
            _require_callables(self.owner, target, fn, checker)
            for symbol in symbols_of(target):
                entry = ImplementationEntry(self.owner, symbol.name, fn, checker)
                self._registry.add_implementation(entry, override=override)
                self._overriding.update([(ImplementationEntry, symbol.name)] if override else [])
            return fn

        return declare

    def grad_rule(
        self, target: Any, checker: Checker | None = None, *, override: bool = False
    ) -> Callable[[_Function], _Function]:
        """Declare `rule(*args, **kwargs) -> (outputs, pullback)`.

        `pullback(*grad_outputs)` returns one gradient per tensor argument, None where there is none.
        """

        def declare(fn: _Function) -> _Function:
            self._declare_rule(target, "pullback", fn, None, checker, override)
            return fn

        return declare

    def grad_transform(
        self, target: Any, checker: Checker | None = None, *, override: bool = False
    ) -> Callable[[_Function], _Function]:
        """Declare `rule(*args, **kwargs) -> outputs`; it calls `get_grad(output)`, `put_grad(argument, gradient)`."""

        def declare(fn: _Function) -> _Function:
            self._declare_rule(target, "transform", fn, None, checker, override)
            return fn

        return declare

    def augmented(
        self,
        target: Any,
        *,
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        checker: Checker | None = None,
        override: bool = False,
    ) -> None:
        """Declare a pair: `forward(*args, **kwargs) -> (outputs, residuals)`, `backward(*residuals, *grad_outputs)`.

        `backward` returns what a pullback returns.
        """
        _require_callables(self.owner, target, backward, None)
        self._declare_rule(target, "augmented", forward, backward, checker, override)

    @property
    def implementations(self) -> Mapping[str, ImplementationEntry]:
        """What is declared so far, by symbol name."""
        return self._registry.implementations_of(self.owner)

    @property
    def grad_rules(self) -> Mapping[str, GradRule]:
        """What is declared so far, by symbol name."""
        return self._registry.grad_rules_of(self.owner)

    def install_implementations(self, registry: Registry) -> None:
        """Add the declared implementations to `registry`."""
        for entry in self.implementations.values():
            registry.add_implementation(entry, override=(ImplementationEntry, entry.symbol) in self._overriding)

    def install_grad_rules(self, registry: Registry) -> None:
        """Add the declared grad rules to `registry`."""
        for rule in self.grad_rules.values():
            registry.add_grad_rule(rule, override=(GradRule, rule.symbol) in self._overriding)

    def _declare_rule(
        self,
        target: Any,
        form: Form,
        fn: Callable[..., Any],
        backward: Callable[..., Any] | None,
        checker: Checker | None,
        override: bool,
    ) -> None:
        _require_callables(self.owner, target, fn, checker)
        for symbol in symbols_of(target):
            rule = GradRule(self.owner, symbol.name, form, fn, backward, checker)
            self._registry.add_grad_rule(rule, override=override)
            self._overriding.update([(GradRule, symbol.name)] if override else [])


def describe(fn: Any) -> str:
    """A function's name and where it is written: `gelu (switchgear_example.rules:12)`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or repr(fn)
    code = getattr(fn, "__code__", None)
    module = getattr(fn, "__module__", None)
    place = f"{module}:{code.co_firstlineno}" if code is not None else module
    return f"{name} ({place})" if place else name


def checked_owner(name: object) -> str:
    """`name`, if it can be an executor's or a rule package's."""
    if not isinstance(name, str) or not name or "," in name or name != name.strip():
        raise RegistrationError(f"{name!r} is no name for an executor: use a short word, as users will list it")
    if name in RESERVED:
        raise RegistrationError(f"{name!r} already has a meaning in a Choice; name the executor differently")
    return name


def _require_callables(owner: str, target: Any, fn: Any, checker: Any) -> None:
    for what, value in (("function", fn), ("checker", checker)):
        if not callable(value) and not (what == "checker" and value is None):
            raise RegistrationError(f"{owner} registers the {what} {value!r} for {target}; it is not callable")


def _objection(checker: Checker | None, bound_symbol: BoundSymbol) -> Declined | None:
    answer = True if checker is None else checker(bound_symbol)
    if answer is True:
        return None
    if answer is False:
        return Declined(f"its checker {describe(checker)} said no")
    if isinstance(answer, str):
        return Declined(answer)
    if isinstance(answer, Declined):
        return answer
    raise TypeError(f"a checker returns True, False, a reason, or Declined(reason), not {answer!r}")

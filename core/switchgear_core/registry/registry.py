"""The registry of implementations and grad rules, and the tables of plugins with their declarations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from switchgear_core.errors import RegistrationError
from switchgear_core.ir.choice import Declined
from switchgear_core.ir.naming import symbols_of
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.showing import Shown, shortened

#: Function that accepts a call with True, or declines it with False, a reason, or `Declined`.
Checker: TypeAlias = Callable[[BoundSymbol], bool | str | Declined]
Form: TypeAlias = Literal["pullback", "transform", "augmented"]
Fn: TypeAlias = Callable[..., Any]

#: Owners in a `Choice` other than plugins; no plugin may have such a name.
RESERVED = frozenset({"constant", "decomposition", "derived"})

_Declared = TypeVar("_Declared", bound=Fn)
_Entry = TypeVar("_Entry", "ImplementationEntry", "GradRule")


class _Decorator(Protocol):
    def __call__(self, fn: _Declared, /) -> _Declared: ...


class _Checked:
    """The common part of entry and rule: a checker that may decline a call."""

    __slots__ = ()
    checker: Checker | None

    def declined(self, bound_symbol: BoundSymbol) -> Declined | None:
        """Return the checker's objection to the call; None if the checker accepts."""
        answer = True if self.checker is None else self.checker(bound_symbol)
        if answer is True:
            return None
        if answer is False:
            return Declined(f"its checker {describe(self.checker)} said no")
        if isinstance(answer, str):
            return Declined(answer)
        if isinstance(answer, Declined):
            return answer
        raise TypeError(
            f"a checker returns True, False, a reason, or Declined(reason), not {answer!r}"
        )


@dataclass(frozen=True, slots=True)
class ImplementationEntry(_Checked):
    """Registration of an implementation: `fn` runs the symbol, with the symbol's own arguments.

    `owner` is an executor's name. `override`: whether the entry may replace an earlier registration of its owner.
    """

    owner: str
    symbol: str
    fn: Fn
    checker: Checker | None = None
    override: bool = False


@dataclass(frozen=True, slots=True)
class GradRule(_Checked):
    """Registration of a grad rule for a single symbol. `backward` is the second half of an augmented pair, else None.

    `owner` is the name of an executor, or of a plugin of rules alone (or of its distribution). `override`: whether the
    rule may replace an earlier registration of its owner. For messages, `label` is the name and version of the owner,
    and `remedy` is advice to continue without the rule.
    """

    owner: str
    symbol: str
    form: Form
    fn: Fn
    backward: Fn | None = None
    checker: Checker | None = None
    override: bool = False
    label: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"grad rule {describe(self.fn)} of {self.label or self.owner}"


class Registry:
    """Implementations and grad rules, by owner and symbol name."""

    def __init__(self) -> None:
        self._implementations: dict[tuple[str, str], ImplementationEntry] = {}
        self._grad_rules: dict[tuple[str, str], GradRule] = {}
        self._frozen = False

    def __repr__(self) -> str:
        counts = len(self._implementations), len(self._grad_rules)
        return f"<Registry: {counts[0]} implementations, {counts[1]} grad rules>"

    def add_implementation(self, entry: ImplementationEntry) -> None:
        """Add an implementation.

        Args:
            entry: the implementation.

        Raises:
            RegistrationError: the owner has one for the symbol, and `override` is not set.
        """
        self._put(self._implementations, entry)

    def add_grad_rule(self, rule: GradRule) -> None:
        """Add a grad rule.

        Args:
            rule: the grad rule.

        Raises:
            RegistrationError: the owner has one for the symbol, and `override` is not set.
        """
        self._put(self._grad_rules, rule)

    def implementation(self, owner: str, symbol: str) -> ImplementationEntry | None:
        """Look up an implementation.

        Args:
            owner: the name of an executor.
            symbol: the name of a symbol.

        Returns:
            The implementation; None if there is none.
        """
        return self._implementations.get((owner, symbol))

    def grad_rule(self, owner: str, symbol: str) -> GradRule | None:
        """Look up a grad rule.

        Args:
            owner: the name of an executor or a plugin.
            symbol: the name of a symbol.

        Returns:
            The grad rule; None if there is none.
        """
        return self._grad_rules.get((owner, symbol))

    def implementations_of(self, owner: str) -> Mapping[str, ImplementationEntry]:
        """List the implementations of an owner.

        Args:
            owner: the name of an executor.

        Returns:
            The implementations, by symbol name.
        """
        return {
            entry.symbol: entry for entry in self._implementations.values() if entry.owner == owner
        }

    def grad_rules_of(self, owner: str) -> Mapping[str, GradRule]:
        """List the grad rules of an owner.

        Args:
            owner: the name of an executor or a plugin.

        Returns:
            The grad rules, by symbol name.
        """
        return {rule.symbol: rule for rule in self._grad_rules.values() if rule.owner == owner}

    @property
    def implementation_owners(self) -> frozenset[str]:
        """Return the owners of implementations."""
        return frozenset(owner for owner, _ in self._implementations)

    @property
    def grad_rule_owners(self) -> frozenset[str]:
        """Return the owners of grad rules."""
        return frozenset(owner for owner, _ in self._grad_rules)

    def merge(self, other: Registry) -> None:
        """Add all registrations of another registry.

        Args:
            other: the other registry.

        Raises:
            RegistrationError: both have one of an owner for a symbol, and `override` is not set.
        """
        for entry in other._implementations.values():
            self.add_implementation(entry)
        for rule in other._grad_rules.values():
            self.add_grad_rule(rule)

    def freeze(self) -> None:
        """Refuse later changes."""
        self._frozen = True

    def _put(self, store: dict[tuple[str, str], _Entry], entry: _Entry) -> None:
        if self._frozen:
            raise RegistrationError(
                f"{entry.owner} registers {describe(entry.fn)} for {entry.symbol} on a registry that is in use; "
                "install tables in the plugin's register hooks, or pass jit an Executor that carries its table"
            )
        present = store.get((entry.owner, entry.symbol))
        if present is not None and not entry.override:
            raise RegistrationError(
                f"{entry.owner} registers two functions for {entry.symbol}: {describe(present.fn)} and "
                f"{describe(entry.fn)}; remove one, or pass override=True to replace the first"
            )
        store[entry.owner, entry.symbol] = entry


class Table(Shown):
    """Implementations and grad rules of an owner. A table has no effect until installed, or passed to an executor.

    A `target` is a function of PyTorch, an operator overload or packet, a custom operator, or a name.

    Args:
        owner: the name of an executor; for a plugin of rules alone, the name of the plugin or its distribution.
    """

    def __init__(self, owner: str) -> None:
        self.owner = checked_owner(owner)
        self._registry = Registry()

    def implementation(
        self, target: object, checker: Checker | None = None, *, override: bool = False
    ) -> _Decorator:
        """Declare a function that runs `target`, with the same arguments.

        Args:
            target: the operator.
            checker: a function of the call, returning True or the reason to decline.
            override: whether to replace an earlier function for the same operator.

        Returns:
            A decorator.

        Raises:
            RegistrationError: `target` names no operator, or has a function already.
        """
        return self._declare(target, None, checker, override)

    def grad_rule(
        self, target: object, checker: Checker | None = None, *, override: bool = False
    ) -> _Decorator:
        """Declare `rule(*args, **kwargs) -> (outputs, pullback)`.

        `pullback(*grad_outputs)` returns one gradient for each tensor argument, or None.

        Args:
            target: the operator.
            checker: a function of the call, returning True or the reason to decline.
            override: whether to replace an earlier rule for the same operator.

        Returns:
            A decorator.

        Raises:
            RegistrationError: `target` names no operator, or has a rule already.
        """
        return self._declare(target, "pullback", checker, override)

    def grad_transform(
        self, target: object, checker: Checker | None = None, *, override: bool = False
    ) -> _Decorator:
        """Declare `rule(*args, **kwargs) -> outputs`; it calls `get_grad(output)` and `put_grad(argument, gradient)`.

        Args:
            target: the operator.
            checker: a function of the call, returning True or the reason to decline.
            override: whether to replace an earlier rule for the same operator.

        Returns:
            A decorator.

        Raises:
            RegistrationError: `target` names no operator, or has a rule already.
        """
        return self._declare(target, "transform", checker, override)

    def augmented(
        self,
        target: object,
        *,
        forward: Fn,
        backward: Fn,
        checker: Checker | None = None,
        override: bool = False,
    ) -> None:
        """Declare a forward and a backward.

        Args:
            target: the operator.
            forward: `forward(*args, **kwargs) -> (outputs, residuals)`.
            backward: `backward(*residuals, *grad_outputs)` returns one gradient for each tensor argument, or None.
            checker: a function of the call, returning True or the reason to decline.
            override: whether to replace an earlier rule for the same operator.

        Raises:
            RegistrationError: `target` names no operator, or has a rule already.
        """
        self._require_callable("function", backward, target)
        self._declare(target, "augmented", checker, override, backward)(forward)

    @property
    def implementations(self) -> Mapping[str, ImplementationEntry]:
        """Return the declared implementations, by symbol name."""
        return self._registry.implementations_of(self.owner)

    @property
    def grad_rules(self) -> Mapping[str, GradRule]:
        """Return the declared grad rules, by symbol name."""
        return self._registry.grad_rules_of(self.owner)

    def __repr__(self) -> str:
        brought = {"implementations of": self.implementations, "grad rules for": self.grad_rules}
        parts = [f"{how} {', '.join(names)}" for how, names in brought.items() if names]
        text = f"<Table {self.owner!r}: {'; '.join(parts) or 'empty'}>"
        return shortened(text)

    def install_implementations(self, registry: Registry) -> None:
        """Add the declared implementations to a registry.

        Args:
            registry: the registry that a hook receives.

        Raises:
            RegistrationError: the owner has one for the symbol, and `override` is not set.
        """
        for entry in self.implementations.values():
            registry.add_implementation(entry)

    def install_grad_rules(self, registry: Registry) -> None:
        """Add the declared grad rules to a registry.

        Args:
            registry: the registry that a hook receives.

        Raises:
            RegistrationError: the owner has one for the symbol, and `override` is not set.
        """
        for rule in self.grad_rules.values():
            registry.add_grad_rule(rule)

    def _declare(
        self,
        target: object,
        form: Form | None,
        checker: Checker | None,
        override: bool,
        backward: Fn | None = None,
    ) -> _Decorator:
        """Return a decorator that declares an implementation, or a grad rule of this form."""
        names = [symbol.name for symbol in symbols_of(target)]

        def declare(fn: _Declared, /) -> _Declared:
            self._require_callable("function", fn, target)
            if checker is not None:
                self._require_callable("checker", checker, target)
            for name in names:
                if form is None:
                    self._registry.add_implementation(
                        ImplementationEntry(self.owner, name, fn, checker, override)
                    )
                else:
                    self._registry.add_grad_rule(
                        GradRule(self.owner, name, form, fn, backward, checker, override)
                    )
            return fn

        return declare

    def _require_callable(self, subject: str, value: object, target: object) -> None:
        if not callable(value):
            raise RegistrationError(
                f"{self.owner} registers the {subject} {value!r} for {target}; it is not callable"
            )


def describe(fn: object) -> str:
    """Return a function's name and place in the source: `gelu (switchgear_example.rules:12)`."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or repr(fn)
    code = getattr(fn, "__code__", None)
    module = getattr(fn, "__module__", None)
    place = f"{module}:{code.co_firstlineno}" if code is not None else module
    return f"{name} ({place})" if place else name


def checked_owner(name: object) -> str:
    """Return `name` if it is valid for an executor or a package of rules."""
    if (
        not isinstance(name, str)
        or not name
        or "," in name
        or name != name.strip()
        or name[0] == "-"
    ):
        raise RegistrationError(
            f"{name!r} is no name for an executor: use a short word, as users will list it"
        )
    if name in RESERVED:
        raise RegistrationError(
            f"{name!r} already has a meaning in a Choice; name the executor differently"
        )
    return name

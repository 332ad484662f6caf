"""The single place that picks the executor and rules of a bound symbol: the sources asked, their order, the winner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from switchgear_core.errors import ExecutorUnavailable, RuleError, warn_once
from switchgear_core.ir.choice import Declined, Implementation
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import active_recorder
from switchgear_core.record.sizes import depends_on_sizes
from switchgear_core.registry.answers import Answers
from switchgear_core.registry.code import code_of
from switchgear_core.registry.executor import Executor, FusionExecutor
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import PassPlacement, Stage
from switchgear_core.registry.isolation import uncaptured
from switchgear_core.registry.parts import Parts
from switchgear_core.registry.plugin import Chooser, SkipRule
from switchgear_core.registry.preferences import Preferences
from switchgear_core.registry.registry import GradRule, ImplementationEntry, describe
from switchgear_core.registry.savings import AS_EAGER, Savings

#: Names of executors and rule sources that declined a bound symbol, with reasons, in order; skipped ones come first.
Reasons: TypeAlias = tuple[tuple[str, str], ...]
FIXED_SIZES = Declined("its regions are compiled for fixed sizes, and these are dynamic")


@dataclass(frozen=True, slots=True, eq=False)
class RuleSource:
    """A source of grad rules: an executor, a package of rules, or a table passed to the call.

    For messages, `label` is its name and version, and `remedy` is advice to continue without it.
    """

    name: str
    label: str
    remedy: str
    grad_rules: Mapping[str, GradRule]
    skip_rules: tuple[SkipRule, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Claimant(RuleSource):
    """An executor of the call, with its registrations and, for messages, its options; `is_listed` by the user."""

    executor: Executor
    implementations: Mapping[str, ImplementationEntry]
    options: str = ""
    is_listed: bool = False

    @property
    def code(self) -> str | None:
        """A digest of its code; None for the code of a script or a notebook."""
        return code_of(self.executor, iter(self.implementations.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The participants of a call of `jit`, and the three decisions about a bound symbol.

    `executors` can run here, in the order of asking; `skipped` are the others, with reasons. `passes` come from
    participating plugins and parts; `fuel` limits the number of fused regions. `choosers` choose the executors of
    regions, in this order. `passed_over` are installed and do not participate. `settings` are all options by name.
    """

    executors: tuple[Executor, ...]
    skipped: Reasons
    strict: bool
    passes: tuple[PassPlacement, ...]
    claimants: tuple[Claimant, ...]
    rule_sources: tuple[RuleSource, ...]
    fuel: Fuel
    choosers: tuple[Chooser, ...] = ()
    handlers: Handlers = field(default_factory=Handlers)
    passed_over: tuple[str, ...] = ()
    preferences: Preferences = field(default_factory=Preferences)
    check: bool = False
    #: The participants, packages included: by name, or as an object if not installed.
    team: tuple[str | Executor, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The choice of the tensors that are saved for a backward.
    savings: Savings = AS_EAGER
    parts: Parts = field(default_factory=Parts)
    #: Whether regions may be compiled later, or elsewhere.
    is_deferred: bool = False
    #: The known executors of regions, if any.
    answers: Answers | None = None
    #: The record of the outcome of each region.
    record: Answers | None = None

    @property
    def fusion(self) -> Mapping[str, FusionExecutor]:
        """The executors that run regions, by name."""
        return {
            executor.name: executor
            for executor in self.executors
            if isinstance(executor, FusionExecutor)
        }

    def passes_at(self, stage: Stage) -> tuple[PassPlacement, ...]:
        """Return the passes at a stage, in order."""
        return tuple([placement for placement in self.passes if placement.stage == stage])

    def without_fusion(self) -> Selection:
        """Return a copy without the fusion executors."""
        return self._with(one for one in self.executors if one.name not in self.fusion)

    def exact(self) -> Selection:
        """Return a copy with only the executors bit-identical to PyTorch; if none exist, without fusion executors."""
        exact = [executor for executor in self.executors if executor.is_exact]
        return self._with(exact) if exact else self.without_fusion()

    def _with(self, executors: Iterable[Executor]) -> Selection:
        rest = tuple(executors)
        return replace(
            self,
            executors=rest,
            claimants=tuple(one for one in self.claimants if one.executor in rest),
        )

    def constant(self, bound_symbol: BoundSymbol) -> tuple[bool, str]:
        """Check whether a skip rule excludes the bound symbol from differentiation; return the answer and the rule."""
        for source in self.rule_sources:
            for rule in source.skip_rules:
                with _blaming(source, "skip rule", rule.source, bound_symbol):
                    answer = rule.fn(bound_symbol)
                    if answer is not None and not isinstance(answer, bool):
                        raise TypeError(f"a skip rule returns True, False or None, not {answer!r}")
                if answer is not None:
                    return answer, f"skip rule of {source.name}: {describe(rule.source)}"
        return False, ""

    def grad_rule(self, bound_symbol: BoundSymbol) -> tuple[GradRule | None, Reasons]:
        """Return the first grad rule that accepts the bound symbol, and the earlier sources that declined."""
        name = bound_symbol.symbol.name
        declined = list(self.skipped)
        for source in self.preferences.participants(self.rule_sources, name, declined):
            rule = source.grad_rules.get(name)
            if rule is None:
                declined.append((source.name, f"no grad rule for {name}"))
                continue
            with _blaming(
                source, "checker of the grad rule", rule.checker or rule.fn, bound_symbol
            ):
                objection = rule.declined(bound_symbol)
            if objection is None:
                rule = replace(rule, label=source.label, remedy=source.remedy)
                return rule, tuple(declined)
            declined.append((source.name, objection.reason))
        return None, tuple(declined)

    def implementation(self, bound_symbol: BoundSymbol) -> tuple[Implementation | None, Reasons]:
        """Return the first implementation of the bound symbol as a whole, and the earlier executors that declined."""
        declined = list(self.skipped)
        name = bound_symbol.symbol.name
        for claimant in self.preferences.participants(self.claimants, name, declined):
            answer = _answer(claimant, bound_symbol)
            if isinstance(answer, Implementation):
                return answer, tuple(declined)
            if answer is FIXED_SIZES and claimant.is_listed:
                self._tell_of_sizes(claimant)
            declined.append((claimant.name, answer.reason))
        return None, tuple(declined)

    def _tell_of_sizes(self, claimant: Claimant) -> None:
        message = f"executor {claimant.label} is listed and takes nothing whose sizes vary: {FIXED_SIZES.reason}"
        remedy = f"pass dynamic=False to have it compile each size, or {claimant.remedy}"
        if self.strict:
            raise ExecutorUnavailable(f"{message}; {remedy}")
        warn_once(f"{message}; {remedy}")

    def takers(self, bound_symbols: Sequence[BoundSymbol]) -> tuple[FusionExecutor, ...]:
        """Return the fusion executors that accept all bound symbols, in the order of asking."""
        fusion = self.fusion
        return tuple(
            fusion[claimant.name]
            for claimant in self.claimants
            if claimant.name in fusion
            and all(isinstance(_answer(claimant, item), Implementation) for item in bound_symbols)
        )


def _answer(claimant: Claimant, bound_symbol: BoundSymbol) -> Implementation | Declined:
    executor = claimant.executor
    if (
        isinstance(executor, FusionExecutor)
        and not executor.symbolic_sizes
        and depends_on_sizes(bound_symbol)
    ):
        return FIXED_SIZES
    entry = claimant.implementations.get(bound_symbol.symbol.name)
    claim = executor.claim if entry is None else entry.checker or executor.claim
    with _blaming(claimant, "executor's claim", claim, bound_symbol):
        return _claim_or_reason(executor, executor.claim(bound_symbol, entry))


def _claim_or_reason(executor: Executor, answer: object) -> Implementation | Declined:
    if not isinstance(answer, (Implementation, Declined)):
        raise TypeError(f"claim returns an Implementation or Declined(reason), not {answer!r}")
    if isinstance(answer, Implementation) and answer.owner != executor.name:
        raise ValueError(
            f"the implementation that executor {executor.name} claims with is owned by it, not by {answer.owner}"
        )
    return answer


@dataclass(slots=True)
class _blaming:
    """Context that names the owner of failing code; a class, because each bound symbol enters it repeatedly."""

    source: RuleSource
    role: str
    fn: Callable[..., Any]
    bound_symbol: BoundSymbol
    outside: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if active_recorder() is not None:  # a capture in which a derivative is taken
            self.outside = uncaptured()
            self.outside.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.outside is not None:
            self.outside.__exit__(None, None, None)
        if not isinstance(error, Exception):
            return
        call = self.bound_symbol
        place = f", called at {call.source}" if call.source else ""
        fault = f"{self.role} {describe(self.fn)} raised {type(error).__name__}: {error}"
        way_out = f"for {call.symbol.name}{place}; to go on without it, {self.source.remedy}"
        raise RuleError(f"{self.source.label}: {fault}\n  {way_out}") from error

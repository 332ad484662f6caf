"""Choose: the executor of each region, by the choosers of plugins, else the first candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchgear_core.errors import ExecutorFailed, RuleError, SwitchgearError
from switchgear_core.ir.choice import Declined
from switchgear_core.ir.free_last_used import free_last_used
from switchgear_core.ir.purity import uninitialised
from switchgear_core.ir.trace import Trace, compile_trace
from switchgear_core.nearness import Named, differences, named, widened
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.registry.answers import Answer, Answers
from switchgear_core.registry.claim import claim
from switchgear_core.registry.executor import Executor, FusionExecutor
from switchgear_core.registry.plugin import Chooser
from switchgear_core.registry.plugin_passes import run_passes
from switchgear_core.registry.region import Region, RegionChoice
from switchgear_core.registry.registry import describe
from switchgear_core.registry.selection import Claimant, Selection
from switchgear_core.source_text import as_name

NO_FUEL = Declined("no fuel is left for its region")


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A compiled region: executor, function, name, reason for the executor, and the seconds gained per call."""

    executor: FusionExecutor
    function: Callable[..., Any]
    name: str
    reason: str
    gain: float


class Contestants:
    """The `RegionContext` of a call."""

    def __init__(self, regions: Sequence[Region], program: str, selection: Selection) -> None:
        self.executors: tuple[Executor, ...] = selection.executors
        self._program = program
        self._selection = selection
        self._compiled: dict[tuple[Region, FusionExecutor], Callable[..., object] | Declined] = {}
        self._numbers = {region: number for number, region in enumerate(regions)}

    def label(self, executor: Executor) -> str:
        """Implement `RegionContext.label`."""
        return self._claimant(executor).label

    def code(self, executor: Executor) -> str | None:
        """Implement `RegionContext.code`."""
        return self._claimant(executor).code

    def _claimant(self, executor: Executor) -> Claimant:
        return next(entry for entry in self._selection.claimants if entry.executor is executor)

    @staticmethod
    def unlike(region: Region, arguments: Sequence[Any], results: Any, expected: Any) -> str:
        """Implement `RegionContext.unlike`."""
        if not isinstance(results, (tuple, list)) or len(results) != len(expected):
            return f"it returns {type(results).__name__}, not the {len(expected)} results of the operators"
        trace = region.trace
        garbage = uninitialised(trace.bound_symbols)
        skipped = {place for place, it in enumerate(trace.outputs) if it and it.name in garbage}

        def exactly() -> Named:
            return named(trace.function()(*map_tensors(widened, tuple(arguments))), skipped)

        theirs = named(expected, skipped)
        inputs = [*tensors_in(arguments)]
        return next(differences(named(results, skipped), theirs, exactly, inputs), "")

    def operators(self, region: Region) -> Trace:
        """Implement `RegionContext.operators`."""
        return claim(region.composites, self._selection.without_fusion())

    def function(self, operators: Trace) -> Callable[..., Any]:
        """Implement `RegionContext.function`."""
        traces, _ = run_passes("after_claim", operators, self._selection)
        return compile_trace(free_last_used(traces[-1] if traces else operators))

    def compile(
        self, entrants: Sequence[tuple[Region, FusionExecutor]]
    ) -> dict[tuple[Region, FusionExecutor], Callable[..., Any] | Declined]:
        """Implement `RegionContext.compile`."""
        missing = [entrant for entrant in dict.fromkeys(entrants) if entrant not in self._compiled]
        for executor in dict.fromkeys(executor for _, executor in missing):
            regions = [region for region, candidate in missing if candidate is executor]
            traces = [replace(region.trace, name=self.name(region, executor)) for region in regions]
            functions = self._functions(executor, traces)
            self._compiled.update(
                zip([(region, executor) for region in regions], functions, strict=True)
            )
        return {entrant: self._compiled[entrant] for entrant in entrants}

    def _functions(
        self, executor: FusionExecutor, traces: Sequence[Trace]
    ) -> Sequence[Callable[..., object] | Declined]:
        try:
            functions = executor.compile_all(traces)
            for item in functions:
                if not callable(item) and not isinstance(item, Declined):
                    raise TypeError(f"compile returned {item!r}, neither a function nor Declined")
            return functions
        except Exception as error:
            claimant = self._claimant(executor)
            calls = (item.symbol.name for trace in traces for item in trace.bound_symbols)
            raise ExecutorFailed(
                f"executor {claimant.label} failed to compile regions of {', '.join(dict.fromkeys(calls))}: "
                f"{type(error).__name__}: {error}. To go on without it, {claimant.remedy}"
            ) from error

    def name(self, region: Region, executor: FusionExecutor) -> str:
        """Return the name of a region for an executor."""
        return as_name(f"{executor.name}_{self._program}_{self._numbers[region]}")


def choose(regions: Sequence[Region], program: str, selection: Selection) -> list[Fused | Declined]:
    """Return the outcome for each region, all with candidates: a compiled region, or why operators run."""
    context = Contestants(regions, program, selection)
    if selection.answers is not None:
        return [_loaded(region, selection.answers, context, selection) for region in regions]
    choices = _ask_choosers(regions, selection.choosers, context)
    outcomes = _compiled(regions, choices, context, selection)
    if selection.record is not None:
        for region, choice, outcome in zip(regions, choices, outcomes, strict=True):
            executor = outcome.executor.name if isinstance(outcome, Fused) else None
            gain = choice.gain if executor else 0.0
            selection.record.by_computation[region.trace.canonical()] = Answer(
                executor, outcome.reason, gain
            )
            selection.record.last &= choice.lasts
    return outcomes


def _compiled(
    regions: Sequence[Region],
    choices: Sequence[RegionChoice],
    context: Contestants,
    selection: Selection,
) -> list[Fused | Declined]:
    """Return the regions as compiled by the chosen executors, as far as there is fuel."""
    pairs = [*zip(regions, choices, strict=True)]
    entrants = [(region, pick.executor) for region, pick in pairs if pick.executor is not None]
    functions = context.compile(entrants[: selection.fuel.left])

    def outcome(region: Region, choice: RegionChoice) -> Fused | Declined:
        if choice.executor is None:
            return Declined(choice.reason)
        function = functions.get((region, choice.executor), NO_FUEL)
        if isinstance(function, Declined):
            return function
        name = context.name(region, choice.executor)
        return Fused(choice.executor, function, name, choice.reason, choice.gain)

    return [outcome(*pair) for pair in pairs]


def _loaded(
    region: Region, answers: Answers, context: Contestants, selection: Selection
) -> Fused | Declined:
    """Return the answers' outcome for a region; only an executor without code on disk recompiles."""
    answer = answers.of(region)
    if answer.executor is None:
        return Declined(answer.reason)
    executor = next((item for item in region.candidates if item.name == answer.executor), None)
    if executor is None:
        return Declined(f"{answer.executor}, which was to run it, does not take it here")
    name = context.name(region, executor)
    try:
        if executor.finds_compiled or answers.only_load:
            function, why = executor.load(replace(region.trace, name=name)), ""
        else:
            compiled = context.compile([(region, executor)])[region, executor]
            if isinstance(compiled, Declined):
                return compiled
            function, why = compiled, ""
    except Exception as error:
        function, why = None, f" ({type(error).__name__}: {error})"
    if function is None:
        if executor.finds_compiled:
            answers.missing.append(name)
        return Declined(f"the code that {executor.name} compiled for it is not found any more{why}")
    answers.in_use.append(answer)
    return Fused(executor, function, name, answer.reason, answer.gain)


def _ask_choosers(
    regions: Sequence[Region], choosers: Sequence[Chooser], context: Contestants
) -> list[RegionChoice]:
    answers: dict[Region, RegionChoice] = {}
    for chooser in choosers:
        open_regions = [region for region in regions if region not in answers]
        if open_regions:
            choices = _guarded(chooser, open_regions, context)
            answers.update(
                (region, answer)
                for region, answer in zip(open_regions, choices, strict=True)
                if answer
            )
    return [answers.get(region) or RegionChoice(region.candidates[0]) for region in regions]


def _guarded(
    chooser: Chooser, regions: Sequence[Region], context: Contestants
) -> Sequence[RegionChoice | None]:
    """Return a plugin's answers, by region.

    Raises:
        RuleError: the plugin raised, or returned something invalid.
    """
    try:
        answers: object = chooser.fn(regions, context)
        if answers is None:
            return [None] * len(regions)
        if not isinstance(answers, Sequence) or len(answers) != len(regions):
            raise TypeError(
                f"it returns an answer for each of {len(regions)} regions, or None, not {answers!r}"
            )
        for region, answer in zip(regions, answers, strict=True):
            _check(region, answer)
    except SwitchgearError:
        raise
    except Exception as error:
        fault = f"{describe(chooser.source)} raised {type(error).__name__}: {error}"
        raise RuleError(
            f"plugin {chooser.label}: {fault}; to go on without it, {chooser.remedy}"
        ) from error
    return answers


def _check(region: Region, answer: object) -> None:
    if answer is None:
        return
    if not isinstance(answer, RegionChoice):
        raise TypeError(f"an answer is a RegionChoice or None, not {answer!r}")
    if answer.executor is not None and answer.executor not in region.candidates:
        raise ValueError(f"{answer.executor!r} is no candidate for the region")

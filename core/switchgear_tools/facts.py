"""Facts: the records behind `sg.explain`, of calls that ran or of a call that has not run."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from switchgear_core.ir.choice import Choice, Saved
from switchgear_core.ir.symbol import IN_PLACE, BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.selection import Claimant, Reasons, Selection

#: A number in a reason, and a placeholder for a number that no reason contains.
_NUMBER, _ANY = r"\d+(?:\.\d+)?", "\0"


@dataclass(frozen=True, slots=True)
class ExplainedFallback:
    """Calls that were not captured for a common reason; TorchDynamo split `split` of these calls."""

    reason: str
    calls: int
    split: int


@dataclass(frozen=True, slots=True)
class ExplainedGraph:
    """A graph that TorchDynamo split off: first line, number of calls, and the reasons if the graph runs in eager."""

    place: str
    operators: int
    is_compiled: bool
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedSplit:
    """A function that TorchDynamo split.

    `doubt` is the reason why the function runs in eager after all. `ratio` is the time of the parts divided by eager's
    time, None before the measurement.
    """

    name: str
    doubt: str
    ratio: float | None
    graphs: tuple[ExplainedGraph, ...]
    breaks: tuple[tuple[str, int], ...]

    @property
    def heading(self) -> str:
        """The compiled share of the function, in graphs and calls."""
        if self.doubt and not self.graphs:
            return f"TorchDynamo: nothing was split, because {self.doubt}"
        compiled = [graph for graph in self.graphs if graph.is_compiled]
        count, total = (sum(graph.operators for graph in some) for some in (compiled, self.graphs))
        share = f" ({count / total:.0%})" if total else ""
        counts = f"{len(compiled)} of {len(self.graphs)} graphs compiled"
        return f"TorchDynamo: {counts}, with {count} of {total} calls{share}"

    def exceptions(self) -> Iterator[str]:
        """Yield the graphs that run in eager, and the places where the function breaks."""
        for graph in self.graphs:
            for reason in graph.refusals:
                yield f"in eager: a graph of {graph.operators} calls: {reason}"
        if self.ratio is not None and self.ratio > 1:
            yield f"without gradients the parts took {self.ratio:.2f} of eager's time: calls run in eager"
        for reason, count in self.breaks:
            yield f"graph break: {count} x {reason}"

    def lines(self) -> Iterator[str]:
        """Yield all lines about the function."""
        yield self.heading
        for number, graph in enumerate(self.graphs, 1):
            place = f", {graph.place}" if graph.place else ""
            where = f"{self.name}, graph {number} of {len(self.graphs)}{place}"
            yield f"  {where}: a graph of {graph.operators} calls"
        yield from (f"  {line}" for line in self.exceptions())


@dataclass(frozen=True, slots=True)
class ExplainedCalls:
    """The calls of a jitted function so far, and how many programs were compiled for them."""

    total: int = 0
    compilations: int = 0
    fallbacks: tuple[ExplainedFallback, ...] = ()
    splits: tuple[ExplainedSplit, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedRegion:
    """Operators that run as a single call: by the executor that compiled the region, or by one of the `candidates`.

    `gain` is the time saved compared with the single operators, in seconds; 0 where nobody measured the region.
    Before a call, plugins that measure may still leave the region to the executors in `otherwise`, each with its
    number of calls.
    """

    operators: tuple[str, ...]
    candidates: tuple[str, ...]
    otherwise: tuple[tuple[str, int], ...] = ()
    name: str = ""
    gain: float = 0.0

    def __str__(self) -> str:
        others = ", ".join(f"{count} calls by {owner}" for owner, count in self.otherwise)
        candidates = " or ".join(self.candidates)
        return f"{len(self.operators)} operators as one by {candidates}{f'; else {others}' if others else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedProgram:
    """A forward or a backward: its stages, choices and regions, and the most bytes at once.

    `peak` includes saved tensors, results and grad outputs, not the inputs of the call nor memory inside a kernel.
    `live_inputs` are the names of inputs that live anyway. `graph` is the line of the graph of a split function.
    `is_pending`: the regions are being compiled.
    """

    kind: str
    stages: tuple[Trace, ...]
    choices: tuple[Choice, ...]
    regions: tuple[ExplainedRegion, ...]
    peak: int
    is_pending: bool = False
    graph: str = ""
    live_inputs: frozenset[str] = frozenset()

    @property
    def trace(self) -> Trace:
        """The program that runs."""
        return self.stages[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Facts of calls of a function that ran, or of a call that has not run.

    `calls` is None before a call. `fallback` is the reason why nothing is compiled, empty if a program is. `notes` are
    remarks on the programs. `eager_bytes` is the number of bytes that eager saves, None where unknown.
    """

    name: str
    selection: Selection
    calls: ExplainedCalls | None
    fallback: str = ""
    programs: tuple[ExplainedProgram, ...] = ()
    notes: tuple[str, ...] = ()
    saved: tuple[Saved, ...] = ()
    recomputed: tuple[str, ...] = ()
    eager_bytes: int | None = None
    sizes: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    recompilations: tuple[str, ...] = ()

    @property
    def memory(self) -> object:
        """The option `memory`."""
        return self.selection.savings.option

    @property
    def saved_bytes(self) -> int:
        """The bytes saved for the backward, without inputs (alive anyway)."""
        return sum(value.bytes for value in self.saved if not value.alive)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices of all programs."""
        return tuple([choice for program in self.programs for choice in program.choices])


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """The share of an executor: operators forward and backward (including those in regions), regions, gain."""

    executor: str
    forward: int
    backward: int
    regions: int
    gain_seconds: float


@dataclass(frozen=True, slots=True)
class NotFused:
    """Operators that run separately for the same reason."""

    reason: str
    operators: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """The number of calls."""
        return sum(count for _, count in self.operators)


def by_executor(facts: Facts) -> list[ExecutorRow]:
    """Return one row for each executor that runs an operator, the busiest first."""
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for program in facts.programs:
        for item in program.trace.bound_symbols:
            if item.implementation is not None:
                parts = len(_parts(item, facts.selection.fusion))
                operators[item.implementation.owner][program.kind] += parts
    regions = [region for program in facts.programs for region in program.regions]
    rows = []
    for owner, counts in operators.items():
        members = [region for region in regions if region.candidates[0] == owner]
        gain = sum(region.gain for region in members)
        rows.append(ExecutorRow(owner, counts["forward"], counts["backward"], len(members), gain))
    return sorted(rows, key=lambda row: -(row.forward + row.backward))


def regions_of(trace: Trace, fusion: Collection[str]) -> Iterator[ExplainedRegion]:
    """Yield the regions in a trace that runs."""
    for item in trace.bound_symbols:
        if item.implementation is not None and item.implementation.owner in fusion:
            names = tuple([part.symbol.name for part in _parts(item, fusion)])
            runner = item.implementation
            yield ExplainedRegion(names, (runner.owner,), name=item.symbol.name, gain=runner.gain)


def _parts(item: BoundSymbol, fusion: Collection[str]) -> tuple[BoundSymbol, ...]:
    is_region = item.implementation is not None and item.implementation.owner in fusion
    return item.subsymbols if is_region and item.subsymbols else (item,)


def not_fused(facts: Facts) -> list[NotFused]:
    """Return why operators run separately although a fusion executor takes part, the most frequent reason first.

    Reasons that differ only in numbers, such as measured times, are merged, with the range of the numbers. Programs
    whose regions are being compiled are left out.
    """
    fusion = facts.selection.fusion
    reasons: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for program in facts.programs if fusion else ():
        for item in program.trace.bound_symbols if not program.is_pending else ():
            if item.implementation is not None and item.implementation.owner not in fusion:
                reason = _why_alone(item, fusion)
                reasons[re.sub(_NUMBER, _ANY, reason)].append((reason, item.symbol.name))
    groups = []
    for pattern, pairs in reasons.items():
        texts = {text for text, _ in pairs}
        reason = pattern
        for column in zip(*(re.findall(_NUMBER, text) for text in texts), strict=True):
            ends = sorted({*column}, key=float)
            reason = reason.replace(_ANY, " to ".join(dict.fromkeys((ends[0], ends[-1]))), 1)
        groups.append(NotFused(reason, tuple(Counter(name for _, name in pairs).most_common())))
    return sorted(groups, key=lambda group: -group.count)


def _why_alone(item: BoundSymbol, fusion: Collection[str]) -> str:
    assert item.implementation is not None
    declined = item.choices[-1].declined if item.choices else ()
    reasons = [f"{owner}: {reason}" for owner, reason in declined if owner in fusion]
    if reasons:
        return "; ".join(dict.fromkeys(reasons))
    if IN_PLACE in item.tags:
        return "it writes in place"
    return f"{item.implementation.owner} takes it before an executor that fuses is asked"


def who_takes_part(selection: Selection) -> list[str]:
    """Return lines on the executors and rule packages of a call, and on the skipped and the unasked ones."""
    names = ", ".join(f"{entry.name} {entry.options}".rstrip() for entry in selection.claimants)
    choosers = ", ".join(chooser.label for chooser in selection.choosers)
    packages = ", ".join(rule_packages(selection))
    passed_over = ", ".join(selection.passed_over)
    return [
        f"executors: {names}{f'; regions as chosen by {choosers}' if choosers else ''}",
        *[f"rules also by: {packages}"] * bool(packages),
        *[f"skipped: {name}: {reason}" for name, reason in selection.skipped],
        *[f"installed and not asked: {passed_over}"] * bool(passed_over),
    ]


def rule_packages(selection: Selection) -> list[str]:
    """Return the rule packages, and tables of the call, that are not executors."""
    sources = [source for source in selection.rule_sources if not isinstance(source, Claimant)]
    return [source.name for source in sources if source.grad_rules or source.skip_rules]


def grouped(choices: Iterable[Choice], skipped: Reasons) -> list[str]:
    """Return choices as lines, equal choices together, without executors that were skipped or registered nothing."""
    counts: Counter[str] = Counter()
    for choice in choices:
        nothing = f"no grad rule for {choice.symbol}", f"no implementation of {choice.symbol}"
        declined = [row for row in choice.declined if row not in skipped and row[1] not in nothing]
        counts[str(replace(choice, declined=tuple(declined)))] += 1
    return [f"{count:4} x {text}" for text, count in counts.items()]

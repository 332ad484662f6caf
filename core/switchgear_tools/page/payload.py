"""Payload: the facts of an explanation as names and numbers for the script of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from switchgear_core.ir.choice import Choice
from switchgear_core.ir.printing import Scope
from switchgear_core.ir.symbol import AFTER, BOX, DEL, BoundSymbol, line
from switchgear_core.ir.trace import Trace, names_of
from switchgear_core.passes.stages import ABOUT
from switchgear_core.source_text import printable
from switchgear_tools.facts import ExplainedProgram, Facts, by_executor
from switchgear_tools.lifetimes import lifetimes
from switchgear_tools.ranges import label_of

#: Programs with more than `MOST` lines are folded: up to `FOLDED` lines of a module become one.
MOST, FOLDED = 50_000, 100
#: Programs with more lines are shown without their stages.
MOST_WITH_STAGES = 20_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of lines, by label.

    Attributes:
        shares: fraction of a call's time that a run of the line takes.
        peaks: most bytes allocated inside each run of the line, in order.
    """

    shares: Mapping[str, float]
    peaks: Mapping[str, Sequence[int]]


def payload_of(facts: Facts, summary: str, measured: Measured | None = None) -> dict[str, Any]:
    """Return the content of the page; texts and choices are indices into the tables `texts` and `choices`."""
    lines = sum(map(_operators, facts.programs))
    tables = _Tables(facts.selection.skipped, measured)
    graphs = [
        _graph(facts, [*programs], lines, tables)
        for _, programs in groupby(facts.programs, lambda program: program.graph)
    ]
    calls = facts.calls
    fallbacks = [f"{item.calls} x {item.reason}" for item in calls.fallbacks] if calls else []
    return {
        "name": printable(facts.name),
        "summary": summary,
        "alerts": [*[facts.fallback] * bool(facts.fallback), *fallbacks],
        "folded": _about_folding(lines),
        "executors": [asdict(row) for row in by_executor(facts)],
        "saved_bytes": facts.saved_bytes,
        "eager_bytes": facts.eager_bytes,
        "graphs": graphs,
        "texts": [*tables.texts],
        "choices": [*tables.choices.values()],
    }


def _about_folding(lines: int) -> str:
    if lines > MOST:
        return (
            f"{lines:,} operators: lines of one module are folded into one, and stages are left out"
        )
    return f"{lines:,} operators: stages are left out" if lines > MOST_WITH_STAGES else ""


class _Tables:
    """Tables of distinct texts and choices; choices without unavailable executors, which the summary lists."""

    def __init__(
        self, skipped: Collection[tuple[str, str]], measured: Measured | None = None
    ) -> None:
        self._skipped = skipped
        self._measured = measured
        self._runs = Counter[str]()
        self.texts: dict[str, int] = {}
        self.choices: dict[Any, list[Any]] = {}
        self._places: dict[Any, int] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(printable(text), len(self.texts))

    def measured(self, item: BoundSymbol) -> Row:
        """Return the measured share of time of a line, and the bytes allocated inside; empty without measurements."""
        if self._measured is None or (label := label_of(item)) not in self._measured.shares:
            return {}
        run, peaks = self._runs[label], self._measured.peaks.get(label, ())
        self._runs[label] += 1
        row: Row = {"share": self._measured.shares[label]}
        return row | {"inside": peaks[run]} if run < len(peaks) else row

    def choice(self, choice: Choice) -> int:
        declined = tuple([pair for pair in choice.declined if pair not in self._skipped])
        key = (choice.kind, choice.symbol, choice.owner, choice.reason, declined)
        self.choices.setdefault(key, [*key[:4], [*map(list, declined)]])
        return self._places.setdefault(key, len(self._places))


def _graph(
    facts: Facts, programs: Sequence[ExplainedProgram], lines: int, tables: _Tables
) -> dict[str, Any]:
    forward = _Program(programs[0], tables)
    parts = [forward, *[_Program(program, tables, forward) for program in programs[1:]]]
    names = {proxy.name for proxy in programs[0].trace.outputs if proxy is not None}
    names |= programs[0].live_inputs
    contents = [part.contents(lines) for part in parts]
    if lines > MOST:
        _fold(contents)
    saved = [asdict(value) for value in facts.saved if value.name in names]
    return {"label": programs[0].graph, "programs": contents, "saved": saved}


class _Program:
    """One forward or backward as rows: a row for each line, and after a region a row for each of its operators."""

    def __init__(
        self, program: ExplainedProgram, tables: _Tables, forward: _Program | None = None
    ) -> None:
        self._program = program
        self._tables = tables
        self._forward = forward
        self.rows: list[Row] = []
        self.makers: dict[str, int] = {}
        #: The program without lines that free values: the page shows lifetimes instead.
        self._trace = program.stages[-2]
        scope = _scope(self._trace)
        for place, item in enumerate(self._trace.bound_symbols):
            region = len(self.rows)
            self._add(item, scope, place)
            for part in item.subsymbols if item.fused_by else ():
                self._add(part, scope, place, region, item.fused_by)

    def _add(
        self, item: BoundSymbol, scope: Scope, place: int, region: int = -1, owner: str = ""
    ) -> None:
        tables, number = self._tables, len(self.rows)
        if not owner and item.implementation is not None:
            owner = item.implementation.owner
        source = item.links[0].forward.source if item.links else item.source
        row: Row = {
            "code": tables.text(line(item, scope.aside(), False)[0]),
            "line": place,
            "owner": tables.text(owner),
            "types": [tables.text(f"{out.name}: {out.type_string}") for out in item.outputs],
        }
        if source is not None:
            row["source"] = tables.text(f"{source.file.rsplit('/', 1)[-1]}:{source.line}")
            row["module"] = tables.text(source.module)
        if region < 0:
            row |= tables.measured(item)
        if region >= 0:
            row["region"] = region
        elif item.fused_by:
            row["parts"] = len(item.subsymbols)
            row["gain"] = item.implementation.gain if item.implementation is not None else 0
        if item.choices and not item.fused_by:
            row["choices"] = [*dict.fromkeys(map(tables.choice, item.choices))]
        if self._forward is not None:
            row |= self._partners(item, self._forward)
        for out in item.outputs:
            self.makers[out.name] = number
        for part in item.subsymbols if region >= 0 or not item.fused_by else ():
            self.makers |= {out.name: number for out in part.outputs if out.name not in self.makers}
        self.rows.append(row)

    def _partners(self, item: BoundSymbol, forward: _Program) -> Row:
        """Return the forward rows and rules of a backward line, or the reason why there are none."""
        calls = item.subsymbols if item.fused_by else (item,)
        links = [link for call in calls for link in call.links]
        rows = {
            forward.makers[out.name]: None
            for link in links
            for out in link.forward.outputs
            if out.name in forward.makers
        }
        row: Row = {"links": [*rows]} if rows else {"unlinked": self._why_unlinked(item)}
        if links and not item.fused_by:
            rules = dict.fromkeys(str(link.rule) for link in links)
            row["rule"] = self._tables.text(", ".join(rules))
        return row

    def _why_unlinked(self, item: BoundSymbol) -> int:
        if not item.links:
            return self._tables.text("no forward line: a pass of the compiler added this line")
        forward = item.links[0].forward
        names = ", ".join(out.name for out in forward.outputs)
        place = f" ({forward.source})" if forward.source else ""
        return self._tables.text(
            f"its forward line does not run, because a pass left it out: {names} = {forward.symbol.name}{place}"
        )

    def contents(self, lines: int) -> dict[str, Any]:
        """Return rows, stages, and the lifetimes of values."""
        stages = self._program.stages if lines <= MOST_WITH_STAGES else ()
        values = lifetimes(self._trace, self._program.live_inputs)
        return {
            "kind": self._program.kind,
            "lines": len(self._trace.bound_symbols),
            "rows": self.rows,
            "stages": [*_stages(stages, self._tables)],
            "values": [[value.name, value.bytes, value.birth, value.death] for value in values],
            "returned": [proxy.name for proxy in self._trace.outputs if proxy is not None],
        }


def _scope(trace: Trace) -> Scope:
    return Scope(trace.tensors, names_of(trace), False)


def _operators(program: ExplainedProgram) -> int:
    lines = program.stages[-2].bound_symbols
    return sum(len(item.subsymbols) if item.fused_by else 1 for item in lines)


def _stages(stages: Iterable[Trace], tables: _Tables) -> Iterator[dict[str, Any]]:
    for trace in stages:
        scope = _scope(trace)
        pass_name = trace.provenance[-1].name if trace.provenance else ""
        yield {
            "name": pass_name,
            "about": ABOUT.get(pass_name, "as a plugin's pass left it"),
            "program": trace.name,
            "lines": [tables.text(line(item, scope, False)[0]) for item in trace.bound_symbols],
            "operators": sum(i.symbol not in (AFTER, BOX, DEL) for i in trace.bound_symbols),
        }


def _fold(programs: list[dict[str, Any]]) -> None:
    """Replace adjacent rows of a module and executor with a single row."""
    places: dict[int, int] = {}
    for program in programs:
        groups: list[Row] = []
        new_places: dict[int, int] = {}
        for number, row in enumerate(program["rows"]):
            last = groups[-1] if groups else None
            is_like = last is not None and all(
                last.get(key) == row.get(key) for key in ("module", "owner")
            )
            if last is None or not is_like or last["folds"] == FOLDED:
                last = {key: row[key] for key in ("code", "line", "owner", "types")}
                last |= {key: row[key] for key in ("module", "source") if key in row}
                groups.append(last | {"folds": 0, "links": []})
                last = groups[-1]
            last["folds"] += 1
            links = (places[link] for link in row.get("links", ()) if link in places)
            last["links"] = [*dict.fromkeys((*last["links"], *links))]
            new_places[number] = len(groups) - 1
        program["rows"] = groups
        places = places or new_places

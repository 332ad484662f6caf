"""Summary: the forty lines that `sg.explain` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from switchgear_core.showing import counted
from switchgear_core.source_text import printable
from switchgear_tools import PARTS
from switchgear_tools.columns import table
from switchgear_tools.facts import (
    ExplainedCalls,
    Facts,
    NotFused,
    by_executor,
    not_fused,
    who_takes_part,
)

#: The most reasons of one kind to show.
_MOST = 4


def summary(facts: Facts, width: int, detail: str) -> Iterator[str]:
    """Yield the lines of the summary, at most `width` columns wide unless a single word is longer.

    Names and paths stay unbroken. Omitted parts are counted, with the place of the rest: `detail` with a part's name.
    """
    paragraphs = [
        [*_head(facts, width, detail)],
        _table(facts, width),
        [*_memory(facts, width)],
        [*_not_fused(facts, width, detail)],
        _wrapped(f"more: {'  '.join(map(detail.format, PARTS))}", width, "      "),
    ]
    for number, lines in enumerate(filter(None, paragraphs)):
        yield from [""] * bool(number)
        yield from lines


def _head(facts: Facts, width: int, detail: str) -> Iterator[str]:
    """Yield lines on calls, programs, fallbacks, and the executors of the call."""
    calls = facts.calls
    yield from _wrapped(facts.name, width)
    counts = (
        "before a call: nothing ran or was compiled" if calls is None else _counts(calls, detail)
    )
    yield from _wrapped(counts, width, "  ")
    if facts.fallback:
        yield from _wrapped(_brief(facts.fallback), width, "  ")
    yield from _fallbacks(calls, width, detail) if calls is not None else ()
    for line in who_takes_part(facts.selection):
        if line.startswith("skipped: ") and len(line) > width:
            name = line.split(": ")[1]
            line = f"skipped: {name}: unavailable (why: {detail.format('operators')})"
        yield from _wrapped(line, width, "  ")
    for note in facts.notes:
        yield from _wrapped(note, width, "  ")


def _counts(calls: ExplainedCalls, detail: str) -> str:
    if not calls.total:
        return "not called yet; sg.explain(f, *args) explains a call before it runs"
    fell_back = sum(entry.calls for entry in calls.fallbacks)
    suffix = " as a whole" * any(entry.split for entry in calls.fallbacks)
    times = {0: f"never compiled{suffix}", 1: "compiled once", 2: "compiled twice"}
    compiled = times.get(calls.compilations, f"compiled {calls.compilations} times")
    why = f"; the last one shown, why others: {detail.format('recompilations')}"
    calls_made = counted(calls.total, "call")
    return f"{calls_made}, {compiled}, {fell_back} fell back{why * (calls.compilations > 1)}"


def _fallbacks(calls: ExplainedCalls, width: int, detail: str) -> Iterator[str]:
    """Yield lines on calls that were not captured, by reason, and the remedy."""
    for how, counts in (
        ("ran in eager, not compiled", [entry.calls - entry.split for entry in calls.fallbacks]),
        ("were split by TorchDynamo", [entry.split for entry in calls.fallbacks]),
    ):
        total = sum(counts)
        if total:
            share = f"{total / calls.total:.0%}"
            yield from _wrapped(f"{total} of {calls.total} calls ({share}) {how}:", width)
            pairs = [*zip(counts, calls.fallbacks, strict=True)]
            reasons = [f"{count} x {_brief(entry.reason)}" for count, entry in pairs if count]
            yield from _listed(reasons, width, detail.format("fallbacks"))
    for split in calls.splits:
        yield from _wrapped(split.heading, width, "  ")
        yield from _listed(
            [_brief(line) for line in split.exceptions()], width, detail.format("fallbacks")
        )
    if calls.fallbacks:
        hint = 'to stop at the line that a reason names: sg.jit(..., fallback="error")'
        yield from _wrapped(f"  {hint}", width, "    ")


def _table(facts: Facts, width: int) -> list[str]:
    """Return operators, regions and gain by executor."""
    rows = by_executor(facts)
    header = ("executor", "forward", "backward", "regions", "gain per call")
    cells = [
        (
            row.executor,
            str(row.forward or ""),
            str(row.backward or ""),
            str(row.regions or ""),
            f"{1e3 * row.gain_seconds:.2f} ms" if row.gain_seconds else "",
        )
        for row in rows
    ]
    lines = table(header, cells, range(1, 5)).splitlines() if rows else []
    return lines if max(map(len, lines), default=0) <= width else [*_as_list(header, cells, width)]


def _as_list(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield a table that is too wide for its place, as one line for each row."""
    for row in rows:
        cells = [f"{name} {cell}" for name, cell in zip(header[1:], row[1:], strict=True) if cell]
        yield from _wrapped(f"{row[0]}: {', '.join(cells)}", width, "  ")


def _memory(facts: Facts, width: int) -> Iterator[str]:
    """Yield lines on the bytes saved for the backward, compared with eager, and on the peaks of the programs."""
    if facts.saved:
        saved = [value for value in facts.saved if not value.alive]
        line = (
            f"saved for the backward: {_size(facts.saved_bytes)} in {counted(len(saved), 'tensor')}"
        )
        if facts.eager_bytes:
            share = facts.saved_bytes / facts.eager_bytes
            line += f", {share:.2f} of eager's {_size(facts.eager_bytes)}"
        line += f", memory={facts.memory!r}"
        inputs = len(facts.saved) - len(saved)
        if inputs:
            line += f"; {counted(inputs, 'input')} read again, not counted"
        yield from _wrapped(line, width, "  ")
    if facts.programs:
        peaks = ", ".join(f"{program.kind} {_size(program.peak)}" for program in facts.programs[:2])
        yield from _wrapped(f"peak without the inputs: {peaks}", width, "  ")


def _not_fused(facts: Facts, width: int, detail: str) -> Iterator[str]:
    if facts.programs and not facts.selection.fusion:
        yield from _wrapped("not fused: no executor that fuses takes part", width, "  ")
    groups = not_fused(facts)
    if groups:
        yield "not fused, and why"
    for group in groups[:_MOST]:
        yield from _wrapped(f"{group.count:5}  {_brief(group.reason)}", width, " " * 7)
        yield from _wrapped(f"       {_names(group)}", width, " " * 7)
    rest = groups[_MOST:]
    if rest:
        count = sum(group.count for group in rest)
        text = f"{count:5}  for {counted(len(rest), 'other reason')}: {detail.format('operators')}"
        yield from _wrapped(text, width, " " * 7)


def _names(group: NotFused) -> str:
    """Return the operators of a group, naming the most frequent."""
    limit = _MOST if len(group.operators) > _MOST + 1 else _MOST + 1
    names = [f"{count} {_short(name)}" for name, count in group.operators[:limit]]
    rest = group.operators[limit:]
    if rest:
        names.append(f"{sum(count for _, count in rest)} of {counted(len(rest), 'other kind')}")
    return ", ".join(names)


def _short(operator: str) -> str:
    parts = operator.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) == 3 else operator


def _listed(items: Sequence[str], width: int, where: str) -> Iterator[str]:
    for item in items[:_MOST]:
        yield from _wrapped(f"  {item}", width, "    ")
    if len(items) > _MOST:
        yield from _wrapped(f"  and {len(items) - _MOST} more: {where}", width, "    ")


def _brief(text: str) -> str:
    """Return the first line of a text, at most three lines long when wrapped; " …" marks an omission."""
    line, _, rest = text.strip().partition("\n")
    short = textwrap.shorten(line, 230, placeholder=" …")
    return (
        short if short == " ".join(line.split()) and not rest else f"{short.removesuffix(' …')} …"
    )


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [printable(line) for line in lines]


def _size(count: int) -> str:
    for unit, least, size in (("GB", 1e9, 1e9), ("MB", 1e6, 1e6), ("kB", 1e4, 1e3)):
        if count >= least:
            return f"{count / size:.3g} {unit}"
    return f"{count:,} bytes"

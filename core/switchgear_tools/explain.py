"""Explain the calls of a jitted function, or a call that has not run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from switchgear_runtime.compiler import Compiler
from switchgear_runtime.entry import Entry
from switchgear_runtime.jitted import JitFunction, JitModule
from switchgear_runtime.last_call import compiler_of, why_no_entry
from switchgear_runtime.splitting import Splitting
from switchgear_tools.before_call import facts_before
from switchgear_tools.entries import (
    bytes_in_eager,
    programs_of,
    recomputed_by,
    saved_by,
    sizes_of,
)
from switchgear_tools.explanation import Explanation
from switchgear_tools.facts import (
    ExplainedCalls,
    ExplainedFallback,
    ExplainedGraph,
    ExplainedSplit,
    Facts,
)
from switchgear_tools.waiting import progress_of


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Counts of a jitted function: calls, hits, compiled entries, fallbacks; and the reason of each compilation."""

    calls: int
    hits: int
    misses: int
    fallbacks: int
    entries: int
    reasons: tuple[str, ...]


def cache_info(jitted: object) -> CacheInfo:
    """Return the entries of a jitted function, its hits and its misses.

    Args:
        jitted: the result of `sg.jit`.

    Returns:
        Counts of calls, hits, compilations and fallbacks, and the reason of each compilation, in their order.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
    """
    compiler = compiler_of(jitted)
    misses = len(compiler.cache.reasons)
    fallbacks = sum(fallback.calls for fallback in compiler.fallbacks.reasons.values())
    entries = sum(1 for _ in compiler.cache.entries())
    return CacheInfo(
        compiler.calls, compiler.hits, misses, fallbacks, entries, tuple(compiler.cache.reasons)
    )


def explain(function: Any, /, *args: Any, **kwargs: Any) -> Explanation:
    """Explain the calls of a jitted function so far, or a call that has not run.

    The result prints as a summary: programs, the share of each executor, saved bytes, and the operators that are not
    fused, with the reason. Its methods return the details.

    Args:
        function: the result of `sg.jit`. Before a call also another function or module, with the default options.
        args: arguments of a call. The function runs on fakes of the arguments, and executors compile nothing.
        kwargs: keyword arguments of the call.

    Returns:
        The explanation: of several programs the last that ran, of a split function all graphs.

    Raises:
        TypeError: the function is not jitted, and the arguments are missing.
        RuleError: a plugin raises where the call would run the plugin; likewise other errors of plugins.
    """
    if not (args or kwargs):
        if isinstance(function, (JitFunction, JitModule)):
            return Explanation(_facts_after(compiler_of(function)))
        if missing := missing_arguments(function):
            raise TypeError(
                f"sg.explain(f) takes a jitted function, got a {type(function).__name__}: jit it (f = sg.jit(f)) and "
                f"call that, or pass the arguments of a call too, sg.explain(f, *args) ({missing})"
            )
    return explain_before(function, *args, **kwargs)


def explain_before(function: Any, /, *args: Any, **kwargs: Any) -> Explanation:
    """Explain a call that has not run; the call may have no arguments."""
    return Explanation(facts_before(function, args, kwargs))


def missing_arguments(function: Any) -> str:
    """Return why a function cannot be called without arguments; empty if it can."""
    try:
        inspect.signature(getattr(function, "forward", function)).bind()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _facts_after(compiler: Compiler) -> Facts:
    selection = compiler.selection
    entries = [*_shown(compiler)]
    calls = _calls(compiler)
    is_told = bool(entries or calls.fallbacks or not calls.total)
    remarks = selection.parts.answers("switchgear_remarks", selection=selection) if entries else ()
    notes = [*chain.from_iterable(remarks)]
    notes += [note for entry, graph in entries for note in _notes(entry, graph)]
    programs = [item for entry, graph in entries for item in programs_of(entry, selection, graph)]
    return Facts(
        compiler.name,
        selection,
        calls,
        "" if is_told else f"nothing is compiled: {why_no_entry(compiler)}",
        tuple(programs),
        tuple(notes),
        tuple([value for entry, _ in entries for value in saved_by(entry)]),
        tuple([line for entry, _ in entries for line in recomputed_by(entry)]),
        sum(bytes_in_eager(entry, selection) for entry, _ in entries),
        tuple([line for entry, _ in entries for line in sizes_of(entry)]),
        tuple([line for entry, _ in entries for line in entry.guards()]),
        tuple(compiler.cache.reasons),
    )


def _shown(compiler: Compiler) -> Iterator[tuple[Entry, str]]:
    """Yield the most recent entry, or the last entry of each graph of a split function with the graph's line."""
    if compiler.last is not None:
        yield compiler.last, ""
        return
    for split in compiler.splits.values():
        for number, graph in enumerate(split.graphs, 1):
            if graph.compiler.last is not None:
                yield graph.compiler.last, graph.line or f"graph {number}"


def _notes(entry: Entry, graph: str) -> Iterator[str]:
    place = f"{graph}: " if graph else ""
    for line in progress_of(entry):
        yield f"{place}{line}"
    if entry.bridge is not None and entry.bridge.by_autograd:
        yield f"{place}gradients: by PyTorch's autograd itself, for the forward is one operator"
    if entry.fixed:
        yield f"{place}dynamic sizes: fixed, for with symbolic ones there was {entry.fixed}"


def _calls(compiler: Compiler) -> ExplainedCalls:
    fallbacks = [
        ExplainedFallback(str(fallback), fallback.calls, fallback.splits)
        for fallback in compiler.fallbacks.reasons.values()
        if fallback.calls
    ]
    splits = tuple(map(explained_split, compiler.splits.values()))
    return ExplainedCalls(compiler.calls, len(compiler.cache.reasons), tuple(fallbacks), splits)


def explained_split(split: Splitting) -> ExplainedSplit:
    """Return the facts about a function that TorchDynamo split."""
    graphs = [
        ExplainedGraph(graph.line, graph.operators, graph.is_compiled, tuple(graph.refusals))
        for graph in split.graphs
    ]
    return ExplainedSplit(
        split.name, split.doubt, split.ratio, tuple(graphs), tuple(split.breaks.items())
    )

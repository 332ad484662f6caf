"""Facts of a call before the call: the function is captured on fakes of its arguments; nothing runs or compiles."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from switchgear.jitting import jit
from switchgear_core.errors import InvalidInput
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.executor import Executor, FusionExecutor
from switchgear_core.registry.plugin import Chooser
from switchgear_core.registry.region import Region, RegionChoice
from switchgear_core.registry.selection import Selection
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.fallback import Fallback
from switchgear_runtime.jitted import JitFunction, JitModule
from switchgear_runtime.last_call import compiler_of
from switchgear_runtime.module_state import is_uninitialised
from switchgear_tools.entries import (
    bytes_in_eager,
    programs_of,
    recomputed_by,
    saved_by,
    sizes_of,
)
from switchgear_tools.facts import ExplainedRegion, Facts


def facts_before(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Facts:
    """Return the facts of a call that does not run.

    The function runs on fakes of the arguments. Its program is differentiated and claimed as for the call itself.
    Executors are asked which operators to run, and compile nothing.
    """
    compiler = compiler_for(function)
    records: list[ExplainedRegion] = []
    entry = compiler.examined(undecided(compiler.selection, records), args, kwargs)
    if isinstance(entry, Fallback):
        reason = f"would not be compiled: {entry} (fallback={compiler.options['fallback']!r})"
        return Facts(compiler.name, compiler.selection, None, reason)
    count = len(records)
    programs = [*programs_of(entry, compiler.selection)]
    regions = [tuple(records[:count]), tuple(records[count:])]
    return Facts(
        compiler.name,
        compiler.selection,
        None,
        programs=tuple(
            [replace(item, regions=group) for item, group in zip(programs, regions, strict=False)]
        ),
        saved=saved_by(entry),
        recomputed=recomputed_by(entry),
        eager_bytes=bytes_in_eager(entry, compiler.selection),
        sizes=tuple(sizes_of(entry)),
        guards=tuple(entry.guards()),
    )


def compiler_for(function: Any) -> Compiler:
    """Return the compiler of a jitted function, or of another function with the default options.

    Raises:
        InvalidInput: the module has lazy parts that are not initialised.
    """
    jitted = function if isinstance(function, (JitFunction, JitModule)) else jit(function)
    compiler = compiler_of(jitted)
    if compiler.module is not None and is_uninitialised(compiler.module):
        raise InvalidInput("the module has lazy parts; call it once, which initialises them")
    return compiler


def undecided(selection: Selection, records: list[ExplainedRegion]) -> Selection:
    """Return a copy of `selection` whose executors compile nothing, and append their regions to `records`."""

    def choose(regions: Sequence[Region], context: Any) -> Sequence[RegionChoice]:
        for region in regions:
            candidates = tuple([executor.name for executor in region.candidates])
            owners = Counter(
                item.implementation.owner
                for item in context.operators(region).bound_symbols
                if item.implementation is not None
            )
            records.append(
                ExplainedRegion(_operators(region.trace), candidates, tuple(owners.items()))
            )
        why = "unless the operators are faster, as measured"
        return [RegionChoice(region.candidates[0], why) for region in regions]

    def note(executor: Executor, region: Trace) -> None:
        if not selection.choosers:
            records.append(ExplainedRegion(_operators(region), (executor.name,)))

    twins = {executor: _idle(executor, note) for executor in selection.executors}
    claimants = (replace(entry, executor=twins[entry.executor]) for entry in selection.claimants)
    return replace(
        selection,
        settings={**selection.settings, "compile": "now"},
        executors=tuple(twins.values()),
        claimants=tuple(claimants),
        choosers=(Chooser(choose, choose, "sg.explain", ""),) if selection.choosers else (),
    )


def _idle(executor: Executor, note: Callable[[Executor, Trace], None]) -> Executor:
    """Return a copy of an executor that claims as before and notes each region instead of compiling."""
    if not isinstance(executor, FusionExecutor):
        return executor

    def compile_all(regions: Sequence[Trace]) -> Sequence[Callable[..., object]]:
        for region in regions:
            note(executor, region)
        return [region.function() for region in regions]

    twin = copy.copy(executor)
    twin.compile_all = compile_all  # type: ignore[method-assign]
    return twin


def _operators(region: Trace) -> tuple[str, ...]:
    return tuple([item.symbol.name for item in region.bound_symbols])

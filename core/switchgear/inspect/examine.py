"""Examine: what a call would become, found out on fakes of its arguments; nothing runs, and no executor compiles."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from switchgear.compiler import Compiler
from switchgear.errors import InvalidInput
from switchgear.grad.partition import saved_values
from switchgear.inspect.explain import counted, saved_lines, who_takes_part
from switchgear.ir.aliasing import storages
from switchgear.ir.choice import Choice, Saved
from switchgear.ir.symbol import proxies
from switchgear.ir.trace import Trace
from switchgear.jit import compiler_of, jit
from switchgear.jitted import JitFunction, JitModule
from switchgear.runtime.fallback import Fallback
from switchgear.runtime.module_state import is_uninitialised
from switchgear.who.executor import Executor, FusionExecutor
from switchgear.who.plugin import Chooser
from switchgear.who.region import Region, RegionChoice
from switchgear.who.selection import Selection


@dataclass(frozen=True, slots=True)
class ExaminedRegion:
    """Operators that would run as one, by the first of the `candidates`.

    Where plugins measure that, by the fastest of these or, if nobody is faster, by those `otherwise` named, each with
    the number of its calls.
    """

    operators: tuple[str, ...]
    candidates: tuple[str, ...]
    otherwise: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        others = ", ".join(f"{count} calls by {owner}" for owner, count in self.otherwise)
        candidates = " or ".join(self.candidates)
        return f"{len(self.operators)} operators as one by {candidates}{f'; else {others}' if others else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Examination:
    """What `examine` found; prints as a report.

    `fallback` is why the call would not be compiled, or empty; all else is empty then. `choices`, `saved`, `forward`
    and `backward` are what `last_choices`, `last_saved` and the last of `last_traces` and `last_backward_traces` would
    be. `forward_peak` and `backward_peak` are bytes at once, beside the inputs of the call: what is saved, results and
    grad outputs are among them, what a kernel or a region uses inside is not.
    """

    selection: Selection
    fallback: str = ""
    choices: tuple[Choice, ...] = ()
    forward_regions: tuple[ExaminedRegion, ...] = ()
    backward_regions: tuple[ExaminedRegion, ...] = ()
    saved: tuple[Saved, ...] = ()
    forward: Trace | None = None
    backward: Trace | None = None
    forward_peak: int = 0
    backward_peak: int = 0

    @property
    def saved_bytes(self) -> int:
        """What is saved for the backward, without inputs, which live anyway."""
        return sum(value.bytes for value in self.saved if not value.alive)

    def as_dict(self) -> dict[str, Any]:
        """What it holds, in names and numbers, for programs."""
        selection = self.selection
        return {
            "executors": [one.label for one in selection.claimants],
            "skipped": dict(selection.skipped),
            "not_asked": list(selection.passed_over),
            "fallback": self.fallback,
            "choices": [asdict(choice) for choice in self.choices],
            "forward_regions": [asdict(region) for region in self.forward_regions],
            "backward_regions": [asdict(region) for region in self.backward_regions],
            "saved": [asdict(value) for value in self.saved],
            "saved_bytes": self.saved_bytes,
            "forward_peak": self.forward_peak,
            "backward_peak": self.backward_peak,
        }

    def __str__(self) -> str:
        lines = who_takes_part(self.selection)
        if self.fallback:
            return "\n".join([*lines, f"would not be compiled: {self.fallback}"])
        runs = Counter(one.owner for one in self.choices if one.kind == "execution")
        del runs["decomposition"]
        lines.append("calls run by " + ", ".join(f"{who}: {count}" for who, count in runs.items()))
        lines.append(f"bytes at the peak of the forward, beside the inputs: {self.forward_peak}")
        if self.backward is not None:
            lines.append(f"bytes at the peak of the backward: {self.backward_peak}")
        regions = [f"forward: {region}" for region in self.forward_regions]
        regions += [f"backward: {region}" for region in self.backward_regions]
        lines += [f"{count:4} x {region}" for region, count in Counter(regions).items()]
        lines += counted(self.choices, self.selection)
        return "\n".join([*lines, *saved_lines(self.saved, self.selection)])


def examine(function: Any, /, *args: Any, **kwargs: Any) -> Examination:
    """What `sg.jit(function)(*args, **kwargs)` would do, without running or compiling it.

    The function runs on fakes of the arguments. What it makes of its call is differentiated and claimed as for the call
    itself; executors are asked what they take, and compile nothing. A jitted function is examined with its options,
    another one with the default ones, `sg.defaults` included. Raises what the call would raise of plugins' errors.
    """
    compiler = compiler_for(function)
    noted: list[ExaminedRegion] = []
    entry = compiler.examined(undecided(compiler.selection, noted), args, kwargs)
    if isinstance(entry, Fallback):
        return Examination(
            compiler.selection, fallback=f"{entry} (fallback={compiler.options['fallback']!r})"
        )
    count = len(noted)
    training = None if entry.bridge is None else entry.bridge.training
    backward = None if training is None else training.backward
    saved = () if training is None else saved_values(training.parts)
    return Examination(
        compiler.selection,
        choices=(*entry.forward.choices, *(backward.choices if backward else ())),
        forward_regions=tuple(noted[:count]),
        backward_regions=tuple(noted[count:]),
        saved=saved,
        forward=entry.forward.stages[-1],
        backward=backward.stages[-1] if backward else None,
        forward_peak=peak(
            entry.forward.stages[-2], {proxy.name for proxy in entry.captured.trace.inputs}
        ),
        backward_peak=peak(backward.stages[-2], {one.name for one in saved if one.alive})
        if backward
        else 0,
    )


def compiler_for(function: Any) -> Compiler:
    """The compiler of a jitted function, or of another one with the default options."""
    jitted = function if isinstance(function, (JitFunction, JitModule)) else jit(function)
    compiler = compiler_of(jitted)
    if compiler.module is not None and is_uninitialised(compiler.module):
        raise InvalidInput("the module has lazy parts; call it once, which initialises them")
    return compiler


def undecided(selection: Selection, noted: list[ExaminedRegion]) -> Selection:
    """The same, with executors that take what they take and compile nothing; their regions are `noted`."""

    def choose(regions: Sequence[Region], context: Any) -> Sequence[RegionChoice]:
        for region in regions:
            candidates = tuple([executor.name for executor in region.candidates])
            owners = Counter(
                item.implementation.owner
                for item in context.operators(region).bound_symbols
                if item.implementation is not None
            )
            noted.append(
                ExaminedRegion(_operators(region.trace), candidates, tuple(owners.items()))
            )
        why = "unless the operators are faster, as measured"
        return [RegionChoice(region.candidates[0], why) for region in regions]

    def note(executor: Executor, region: Trace) -> None:
        if not selection.choosers:
            noted.append(ExaminedRegion(_operators(region), (executor.name,)))

    twins = {executor: _idle(executor, note) for executor in selection.executors}
    claimants = (replace(one, executor=twins[one.executor]) for one in selection.claimants)
    return replace(
        selection,
        compile="now",
        executors=tuple(twins.values()),
        claimants=tuple(claimants),
        choosers=(Chooser(choose, choose, "sg.examine", ""),) if selection.choosers else (),
    )


def _idle(executor: Executor, note: Callable[[Executor, Trace], None]) -> Executor:
    """One that takes what an executor takes, and notes what it is to compile."""
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


def peak(trace: Trace, held: Collection[str]) -> int:
    """The most bytes at once that a trace's values take, those in the memory of `held` inputs left out.

    It has no `del` lines: each value dies after its last reader.
    """
    homes = storages(trace.bound_symbols)
    last: dict[str, int] = {}
    for line, item in enumerate(trace.bound_symbols):
        last.update(
            (homes.get(proxy.name, proxy.name), line) for proxy in (*item.inputs, *item.outputs)
        )
    kept = {homes.get(proxy.name, proxy.name) for proxy in proxies(trace.outputs)}
    alive = {proxy.name: proxy.bytes for proxy in trace.inputs if proxy.name not in held}
    most = sum(alive.values())
    for line, item in enumerate(trace.bound_symbols):
        alive.update((proxy.name, proxy.bytes) for proxy in item.outputs if proxy.name not in homes)
        most = max(most, sum(alive.values()))
        for name in [name for name in alive if last.get(name) == line and name not in kept]:
            del alive[name]
    return most

"""Who took which operator, what is saved, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from switchgear.capture.signature import HeldNumber
from switchgear.compile.background import objection
from switchgear.compile.decisions import opened
from switchgear.compiler import Compiler
from switchgear.inspect.waiting import progress_of
from switchgear.ir.choice import Choice, Saved
from switchgear.jit import compiler_of, last_choices, last_entry, last_saved
from switchgear.who.selection import Claimant, Reasons, Selection


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How often a jitted function was called, hit an entry, compiled one and ran in eager, and why it compiled."""

    calls: int
    hits: int
    misses: int
    fallbacks: int
    entries: int
    reasons: tuple[str, ...]


def cache_info(jitted: object) -> CacheInfo:
    """The entries of a jitted function, hits and misses, with the reason of each miss, in their order."""
    compiler = compiler_of(jitted)
    misses = len(compiler.cache.reasons)
    fallbacks = sum(fallback.calls for fallback in compiler.fallbacks.reasons.values())
    hits = compiler.calls - misses - fallbacks - compiler.others
    entries = sum(1 for _ in compiler.cache.entries())
    return CacheInfo(
        compiler.calls, hits, misses, fallbacks, entries, tuple(compiler.cache.reasons)
    )


def explain(jitted: object, guards: bool = False) -> str:
    """A report on the calls that ran in eager and the entry last run.

    Of that the executors, those skipped, every choice and every saved value, with reasons.

    With `guards`, also what the entry takes for granted of a call: sizes, modes, what was read from Python.

    Who was skipped is said once, and who has nothing registered for an operator is not named beside it;
    `sg.last_choices` has these too.
    """
    compiler = compiler_of(jitted)
    lines = who_takes_part(compiler.selection)
    fallbacks = [fallback for fallback in compiler.fallbacks.reasons.values() if fallback.calls]
    lines += _beside(compiler, [(one.calls - one.splits, str(one)) for one in fallbacks], _IN_EAGER)
    lines += _beside(compiler, [(one.splits, str(one)) for one in fallbacks], _SPLIT)
    lines += map(str, compiler.splits.values())
    if fallbacks and compiler.last is None:
        return "\n".join(lines)
    entry = last_entry(jitted)
    selection = compiler.selection
    if selection.compile == "background" and (reason := objection(selection)):
        lines.append(f"regions were compiled before the first call returned: {reason}")
    if selection.decisions is not None:
        how = "repeated from" if opened(selection.decisions).repeats else "noted in"
        lines.append(f"decisions: {how} {selection.decisions}")
    lines += progress_of(entry)
    if entry.bridge is not None and entry.bridge.by_autograd:
        lines.append("gradients: by PyTorch's autograd itself, for the forward is one operator")
    sizes = entry.captured.sizes
    if entry.fixed:
        lines.append(f"dynamic sizes: fixed, for with symbolic ones there was {entry.fixed}")
    inputs = zip(entry.captured.sources, entry.captured.trace.inputs, strict=True)
    numbers = {proxy.name: str(place) for place, proxy in inputs if isinstance(place, HeldNumber)}
    for number in sizes.numbers if sizes is not None else ():
        path = numbers.get(number.tensor, number.source)
        lines.append(f"dynamic sizes: {number.name} is {path}")
    for constraint in sizes.constraints if sizes is not None else ():
        lines.append(f"  only if {constraint}")
    if guards:
        lines.append("guards of the entry last run:")
        lines += [f"  {line}" for line in entry.guards()]
    lines += counted(last_choices(jitted), compiler.selection)
    lines += saved_lines(last_saved(jitted), compiler.selection)
    return "\n".join(lines)


def who_takes_part(selection: Selection) -> list[str]:
    """The executors and packages of rules of a call, those skipped, and those installed that are not asked."""
    names = ", ".join(f"{one.name} {one.options}".rstrip() for one in selection.claimants)
    choosers = ", ".join(chooser.label for chooser in selection.choosers)
    lines = [
        f"executors: {names}; regions as chosen by {choosers}"
        if choosers
        else f"executors: {names}"
    ]
    sources = selection.rule_sources
    packages = ", ".join(
        one.name
        for one in sources
        if not isinstance(one, Claimant) and (one.grad_rules or one.skip_rules)
    )
    lines += [f"rules also by: {packages}"] * bool(packages)
    lines += [f"skipped: {name}: {reason}" for name, reason in selection.skipped]
    passed_over = ", ".join(selection.passed_over)
    lines += [f"installed and not asked: {passed_over}"] * bool(passed_over)
    return lines


def counted(choices: Iterable[Choice], selection: Selection) -> list[str]:
    """Choices, equal ones together, without what is said of everything."""
    counts = Counter(str(_with_objections(choice, selection.skipped)) for choice in choices)
    return [f"{count:4} x {text}" for text, count in counts.items()]


def saved_lines(saved: Sequence[Saved], selection: Selection) -> list[str]:
    """What is saved for the backward, the largest first, and what lives anyway."""
    if not saved:
        return []
    alive = [value.bytes for value in saved if value.alive]
    own = sum(value.bytes for value in saved) - sum(alive)
    ordered = sorted(saved, key=lambda value: (value.alive, -value.bytes))
    return [
        f"saved for the backward, memory={selection.memory!r}: {own} bytes in {len(saved) - len(alive)} values, "
        f"and {len(alive)} inputs, which live anyway, of {sum(alive)} bytes",
        *(f"  {value}" for value in ordered),
    ]


_IN_EAGER = "ran in eager, not compiled"
_SPLIT = "were split by TorchDynamo"


def _beside(compiler: Compiler, counts: Sequence[tuple[int, str]], how: str) -> Iterator[str]:
    """The calls that were not captured, by reason."""
    total = sum(count for count, _ in counts)
    if total:
        yield f"{total} of {compiler.calls} calls ({total / compiler.calls:.0%}) {how}:"
        yield from [f"{count:4} x {reason}" for count, reason in counts if count]


def _with_objections(choice: Choice, skipped: Reasons) -> Choice:
    nothing = (f"no grad rule for {choice.symbol}", f"no implementation of {choice.symbol}")
    return replace(
        choice,
        declined=tuple(
            [one for one in choice.declined if one not in skipped and one[1] not in nothing]
        ),
    )

"""Checks of plugins: their implementations, rules and passes, compared with PyTorch on samples and their variants."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

import switchgear as sg
from switchgear_core.errors import (
    NotDifferentiable,
    PluginWarning,
    RegistrationError,
    SwitchgearError,
)
from switchgear_core.ir.naming import symbols_of
from switchgear_core.nearness import mismatch, widened
from switchgear_core.nesting import map_tensors, memory_of, tensors_in, twin
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.hookspecs import PassPlacement
from switchgear_core.registry.isolation import restoring, states
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugin import Plugin
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.registry import Table
from switchgear_core.torch_private import new_fake_mode
from switchgear_runtime.last_call import compiler_of
from switchgear_tools.testing.comparison import Derivatives, derivatives, unlike
from switchgear_tools.testing.samples import Sample, is_random, samples_of, variants

#: The most failures that are told of an operator.
_TOLD = 5
#: How the names of PyTorch's operators begin.
_PYTORCHS = ("torch.", "aten.")


class Failures(AssertionError):
    """Error of a check, with a paragraph for each failure."""


def check_implementation(
    executor: Executor | Table | str, target: Any, samples: Sequence[Sample] = ()
) -> None:
    """Compare an executor's implementation of an operator with PyTorch.

    It compares values, metadata and strides, arguments after the call, and shared memory. It also compares two runs,
    two threads, and the state of the process. At least one sample must be accepted.

    Args:
        executor: an executor, a table, or a name.
        target: the operator.
        samples: calls; by default PyTorch's own.

    Raises:
        Failures: a check failed, or no sample was accepted.
    """
    if isinstance(executor, Table):
        executor = Executor(executor.owner, table=executor)
    name = executor if isinstance(executor, str) else executor.name
    options = {"executors": [executor, "torch"], "fallback": "eager"}
    examine = partial(_implementation, name=name, options=options)
    _check(_symbols(target), name, samples, variants, examine)


def check_rule(
    owner: Table | Executor | str,
    target: object,
    samples: Sequence[Sample] = (),
    *,
    orders: int = 2,
) -> None:
    """Compare a grad rule with PyTorch, in float64.

    It compares the forward, gradients for all arguments and for each alone, and higher derivatives.

    Args:
        owner: a table, an executor, or the name of a plugin or an executor.
        target: the operator.
        samples: calls; by default PyTorch's own.
        orders: the number of derivatives, where PyTorch has them.

    Raises:
        Failures: a check failed.
    """
    if isinstance(owner, Table):
        name, options = owner.owner, {"executors": ["torch"], "grad_rules": owner}
    else:
        name = owner if isinstance(owner, str) else owner.name
        options = {"executors": [owner, "torch"]}
    options["fallback"] = "eager"
    examine = partial(_rule, name=name, options=options, orders=orders)
    _check(_symbols(target), name, samples, _in_double, examine)


def check_region(executor: Executor | str, function: Callable[..., object], *args: object) -> None:
    """Compare a function run by a fusing executor with PyTorch, with gradients where arguments require them.

    Args:
        executor: the executor, or its name.
        function: the function.
        *args: its arguments.

    Raises:
        Failures: results differ, or the executor compiles no region.
    """
    name = executor if isinstance(executor, str) else executor.name
    options = {"executors": [executor, "torch"], "check": True}
    _check_function(f"regions of {name}", function, args, options, name)


def check_pass(placement: PassPlacement, function: Callable[..., object], *args: object) -> None:
    """Compare values and gradients of a function with and without a pass.

    Args:
        placement: the pass and its place.
        function: the function.
        *args: its arguments.

    Raises:
        Failures: results differ.
    """
    options = {"executors": ["torch"], "passes": [placement]}
    _check_function(f"pass {placement.name}", function, args, options)


def _check_function(
    subject: str,
    function: Callable[..., object],
    args: tuple[object, ...],
    options: dict[str, Any],
    name: str = "",
) -> None:
    sample = Sample(function, args, name=getattr(function, "__qualname__", "function"))
    try:
        failures = [f"{sample}: {text}" for text in _run_twice(sample, options, name) if text]
    except _Declined as error:
        failures = [f"no region was taken: {error}"]
    _raise(subject, failures)


def check_plugin(name: str, samples: Mapping[object, Sequence[Sample]] | None = None) -> None:
    """Check all implementations and grad rules of an installed plugin.

    Args:
        name: the plugin.
        samples: calls by operator; by default those of its hook `switchgear_samples`.

    Raises:
        Failures: a check failed.
    """
    failures = []
    for label, check in plugin_checks(name, samples):
        try:
            check()
        except (Failures, SwitchgearError) as error:
            failures.append(f"{label}: {error}")
    _raise(f"plugin {name}", failures)


def plugin_checks(
    name: str, samples: Mapping[object, Sequence[Sample]] | None = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Return the checks of `check_plugin`, each with its subject."""
    plugin = _plugin(name)
    registry = plugin.registry
    table = {
        symbol.name: cases
        for group in (plugin.samples() if samples is None else [samples])
        for target, cases in group.items()
        for symbol in symbols_of(target)
    }
    brought: list[tuple[str, Callable[..., None], str, Mapping[str, Any]]] = [
        ("implementation", check_implementation, one.name, registry.implementations_of(one.name))
        for one in plugin.executors
    ]
    for owner in sorted(registry.grad_rule_owners):
        source = owner if plugin.executors else plugin.name
        brought.append(("grad rule", check_rule, source, registry.grad_rules_of(owner)))
    for kind, check, source, entries in brought:
        for symbols in _by_target(entries):
            cases = next((table[symbol] for symbol in symbols if symbol in table), ())
            yield f"{kind} of {_label(symbols)}", partial(check, source, symbols, cases)


def _label(symbols: Sequence[str]) -> str:
    return symbols[0] if len(symbols) == 1 else f"{symbols[0].rpartition('.')[0]}.*"


def _plugin(name: str) -> Plugin:
    plugins = {plugin.name: plugin for plugin in installed().plugins}
    if name in {part.name for part in installed_parts().all}:
        raise RegistrationError(f"{name!r} is a part: it registers no operators to test")
    if name not in plugins:
        raise RegistrationError(
            f"no plugin called {name!r} is loaded (loaded: {', '.join(plugins)}); see `switchgear plugins`"
        )
    return plugins[name]


def _symbols(target: object) -> Sequence[str]:
    # a plugin may have registered names that this process cannot resolve by itself
    if isinstance(target, tuple):
        return target
    is_name = isinstance(target, str) and "::" not in target
    return [str(target)] if is_name else [symbol.name for symbol in symbols_of(target)]


def _by_target(entries: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The names that are registered together, as are all overloads of a packet, of which calls use some."""
    groups: dict[tuple[str, Any], list[str]] = {}
    for symbol, entry in entries.items():
        packet = symbol if symbol.startswith("torch.") else symbol.rpartition(".")[0]
        groups.setdefault((packet, entry.fn), []).append(symbol)
    yield from map(tuple, groups.values())


def _check(
    symbols: Sequence[str],
    name: str,
    samples: Sequence[Sample],
    varied: Callable[[Sample], Iterator[Sample]],
    examine: Callable[[Sample, str], list[str]],
) -> None:
    """Examine the variants of an operator's samples; `examine` returns failures, or an empty text for a call taken."""
    failures: list[str] = []
    hits, declined = list[Sample](), dict[str, None]()
    everything = list[Sample]()
    for symbol in symbols:
        for variant in itertools.chain.from_iterable(map(varied, samples_of(symbol, samples))):
            everything.append(variant)
            try:
                texts = examine(variant, symbol)
                wrong = [f"{variant}: {text}" for text in texts if text]
                if wrong and symbol.startswith(_PYTORCHS):
                    _require_true_metadata(variant)
            except _Declined as error:
                declined[str(error)] = None
                continue
            failures += wrong
            hits += [variant] * bool(texts)
    if not hits:
        failures.append(f"no call was taken; {name} says: {'; '.join(declined) or 'nothing'}")
    _raise(f"{_label(symbols)} by {name}", failures)
    if same := _varied(everything) - _varied(hits):
        warnings.warn(
            f"{_label(symbols)} by {name}: {len(everything) - len(hits)} of {len(everything)} samples are declined, "
            f"and the rest never vary {', '.join(sorted(same))}; add samples by the hook switchgear_samples",
            PluginWarning,
            stacklevel=3,
        )


def _varied(samples: Sequence[Sample]) -> set[str]:
    """The arguments, other than tensors, that are not the same in all samples."""
    every = [
        {f"argument {place}": value for place, value in enumerate(sample.args)} | sample.kwargs
        for sample in samples
    ]
    names = {name for call in every for name, value in call.items() if not [*tensors_in(value)]}
    return {name for name in names if len({repr(call.get(name, _check)) for call in every}) > 1}


def _raise(subject: str, failures: Sequence[str]) -> None:
    if failures:
        more = len(failures) - _TOLD
        listing = "".join(f"\n\n  {text}" for text in failures[:_TOLD])
        raise Failures(f"{subject}:{listing}" + (f"\n\n  and {more} more" if more > 0 else ""))


class _Declined(Exception):
    """A call that was not taken, with the reasons given."""


def _implementation(
    sample: Sample, symbol: str, *, name: str, options: dict[str, Any]
) -> list[str]:
    plain = _making(sample.mapped(torch.Tensor.detach))
    if is_random(plain):  # an implementation may draw numbers of its own
        jitted = sg.jit(plain.function, **options)
        jitted(*plain.args, **plain.kwargs)
        _require(jitted, name, "execution", symbol)
        return [""]
    texts = _run_twice(plain, options | {"check": True}, name, symbol)
    return texts if any(texts) else [*texts, *_in_threads(plain, options)]


def _run_twice(sample: Sample, options: dict[str, Any], name: str, symbol: str = "") -> list[str]:
    """Return how two jitted calls differ from eager mode; an empty text if they do not."""
    jitted = sg.jit(sample.function, **options)
    slots = [place for place, tensor in enumerate(sample.tensors()) if tensor.requires_grad]
    expected = derivatives(sample, sample.function, slots, 1)
    require = partial(_require, jitted, name, "execution", symbol) if name else lambda: None
    torch.manual_seed(0)
    with restoring([state for state in states() if not state.is_minor]) as changed:
        texts = _compared(sample, jitted, slots, expected, require)
        texts = texts if any(texts) else _compared(sample, jitted, slots, expected, require)
    return texts if any(texts) else [f"it changed {state.name}" for state in changed] or [""]


def _compared(
    sample: Sample,
    jitted: Any,
    slots: Sequence[int],
    expected: Derivatives,
    require: Callable[[], None],
) -> list[str]:
    """Return how derivatives of a jitted function differ; an empty text if they do not."""
    orders = len(expected) - 1
    try:
        results = derivatives(sample, jitted, slots, orders)
    except Exception as error:
        _require_without(sample, slots, orders, error)
        if compiler_of(jitted).last is not None:
            require()
        hint = "; if that is meant, check_rule(..., orders=1)"
        return [f"{type(error).__name__}: {error}{hint * isinstance(error, NotDifferentiable)}"]
    require()
    return [*unlike(results, expected, slots, sample)] or [""]


def _making(sample: Sample) -> Sample:
    """The call with copies of its results where those are views of arguments, which a program leaves to its caller."""
    call = sample.mapped(twin)
    memory = {memory_of(tensor) for tensor in call.tensors()} - {0}
    viewing = any(memory_of(tensor) in memory for tensor in tensors_in(call()))
    return sample.then(partial(map_tensors, torch.clone)) if viewing else sample


def _in_double(sample: Sample) -> Iterator[Sample]:
    """Yield the variants of a sample in float64, in which derivatives are compared."""
    for variant in variants(sample.mapped(widened), ()):
        yield _making(variant if variant.narrow is None else variant.then(variant.narrow))


def _rule(
    sample: Sample, symbol: str, *, name: str, options: dict[str, Any], orders: int
) -> list[str]:
    places = [
        place
        for place, tensor in enumerate(sample.tensors())
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    texts, declined = list[str](), list[str]()
    for slots in (places, *([place] for place in places if len(places) > 1)):
        jitted = sg.jit(sample.function, **options)
        require = partial(_require, jitted, name, "gradient", symbol)
        try:
            texts += _differentiated(sample, symbol, jitted, slots, orders, require)
        except _Declined as error:
            declined.append(str(error))
    if declined and not texts:
        raise _Declined("; ".join(dict.fromkeys(declined)))
    return texts


def _differentiated(
    sample: Sample,
    symbol: str,
    jitted: Any,
    slots: Sequence[int],
    orders: int,
    require: Callable[[], None],
) -> list[str]:
    """Return how derivatives by some arguments differ; nothing where PyTorch refuses its own."""
    expected = _pytorchs(sample, slots, orders)
    if len(expected) < 2:
        is_foreign = not expected and not symbol.startswith(_PYTORCHS)
        return _by_differences(sample, jitted, slots, require) if is_foreign else []
    texts = _compared(sample, jitted, slots, expected, require)
    # a rule may draw numbers of its own, on which its derivative depends
    is_drawn = any(texts) and is_random(sample)
    return _by_differences(sample, jitted, slots, require) if is_drawn else texts


def _by_differences(
    sample: Sample, jitted: Any, slots: Sequence[int], require: Callable[[], None]
) -> list[str]:
    """Return how a first derivative differs from finite differences, where PyTorch has none, or of other numbers."""
    leaves = [sample.tensors()[place].clone().requires_grad_() for place in slots]

    def function(*leaves: torch.Tensor) -> Any:
        places, values = itertools.count(), iter(leaves)
        copied = sample.mapped(lambda tensor: next(values) if next(places) in slots else tensor)
        torch.manual_seed(0)
        return jitted(*copied.args, **copied.kwargs)

    try:
        torch.autograd.gradcheck(function, leaves)
    except Exception as error:
        ours = isinstance(error, (SwitchgearError, GradcheckError))
        if not ours and compiler_of(jitted).last is None:
            raise _Declined(f"PyTorch refuses it: {error}") from error
        return [f"{type(error).__name__}: {str(error).partition('NOTE:')[0].strip()}"]
    require()
    return [""]


def _pytorchs(sample: Sample, slots: Sequence[int], orders: int) -> Derivatives:
    """What PyTorch gives, up to the order that it can."""
    for order in range(orders, 0, -1):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return derivatives(sample, sample.function, slots, order)
    return []


def _in_threads(sample: Sample, options: dict[str, Any]) -> Iterator[str]:
    """Yield how results in two threads at once differ from eager mode."""
    jitted = sg.jit(sample.function, **options)
    expected = derivatives(sample, sample.function, (), 0)

    def run(_: int) -> list[str]:
        try:
            copies = [sample.mapped(twin) for _ in range(3)]
            results = [[*tensors_in(jitted(*one.args, **one.kwargs))] for one in copies]
            return [text for one in results for text in unlike([one], expected, (), sample)]
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]

    with ThreadPoolExecutor(2) as pool:
        wrong = itertools.chain(*pool.map(run, range(2)))
    yield from (f"in two threads at once: {text}" for text in dict.fromkeys(wrong))


def _require_without(sample: Sample, slots: Sequence[int], orders: int, error: Exception) -> None:
    """Raise `_Declined` if the call fails so without a plugin, too."""
    jitted = sg.jit(sample.function, executors=["torch"], fallback="eager")
    try:
        derivatives(sample, jitted, slots, orders)
    except Exception as other:
        if type(other) is type(error):
            raise _Declined(f"it fails without a plugin, too: {other}") from error


def _require_true_metadata(sample: Sample) -> None:
    """Raise `_Declined` if PyTorch's kernel and its own fake disagree, so that nobody's result can be right.

    PyTorch 2.13: `pixel_unshuffle` of no elements gives the argument's shape, its fake the one documented.
    """
    mode = new_fake_mode()
    fakes: list[torch.Tensor] = []
    with contextlib.suppress(Exception), mode:  # not all can be called on fakes
        fakes = [*tensors_in(sample.mapped(mode.from_tensor)())]
    for fake, real in zip(fakes, tensors_in(sample.mapped(twin)()), strict=False):
        if text := mismatch(real, fake):
            raise _Declined(f"PyTorch's kernel and its own fake of it differ: {text}")


def _require(jitted: object, name: str, kind: str, symbol: str) -> None:
    """Raise `_Declined` if the call was not taken."""
    compiler = compiler_of(jitted)
    if compiler.last is None:
        refused = "; ".join(map(str, compiler.fallbacks.reasons.values()))
        raise _Declined(f"calls of it run in eager: {refused}")
    choices = [choice for choice in sg.last_choices(jitted) if choice.kind == kind]
    if any(choice.owner == name and symbol in ("", choice.symbol) for choice in choices):
        return
    reasons = [reason for choice in choices for owner, reason in choice.declined if owner == name]
    raise _Declined("; ".join(dict.fromkeys(reasons)) or "its name is not seen in the call")

"""The trace: a straight-line program of bound symbols, as a value, as Python text, and as the function that this is."""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from switchgear.errors import Unsupported
from switchgear.ir.printing import Scope, decomposition, line
from switchgear.ir.proxy import NumberProxy, TensorProxy
from switchgear.ir.symbol import IN_PLACE, BoundSymbol, proxies, with_parts
from switchgear.source_text import as_name, with_comment
from switchgear.torch_private import SYMBOLIC, python_of_number


@dataclass(frozen=True, slots=True)
class Provenance:
    """A pass that had a hand in a trace, and the seconds it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """`outputs` is flat: proxies, and None where there is no value.

    `tensors` maps the names of proxies that are neither inputs nor results to the tensors they stand for.
    """

    name: str
    inputs: tuple[TensorProxy, ...]
    outputs: tuple[TensorProxy | None, ...]
    bound_symbols: tuple[BoundSymbol, ...]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    provenance: tuple[Provenance, ...] = ()
    links_shown: bool = False
    #: The symbolic sizes; those that belong to no input are themselves inputs, before the others.
    numbers: tuple[NumberProxy, ...] = ()
    #: The inputs that it writes to, by name, and how often.
    written: Mapping[str, int] = field(default_factory=dict)

    def python(self, *, link: bool | None = None, decompositions: bool = False) -> str:
        """The trace as Python that runs; `link` shows forward line and rule of every backward line.

        Its default is `links_shown`, which the `link` option of `jit` sets.
        """
        lines, scope = _render(self, self.links_shown if link is None else link, decompositions)
        marks = [("", f"pass {one.name}: {one.seconds * 1e3:.1f} ms") for one in self.provenance]
        head = [
            *[(f"import {module}", "") for module in sorted(scope.modules)],
            *[scope.definition(name, value) for name, value in scope.values.items()],
            *[*marks, ("", "")],
        ]
        return "".join([f"{with_comment(*line)}\n" for line in (*head, *lines)])

    def __str__(self) -> str:
        return self.python()

    @property
    def constants(self) -> Mapping[str, object]:
        """What its text names and no import gives: tensors, compiled regions, functions without a path."""
        return _render(self, False, False)[1].values

    @property
    def devices(self) -> frozenset[torch.device]:
        """Where its lines compute."""
        return frozenset(proxy.device for call in self.bound_symbols for proxy in call.outputs)

    def canonical(self) -> str:
        """What it computes of tensors of which layouts; the same for traces that differ in names alone."""
        places: dict[str, int] = {}
        sizes = {number.name: f"size{index}" for index, number in enumerate(self.numbers)}

        def plain(value: object) -> Any:
            if isinstance(value, TensorProxy):
                known = value.name in places
                place = f"%{places.setdefault(value.name, len(places))}"
                layout = (plain((value.shape, value.stride)), str(value.dtype), str(value.device))
                return place if known else (place, *layout, value.is_conj, value.is_neg)
            if isinstance(value, SYMBOLIC):
                return re.sub(
                    r"\w+", lambda name: sizes.get(name[0], name[0]), python_of_number(value)
                )
            if isinstance(value, (tuple, list)):
                return [plain(item) for item in value]
            return (
                {key: plain(item) for key, item in value.items()}
                if isinstance(value, Mapping)
                else value
            )

        calls = [
            (
                i.symbol.name,
                *[IN_PLACE] * (IN_PLACE in i.tags),
                plain(i.args),
                plain(i.kwargs),
                plain(i.output),
            )
            for i in self.bound_symbols
        ]
        return repr((len(sizes), plain(self.inputs), calls, plain(self.outputs)))

    def function(self, *, boxed: bool = False) -> Callable[..., Any]:
        """The function that the printed trace is; `boxed` makes it take its arguments in one list, which it empties."""
        return compile_trace(self, boxed=boxed)

    def with_provenance(self, name: str, seconds: float) -> Trace:
        """The trace, marked as having gone through one more pass."""
        return replace(self, provenance=(*self.provenance, Provenance(name, seconds)))


def compile_trace(trace: Trace, *, boxed: bool = False) -> Callable[..., Any]:
    """The function that the printed trace is; `boxed` makes it take its arguments in one list, which it empties."""
    lines, scope = _render(trace, False, False, boxed, bound=True)
    namespace: dict[str, Any] = {
        **{name: sys.modules[name] for name in scope.modules},
        **scope.values,
    }
    file = f"<switchgear {trace.name} {id(namespace):x}>"
    exec(compile("\n".join([code for code, _ in lines]), file, "exec"), namespace)
    # comments are for tracebacks alone
    linecache.cache[file] = (0, None, [f"{with_comment(*line)}\n" for line in lines], file)
    # popped, or function and globals would keep each other alive
    function: Callable[..., Any] = namespace.pop(trace.name)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function


def _render(
    trace: Trace, link: bool, decompositions: bool, boxed: bool = False, *, bound: bool = False
) -> tuple[list[tuple[str, str]], Scope]:
    """The lines of the function, as code and comment, and what they name."""
    names = [
        *(number.name for number in trace.numbers if not number.tensor),
        *(proxy.name for proxy in trace.inputs),
    ]
    used = {proxy.name for item in trace.bound_symbols for proxy in (*item.inputs, *item.outputs)}
    used.update(proxy.name for proxy in proxies(trace.outputs))
    tensors = {name: value for name, value in trace.tensors.items() if name in used}
    scope = Scope(tensors, {trace.name, *used, *names}, bound)
    parameters = ", ".join(names)
    body = [(f"[{parameters}] = args", ""), ("args.clear()", "")] if boxed else []
    shown = [[line(item, scope, link)] for item in trace.bound_symbols]
    if decompositions:  # last, so that they change no names
        for lines, item in zip(shown, trace.bound_symbols, strict=True):
            lines.extend(decomposition(item, scope))
    body += itertools.chain(*shown, [(f"return {scope.expression(trace.outputs)}", "")])
    measured = {number.name: number for number in trace.numbers if number.name in scope.sizes}
    if unknown := scope.sizes - measured.keys():
        raise Unsupported(
            f"trace {trace.name!r} needs the sizes {', '.join(sorted(unknown))}, which it is not given"
        )
    sizes = [(f"{n.name} = {n.source}", "") for n in measured.values() if n.tensor]
    body[2 * boxed : 2 * boxed] = sizes
    lines = [(f"def {trace.name}({'args' if boxed else parameters}):", "")]
    lines += [("    ", f'{proxy.name}: "{proxy.type_string}"') for proxy in trace.inputs]
    lines += [(f"    {code}", comment) for code, comment in body]
    return lines, scope


class Names:
    """Hands out the names of a trace's intermediates: `t0`, `t1`, … past those already taken."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._intermediates = (f"t{number}" for number in itertools.count())
        self._apart = (f"u{number}" for number in itertools.count())

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Intermediates get other names inside: `u0`, `u1`, …, so that those outside are what they are without it."""
        outside, self._intermediates = self._intermediates, self._apart
        try:
            yield
        finally:
            self._intermediates = outside

    def fresh(self) -> str:
        """The next free intermediate name."""
        return self._first_free(self._intermediates)

    def claim(self, wanted: str) -> str:
        """`wanted` as a name, or `wanted_1`, `wanted_2`, … when it is taken."""
        wanted = as_name(wanted)
        return self._first_free(
            itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(1)))
        )

    def _first_free(self, names: Iterable[str]) -> str:
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


def names_of(trace: Trace) -> set[str]:
    """Every name that the trace uses, those inside decompositions too."""
    made = {proxy.name for item in with_parts(trace.bound_symbols) for proxy in item.outputs}
    return made.union(trace.tensors, (proxy.name for proxy in trace.inputs))

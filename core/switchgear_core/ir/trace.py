"""The trace: a straight-line program of bound symbols, as a value, as Python text, and as a function."""

from __future__ import annotations

import importlib
import itertools
import linecache
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from switchgear_core.errors import InvalidInput, Unsupported
from switchgear_core.ir.printing import Scope
from switchgear_core.ir.proxy import NumberProxy, TensorProxy
from switchgear_core.ir.symbol import IN_PLACE, BoundSymbol, line, parts, proxies, with_parts
from switchgear_core.showing import Shown, fits, folded
from switchgear_core.source_text import as_name, with_comment
from switchgear_core.torch_private import SYMBOLIC, python_of_number

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Provenance:
    """A pass that changed a trace, and its time in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Trace(Shown):
    """Straight-line program of bound symbols; prints as Python.

    `outputs` is flat: proxies, and None for absent values. `tensors` maps names of proxies that are neither inputs nor
    results to their tensors.
    """

    name: str
    inputs: tuple[TensorProxy, ...]
    outputs: tuple[TensorProxy | None, ...]
    bound_symbols: tuple[BoundSymbol, ...]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    provenance: tuple[Provenance, ...] = ()
    links_shown: bool = False
    #: The symbolic sizes; sizes of no input are themselves inputs, before the others.
    numbers: tuple[NumberProxy, ...] = ()
    #: The written inputs, by name, with the number of writes.
    writes: Mapping[str, int] = field(default_factory=dict)

    def python(self, *, link: bool | None = None, decompositions: bool = False) -> str:
        """Print the trace as Python that runs.

        Args:
            link: whether each backward line shows its forward line and its rule; by default as the option `link` of
                `jit`.
            decompositions: whether all composites show their parts, as comments. Regions always do.

        Returns:
            The text of the program.

        Raises:
            Unsupported: a line needs a size that no input has.
        """
        text = _Text(self, self.links_shown if link is None else link)
        calls = list(itertools.chain.from_iterable(text.calls(decompositions)))
        _check_sizes(self, text.scope)
        return "".join([f"{line}\n" for line in text.around(calls)])

    def __repr__(self) -> str:
        """Return the program, or its first lines and their number."""
        text = _Text(self, self.links_shown)
        calls: list[str] = []
        for lines in text.calls():
            calls += lines
            if not fits(calls):
                return "\n".join(_first_lines(self))
        lines = text.around(calls)
        if not fits(lines):
            lines = _first_lines(self)
        return "\n".join(lines)

    __str__ = __repr__

    @property
    def constants(self) -> Mapping[str, object]:
        """The objects in the text that no import provides: tensors, regions, local functions."""
        return _render(self)[1].values

    @property
    def devices(self) -> frozenset[torch.device]:
        """The devices of the lines."""
        return frozenset(proxy.device for call in self.bound_symbols for proxy in call.outputs)

    def canonical(self) -> str:
        """Return a text of the computation and its layouts, equal for traces that differ only in names."""
        places: dict[str, int] = {}
        sizes = {number.name: f"size{index}" for index, number in enumerate(self.numbers)}

        def plain(value: object) -> Any:
            if isinstance(value, TensorProxy):
                is_known = value.name in places
                place = f"%{places.setdefault(value.name, len(places))}"
                layout = (plain((value.shape, value.stride)), str(value.dtype), str(value.device))
                return place if is_known else (place, *layout, value.is_conj, value.is_neg)
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
        """Compile the printed program.

        Args:
            boxed: whether the function takes its arguments in a list, and empties the list.

        Returns:
            A function of the sizes and inputs.
        """
        return compile_trace(self, boxed=boxed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program as Python, and its constants and the layouts of its inputs to a file `.pt` of that name.

        Args:
            path: the file of the program, for `sg.load_trace`; its name ends in `.py`.

        Raises:
            InvalidInput: the path has another ending, or the distribution `switchgear` is not installed.
            Unsupported: the program has something that only this process has: a region, a function of the user.
        """
        _graphs().save_trace(self, path)

    def __reduce__(self) -> tuple[object, ...]:
        return _graphs().pickled(self)  # type: ignore[no-any-return]

    def with_provenance(self, name: str, seconds: float) -> Trace:
        """Add a pass to the history of the trace.

        Args:
            name: the pass.
            seconds: its time, in seconds.

        Returns:
            A new trace.
        """
        return replace(self, provenance=(*self.provenance, Provenance(name, seconds)))


def _graphs() -> Any:
    try:
        return importlib.import_module("switchgear_graphs")
    except ModuleNotFoundError:
        raise InvalidInput(
            "traces are saved and pickled by switchgear_graphs: pip install switchgear"
        ) from None


#: Name in the globals of a compiled trace that holds the user's lines behind its lines.
SOURCES = "__sources__"


def compile_trace(trace: Trace, *, boxed: bool = False) -> Callable[..., Any]:
    """Return the printed trace as a function; if `boxed`, it takes its arguments in a list and empties the list."""
    lines, scope = _render(trace, boxed, bound=True)
    sources = [item.source for item in trace.bound_symbols]
    namespace: dict[str, Any] = {
        **{name: sys.modules[name] for name in scope.modules},
        **scope.values,
        SOURCES: (*[None] * (len(lines) - len(trace.bound_symbols) - 1), *sources, None),
    }
    file = f"<switchgear {trace.name} {id(namespace):x}>"
    exec(compile("\n".join([code for code, _ in lines]), file, "exec"), namespace)
    # comments are for tracebacks alone
    linecache.cache[file] = (0, None, [f"{with_comment(*line)}\n" for line in lines], file)
    # popped, or function and globals would keep each other alive
    function: Callable[..., Any] = namespace.pop(trace.name)
    weakref.finalize(function, linecache.cache.pop, file, None)
    return function


def lines_of(trace: Trace) -> list[str]:
    """Return the text of each bound symbol, and of the return, a line each."""
    lines = _render(trace)[0]
    return [with_comment(*line) for line in lines[-len(trace.bound_symbols) - 1 :]]


def _render(
    trace: Trace, boxed: bool = False, *, bound: bool = False
) -> tuple[list[tuple[str, str]], Scope]:
    """Return the lines of the function, as code and comment for each bound symbol, and the names in them."""
    scope = _scope(trace, bound)
    parameters = ", ".join(_parameters(trace))
    body = [(f"[{parameters}] = args", ""), ("args.clear()", "")] if boxed else []
    calls = [line(item, scope, False) for item in trace.bound_symbols]
    calls.append((f"return {scope.expression(trace.outputs)}", ""))
    _check_sizes(trace, scope)
    body += [(size, "") for size in _sizes(trace, scope)]
    lines = [(f"def {trace.name}({'args' if boxed else parameters}):", "")]
    if trace.inputs:
        lines.append((_INDENT, _input_types(trace)))
    lines += [(f"{_INDENT}{code}", comment) for code, comment in (*body, *calls)]
    return lines, scope


class _Text:
    """The printed text of a trace: lines folded at 120 columns."""

    def __init__(self, trace: Trace, link: bool) -> None:
        self._trace = trace
        self._link = link
        self.scope = _scope(trace, False)

    def calls(self, decompositions: bool = False, most: int | None = None) -> Iterator[list[str]]:
        """Yield the lines of each call, with at most `most` parts, and of the return."""
        for item in self._trace.bound_symbols:
            code, comment = line(item, self.scope, self._link)
            lines = folded(_INDENT + code, comment)
            if decompositions or item.fused_by:
                inside = list(parts(item, self.scope.aside(), self._link))
                for text in inside[:most]:
                    lines += folded(_INDENT, text)
                if inside[:most] != inside:
                    lines.append(f"{_INDENT}#   ... {len(inside[most:]):,} more operators")
            yield lines
        yield folded(f"{_INDENT}return {self.scope.expression(self._trace.outputs)}", "")

    def head(self) -> tuple[list[str], list[str]]:
        """Return the lines of the signature, and those of the input types."""
        parameters = ", ".join(_parameters(self._trace))
        signature = folded(f"def {self._trace.name}({parameters}):", "")
        types = _input_types(self._trace)
        return signature, folded(_INDENT, types) if types else []

    def imports(self) -> list[str]:
        """Return the import lines for the calls so far."""
        return [*(f"import {module}" for module in sorted(self.scope.modules)), ""]

    def around(self, calls: Iterable[str]) -> list[str]:
        """Return all lines around the lines of the calls; constants and passes come last."""
        signature, types = self.head()
        sizes = [_INDENT + size for size in _sizes(self._trace, self.scope)]
        end = self._end()
        if end:
            end.insert(0, "")
        return [*self.imports(), *signature, *types, *sizes, *calls, *end]

    def _end(self) -> list[str]:
        """Return the lines of the constants in the calls, and of the passes that made the trace."""
        owners = {item.symbol.name: item.fused_by for item in self._trace.bound_symbols}
        lines: list[str] = []
        for name, value in self.scope.values.items():
            code, comment = self.scope.definition(name, value)
            owner = owners.get(name)
            if owner:
                comment = f"{name}: compiled by {owner}"
            lines += folded(code, comment)
        passes = [f"{entry.name} {entry.seconds * 1e3:.1f} ms" for entry in self._trace.provenance]
        if passes:
            lines += folded("", f"passes: {'  '.join(passes)}")
        return lines


#: Numbers of lines shown of signature and types, and of each region, in a shortened trace.
_HEAD, _PARTS = 3, 12


def _first_lines(trace: Trace) -> list[str]:
    text = _Text(trace, trace.links_shown)
    head = [line for lines in text.head() for line in _first_inputs(lines)]
    beginning: list[str] = []
    count = len(trace.bound_symbols) + 1
    for call in text.calls(most=_PARTS):
        if not fits([*text.imports(), *head, *beginning, *call]):
            break
        beginning += call
        count -= 1
    hidden = f"{count:,} more lines" if count else "shortened"
    last = f"# ... {hidden}; all of it: print(trace.python())"
    return [*text.imports(), *head, *beginning, last]


def _first_inputs(lines: list[str]) -> list[str]:
    count = len(lines) - _HEAD
    if count <= 0:
        return lines
    return [*lines[:_HEAD], f"{_INDENT}# ... {count:,} more lines of inputs"]


def _scope(trace: Trace, bound: bool) -> Scope:
    names = {proxy.name for item in trace.bound_symbols for proxy in (*item.inputs, *item.outputs)}
    names.update(proxy.name for proxy in proxies(trace.outputs))
    tensors = {name: value for name, value in trace.tensors.items() if name in names}
    return Scope(tensors, {trace.name, *names, *_parameters(trace)}, bound)


def _parameters(trace: Trace) -> list[str]:
    numbers = [number.name for number in trace.numbers if not number.tensor]
    return [*numbers, *(proxy.name for proxy in trace.inputs)]


def _input_types(trace: Trace) -> str:
    return "  ".join([f'{proxy.name}: "{proxy.type_string}"' for proxy in trace.inputs])


def _sizes(trace: Trace, scope: Scope) -> list[str]:
    """Return the lines that read the symbolic sizes for the calls."""
    measured = [number for number in trace.numbers if number.name in scope.sizes and number.tensor]
    return [f"{number.name} = {number.source}" for number in measured]


def _check_sizes(trace: Trace, scope: Scope) -> None:
    if unknown := scope.sizes - {number.name for number in trace.numbers}:
        raise Unsupported(
            f"trace {trace.name!r} needs the sizes {', '.join(sorted(unknown))}, which it is not given"
        )


class Names:
    """Generator of names for a trace's intermediates: `t0`, `t1`, …, without names already taken."""

    def __init__(self, names_in_use: Iterable[str] = ()) -> None:
        self._names_in_use = set(names_in_use)
        self._intermediates = (f"t{number}" for number in itertools.count())
        self._second_intermediates = (f"u{number}" for number in itertools.count())

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Name intermediates `u0`, `u1`, … inside, so that outside names do not change."""
        outside, self._intermediates = self._intermediates, self._second_intermediates
        try:
            yield
        finally:
            self._intermediates = outside

    def fresh(self) -> str:
        """Return the next free intermediate name."""
        return self._first_free(self._intermediates)

    def claim(self, name: str) -> str:
        """Return `name` as a free name, or `name_1`, `name_2`, … if it is taken."""
        name = as_name(name)
        return self._first_free(
            itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        )

    def _first_free(self, names: Iterable[str]) -> str:
        name = next(name for name in names if name not in self._names_in_use)
        self._names_in_use.add(name)
        return name


def names_of(trace: Trace) -> set[str]:
    """Return every name in the trace, including names inside decompositions."""
    results = {proxy.name for item in with_parts(trace.bound_symbols) for proxy in item.outputs}
    return results.union(trace.tensors, (proxy.name for proxy in trace.inputs))

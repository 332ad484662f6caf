"""A walk over a compiled program, line by line, in place of its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from switchgear_core.ir.composites import bind_outputs
from switchgear_core.ir.printing import BOXED
from switchgear_core.ir.symbol import BOX, DEL, BoundSymbol, map_proxies
from switchgear_core.passes.pipeline import Program
from switchgear_core.record.sizes import concrete

#: Runs one line on its arguments; sees the live values by name. Boxed values are in the arguments alone.
Run = Callable[[BoundSymbol, tuple[Any, ...], dict[str, Any], Mapping[str, Any]], Any]


def function_of(item: BoundSymbol) -> Callable[..., Any]:
    """Return the callable of a line."""
    return item.implementation.fn if item.implementation else item.symbol.fn


def walk(program: Program, arguments: tuple[Any, ...], run: Run) -> Any:
    """Return the result of the program's function; `run` makes each of its calls."""
    trace = program.stages[-1]
    values = arguments
    if program.boxed:
        (boxed,) = arguments
        values = tuple(boxed)
        boxed.clear()
    environment: dict[str, Any] = dict(trace.tensors)
    size_names = [number.name for number in trace.numbers if not number.tensor]
    environment.update(
        zip((*size_names, *(proxy.name for proxy in trace.inputs)), values, strict=True)
    )
    del values
    box: list[Any] = []
    sizes = {
        n.name: n.read(environment[n.tensor]) if n.tensor else environment[n.name]
        for n in trace.numbers
    }
    for item in concrete(trace.bound_symbols, sizes) if sizes else trace.bound_symbols:
        if item.symbol is DEL:
            for proxy in item.inputs:
                del environment[proxy.name]
            continue
        args, kwargs = map_proxies(
            lambda proxy: environment[proxy.name], (item.args, dict(item.kwargs))
        )
        if item.symbol is BOX:
            box = [*args]
            del args
            continue
        if item.implementation is not None and item.implementation.boxed:
            args = (box if BOXED in item.args else [*args],)
        bind_outputs(item.output, run(item, args, kwargs, environment), environment)
        del args, kwargs
    return tuple(None if proxy is None else environment[proxy.name] for proxy in trace.outputs)

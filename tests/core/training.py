"""Executors made up for one test, and the lines and choices of what was compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from switchgear_core.ir.symbol import DEL

Function = Callable[..., Any]


def executor(
    name: str, implementations: Mapping[Any, Function] | None = None, rules: Mapping[Any, Function] | None = None
) -> sg.Executor:
    """An executor with these implementations and these rules in the first form, by what they are for."""
    table = sg.Table(name)
    for target, function in (implementations or {}).items():
        table.implementation(target)(function)
    for target, function in (rules or {}).items():
        table.grad_rule(target)(function)
    return sg.Executor(name, table=table)


def rules(target: Any, rule: Function, owner: str = "mine") -> sg.Table:
    """A table with one rule in the first form."""
    table = sg.Table(owner)
    table.grad_rule(target)(rule)
    return table


class Kernel:
    """An implementation that counts its calls."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that require grad."""
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def owners(jitted: Any, kind: str) -> dict[str, str]:
    """Who was chosen for each operator in the entry last run."""
    return {choice.symbol: choice.owner for choice in sg.last_choices(jitted) if choice.kind == kind}


def choice(jitted: Any, kind: str, symbol: str) -> sg.executors.Choice:
    """The only choice of a kind for an operator."""
    (found,) = [item for item in sg.last_choices(jitted) if (item.kind, item.symbol) == (kind, symbol)]
    return found


def lines(trace: sg.Trace) -> list[sg.BoundSymbol]:
    """The bound symbols of a trace that compute something."""
    return [item for item in trace.bound_symbols if item.symbol is not DEL]


def operators(trace: sg.Trace) -> list[str]:
    """What a trace calls, in order."""
    return [item.symbol.name for item in lines(trace)]


def forward(jitted: Any) -> sg.Trace:
    """The forward that is executed."""
    return sg.last_traces(jitted)[-1]


def backward(jitted: Any) -> sg.Trace:
    """The backward that is executed."""
    return sg.last_backward_traces(jitted)[-1]


def joint(jitted: Any) -> sg.Trace:
    """Forward and backward before they are split."""
    (found,) = [trace for trace in sg.last_traces(jitted) if trace.provenance[-1].name == "differentiate"]
    return found


def line_of(function: Function, text: str) -> str:
    """`file.py:12`, where the line of the function that contains `text` stands."""
    source, first = inspect.getsourcelines(function)
    (offset,) = [index for index, line in enumerate(source) if text in line]
    return f"{inspect.getfile(function).rsplit('/', 1)[-1]}:{first + offset}"

"""Unread arguments: values that a function cannot read, judging by its code, such as names of samples in a batch."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.record.signature import Arguments

#: Names that give a function all its variables.
_ALL = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "breakpoint", "_getframe", "currentframe"}
)
#: Types of values that may change; arguments of other types are distinguished by type.
_VALUES = frozenset({str, int, float, complex, bool, bytes})
_NOTHING = frozenset[str]()
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW"})


def unread(
    function: Callable[..., object], module: nn.Module | None, call: Arguments
) -> frozenset[int]:
    """Return the places of values among the flattened arguments that no code can read.

    Each belongs to a parameter without a name in the code, or to a key of a dict read by other keys alone. Known
    for a plain function, and for the forward of a module without hooks.
    """
    args, kwargs, leaves = call.args, call.kwargs, call.leaves
    values = [place for place, leaf in enumerate(leaves) if type(leaf) in _VALUES]
    code, is_bound = _code_of(function if module is None else module)
    if not values or code is None:
        return frozenset()
    names = code.co_varnames[is_bound : code.co_argcount]
    parts = dict(zip(names, args, strict=False)) | kwargs
    is_plain = len(args) <= len(names) and parts.keys() <= {*code.co_varnames[: _count(code)]}
    if not is_plain or len(parts) != len(args) + len(kwargs):
        return frozenset()
    reads, places = _reads(code), iter(range(len(leaves)))
    unused = [
        place
        for name, value in parts.items()
        for place in _left_out(value, reads.get(name, _NOTHING), places)
    ]
    # with a structure of another kind, leaves were not counted
    return frozenset(unused).intersection(values) if next(places, None) is None else frozenset()


def _left_out(value: object, keys: frozenset[str] | None, places: Iterator[int]) -> list[int]:
    """Return the unread leaves of an argument, given the keys read from it; None for all leaves."""
    if type(value) is not dict or not keys:
        leaves = [*_leaves(value, places)]
        return leaves if keys is _NOTHING else []
    unread_leaves: list[int] = []
    for key, item in value.items():
        leaves = [*_leaves(item, places)]
        if key not in keys:
            unread_leaves += leaves
    return unread_leaves


def _leaves(value: Any, places: Iterator[int]) -> Iterator[int]:
    kind = type(value)
    if kind in (tuple, list, dict):
        for item in value.values() if kind is dict else value:
            yield from _leaves(item, places)
    else:
        yield from itertools.islice(places, 1)


def _code_of(function: Any) -> tuple[types.CodeType | None, int]:
    """Return the code that a call runs first, and whether its first parameter is bound."""
    if isinstance(function, nn.Module):
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        state = vars(function)
        is_hooked = any(internals.global_module_hooks()) or any(state.get(name) for name in hooks)
        if is_hooked or "forward" in state or type(function).__call__ is not nn.Module.__call__:
            return None, 0
        forward = inspect.getattr_static(type(function), "forward", None)
        return (forward.__code__, 1) if type(forward) is types.FunctionType else (None, 0)
    if type(function) is types.MethodType and type(function.__func__) is types.FunctionType:
        return function.__func__.__code__, 1
    return (function.__code__, 0) if type(function) is types.FunctionType else (None, 0)


def _count(code: types.CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount


@functools.cache
def _reads(code: types.CodeType) -> dict[str, frozenset[str] | None]:
    """Return the keys by which code reads each parameter, or None for a parameter with another use."""
    names = code.co_varnames[: _count(code) + 2]
    if not _ALL.isdisjoint(code.co_names):
        return dict.fromkeys(names)
    keys: dict[str, frozenset[str] | None] = dict.fromkeys(code.co_cellvars)
    lines = [line for line in dis.get_instructions(code) if line.opname != "CACHE"]
    for place, line in enumerate(lines):
        operands = line.argval if isinstance(line.argval, tuple) else (line.argval,)
        for name in {*names}.intersection(value for value in operands if isinstance(value, str)):
            if line.opname in ("LOAD_CONST", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "KW_NAMES"):
                continue
            behind = lines[place + 1 : place + 3]
            operations = [line.opname for line in behind]
            is_item = operations == ["LOAD_CONST", "BINARY_SUBSCR"]
            before = keys.get(name, _NOTHING)
            if line.opname in _LOADS and is_item and type(behind[0].argval) is str:
                keys[name] = None if before is None else before | {behind[0].argval}
            else:
                keys[name] = None
    return keys

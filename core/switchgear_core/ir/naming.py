"""Canonical names: one operator, many spellings, one symbol."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import resolve_name

from switchgear_core import torch_private as internals
from switchgear_core.errors import RegistrationError, did_you_mean
from switchgear_core.ir.symbol import Symbol

#: Methods with another order of arguments than the function of the same name.
_NOT_AN_ALIAS = frozenset({"where", "set_", "resize_as_", "polygamma"})
#: Functions that take a tuple where the method also takes separate integers.
_PACKED = frozenset({"torch.permute", "torch.reshape", "torch.flip", "torch.tile"})


@functools.cache
def symbol_of(fn: Callable[..., object]) -> Symbol | None:
    """Return the symbol of a torch-level callable or an operator overload; None if PyTorch has no name for it."""
    if isinstance(fn, internals.OpOverload):
        return Symbol(str(fn), fn)
    name = resolve_name(fn)
    if name is None and str(getattr(fn, "__module__", None)).startswith("torch"):
        path = getattr(fn, "__qualname__", "").removeprefix("_VariableFunctionsClass.")
        name = f"{fn.__module__}.{path}"
    if name is None or "<" in name or name.endswith(("__get__", "__set__", "__delete__")):
        return None
    return _canonical(name, fn)


def _canonical(name: str, fn: Callable[..., object]) -> Symbol:
    name = name.replace("torch.functional.", "torch.")
    if name == "torch.spmm":  # an alias of `torch.mm`, the last name in PyTorch's table
        name = "torch.mm"
    method = name.removeprefix("torch.Tensor.")
    function = None if method == name or method in _NOT_AN_ALIAS else getattr(torch, method, None)
    if isinstance(function, types.BuiltinFunctionType):
        return Symbol(f"torch.{method}", function)
    return Symbol(name, fn)


def pack_dims(symbol: Symbol, args: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments of `x.permute(0, 2, 1)` as for `torch.permute(x, (0, 2, 1))`."""
    if (
        symbol.name in _PACKED
        and len(args) > 1
        and all(isinstance(arg, int | torch.SymInt) for arg in args[1:])
    ):
        return (args[0], args[1:])
    return args


def symbols_of(target: object) -> tuple[Symbol, ...]:
    """Return the symbols meant by a registration.

    `target` is a torch-level callable, an operator overload, an overload packet (all its overloads), or a
    `torch.library.custom_op`. It may also be a subclass of `torch.autograd.Function`, or a name such as
    `"torch.nn.functional.gelu"`, `"aten.mm.default"` or, for all overloads, `"mylib::rope"`.

    Raises:
        RegistrationError: there is no such operator.
    """
    if isinstance(target, str):
        return symbols_of(_overloads(target)) if "::" in target else (_by_name(target),)
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        return (Symbol(f"{target.__module__}.{target.__qualname__}", target.apply),)
    if isinstance(target, internals.CustomOpDef):
        target = target._opoverload
    if isinstance(target, internals.OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]
        return tuple(Symbol(str(overload), overload) for overload in overloads)
    is_function = callable(target) and not isinstance(target, type)
    symbol = symbol_of(target) if is_function else None
    if symbol is None:
        hint = did_you_mean(
            f"torch.nn.functional.{getattr(target, '__name__', '').lower()}", _functions()
        )
        raise RegistrationError(
            f"{target!r} names no operator: pass a PyTorch function, an operator overload, or a qualified name "
            f'such as "torch.nn.functional.gelu" or "aten.mm.default"{hint}'
        )
    return (symbol,)


def _overloads(name: str) -> Any:
    """Return the operator with PyTorch's name `mylib::rope`, or one overload of it, `mylib::rope.out`."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        value = getattr(getattr(torch.ops, namespace), packet)
        return getattr(value, overload) if overload else value
    except AttributeError:
        raise _unknown(name) from None


def _unknown(name: str) -> RegistrationError:
    hint = did_you_mean(name, _functions()) or "; is the library that defines it imported?"
    return RegistrationError(f"no operator is called {name!r}{hint}")


def _functions() -> list[str]:
    """Return the names of PyTorch's functions, for suggestions."""
    homes = {
        "torch": torch,
        "torch.nn.functional": torch.nn.functional,
        "torch.Tensor": torch.Tensor,
    }
    return [f"{prefix}.{name}" for prefix, names in homes.items() for name in dir(names)]


def _by_name(name: str) -> Symbol:
    root, *path = name.split(".")
    try:
        value = functools.reduce(
            getattr, path, torch if root == "torch" else getattr(torch.ops, root)
        )
    except AttributeError:
        raise _unknown(name) from None
    symbol = symbol_of(value) if callable(value) and not isinstance(value, type) else None
    if symbol is None or isinstance(value, internals.OpOverloadPacket):
        raise RegistrationError(
            f"{name!r} is no operator; an overload's name ends in its overload, as aten.mm.default"
        )
    return symbol

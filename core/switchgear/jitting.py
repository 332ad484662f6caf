"""`jit`: functions and modules that run as compiled traces."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, Unpack, overload

from torch import nn

from switchgear.options import Options, warn_of_unknown_variables
from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput
from switchgear_core.registry.options import check_options, in_force
from switchgear_core.registry.order import select
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.registry import Table
from switchgear_core.torch_private.names import warn_if_untested
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.jitted import (
    Decorator,
    JitFunction,
    Module,
    P,
    R,
    jitted_module,
)


@overload
def jit(function: Module, **options: Unpack[Options]) -> Module: ...
@overload
def jit(function: Callable[P, R], **options: Unpack[Options]) -> Callable[P, R]: ...
@overload
def jit(function: None = None, **options: Unpack[Options]) -> Decorator: ...
@internals.opaque
def jit(
    function: Callable[..., object] | nn.Module | None = None, *rest: object, **options: Any
) -> Any:
    """Run a function or a module as compiled traces. Also a decorator, with or without options.

    The first call captures a trace of PyTorch's operators, differentiates it and compiles it. Later calls that pass its
    guards run the compiled program. Guards cover the structure of the arguments, the metadata of tensors, Python values
    among the arguments, the state of modules, and global modes. They also cover attributes, globals, closures and
    containers that the function reads; each call repeats its writes.

    A jitted module shares its state with the original. A bound method of a module is compiled with the module's state.
    A forward that is assigned to a jitted module runs as it is; its calls of the former forward are compiled.
    The first call of a module with lazy parameters initialises them in eager mode.

    Args:
        function: a function, an `nn.Module` or a bound method of one. None returns a decorator.

    Returns:
        A function with the same signature, a module that shares the original's state, or a decorator.

    Raises:
        TypeError: no part declares an option, or the first argument cannot be called.
        InvalidInput: an option has an invalid value, or the function cannot be jitted.
        UnknownExecutor: no installed executor has a listed name.
        ExecutorUnavailable: with `strict`, a listed executor cannot run here.
        RuleError: in a call, a plugin's rule, checker or pass raised, or returned something invalid.
        ExecutorFailed: in a call, an implementation raised or returned a wrong result.
        OtherDecisions: in a call, a file of decisions cannot be repeated.
        CaptureError: in a call, with fallback="error" or `strict`, the call cannot be captured.
        NotDifferentiable: in a call, with `strict`, no rule differentiates an operator.
    """
    if rest:
        raise TypeError(f"sg.jit takes options by name: sg.jit(f, executors={rest[0]!r})")
    parts = installed_parts()
    declared = parts.options
    check_options(declared, options)
    warn_of_unknown_variables(declared)
    settings = in_force(declared, options, os.environ)
    if function is None:
        return functools.partial(jit, **settings)
    _check_function(function)
    warn_if_untested()
    executors: Any = settings["executors"]
    rules: Any = settings["grad_rules"]
    tables = (rules,) if isinstance(rules, (Table, str)) else tuple(rules or ())
    selection = select(installed(executors, tables), executors, settings, parts)
    methods: Any = settings["methods"]
    common = {name: value for name, value in settings.items() if not declared[name].is_for_one}
    rejit = functools.partial(jit, **common)

    def compiler(function: Callable[..., object], module: nn.Module | None) -> Compiler:
        return Compiler(function, module, selection, common)

    if isinstance(function, nn.Module):
        return jitted_module(
            function, compiler, functools.partial(rejit, methods=methods), rejit, methods
        )
    if methods:
        raise InvalidInput(
            f"methods={methods!r} is for modules, and {function!r} is none; leave methods out"
        )
    if isinstance(function, JitFunction):
        function = function._switchgear.function
    owner = getattr(function, "__self__", None)
    return JitFunction(compiler(function, owner if isinstance(owner, nn.Module) else None), rejit)


def _check_function(function: object) -> None:
    if not callable(function):
        raise TypeError(
            f"sg.jit takes a function or a module, not a {type(function).__name__}; jit the function that makes it, "
            "and call that: sg.jit(f)(x)"
        )
    if isinstance(function, type) and issubclass(function, nn.Module):
        name = function.__name__
        raise InvalidInput(f"{name} is a class; jit an object of it: sg.jit({name}(...))")
    if inspect.iscoroutinefunction(getattr(function, "forward", function)):
        raise InvalidInput(
            f"{getattr(function, '__qualname__', function)!s} is a coroutine function, whose call only makes a "
            "coroutine; give sg.jit the functions that it calls between awaits"
        )

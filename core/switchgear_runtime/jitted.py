"""The results of `jit`: functions and modules whose calls run as compiled traces, otherwise like the originals."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch
from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput, Unsupported, did_you_mean
from switchgear_core.record.guards import OtherData
from switchgear_core.record.recorder import active_recorder
from switchgear_core.showing import Shown, as_html, limited
from switchgear_runtime.entry import Entry
from switchgear_runtime.prologue import MISS
from switchgear_runtime.tracebacks import hide_own_frames

P = ParamSpec("P")
R = TypeVar("R")
Module = TypeVar("Module", bound=nn.Module)


class Decorator(Protocol):
    """The type of `jit` with options alone."""

    @overload
    def __call__(self, function: Module) -> Module: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...


#: Exceptions with the meaning: this entry does not fit the call, by its data or because its prologue refuses the call.
MISSES = (OtherData, Unsupported)


class Compiled(Protocol):
    """The compiler behind a function or module."""

    function: Callable[..., Any]
    module: nn.Module | None
    last: Entry | None
    calls: int

    def state(self) -> str:
        """Return the number of calls and their outcomes, on a single line."""

    def look_up(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run a call that does not fit the most recent entry."""

    def take_turns(
        self, args: tuple[object, ...], kwargs: dict[str, object], is_alone: bool = False
    ) -> object:
        """Run another recent entry for calls of the given sizes."""


@internals.opaque
def _run(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the compiled code for a call."""
    # inlined from `Compiler`: one Python call costs as much as the whole path
    try:
        compiler = self._switchgear
        entry = compiler.last
        if entry is not None:
            try:
                result = entry.call(args, kwargs)
                if result is not MISS:
                    compiler.calls += 1
                    return result
                result = compiler.take_turns(args, kwargs)
                if result is not MISS:
                    return result
            except MISSES:
                pass
        return compiler.look_up(args, kwargs)
    except Exception as error:
        hide_own_frames(error)
        raise


class JitFunction(Shown):
    """A function that runs as compiled traces; calls like the original.

    Copies and pickles contain the function and its way of jitting, `rejit`, but no compiled code.
    """

    def __init__(self, compiler: Compiled, rejit: Callable[..., Any]) -> None:
        functools.update_wrapper(self, compiler.function)
        self._switchgear = compiler
        self._switchgear_rejit = rejit

    __call__ = _run

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        function = self._switchgear.function
        is_code = isinstance(function, (types.FunctionType, types.MethodType))
        name = getattr(function, "__qualname__" if is_code else "__name__", type(function).__name__)
        return f"<sg.jit({name}): {self._switchgear.state()}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        function = self._switchgear.function
        if _named(function) is self:
            return (
                function.__qualname__
            )  # a decorated function, which pickle finds in the place of the original
        if isinstance(function, types.MethodType) and _is_own(function):
            method = functools.partial(_method, self._switchgear_rejit)
            return method, (function.__self__, function.__name__)
        return self._switchgear_rejit, (function,)


def _named(function: Callable[..., object]) -> object:
    """Return the object at the place where pickle looks for a function."""
    place: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in getattr(function, "__qualname__", "").split("."):
        place = getattr(place, name, None)
    return place


def _is_own(method: types.MethodType) -> bool:
    """Check whether the class defines the method, so that an override on the instance does not matter."""
    return getattr(type(method.__self__), method.__name__, None) is method.__func__


def _method(rejit: Callable[..., object], instance: object, name: str) -> object:
    return rejit(getattr(type(instance), name).__get__(instance))


class JitModule:
    """A mix-in for the class of a jitted module: `forward` runs as compiled traces, all other members are the
    original's.

    The instance shares the original's `__dict__`: parameters, buffers, submodules, hooks, flags and attributes. An
    assigned forward belongs to the instance alone, because replacements usually call the previous forward. A
    replacement that does not is itself jitted from then on.
    """

    __slots__ = (
        "_switchgear",
        "_switchgear_forward",
        "_switchgear_jit",
        "_switchgear_methods",
        "_switchgear_rejit",
    )
    _switchgear: Compiled
    _switchgear_rejit: Callable[..., Any]
    _switchgear_jit: Callable[..., Any]
    _switchgear_forward: Callable[..., Any] | None
    _switchgear_methods: dict[str, JitFunction]

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self._switchgear_rejit, (self._switchgear.module,)
        forward = self._switchgear_forward
        return arguments if forward is None else (*arguments, forward)

    def __setstate__(self, forward: Callable[..., object]) -> None:
        object.__setattr__(self, "_switchgear_forward", forward)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """Copy a jitted module whose class has a `__deepcopy__`; other classes are copied as `__reduce__` says."""
    twin = memo[id(self)] = self._switchgear_rejit(copy.deepcopy(self._switchgear.module, memo))
    if self._switchgear_forward is not None:
        twin.__setstate__(copy.deepcopy(self._switchgear_forward, memo))
    return twin


class _Forward:
    """`forward` of a jitted module: a function of the class with the original's signature, unless one is assigned."""

    def __init__(self, original: Callable[..., Any]) -> None:
        function = types.FunctionType(_run.__code__, _run.__globals__, "forward")
        functools.update_wrapper(function, original)
        # code for unwrapping a forward must find the function
        function.__dict__.pop("__wrapped__")
        internals.opaque(function)
        with contextlib.suppress(TypeError, ValueError):  # no signature
            function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        self.function = function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        forward = instance._switchgear_forward
        return types.MethodType(self.function, instance) if forward is None else forward

    def __set__(self, instance: object, forward: object) -> None:
        is_itself = forward == types.MethodType(self.function, instance)
        object.__setattr__(instance, "_switchgear_forward", None if is_itself else forward)

    def __delete__(self, instance: Any) -> None:
        if instance._switchgear_forward is None:
            raise AttributeError("forward")
        object.__setattr__(instance, "_switchgear_forward", None)


class _Method:
    """A separately jitted method of a jitted module."""

    def __init__(self, name: str, original: Callable[..., Any]) -> None:
        self._name = name
        self._original = original

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._original if instance is None else instance._switchgear_methods[self._name]


_CALL = nn.Module.__call__


def _direct_call(kind: type[nn.Module]) -> Callable[..., object]:
    """Return the fast `__call__` for modules of a class without hooks; other cases use its `__call__`."""

    @internals.opaque
    def __call__(self: Any, *args: Any, **kwargs: Any) -> object:
        try:
            entry = self._switchgear.last
            if (
                entry is not None
                and entry.is_forward_alone
                and self._switchgear_forward is None
                and self._compiled_call_impl is None
                and kind.__call__ is _CALL
            ):
                # the prologue checks that there are still no hooks
                try:
                    result = entry.call(args, kwargs)
                    if result is not MISS:
                        self._switchgear.calls += 1
                        return result
                    result = self._switchgear.take_turns(args, kwargs, True)
                    if result is not MISS:
                        return result
                except MISSES:
                    pass
            compiled = self._compiled_call_impl
            if (
                compiled is not None
                and getattr(inspect.unwrap(compiled), "__self__", self) is not self
            ):
                # compiled by the original's `compile()`, which ignores the jitted module
                return self._call_impl(*args, **kwargs)
            method, calls = self._switchgear_forward, self._switchgear.calls
            result = kind.__call__(self, *args, **kwargs)
            is_passed_over = method is not None and self._switchgear.calls == calls
            if is_passed_over and not isinstance(method, JitFunction) and active_recorder() is None:
                # no compiled code was called: from now on this forward is compiled
                object.__setattr__(self, "_switchgear_forward", self._switchgear_jit(method))
            return result
        except Exception as error:
            hide_own_frames(error)
            raise

    return __call__


def _module_as_html(self: Any) -> str:
    """Return a jitted module as HTML for a notebook; its `repr` is the original's."""
    return as_html(limited([f"# sg.jit: {self._switchgear.state()}", *repr(self).splitlines()]))


def jitted_class(kind: type[nn.Module], methods: Sequence[str] = ()) -> type[Any]:
    """Return the class of jitted modules of a class."""
    attributes: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if kind.__call__ is _CALL:
        attributes["__call__"] = _direct_call(kind)
    attributes["__new__"] = _original_new(kind)
    if hasattr(kind, "__deepcopy__"):
        attributes["__deepcopy__"] = _deepcopy
    if not hasattr(kind, "_repr_html_"):
        attributes["_repr_html_"] = _module_as_html
    if getattr(kind, "cls_to_become", None) is not None:
        attributes["cls_to_become"] = property(_initialised_class(kind, methods))
    metaclass: Any = type(kind)
    jitted: type[Any] = metaclass(kind.__name__, (JitModule, kind), attributes)
    # afterwards, because a base class's __init_subclass__ may wrap methods that the subclass defines
    for name in methods:
        setattr(jitted, name, _Method(name, getattr(kind, name)))
    jitted.forward = _Forward(kind.forward)
    return jitted


def _original_new(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """Return `__new__` for the class of a jitted module: `type(self)(...)` creates a module that is not jitted."""

    @functools.wraps(kind.__init__)  # the signature of the class
    def __new__(jitted: type, *args: Any, **kwargs: Any) -> nn.Module:
        # a caller up the stack, the metaclass's `__call__`, is running
        module: nn.Module = type.__call__(kind, *args, **kwargs)
        return module

    return __new__


def _initialised_class(kind: Any, methods: Sequence[str]) -> Callable[[object], type[object]]:
    """Return the property of a jitted lazy module with its class after initialisation; the original changes too."""

    def cls_to_become(self: Any) -> type[object]:
        self._switchgear.module.__class__ = kind.cls_to_become
        return jitted_class(kind.cls_to_become, methods)

    return cls_to_become


def jitted_module(
    module: nn.Module,
    compiler: Callable[[Callable[..., object], nn.Module], Compiled],
    rejit: Callable[..., object],
    rejit_method: Callable[..., object],
    methods: Sequence[str],
) -> nn.Module:
    """Return a module that shares the state of `module`, and runs compiled code for its forward and `methods`."""
    if isinstance(module, JitModule):
        module = module._switchgear.module  # type: ignore[assignment]
    for name in methods:
        if not callable(getattr(module, name, None)):
            hint = did_you_mean(name, dir(module))
            raise InvalidInput(f"methods names {name!r}, which {type(module).__name__} lacks{hint}")
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidInput(
            f"a scripted {module.original_name} has no Python to capture; give sg.jit the module that was scripted"
        )
    jitted: nn.Module = object.__new__(jitted_class(type(module), methods))
    compiled_methods = {
        name: JitFunction(compiler(getattr(module, name), module), rejit_method) for name in methods
    }
    for name, value in (
        ("__dict__", module.__dict__),
        ("_switchgear", compiler(_forward_of(module), module)),
        ("_switchgear_rejit", rejit),
        ("_switchgear_forward", None),
        ("_switchgear_jit", rejit_method),
        ("_switchgear_methods", compiled_methods),
    ):
        object.__setattr__(jitted, name, value)
    return jitted


def _forward_of(module: nn.Module) -> Callable[..., object]:
    """Return the module's forward at the time of a call, named like the module."""

    @functools.wraps(module.forward)
    def forward(*args: object, **kwargs: object) -> Any:
        return module.forward(*args, **kwargs)

    forward.__qualname__ = type(module).__name__
    forward.now = lambda: module.forward  # type: ignore[attr-defined]
    return forward

"""Recording: a record of every attribute read of reached objects while a function is captured."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from switchgear_core import own
from switchgear_core.errors import Unsupported
from switchgear_core.patches import Change, caller, redirected, replace, replaced
from switchgear_frontend.known_calls import refuse_call, refuse_start
from switchgear_frontend.running_code import RunningCode
from switchgear_python_state import user_objects
from switchgear_python_state.holders import MISSING
from switchgear_python_state.reached import MODULE_STATE, Reached, part_of

#: Global variables of `torch.nn.modules.module`, whose own reads are covered by other guards.
_OF_MODULES = vars(nn.modules.module)
_SILENT = str(Path(nn.modules.module.__file__))


@functools.cache
def _is_silent(file: str) -> bool:
    return file == _SILENT or own.is_own(file)


def _getattr(
    original: Callable[[nn.Module, str], Any], enter: Callable[[nn.Module], None]
) -> Callable[[nn.Module, str], Any]:
    """Return a `nn.Module.__getattr__` without its own reads of `__dict__` for each kind of part.

    A module is entered when a part is read, so that a later call gets the current part.
    """

    def __getattr__(module: nn.Module, name: str) -> Any:
        part = part_of(module, name)
        if part is MISSING:
            return original(module, name)
        enter(module)
        return part

    return __getattr__


def _missing(reached: Reached, thread: int) -> Callable[[torch.Tensor, str], Any]:
    """Return a `torch.Tensor.__getattr__` that records reads of absent attributes; PyTorch defines none."""

    def __getattr__(tensor: torch.Tensor, name: str) -> Any:
        is_users = user_objects.is_users(sys._getframe(1).f_globals.get("__name__"))
        if is_users and threading.get_ident() == thread:
            reached.read_missing(tensor, name)
        raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")

    return __getattr__


class Recording:
    """A recorder of attribute reads by this thread, on instances of the reached classes."""

    def __init__(self, reached: Reached, enter_module: Callable[[nn.Module], None], packages: tuple[str, ...]) -> None:
        self._reached = reached
        #: Packages of features, each with a trailing dot; their code is not part of the function.
        self._packages = packages
        self._enter_module = enter_module
        self._thread = threading.get_ident()
        #: Patches of classes and modules, by id.
        self._changes: dict[int, Change] = {}
        #: Reporter of code that starts, and of called functions written in C.
        self.code = RunningCode(functools.partial(self._look, self._start), self._call)
        #: Whether the function has loaded a module.
        self.loads = False
        #: The first refusal: the function may have caught the exception.
        self.failure: Exception | None = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record reads inside."""
        variables: Any = type(os.environ)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.code.active())
                with self.code:
                    self._patch()
                if nn.Module.__getattr__.__module__ == nn.Module.__module__:
                    noting = _getattr(nn.Module.__getattr__, self._enter)
                    stack.enter_context(replaced(nn.Module, "__getattr__", noting))
                if not hasattr(torch.Tensor, "__getattr__"):
                    missing = _missing(self._reached, self._thread)
                    stack.enter_context(replaced(torch.Tensor, "__getattr__", missing))
                stack.enter_context(redirected(importlib, "import_module", self._import))
                # not `builtins.__import__`, for the reason in torch_private/imports.py
                stack.enter_context(redirected(importlib._bootstrap, "_find_and_load", self._load))
                for name in ("__getitem__", "__iter__", "__len__"):
                    stack.enter_context(redirected(variables, name, self._environment))
                yield
        finally:
            for change in self._changes.values():
                change.undo()
            self._changes.clear()

    def _look(self, look: Callable[..., None], *arguments: object) -> None:
        """Run `look`, and patch the newly reached classes and modules."""
        try:
            look(*arguments)
            if self._reached.classes or self._reached.modules:
                self._patch()
        except RecursionError:  # raised by the function's own recursion
            raise
        except Exception as error:
            self.failure = error
            raise

    def _start(self, frame: types.FrameType) -> None:
        if not self._is_feature(frame.f_globals):
            refuse_start(frame)
        self._reached.start(frame.f_code, frame.f_globals)

    def _call(self, frame: types.FrameType, function: Any) -> None:
        if function.__module__ == "_abc":
            self._reached.class_checks.read(function.__name__, frame.f_locals)
        try:
            refuse_call(frame, function)
        except Unsupported as error:
            if not self._is_feature(frame.f_globals):
                self.failure = self.failure or error
                raise

    def _is_feature(self, space: dict[str, Any]) -> bool:
        return f"{space.get('__name__')}.".startswith(self._packages)

    def _patch(self) -> None:
        while self._reached.modules:
            module = self._reached.modules.pop()
            kind = type(module)
            noting = self._noting_variables(kind.__getattribute__)
            self._changes[id(module)] = Change(setattr, module, "__class__", kind)
            module.__class__ = type("module", (kind,), {"__getattribute__": noting})
        while self._reached.classes:
            kind = self._reached.classes.pop()
            patched = any(id(base) in self._changes for base in kind.__mro__)
            if not patched or ("__getattribute__" in vars(kind) and id(kind) not in self._changes):
                # `type.__setattr__` bypasses a user's metaclass
                noting, assign = self._noting(kind.__getattribute__), type.__setattr__
                self._changes[id(kind)] = replace(kind, "__getattribute__", noting, assign)

    def _noting(self, original: Any) -> Any:
        thread, recorded_reads, get_ident = self._thread, self._reached.recorded_reads, threading.get_ident
        of_caller, enter = sys._getframe, self._enter

        def __getattribute__(instance: Any, name: str) -> Any:
            reader = of_caller(1)
            if name in MODULE_STATE:
                enter(instance)
            if (
                reader.f_globals is not _OF_MODULES
                and (id(instance), name) not in recorded_reads
                and get_ident() == thread
                and not _is_silent(reader.f_code.co_filename)
            ):
                self._note(instance, name)
            return original(instance, name)

        return __getattribute__

    def _enter(self, module: object) -> None:
        """Guard the structure of a module: its submodules, flags and hooks."""
        opened = self._reached.opened
        if id(module) in opened or threading.get_ident() != self._thread:
            return
        if isinstance(module, nn.Module):
            opened[id(module)] = module
            with self.code:
                self._enter_module(module)

    def _noting_variables(self, original: Any) -> Any:
        thread, recorded_reads, reached = self._thread, self._reached.recorded_reads, self._reached

        def __getattribute__(module: types.ModuleType, name: str) -> Any:
            key, is_whole = (id(module), name), name == "__dict__"
            if (
                (is_whole or (name not in reached.names and name[:2] != "__"))
                and key not in recorded_reads
                and threading.get_ident() == thread
                and not _is_silent(sys._getframe(1).f_code.co_filename)
            ):
                recorded_reads.add(key)
                with self.code:
                    self._look(reached.read_variable, module, name)
            try:
                return original(module, name)
            except AttributeError:
                space = types.ModuleType.__getattribute__(module, "__dict__")
                if threading.get_ident() == thread and "__getattr__" not in space:
                    with self.code:
                        self._look(reached.read_no_variable, space, name)
                raise

        return __getattribute__

    def _load(self, original: Callable[..., Any], *args: object) -> Any:
        module = original(*args)
        self.loads |= user_objects.is_users(caller(2, "importlib"))
        return module

    def _import(self, original: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        module = original(*args, **kwargs)
        # skip the frame of `redirected`
        if user_objects.is_users(caller(2)):
            with self.code:
                self._look(self._reached.reach, module, module.__name__)
        return module

    def _environment(self, original: Callable[..., Any], environment: object, variable: str | None = None) -> Any:
        # skip the frame of `redirected`
        if user_objects.is_users(caller(2, "os", "collections")):
            self._reached.read_environment(variable)
        return original(environment) if variable is None else original(environment, variable)

    def _note(self, instance: object, name: str) -> None:
        self._reached.recorded_reads.add((id(instance), name))
        with self.code:
            self._look(self._reached.read, instance, name)

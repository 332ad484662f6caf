"""Temporary replacements of attributes, changes undone after interrupts, and callers of replacements."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any


class Change:
    """A change of the process or of the current thread, until `undo`. Create it before the change is made.

    An interrupt may arrive between any two instructions: `put_back` undoes the changes whose own `undo` did not run.

    Args:
        undo: restores the former state; called more than once if interrupted.
        args: the arguments of `undo`.
    """

    __slots__ = ("_args", "_undo")

    def __init__(self, undo: Callable[..., object], *args: object) -> None:
        self._undo, self._args = undo, args
        changes().append(self)

    def forget(self) -> None:
        """Keep the change: it is no longer to be undone."""
        changes().remove(self)

    def undo(self) -> None:
        """Undo the change, unless already undone."""
        pending = changes()
        if self not in pending:
            return
        for later in reversed(pending[pending.index(self) + 1 :]):
            if later._is_of(self):  # its own undo was interrupted
                later.undo()
        self._undo(*self._args)
        pending.remove(self)

    def _is_of(self, earlier: Change) -> bool:
        """Check whether this change repeats `earlier`: all arguments but the last, the former state, are identical."""
        pairs = zip(self._args[:-1], earlier._args[:-1], strict=False)
        return self._undo == earlier._undo and all(value is other for value, other in pairs)


#: The changes not yet undone, by thread.
_CHANGES: dict[int, list[Change]] = {}


def changes() -> list[Change]:
    """Return the pending changes of the current thread, in order."""
    return _CHANGES.setdefault(threading.get_ident(), [])


def put_back(before: Collection[Change]) -> None:
    """Undo the pending changes of the current thread outside of `before`, the last first."""
    for change in reversed([*changes()]):
        if change not in before:
            change.undo()


class Lock:
    """A re-entrant lock, freed by `put_back` and in the child of a fork."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        self._change: Change | None = None
        _LOCKS.add(self)

    def __enter__(self) -> None:
        if not self._lock._is_owned():
            change = Change(self._free)
            self._lock.acquire()
            self._change = change
        else:
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        change = self._change
        self._lock.release()
        if change is not None and not self._lock._is_owned():
            change.undo()

    def _free(self) -> None:
        while self._lock._is_owned():
            self._lock.release()

    def reset(self) -> None:
        """Reset the lock: its holding thread may not exist."""
        self._lock._at_fork_reinit()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    """Free all locks, and undo the changes of other threads: in the child of a fork no other thread exists."""
    for lock in _LOCKS:
        lock.reset()
    thread = threading.get_ident()
    own_changes = _CHANGES.pop(thread, [])
    _CHANGES[thread] = [change for pending in _CHANGES.values() for change in pending]
    put_back(())
    _CHANGES.clear()
    _CHANGES[thread] = own_changes


os.register_at_fork(after_in_child=_after_fork)


def _restore(setter: Callable[..., object], holder: object, name: str, original: object) -> None:
    if original is not _INHERITED:
        setter(holder, name, original)
    elif name in vars(holder):
        (delattr if setter is setattr else type.__delattr__)(holder, name)


_INHERITED = object()


def replace(
    holder: object, name: str, value: object, setter: Callable[..., object] = setattr
) -> Change:
    """Replace `holder.name`, an own or inherited attribute, by `value`."""
    change = Change(_restore, setter, holder, name, vars(holder).get(name, _INHERITED))
    setter(holder, name, value)
    return change


class replaced(contextlib.AbstractContextManager[None]):
    """A context in which `holder.name`, an own or inherited attribute, is `value`."""

    def __init__(self, holder: object, name: str, value: object) -> None:
        self._target = holder, name, value

    def __enter__(self) -> None:
        self._change = replace(*self._target)

    def __exit__(self, *error: object) -> None:
        self._change.undo()


@contextlib.contextmanager
def together(contexts: Iterable[contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter all contexts, in their order."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def redirected(
    holder: object, name: str, target: Callable[..., object]
) -> contextlib.AbstractContextManager[None]:
    """Have calls of `holder.name` from the current thread call `target`, with the original as first argument."""
    attribute, thread = inspect.getattr_static(holder, name), threading.get_ident()
    original = getattr(attribute, "__func__", attribute)

    def call(*args: object, **kwargs: object) -> Any:
        if threading.get_ident() == thread:
            return target(original, *args, **kwargs)
        return original(*args, **kwargs)

    # `types.ClassMethodDescriptorType`: from PyTorch 2.14 on, `autograd.Function.apply` is a class method written in C
    of_class = isinstance(attribute, classmethod | types.ClassMethodDescriptorType)
    return replaced(holder, name, classmethod(call) if of_class else call)


def is_redirection(value: object) -> bool:
    """Check whether a value is the replacement of a function whose calls are redirected."""
    function = value.__func__ if isinstance(value, classmethod) else value
    return isinstance(function, types.FunctionType) and function.__module__ == __name__


def caller(depth: int, *passed: str) -> str:
    """Return the name of the calling module, `depth` frames above the asker, past frames of packages in `passed`."""
    frame: types.FrameType | None = sys._getframe(depth + 1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in passed:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame is not None else ""

"""Conservative state: Python state is compared as a whole, where no feature knows it better.

Before code starts, the values within reach by name are noted: global variables, and from there containers, objects,
modules, classes and closures. A call after which any differs is undone and refused. Later calls compare all of them
again: another value means another entry. Objects whose content cannot be seen are refused.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from typing import Any

import torch

from switchgear_core import own
from switchgear_core.errors import Unsupported
from switchgear_core.patches import Change, replaced
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.user_code import is_of_pytorch, is_standard
from switchgear_frontend.known_calls import refuse_call, refuse_start
from switchgear_frontend.running_code import RunningCode
from switchgear_frontend.seeding import random_states

_MISSING: Any = object()
#: Values that are equal if type and content are.
_ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.Size, range, slice)
#: Values without content that a function could change or read, except by calls seen by other features.
_FIXED = (
    *(torch.Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
    *(types.MappingProxyType, types.EllipsisType, types.NotImplementedType, types.CodeType),
    *(types.GenericAlias, types.UnionType, enum.Enum, Logger, re.Pattern),
)
#: Packages whose modules, classes and functions are taken as unchanging.
_PACKAGES = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy", "functorch"}
_ENVIRONMENT = frozenset({"environ", "environb", "getenv"})
_Content = tuple[tuple[object, object], ...]


def _is_fixed(module: object) -> bool:
    package = str(module).partition(".")[0]
    return package in _PACKAGES or package in own.PACKAGES


def _same(first: object, second: object) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _ATOMS) and first == second


@dataclass(frozen=True, slots=True, eq=False)
class _Holder:
    """A place with content: how to read and how to restore the content."""

    name: str
    read: Callable[[], _Content]
    write: Callable[[_Content], None]

    def differs(self, content: _Content) -> bool:
        """Check whether the content is another."""
        now = self.read()
        return len(now) != len(content) or not all(
            _same(key, old_key) and _same(item, old)
            for (key, item), (old_key, old) in zip(now, content, strict=True)
        )


def _holder(value: Any, name: str) -> _Holder | None:
    """Return the holder of a value's own content, None if it has none.

    Raises:
        Unsupported: the content cannot be seen.
    """
    if isinstance(value, (dict, list, set, deque)):
        return _Holder(name, lambda: _items(value), functools.partial(_refill, value))
    if isinstance(value, types.CellType):
        return _Holder(name, lambda: ((0, _content_of(value)),), lambda c: _fill(value, c[0][1]))
    if isinstance(value, type):
        return _Holder(name, lambda: (*vars(value).items(),), functools.partial(_reset, value))
    slots = [slot for kind in type(value).__mro__ for slot in _slots(kind)]
    if hasattr(value, "__dict__") or slots:

        def read() -> _Content:
            pairs = [(slot, getattr(value, slot, _MISSING)) for slot in slots]
            return (*getattr(value, "__dict__", {}).items(), *pairs)

        return _Holder(name, read, functools.partial(_reset, value))
    if isinstance(value, (tuple, frozenset, *_ATOMS, *_FIXED)) or type(value) is object:
        return None
    raise Unsupported(
        f"{name} is a {type(value).__name__}, whose content cannot be seen; the part python_state knows more",
        splits=False,
    )


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _items(value: Any) -> _Content:
    if isinstance(value, dict):
        return (*value.items(),)
    return (*enumerate(value),) if isinstance(value, (list, deque)) else (*((i, i) for i in value),)


def _refill(value: Any, content: _Content) -> None:
    # not the methods of a subclass
    kind: Any = next(kind for kind in (dict, set, list, deque) if isinstance(value, kind))
    items = dict(content) if kind is dict else [item for _, item in content]
    fill: Any = kind.update if kind in (dict, set) else kind.extend
    kind.clear(value)
    fill(value, items)


def _content_of(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _fill(cell: types.CellType, value: object) -> None:
    if value is not _MISSING:
        cell.cell_contents = value


def _reset(target: Any, content: _Content) -> None:
    setter: Any = type.__setattr__ if isinstance(target, type) else object.__setattr__
    drop: Any = type.__delattr__ if isinstance(target, type) else object.__delattr__
    before = dict(content)
    for name in [name for name in getattr(target, "__dict__", {}) if name not in before]:
        drop(target, name)
    for name, value in before.items():
        if (
            value is not _MISSING
            and getattr(target, "__dict__", {}).get(name, _MISSING) is not value
        ):
            setter(target, name, value)


@dataclass(slots=True, eq=False)
class _Snapshot:
    """The values that code reached, with their content before the code started."""

    holders: dict[int, tuple[_Holder, _Content]] = field(default_factory=dict)
    #: Keeps the objects alive whose ids are keys.
    values: list[object] = field(default_factory=list)
    #: Global variables by namespace and name.
    variables: dict[tuple[int, str], tuple[dict[str, object], object]] = field(default_factory=dict)
    failure: Unsupported | None = None

    def started(self, frame: types.FrameType) -> None:
        """Note the values within reach, by name, of the code of a starting frame."""
        code, space = frame.f_code, frame.f_globals
        if is_of_pytorch(code.co_filename) or is_standard(code.co_filename):
            return
        try:
            refuse_start(frame)
            self._look(code, space)
        except Unsupported as error:  # the function may catch it
            self.failure = self.failure or error
            raise

    def called(self, frame: types.FrameType, function: object) -> None:
        """Refuse a call of a function in C that has other effects."""
        try:
            refuse_call(frame, function)
        except Unsupported as error:
            self.failure = self.failure or error
            raise

    def _look(self, code: types.CodeType, space: dict[str, object]) -> None:
        names = {*code.co_names}
        if not names.isdisjoint(_ENVIRONMENT):
            raise Unsupported("the function reads the environment of the process", splits=False)
        for name in names:
            self._variable(space, name, names)
        for part in code.co_consts:
            if isinstance(part, types.CodeType):
                self._look(part, space)

    def _variable(self, space: dict[str, object], name: str, names: set[str]) -> None:
        if (id(space), name) in self.variables:
            return
        value = space.get(name, _MISSING)
        self.variables[id(space), name] = space, value
        if isinstance(value, types.ModuleType):
            if not _is_fixed(value.__name__):
                for inner in names:
                    self._variable(vars(value), inner, names)
        elif value is not _MISSING:
            self.reach(value, name)

    def reach(self, value: Any, name: str) -> None:
        """Note the content of a value, at all depths."""
        if id(value) in self.holders or isinstance(value, (*_ATOMS, types.ModuleType)):
            return
        if isinstance(value, (type, types.FunctionType)) and _is_fixed(value.__module__):
            return
        self.values.append(value)
        if isinstance(value, types.MethodType):
            self.reach(value.__self__, name)
            self.reach(value.__func__, name)
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                self._hold(cell, f"a closure of {name}")
            for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                self.reach(default, name)
        elif isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
            pass  # their functions are noted when they start
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.reach(part, name)
        elif isinstance(value, (tuple, frozenset)):
            for item in value:
                self.reach(item, name)
        else:
            self._hold(value, name)

    def _hold(self, value: Any, name: str) -> None:
        if id(value) in self.holders:
            return
        holder = _holder(value, name)
        if holder is None:
            return
        self.values.append(value)
        content = holder.read()
        self.holders[id(value)] = holder, content
        if not isinstance(value, (dict, list, set, deque, types.CellType, type)):
            self.reach(type(value), f"the class of {name}")
        for key, item in content:
            if item is not _MISSING:
                self.reach(item, f"{name}.{key}" if isinstance(key, str) else name)

    def changed(self) -> str:
        """Return the name of a place with other content; empty if there is none."""
        for (_, name), (space, before) in self.variables.items():
            if not _same(space.get(name, _MISSING), before):
                return f"the global variable {name}"
        changed = (
            holder.name for holder, content in self.holders.values() if holder.differs(content)
        )
        return next(changed, "")

    def put_back(self) -> None:
        """Give all places the content before."""
        for (_, name), (space, before) in self.variables.items():
            if before is _MISSING:
                space.pop(name, None)
            else:
                space[name] = before
        for holder, content in self.holders.values():
            if holder.differs(content):
                holder.write(content)


class ConservativeState(Handler):
    """Comparer of all Python state that a function can reach."""

    def begin(self, recorder: Recorder) -> _Snapshot | None:
        """Begin; inside another capture, which compares the same, do nothing."""
        return _Snapshot() if recorder.enclosing is None else None

    @contextlib.contextmanager
    def running(
        self, recorder: Recorder, roots: Sequence[object], arguments: Mapping[int, object]
    ) -> Iterator[None]:
        """Note the state before the function and before each inner code, and restore the state."""
        snapshot: _Snapshot | None = recorder.state(self)
        if snapshot is None:
            yield
            return
        if arguments:
            raise Unsupported("an object among the arguments", splits=False)
        for root in roots:
            snapshot.reach(root, getattr(root, "__name__", type(root).__name__))
        code = RunningCode(snapshot.started, snapshot.called)
        draws = random_states()
        change = Change(snapshot.put_back)
        try:
            with code.active(), replaced(recorder, "isolation", code):
                yield
            code.ran()
            if snapshot.failure is not None:
                raise snapshot.failure
            where = snapshot.changed() or ("random numbers" if random_states() != draws else "")
            if where:
                raise Unsupported(
                    f"the function changes Python state ({where}); the part python_state repeats that in each call",
                    splits=False,
                )
        finally:
            change.undo()

    def finish(self, recorder: Recorder, result: object) -> object:
        """Guard the state."""
        snapshot: _Snapshot | None = recorder.state(self)
        if snapshot is not None:
            scope = {"state_changed": snapshot.changed}
            why = "Python state that the function can reach"
            recorder.guards.append(Guard("not state_changed()", why, scope))
        return result

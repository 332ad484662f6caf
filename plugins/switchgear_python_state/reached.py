"""Reached objects: the Python objects in reach of a function, by its code, its reads and its arguments.

Attributes are recorded when they are read (`recording`). Global variables, closures, defaults and attributes of classes
and modules are found in the code of a reached function, when the code starts. A container is read as a whole. Functions
and objects of PyTorch, NumPy and the standard library are assumed not to change.
"""

from __future__ import annotations

import array
import contextlib
import enum
import functools
import itertools
import os
import queue
import sys
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from importlib.util import resolve_name
from typing import Any, TypeAlias

import torch
from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.patches import is_redirection
from switchgear_core.record.shell import shell_of
from switchgear_core.record.signature import (
    Argument,
    Attribute,
    Held,
    HeldNumber,
    can_vary,
    standing_for,
)
from switchgear_core.record.user_code import is_installed
from switchgear_frontend.known_calls import is_method, is_written_in_python, refuse, what_it_does
from switchgear_frontend.seeding import is_global_stream
from switchgear_python_state import user_objects
from switchgear_python_state.class_checks import ClassChecks
from switchgear_python_state.frozen import (
    VALUES,
    Contents,
    Instance,
    freeze,
    is_atom,
)
from switchgear_python_state.holders import (
    CONTAINERS,
    KINDS,
    MISSING,
    ClassAttributes,
    Holder,
    Items,
    Slots,
    Variable,
    Variables,
    dict_of,
    slots_of,
)
from switchgear_python_state.holdings import Holdings
from switchgear_python_state.identity import Identities, Place, Places
from switchgear_python_state.reads import (
    BASES,
    ITSELF,
    NAMES,
    Read,
    class_attribute,
    names_of,
)
from switchgear_python_state.streams import (
    Stream,
    has_stream,
    variable_of_context,
)

MODULE_STATE = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks_with_kwargs",
)
_DICTS = (*MODULE_STATE, *_HOOKS)
#: Special methods never run implicitly for an existing instance: construction, pickling, printing.
_NOT_IMPLICIT = frozenset(
    {
        *("__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"),
        *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"),
        *("__instancecheck__", "__subclasscheck__", "__getattribute__", "__del__"),
    }
)
#: Prefixes of special methods that delegate to the next class in the MRO.
_ACCESSORS = ("__get", "__set", "__del")
#: Methods often replaced by users.
_REPLACED = frozenset({"forward", "__call__", "__getattr__", "__setattr__", "__getitem__"})
#: Special methods that run when code uses the class by its name.
_IMPLIED = frozenset({"forward", "__init__", "__new__", "__post_init__", "backward", "setup_context"})
#: Types of callables wrapped by a decorator or run by a class.
_CALLED = (types.FunctionType, types.MethodType, functools.partial, nn.Module)
METHODS = (types.FunctionType, classmethod, staticmethod, property)
#: Attributes for the whole state of an object, as read by copy and pickle.
_WHOLE_OBJECT = frozenset({"__dict__", "__reduce__", "__reduce_ex__", "__getstate__"})
#: Names in code after which the code may read any attribute of a tensor.
_WHOLE = frozenset({"__dict__", "vars", "dir", "__getattribute__"})
#: Attributes for modifying a function object.
_PARTS_OF_FUNCTIONS = frozenset({"__closure__", "cell_contents", "__defaults__", "__kwdefaults__", "__globals__"})
_LOOKED_INTO = (tuple, frozenset, types.MappingProxyType, *KINDS)
#: Types whose content no guard can check.
_CHANGING = (bytearray, memoryview, array.array, threading.Event, queue.Queue)
WRITTEN_IN_C = (
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
)


#: Objects whose attributes are looked up by the names in code.
_Space: TypeAlias = types.ModuleType | type | torch.Tensor | types.FunctionType
_attribute = functools.cache(Attribute)


class Reached:
    """The objects reached by a function so far, with initial content and reads."""

    def __init__(self, varying: Collection[int | str] = (), size_of: Callable[[torch.Tensor], Any] = len) -> None:
        #: Paths of integers with other values in other calls.
        self._varying = varying
        self._size_of = size_of
        self.holdings = Holdings()
        self.holders, self.content = self.holdings.holders, self.holdings.content
        self.reads: dict[tuple[int, object], Read] = {}
        #: For each tensor, by id: its path in a call.
        self.tensors: dict[int, Held] = {}
        #: Classes whose instances still need a patch that records reads.
        self.classes: list[type] = []
        #: Modules whose variables may be read by computed names.
        self.modules: list[types.ModuleType] = []
        #: Reads already recorded: id of the object and name of the attribute.
        self.recorded_reads: set[tuple[int, str]] = set()
        #: Modules with at least one read of a parameter, buffer or submodule.
        self.opened: dict[int, Any] = {}
        #: Memo tables and context variables by id.
        self.streams: dict[int, Stream] = {}
        #: Whether user code runs after the function: the traced backward of a custom Function.
        self.runs_later = False
        #: Whether the function reads environment variables.
        self.reads_environment = False
        #: Weak references that were alive when the function followed them.
        self.references: list[weakref.ref[Any]] = []
        #: Answers of abstract base classes.
        self.class_checks = ClassChecks()
        #: For each reached object, its path in a later call.
        self.places = Places()
        #: Inspected class attributes, and classes with a reached instance.
        self._met: set[tuple[object, ...]] = set()
        self._labels: dict[int, str] = {}
        self._objects: dict[int, Any] = {}
        #: Names in started code.
        self.names: set[str] = set()
        #: Objects whose attributes code may name, by attribute name.
        self._spaces: dict[str, list[_Space]] = {}
        #: Absent attributes requested from a tensor, by the id of the tensor.
        self._asked_of_tensors: defaultdict[int, set[str]] = defaultdict(set)
        self._tensors: list[torch.Tensor] = []
        #: Paths of the `__dict__`s of tensors other than arguments; another tensor may be there later.
        self._places_of_tensors: dict[int, Place] = {}
        #: Functions still to be looked into, and whether a loop is doing so.
        self._pending: deque[tuple[types.FunctionType, str]] = deque()
        self._is_at_work = False
        #: User functions and their labels, by the id of their code.
        self._functions: defaultdict[int, list[tuple[types.FunctionType, str]]] = defaultdict(list)
        #: Code objects of functions reached before their start, by id.
        self.codes: dict[int, types.CodeType] = {}
        #: Global variables of started code, by the id of the code.
        self.started: dict[int, dict[str, Any]] = {}

    # -- values --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Release everything; refuse a traced backward that wrote to Python objects."""
        changed = self.holdings.put_back() if self.runs_later else ""
        of_objects = self.holdings, self._objects, self.opened, self.reads, self.streams, self.places
        of_tensors = self.tensors, self._tensors, self._places_of_tensors
        for table in (*of_objects, *of_tensors, self._spaces, self._functions, self.references):
            table.clear()
        if changed:
            raise Unsupported(f"the backward of an autograd.Function writes to {changed}, which calls would not")

    def knows(self, value: object) -> bool:
        """Check whether an object is known to have existed before the function ran."""
        return id(value) in self._objects

    def reach(self, value: object, label: str, owner: object = None, steps: tuple[object, ...] = ()) -> None:
        """Record the value at `steps` from `owner`, and follow its contents."""
        key = id(value)
        if key in self._objects:
            if owner is not None:
                self.places.add_another(value, self.places.at(owner, steps))
            return
        if is_atom(value):
            return
        owner, steps = self.places.at(owner, steps)
        if issubclass(type(value), torch.Tensor):
            if owner is not None:
                self._tensor(value, Held(owner, steps, label))
            return
        self._objects[key] = value
        if owner is not None:
            self.places.add(value, Place(owner, steps))
        self._labels.setdefault(key, label)
        self._look_into(value, label, owner, steps)
        if not self._is_at_work:
            self._look_into_functions()

    def _look_into_functions(self) -> None:
        """Look into pending functions in turn: recursion would get as deep as the program is long."""
        self._is_at_work = True
        try:
            while self._pending:
                self._run(*self._pending.popleft())
        finally:
            self._is_at_work = False

    def _look_into(self, value: object, label: str, owner: object, steps: tuple[object, ...]) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, label)
        elif isinstance(value, _LOOKED_INTO):
            self._container(value, label, owner, steps)
        elif isinstance(value, types.MethodType):
            self.reach(value.__self__, label)
            self.reach(value.__func__, label)
        elif isinstance(value, types.BuiltinMethodType):
            self._method_in_c(value, label)
        elif isinstance(value, functools.partial):
            for name in ("func", "args", "keywords"):
                self._note(value, name, getattr(value, name), f"{label}.{name}")
        elif isinstance(value, weakref.ref):
            self._reference(value, label)
        elif isinstance(value, (type, types.ModuleType)):
            self._space(value, label)
        else:
            self._object(value, label)

    def _method_in_c(self, method: types.BuiltinMethodType, label: str) -> None:
        """Look into the bound object of a method written in C."""
        of = method.__self__
        is_read = isinstance(of, KINDS) and method.__name__ != "append"  # `append = log.append`
        if not (is_read or isinstance(of, (type, types.ModuleType))):
            self.reach(of, label)
        if effect := what_it_does(method):
            refuse(f"holds {label}, which {effect}")
        if is_read:
            self._note(method, "__self__", of, f"{label}.__self__")

    def _reference(self, reference: weakref.ref[Any], label: str) -> None:
        """Follow a weak reference and record its liveness, without keeping its object alive."""
        target = reference()
        self.reach(target, label)
        if target is not None:
            self.references.append(reference)
            self.reads.pop((id(target), ITSELF), None)

    def identities(self, located: Iterable[int]) -> Identities:
        """Return objects of the call with several paths, and distinct located containers."""
        return self.places.identities(self._objects, located)

    def reach_argument(self, index: int, value: object) -> None:
        """Record an object among the arguments."""
        label, argument = f"argument {index}", Argument(index)
        self.reach(value, label, argument)
        if isinstance(value, KINDS) and self.is_of_call(value):
            self._read_itself(value, freeze(value, self), label)

    def _read_itself(self, value: object, frozen: object, label: str) -> None:
        self.reads[id(value), None] = Read(
            value, ITSELF, frozen, label, type(value), place=self.places.of_call[id(value)]
        )

    def _tensor(self, tensor: object, source: Held) -> None:
        self._attributes(tensor, str(source), Place(source.owner, source.steps))
        first = self.tensors.setdefault(id(tensor), source)
        if (first.owner, first.steps) == (source.owner, source.steps):
            return
        if first.owner != source.owner and Argument in (type(first.owner), type(source.owner)):
            raise Unsupported(
                f"{first} and {source} are one tensor, and need not be in another call; pass it once, or clones"
            )
        first.tied.append(source)

    def _attributes(self, tensor: Any, label: str, place: Place) -> None:
        """Record the user-set attributes of the tensor at `place`; attributes named in code count as read."""
        shell = shell_of(tensor)
        if shell is not None:
            self._instance_of(shell.kind)
        attrs = own_dict(tensor)
        if attrs is None or attrs in self.holdings:
            return
        place = place._replace(steps=(*place.steps, Attribute("__dict__")))
        (self.places.of_call if place.is_of_call else self._places_of_tensors)[id(attrs)] = place
        self._labels.setdefault(id(tensor), label)
        self._tensors.append(tensor)
        for name in self.holdings.hold_dict(attrs, label, "__dict__"):
            self._spaces.setdefault(name, []).append(tensor)
            if name in self.names:
                self._look_up(tensor, name)
        if not _WHOLE.isdisjoint(self.names):
            self._read_attributes(tensor)

    def _read_attributes(self, tensor: torch.Tensor) -> None:
        """Record a read of all attributes of a tensor."""
        attrs, label = vars(tensor), f"vars({self._label(tensor)})"
        for key, item in self.holdings.hold_dict(attrs, label, "__dict__").items():
            self.reach(item, f"{label}[{key!r}]", attrs, (key,))
        place = self._place_of(attrs)
        read = Read(attrs, ITSELF, freeze(attrs, self), label, dict, place=place)
        self.reads[id(attrs), None] = read

    def read_missing(self, tensor: torch.Tensor, name: str) -> None:
        """Record the read of an absent attribute of a tensor."""
        attrs = own_dict(tensor)
        if attrs is not None and attrs in self.holdings:
            self._note(attrs, name, MISSING, f"{self._label(tensor)}.{name}")
        self._asked_of_tensors[id(tensor)].add(name)

    def ask_arguments(self, wrappers: Mapping[int, torch.Tensor]) -> Iterator[int]:
        """Record the reads of absent attributes of argument tensors; yield the places of the arguments."""
        reads_all = not _WHOLE.isdisjoint(self.names)
        for index, wrapper in wrappers.items():
            names: Iterable[Any] = self._asked_of_tensors.get(id(wrapper), ())
            attrs, place = vars(wrapper), Place(Argument(index), (Attribute("__dict__"),))
            for key in [ITSELF] if reads_all else names:
                value = freeze({}, self) if reads_all else MISSING
                read = Read(attrs, key, value, f"argument {index}.{key}", dict, place=place)
                self.reads[id(place), key] = read
                yield index

    def read_no_variable(self, space: dict[str, Any], name: str) -> None:
        """Record the read of an absent variable of a module."""
        self._note(space, name, MISSING, f"{space.get('__name__')}.{name}")

    def note_added(self, holder: Holder, key: str) -> None:
        """Record the former absence of an entry added by the function, which may have tested for the entry."""
        target = holder.target
        bases = target.__mro__[1:] if isinstance(target, type) else ()
        if all(key not in vars(base) for base in bases):
            self.note_afterwards(target, key, MISSING, f"{holder.label}.{key}")

    def read_variable(self, module: types.ModuleType, name: str) -> None:
        """Record the read of a module variable not named in code; `__dict__` reads all variables."""
        space = vars(module)
        holder = self.holdings.hold(Variables, space, f"module {module.__name__}")
        names = space.keys() if name == "__dict__" else {name}
        holder.watch({key for key in names if key[:2] != "__"})
        for key in holder.before.keys() & names:
            self._note(space, key, holder.before[key], f"{module.__name__}.{key}")
        if name == "__dict__":
            self._read_names(space, module.__name__)

    def _read_names(self, space: dict[str, Any], label: str) -> None:
        """Record the set of names in a class or module: code may ask for a new name, or run it implicitly."""
        if (id(space), NAMES) not in self.reads:
            read = Read(space, NAMES, names_of(space), f"the names in {label}", dict)
            self.reads[id(space), NAMES] = read

    def _container(self, value: object, label: str, owner: object, steps: tuple[object, ...]) -> None:
        if type(value) is tuple and not self._varying and all(map(is_atom, value)):
            return
        for kind, holder in CONTAINERS:
            if isinstance(value, kind):
                self.holdings.hold(holder, value, label)
        for key, item in self.content(value).items():
            if isinstance(value, dict) and not issubclass(type(key), (str, int, type)):
                self._member(key, value, f"a key of {label}")
            place = owner is not None and not isinstance(value, (set, frozenset))
            where = f"{label}[{key!r}]" if is_atom(key) else f"{label}[a {type(key).__name__}]"
            if type(item) in (int, float) and place:
                self._number(value, key, item, where, owner, (*steps, key))
                continue
            if isinstance(item, type) and (issubclass(item, nn.Module) or not user_objects.has_values(item)):
                _refuse_metaclass(item)
                self._read_names_of_class(item)
                continue  # rather compared or called than changed
            if place:
                self.reach(item, where, owner, (*steps, key))
            else:
                self._member(item, value, where)
        if hasattr(value, "__dict__"):
            self._object(value, label)

    def _member(self, value: object, container: object, label: str) -> None:
        """Record a container's item without a path, such as a member of a set."""
        self.reach(value, label)
        if self.is_of_call(value) and not self.is_of_call(container):
            self.places.tie(value, Place(value, ()))

    def _number(
        self,
        target: object,
        key: object,
        value: int | float,
        label: str,
        owner: object,
        steps: tuple[object, ...],
    ) -> Any:
        """Return the number at `key` of `target`, made symbolic if the value varies between calls."""
        holder = self.holders.get(id(target))
        is_fixed = label not in self._varying or not can_vary(value)
        if is_fixed or holder is None or isinstance(holder, ClassAttributes):
            return value
        if key in holder.symbolic or holder.content().get(key, MISSING) is not value:
            return holder.symbolic.get(key, value)
        place = self.places.at(owner, steps)
        with internals.real_dispatch():
            tensor = standing_for(value)
        self.tensors[id(tensor)] = HeldNumber(place.owner, place.steps, label)
        number = self._size_of(tensor)
        self.holdings.make_symbolic(holder, key, number)
        return number

    def is_of_call(self, value: object) -> bool:
        """Check whether an object is an argument, or was reached from an argument."""
        return id(value) in self.places.of_call

    # -- objects -------------------------------------------------------------------------------------------------------

    def _object(self, value: Any, label: str) -> None:
        kind = type(value)
        if isinstance(value, types.SimpleNamespace):
            self._hold_own(value, vars(value), label)
            self._read_all(value)
            return
        if isinstance(value, nn.Module):
            self._module(value, label)
        elif not user_objects.is_users_class(kind):
            self._library_object(value, label)
            return
        _refuse_alive(kind, label)
        self._instance_of(kind)
        is_followed = (id(kind), BASES) in self.reads
        if is_followed and not (issubclass(kind, nn.Module) or self.is_of_call(value)):
            read = Read(value, ITSELF, Instance(kind), f"the class of {label}", kind)
            self.reads[id(value), ITSELF] = read
        attrs = own_dict(value)
        if attrs is not None:
            self._hold_own(value, attrs, label)
        if any(True for _ in slots_of(kind)):
            self.holdings.hold(Slots, value, label)

    def _library_object(self, value: Any, label: str) -> None:
        """Record an object of a library class; its known state counts as read."""
        if is_global_stream(value):  # a draw is refused where it happens
            return
        wrapped = getattr(value, "__wrapped__", None)
        if has_stream(value):
            self.streams[id(value)] = Stream(value, label)
        elif hasattr(type(value), "__next__") and not isinstance(wrapped, types.FunctionType):
            raise Unsupported(
                f"the function reaches {label}, a {type(value).__name__}, which every use changes and nothing puts "
                "back; use it outside of the function"
            )
        if isinstance(value, _CHANGING) or type(value).__name__ == "ndarray":  # a NumPy array
            raise Unsupported(
                f"the function reaches {label}, a {type(value).__name__}, whose content no guard can check; pass "
                "the values you need of it"
            )
        _refuse_alive(type(value), label)
        if isinstance(value, ContextVar):
            content = variable_of_context(value)
            if isinstance(content, torch.Tensor):
                raise Unsupported(f"{label} is a ContextVar that holds a tensor; pass that")
            self._note(value, "get", content, label)
        if isinstance(wrapped, types.FunctionType):
            self._note(value, "__wrapped__", wrapped, f"{label}.__wrapped__", wrapped.__code__)
            attrs = own_dict(value)
            if attrs is not None and is_written_in_python(type(value)):
                self.classes.append(type(value))  # of a jitted function
                self._hold_own(value, attrs, label)
            elif attrs is not None:
                self._attributes_of_function(value, label)

    def _instance_of(self, kind: type) -> None:
        """Record, once per class, the methods run implicitly by instances."""
        if (id(kind),) in self._met:
            return
        self._met.add((id(kind),))
        self.classes.append(nn.Module if issubclass(kind, nn.Module) else kind)
        self._class(kind)
        attributes = itertools.chain.from_iterable(vars(base).items() for base in _users_bases(kind))
        for name, value in attributes:  # the class of an object may lead code here
            if type(value) is not types.FunctionType:
                self._spaces.setdefault(name, []).append(kind)
                if name in self.names:
                    self._look_up(kind, name)
        for hooks in internals.global_module_hooks() if issubclass(kind, nn.Module) else ():
            for hook in hooks.values():
                self.reach(hook, "a hook of all modules")
        for base in _users_bases(kind):
            self._behind(vars(base).get("__getattribute__"), f"{base.__name__}.__getattribute__")
            for name in [*vars(base)]:
                if name in _REPLACED or _is_implicit(base, name):
                    self._inherited(kind, name, class_attribute(kind, name), name not in _REPLACED)

    def _hold_own(self, value: object, attrs: dict[str, Any], label: str) -> None:
        self.holdings.hold(Items, attrs, label)
        if self.is_of_call(value):
            self.places.of_call[id(attrs)] = self.places.at(value, (Attribute("__dict__"),))

    def _module(self, module: nn.Module, label: str) -> None:
        state = vars(module)
        for name in _DICTS:
            table = state.get(name)
            if not isinstance(table, dict):  # a scripted module stores hooks and parts in C++
                continue
            if self.holdings.hold_dict(table, label, name) and name in MODULE_STATE:  # parts have their own guards
                self.recorded_reads.update([(id(module), part) for part in table if part not in state])
                if name != "_modules":
                    for part, tensor in table.items():
                        self._attributes(tensor, f"{label}.{part}", Place(table, (part,)))
        for name in _HOOKS[:4]:
            for hook in state.get(name, {}).values():
                self.reach(hook, f"a hook of {label}")
        self.reach(_assigned_forward(module), f"{label}.forward")
        for name, part in state.get("_modules", {}).items():
            self.reach(part, f"{label}.{name}")

    def read(self, value: object, name: str) -> None:
        """Record the read of an attribute."""
        attrs = own_dict(value)
        holder = self.holders.get(id(attrs))
        if holder is None and id(value) not in self.holders:
            self._read_made(value, attrs, name)
            return
        is_module = isinstance(value, nn.Module)
        if name == "__class__" or (is_module and name in MODULE_STATE):
            return
        before = MISSING if holder is None else holder.before.get(name, MISSING)
        is_state = is_module and part_of(value, name) is not MISSING
        if is_state and before is MISSING and id(value) not in self.holders:
            return  # parts of modules have their own guards
        label = f"{self._label(value)}.{name}"
        if name in _WHOLE_OBJECT:
            self._read_all(value)
            return
        inherited = class_attribute(type(value), name)
        if before is not MISSING and not hasattr(type(inherited), "__set__"):
            if holder is not None and attrs is not None:
                met = holder.at_first[name]
                if attrs.get(name, MISSING) is not met:
                    return  # written by the function itself
            self._note(attrs, name, before, label)
            self._inherited(type(value), name, inherited)
            return
        slots = self.holders.get(id(value))
        if isinstance(slots, Slots) and name in {*slots_of(type(value))}:
            self._note(value, name, slots.before.get(name, MISSING), label)
            return
        if is_state:
            return
        if attrs is not None and name not in attrs:
            self._note(attrs, name, MISSING, label)
        self._inherited(type(value), name, inherited)
        if inherited is MISSING:
            for base in _users_bases(type(value)):
                self._read_names(dict_of(base), base.__name__)
            for kind in MODULE_STATE if is_module else ():
                parts = vars(value).get(kind)
                if isinstance(parts, dict):  # a traced module stores its parts in C++
                    self._note(parts, name, MISSING, label)

    def _read_made(self, value: object, attrs: Mapping[str, object] | None, name: str) -> None:
        """Record the class attribute read through an object created by the function."""
        self.recorded_reads.discard((id(value), name))  # a later object may get the same id
        kind = next((kind for kind in type(value).__mro__ if id(kind) in self.holders), None)
        if kind is None:
            return
        inherited = class_attribute(kind, name)
        if attrs is None or name not in attrs or hasattr(type(inherited), "__set__"):
            self._inherited(kind, name, inherited)

    def read_environment(self, variable: str | None) -> None:
        """Record the read of an environment variable; None stands for the set of variables."""
        self.reads_environment = True
        variables = os.environ._data  # type: ignore[attr-defined]
        if variable is None:
            self._note(os.environ, "_data", variables, "os.environ")
            return
        key = os.environ.encodekey(variable)
        self._note(variables, key, variables.get(key, MISSING), f"os.environ[{variable!r}]")

    def _place_of(self, owner: object) -> Place | None:
        """Return the path to the owner of a read, None for a fixed object."""
        return self.places.of_call.get(id(owner)) or self._places_of_tensors.get(id(owner))

    def _label(self, value: object) -> str:
        return self._labels.get(id(value), type(value).__name__)

    def _read_all(self, value: object) -> None:
        attrs = own_dict(value)
        holder = self.holders.get(id(attrs))
        if holder is not None:
            label = f"vars({self._label(value)})"
            for key, item in holder.before.items():
                if type(item) in (int, float):
                    self._number(attrs, key, item, f"{label}[{key!r}]", attrs, (key,))
                else:
                    self.reach(item, f"{label}[{key!r}]", attrs, (key,))
            place = self.places.of_call.get(id(value))
            frozen = freeze(attrs, self)
            read = Read(value, "__dict__", frozen, label, type(value), place=place)
            self.reads[id(value), "__dict__"] = read

    def note_afterwards(self, owner: object, key: str, value: object, label: str) -> Read:
        """Record a read without following its value."""
        place = self._place_of(owner)
        read = Read(owner, key, freeze(value, self), label, type(owner), place=place)
        return self.reads.setdefault((id(owner), key), read)

    def _note(
        self,
        owner: object,
        key: Any,
        value: Any,
        label: str,
        code: types.CodeType | None = None,
    ) -> None:
        """Record a read that counts if `code` runs, and follow its value.

        For a tensor, only its type counts: its identity matters only for an input, and inputs have separate guards.
        """
        place = id(owner), key
        entry = self.reads.get(place)
        if entry is not None:
            entry.code = entry.code if code == entry.code else None
            return
        read = Read(owner, key, None, label, type(owner), code, self._place_of(owner))
        self.reads[place] = read
        kind = type(value)
        varies = kind in (int, float) and label in self._varying
        if value is MISSING or ((id(kind) in VALUES or kind is int) and not varies):
            read.value = value
            return
        step = key if isinstance(owner, dict) else _attribute(key)
        if varies:
            value = self._number(owner, key, value, label, owner, (step,))
        self.reach(value, label, owner, (step,))
        read.value = freeze(value, self)

    def _inherited(self, kind: type, name: str, value: object, is_named: bool = False) -> None:
        """Record a class attribute read, or only named, in code, and follow its value."""
        met = id(kind), name, is_named
        if met in self._met:  # met through another instance
            return
        self._met.add(met)
        is_of_capture = name == "__getattribute__" or is_redirection(value)
        is_in_c = value is MISSING or isinstance(value, WRITTEN_IN_C)
        if is_of_capture or is_in_c or not user_objects.is_users_class(kind):
            return
        bases = [base for base in kind.__mro__ if name in vars(base)]
        holder = self.holders.get(id(bases[0]))
        if holder is not None and holder.before.get(name, value) is not value:
            self.reach(value, f"{kind.__name__}.{name}")
            value = holder.before[name]  # set by the function itself
        code = None
        if is_named and isinstance(value, types.FunctionType):
            kind, code = bases[0], value.__code__
        self._note(kind, name, value, f"{kind.__name__}.{name}", code)
        for base in bases:
            item, label = vars(base)[name], f"{base.__name__}.{name}"
            is_theirs = user_objects.is_users_class(base) and not is_redirection(item)
            if base is not kind and is_theirs and isinstance(item, types.FunctionType):
                self._note(base, name, item, label, item.__code__)  # `super` may find the function
            self._behind(item, label)

    def _behind(self, value: object, label: str) -> None:
        for function in user_objects.functions_behind(value):
            self.reach(function, label)

    # -- code ----------------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType, label: str) -> None:
        """Record a function, to be looked into when its code starts."""
        if not user_objects.is_users_function(function):
            self._fixed_function(function, label)
            return
        code = function.__code__
        if self.is_of_call(function):
            for name in ("__code__", "__name__", "__qualname__", "__dict__"):
                self._note(function, name, getattr(function, name), f"{label}.{name}")
        self._attributes_of_function(function, label)
        space = function.__globals__
        self.holdings.hold(Variables, space, f"module {space.get('__name__')}")
        self._objects[id(code)] = code
        self._functions[id(code)].append((function, label))
        if id(code) not in self.started:
            self.codes[id(code)] = code
        if id(code) in self.started or code.co_name == "backward":
            self._pending.append((function, label))

    def _attributes_of_function(self, function: Any, label: str) -> None:
        for name, value in self.holdings.hold_dict(vars(function), label, "__dict__").items():
            self._spaces.setdefault(name, []).append(function)
            if name in self.names:
                self._look_up(function, name)
            self.reach(value, f"{label}.{name}")

    def start(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Look into the functions whose code starts; `space` holds its global variables."""
        self.started.setdefault(id(code), space)
        if user_objects.is_users(space.get("__name__")):
            self._imported(user_objects.imports_in(code), str(space.get("__package__")))
        if id(code) in self._functions:
            self._pending.extend(self._functions[id(code)])
            self._look_into_functions()
        elif user_objects.is_users_own(space.get("__name__")) and not getattr(
            space.get("__spec__"), "_initializing", False
        ):
            self._hold_variables(code, space)

    def _imported(self, imports: Iterable[tuple[int, str]], package: str) -> None:
        for dots, name in imports:
            full = resolve_name("." * dots + name, package) if dots else name
            if full in sys.modules:
                self.reach(sys.modules[full], full)

    def _hold_variables(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Hold the global variables of code without a path, for undoing its writes."""
        holder = self.holdings.hold(Variables, space, f"module {space['__name__']}")
        for name in holder.watch(user_objects.variables_in(code) & space.keys()):
            if isinstance(value := holder.before[name], KINDS):
                with contextlib.suppress(Unsupported):
                    self.reach(value, name)

    def names_of(self, code: types.CodeType) -> Iterable[str]:
        """Yield the names of the variables and attributes that led to functions with `code`."""
        for _, label in self._functions[id(code)]:
            where = label.removesuffix(".__wrapped__").partition("[")[0]
            yield where.rpartition(".")[2]

    def _run(self, function: types.FunctionType, label: str) -> None:
        code = function.__code__
        names = user_objects.names_in(code)
        if not names.isdisjoint(_PARTS_OF_FUNCTIONS):
            part = min(names & _PARTS_OF_FUNCTIONS)
            raise Unsupported(f"{code.co_name} asks for {part}, by which a function can be changed", splits=False)
        if "__getattribute__" in code.co_names and not code.co_name.startswith(_ACCESSORS):
            raise Unsupported(
                f"{code.co_name} names __getattribute__, by which it may read values that no guard checks; use getattr"
            )
        if "__class__" in names and "__class__" in user_objects.attributes_set(code):
            raise Unsupported(f"{code.co_name} gives an object another class", splits=False)
        self._note(function, "__code__", code, f"{label}.__code__", code)
        for name in ("__defaults__", "__kwdefaults__"):
            part = getattr(function, name)
            if part is not None:
                self._note(function, name, part, f"{label}.{name}", code)
        for place, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True)):
            if self.places.has_objects:
                self.reach(cell, name, function, (Attribute("__closure__"), place))
            holder = self.holdings.hold(Variable, cell, f"{name} in {function.__qualname__}")
            value = holder.before.get("cell_contents", MISSING)
            self._note(cell, "cell_contents", value, name, code)
        self.holdings.names_set |= user_objects.attributes_set(code)
        space = function.__globals__
        self._variables(space, user_objects.variables_in(code))
        for missing in user_objects.globals_in(code):
            if missing not in space:  # a builtin, until a variable hides the name
                self.read_no_variable(space, missing)
        self._named(names)
        if user_objects.attributes_asked(code):
            self._ask_functions(function)

    def _ask_functions(self, function: types.FunctionType) -> None:
        """Record absent attributes of other functions, if `function` asks by `hasattr` or `getattr`."""
        code = function.__code__
        cells = [self.holdings.holders[id(cell)] for cell in function.__closure__ or ()]
        values = [holder.before.get("cell_contents") for holder in cells]
        variables = function.__globals__ | dict(zip(code.co_freevars, values, strict=True))
        for variable, name in user_objects.attributes_asked(code):
            target = variables.get(variable)
            if isinstance(target, types.FunctionType) and name not in vars(target):
                self._note(vars(target), name, MISSING, f"{variable}.{name}", code)

    def _fixed_function(self, function: types.FunctionType, label: str) -> None:
        """Follow a library wrapper, such as the result of `torch.func.grad`, to the wrapped function."""
        if self.is_of_call(function):
            self._read_itself(function, function, label)
        if isinstance(vars(function).get("__wrapped__"), _CALLED):
            self._attributes_of_function(function, label)
        if "registry" in vars(function):  # of functools.singledispatch
            self._note(function, "registry", function.registry, f"{label}.registry")  # type: ignore[attr-defined]
        for cell in function.__closure__ or ():
            content = Variable(cell, label).before.get("cell_contents")
            for target in (content, (own_dict(content) or {}).get("__wrapped__")):
                if isinstance(target, _CALLED):
                    self.reach(target, label)

    def _variables(self, space: dict[str, Any], names: Set[str], code: types.CodeType | None = None) -> None:
        module = space.get("__name__")
        holder = self.holdings.hold(Variables, space, f"module {module}")
        holder.watch(names)
        # locks of an installed package are not state of the user
        is_apart = is_installed(str(space.get("__file__")))
        for name in sorted(names & holder.before.keys()):
            value = holder.before[name]
            if isinstance(value, types.BuiltinFunctionType) and not is_method(value):
                # recorded by its call
                self.note_afterwards(space, name, value, f"{module}.{name}")
                continue
            if is_apart and user_objects.is_lock(type(holder.before[name])):
                continue
            if (id(space), name) not in self.reads:
                self._note(space, name, holder.before[name], f"{module}.{name}", code)

    def _space(self, value: types.ModuleType | type, label: str) -> None:
        """Record a module or class; attributes named in code count as read."""
        if not user_objects.is_users_space(value):
            return
        spaces: list[Mapping[str, Any]]
        if isinstance(value, type):
            self._class(value)
            if user_objects.is_users_class(value):
                self.classes.append(nn.Module if issubclass(value, nn.Module) else value)
            spaces = [*map(vars, _users_bases(value))]
        else:
            spaces = [vars(value)]
            self.holdings.hold(Variables, spaces[0], f"module {value.__name__}")
            self.modules.append(value)
        for name in set(itertools.chain.from_iterable(spaces)):
            self._spaces.setdefault(name, []).append(value)
            is_named = name in self.names or name in _IMPLIED
            if is_named or (isinstance(value, type) and _is_implicit(value, name)):
                self._look_up(value, name)

    def _read_names_of_class(self, kind: type) -> None:
        for base in _users_bases(kind):
            if user_objects.is_users_own(base.__module__):
                self._read_names(dict_of(base), base.__name__)

    def _class(self, kind: type) -> None:
        _refuse_metaclass(kind)
        if not _is_installed(kind):
            bases = Contents(tuple, None, kind.__mro__)
            self.reads[id(kind), BASES] = Read(kind, BASES, bases, f"{kind.__name__}.{BASES}", type(kind))
        self._read_names_of_class(kind)
        for base in _users_bases(kind):
            if id(base) in self.holders:
                continue
            content = self.holdings.hold(ClassAttributes, base, base.__qualname__).before
            for name, value in content.items() if user_objects.is_users_own(base.__module__) else ():
                if isinstance(value, KINDS) or user_objects.is_users_class(type(value)):
                    self.reach(value, f"{base.__name__}.{name}")  # code may compute the name
        for meta in _users_bases(type(kind)):
            self.reach(meta, meta.__qualname__)
            self._behind(vars(meta).get("__getattribute__"), f"{meta.__name__}.__getattribute__")

    def _named(self, names: Set[str]) -> None:
        new = names - self.names
        self.names |= names
        for name in sorted(new & self._spaces.keys()):
            for space in tuple(self._spaces[name]):
                self._look_up(space, name)
        if not new.isdisjoint(_WHOLE):
            for tensor in tuple(self._tensors):
                self._read_attributes(tensor)

    def _look_up(self, space: _Space, name: str) -> None:
        if isinstance(space, types.ModuleType):
            self._variables(vars(space), {name})
        elif not isinstance(space, type):
            attrs = vars(space)
            value = self.holdings.hold(Items, attrs, "").before[name]
            self._note(attrs, name, value, f"{self._label(space)}.{name}")
        else:
            self._inherited(space, name, class_attribute(space, name), is_named=True)


def own_dict(value: object) -> dict[str, Any] | None:
    """Return the `__dict__` of an instance without running code of its class."""
    try:
        attrs = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attrs if type(attrs) is dict else None


def _refuse_alive(kind: type, label: str) -> None:
    if user_objects.is_alive(kind):
        use = "take" if user_objects.is_lock(kind) else "use"
        raise Unsupported(
            f"the function reaches {label}, a {kind.__name__}, which the first call alone would {use}; {use} it "
            "outside of the function",
            splits=False,
        )


def _refuse_metaclass(kind: type) -> None:
    """Refuse a class whose metaclass may answer attribute reads of the class: no guard covers such reads."""
    for meta in () if issubclass(type(kind), enum.EnumMeta) else _users_bases(type(kind)):
        if "__getattr__" in vars(meta) or not _is_installed(meta):
            raise Unsupported(
                f"the function reaches {kind.__qualname__}, and {meta.__qualname__}, a metaclass, answers for it in "
                "ways that no guard tells; read the values outside of the function",
                splits=False,
            )


def _is_installed(kind: type) -> bool:
    """Check whether a class belongs to an installed package, and so has a single definition."""
    module = sys.modules.get(kind.__module__)
    return is_installed(str(getattr(module, "__file__", "")))


def _assigned_forward(module: nn.Module) -> object:
    """Return the forward assigned to a module or a jitted module, else None."""
    slot = getattr(type(module), "_switchgear_forward", None)
    return vars(module).get("forward") if slot is None else slot.__get__(module)


def _is_implicit(kind: type, name: str) -> bool:
    """Check whether Python runs an attribute of a class implicitly for an instance."""
    if name[:2] != "__" or name[-2:] != "__" or name in _NOT_IMPLICIT:
        return False
    return isinstance(class_attribute(kind, name), METHODS)


def _users_bases(kind: type) -> Iterable[type]:
    return filter(user_objects.is_users_class, kind.__mro__)


def part_of(module: object, name: str) -> Any:
    """Return a parameter, buffer or submodule by name without reading an attribute, else `MISSING`."""
    state = object.__getattribute__(module, "__dict__")
    for kind in MODULE_STATE:
        if name in state.get(kind, ()):
            return state[kind][name]
    return MISSING

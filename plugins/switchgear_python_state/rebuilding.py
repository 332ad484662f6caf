"""Rebuilding: each call rebuilds objects created and returned or stored by the function, around its own tensors.

Existing objects come back by identity; created objects are rebuilt, and shared parts stay shared.
"""

from __future__ import annotations

import functools
import math
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import check_returned, is_bound
from switchgear_core.record.sizes import active_sizes, fixed, has_numbers, python
from switchgear_frontend.floats import Float
from switchgear_python_state.frozen import ATOMS, is_atom
from switchgear_python_state.holders import Slots, items_of, slots_of
from switchgear_python_state.identity import Place
from switchgear_python_state.reached import Reached, own_dict


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Results of a call: the leaves from the trace, the objects at the places, and the objects rebuilt so far."""

    leaves: Sequence[Any]
    located: Sequence[Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)


#: A builder of a value, from the results of a call.
Template: TypeAlias = Callable[[Results], Any]
#: Types of keys in which symbolic numbers can be replaced.
_KEYS = (*ATOMS, *internals.SYMBOLIC, tuple, frozenset, type)
#: The pattern of a dict that is its own `__dict__`.
_ITSELF = object()


@dataclass(slots=True, eq=False)
class Packing:
    """Converter of values to templates; collects tensors as `leaves`, and places of objects by their ids."""

    reached: Reached
    recorder: Recorder
    leaves: list[object] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    has_numbers: bool = False
    _indices: dict[int, int] = field(default_factory=dict)
    _built: dict[int, int] = field(default_factory=dict)
    _refs: list[object] = field(default_factory=list)
    #: Numbers of tuples and functions during the packing of their parts; parts are built first.
    _open: set[int] = field(default_factory=set)

    def pack(self, value: object, where: str) -> Template:
        """Return the template of the value left at `where` by the function."""
        if isinstance(value, torch.SymInt):
            self.has_numbers = True
            code = _code(python(value))
            return lambda results: eval(code, {"torch": torch, "math": math}, dict(results.sizes))
        if isinstance(value, Float):
            leaf = self._leaf(value.tensor)
            return lambda results: results.leaves[leaf].item()
        if isinstance(value, (torch.Tensor, torch.SymFloat, torch.SymBool)):
            leaf = self._leaf(value)
            return lambda results: results.leaves[leaf]
        if isinstance(value, torch.Size):
            size = fixed(value)
            return lambda _: size
        if (place := self.locate(value)) is not None:
            return lambda results: results.located[place]
        is_bare = not own_dict(value)
        is_constant = is_atom(value) and is_bare and not has_numbers(value)
        if is_constant or _is_fixed(value) or self._was_there(value):
            return lambda _: value
        index = self._built.setdefault(id(value), len(self._built))
        kind = type(value)
        if index in self._open:
            raise Unsupported(f"the function leaves in {where} a {kind.__name__} that holds itself; keep its parts")
        if index < len(self._refs):
            return lambda results: results.objects[index]
        if isinstance(value, (tuple, frozenset, types.FunctionType)):
            self._open.add(index)
        self._refs.append(value)
        keys: tuple[object, ...]
        if isinstance(value, (list, set)) or (is_bare and _is_plain_tuple(value)):
            keys, items = (), tuple(items_of(value))
        elif isinstance(value, dict) and not (
            isinstance(value, defaultdict) or any(isinstance(key, torch.Tensor) for key in dict.keys(value))
        ):
            keys, items = tuple(map(key_of, dict.keys(value))), tuple(dict.values(value))
        elif isinstance(value, types.FunctionType):
            keys, items = (), (value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ()))
        elif isinstance(value, types.CellType):
            keys, items = (), (value.cell_contents,)
        elif _is_plain_object(value):
            keys, items = (), ()
        else:
            if hasattr(value, "__next__") or kind.__module__ == "numpy" or isinstance(value, torch.Generator):
                check_returned(getattr(value, "original", value))  # a generator of numbers has a stand-in
            raise Unsupported(
                f"the function leaves a {kind.__module__}.{kind.__qualname__} in {where}, which a later call could "
                "not rebuild; keep tensors, Python values and containers of these"
            )
        packed = tuple([self.pack(item, where) for item in items])
        self._open.discard(index)
        attributes = tuple([(name, self.pack(item, where)) for name, item in _attributes(value)])
        return _Built(index, kind, keys, packed, attributes, _pattern(value))

    def locate(self, value: object) -> int | None:
        """Return the number of the place of an object of the call."""
        place = self.reached.places.of(value)
        if place is None:
            return None
        self.places.setdefault(id(value), place)
        return [*self.places].index(id(value))

    def _leaf(self, value: object) -> int:
        if id(value) not in self._indices:
            self._indices[id(value)] = len(self.leaves)
            self.leaves.append(self.recorder.adopted(value) if isinstance(value, torch.Tensor) else value)
        return self._indices[id(value)]

    def _was_there(self, value: object) -> bool:
        return self.reached.knows(value) and not isinstance(value, (tuple, frozenset))


def key_of(key: object) -> object:
    """Return a key of a dict, with the sizes of the captured call."""
    sizes = active_sizes()
    if sizes is not None and sizes.has_arguments and not isinstance(key, _KEYS):
        raise Unsupported(
            f"a {type(key).__name__}, a key of a dict, may hold an integer among the arguments, which is symbolic"
        )
    return fixed(key)


def _pattern(value: object) -> object:
    if isinstance(value, types.FunctionType):
        return value.__code__, value.__globals__, value.__name__
    has_dict = isinstance(value, dict) and type(value).__dictoffset__
    return _ITSELF if has_dict and vars(value) is value else None


def _is_fixed(value: object) -> bool:
    """Check whether a call never creates a new value of this kind."""
    if isinstance(value, types.FunctionType):
        return not (value.__closure__ or value.__defaults__ or vars(value))
    is_builtin = isinstance(value, types.BuiltinFunctionType) and not is_bound(value)
    return is_builtin or isinstance(value, (type, types.ModuleType))


def _is_plain_tuple(value: object) -> bool:
    """Check whether a value is a tuple or frozenset that `_build` makes as its class does."""
    is_in_c = isinstance(type(value).__new__, types.BuiltinMethodType)
    return isinstance(value, (tuple, frozenset)) and (is_in_c or hasattr(value, "_fields"))


def _is_plain_object(value: object) -> bool:
    kind: Any = type(value)
    if kind is types.SimpleNamespace:
        return True
    has_state = own_dict(value) is not None or any(True for _ in slots_of(kind))
    return has_state and kind.__new__ is object.__new__ and not isinstance(value, (nn.Module, functools.partial))


def _attributes(value: object) -> Iterable[tuple[str, Any]]:
    slots = Slots(value, "").before if any(True for _ in slots_of(type(value))) else {}
    return (*(own_dict(value) or {}).items(), *slots.items())


@functools.lru_cache(4096)
def _code(expression: str) -> types.CodeType:
    return compile(expression, "<switchgear number>", "eval")


@dataclass(frozen=True, slots=True, eq=False)
class _Built:
    """A builder of an object: its class, its items if it is a container, and its attributes.

    `pattern` is further input of the class: the code of a function.
    """

    index: int
    kind: Any
    keys: tuple[object, ...]
    items: tuple[Template, ...]
    attributes: tuple[tuple[str, Template], ...]
    pattern: Any = None

    def __call__(self, results: Results) -> Any:
        """Build the object of a call, once."""
        kind = self.kind
        if kind is types.FunctionType:
            return self._function(results)
        if issubclass(kind, (tuple, frozenset)):
            new = tuple.__new__ if hasattr(kind, "_fields") else kind.__new__
            value = results.objects[self.index] = new(kind, [item(results) for item in self.items])
            return value
        bases = OrderedDict, dict, list, set, types.CellType, types.SimpleNamespace
        base: Any = next((base for base in bases if issubclass(kind, base)), object)
        value = results.objects[self.index] = base.__new__(kind)
        items = [item(results) for item in self.items]
        if isinstance(value, dict):
            for key, item in zip(self.keys, items, strict=True):
                base.__setitem__(value, key, item)
            if self.pattern is _ITSELF:
                value.__dict__ = value
        elif isinstance(value, list):
            list.extend(value, items)
        elif isinstance(value, set):
            set.update(value, items)
        elif isinstance(value, types.CellType):
            value.cell_contents = items[0]
        attrs = own_dict(value)
        for name, attribute in self.attributes:
            if attrs is not None and name not in {*slots_of(kind)}:
                attrs[name] = attribute(results)
            else:
                object.__setattr__(value, name, attribute(results))
        return value

    def _function(self, results: Results) -> types.FunctionType:
        code, scope, name = self.pattern
        defaults, keyword_defaults, *cells = [item(results) for item in self.items]
        function = types.FunctionType(code, scope, name, defaults, (*cells,) or None)
        results.objects[self.index] = function
        function.__kwdefaults__ = keyword_defaults
        for attribute, item in self.attributes:
            setattr(function, attribute, item(results))
        return function


def needs_rebuilding(value: Any, reached: Reached, ids: set[int] | None = None) -> bool:
    """Check whether a return value has more than tensors, constants and new containers, each met once."""
    if isinstance(value, torch.Tensor) or is_atom(value):
        return False
    ids = set() if ids is None else ids
    is_new = type(value) is tuple or not reached.knows(value)
    if type(value) not in (tuple, list, dict, deque, defaultdict) or not is_new or id(value) in ids:
        return True
    ids.add(id(value))
    if isinstance(value, dict) and not all(map(is_atom, value)):
        return True
    return any(needs_rebuilding(item, reached, ids) for item in items_of(value))

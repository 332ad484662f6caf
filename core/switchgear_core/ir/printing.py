"""Values of a trace as Python text."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.source_text import as_name, attribute, is_name

#: Types whose values print by `repr`; subclasses, such as enumerations, may have a `repr` of the user.
_REPRESENTED = frozenset(
    {int, bool, str, bytes, type(None), torch.dtype, torch.layout, torch.memory_format}
)
#: The list that holds the arguments of a call; prints as `args`, and pickles by name.
BOXED = type("BOXED", (), {})


class Scope:
    """The names in the text other than inputs: modules to import, and constants.

    `bound` gives called functions their own names, which cost less than a path, or an overload's wrapper in Python.
    """

    def __init__(self, constants: Mapping[str, object], names: Iterable[str], bound: bool) -> None:
        self._names = {*names, "args", *vars(builtins)}
        self._bound: dict[str, str] | None = {} if bound else None
        self.values: dict[str, object] = dict(constants)
        self.modules = {"torch"}
        self.sizes: set[str] = set()

    def aside(self) -> Scope:
        """Return a copy, for text that never runs: its names are not needed here."""
        twin = copy.copy(self)
        twin.values, twin.modules, twin.sizes = {**self.values}, {*self.modules}, {*self.sizes}
        return twin

    def constant(self, value: object, hint: str) -> str:
        """Return the name of a value without Python text; `hint` if free."""
        for name, other in self.values.items():
            if other is value:
                return name
        return self._named(value, hint if is_name(hint) else "constant")

    def definition(self, name: str, value: object) -> tuple[str, str]:
        """Return the definition of a constant on a single line: Python for a number, else a comment."""
        if isinstance(value, torch.Tensor) and not value.dim() and value.is_cpu:
            number = self.expression(value.item())
            return f"{name} = torch.tensor({number}, dtype={value.dtype})", ""
        return "", f"{name}: {describe(value)}"

    def _named(self, value: object, name: str) -> str:
        while name in self.values or name in self._names or name in sys.modules:
            name += "_"
        self.values[name] = value
        return name

    def called(self, path: str, fn: Callable[..., object]) -> str:
        """Return the expression to call a function whose expression is `path`."""
        if self._bound is None or path.isidentifier():
            return path
        if path not in self._bound:
            self._bound[path] = self._named(internals.fastest_entry(fn), as_name(path))
        return self._bound[path]

    def callable(self, name: str, fn: Callable[..., object]) -> str:
        """Return the expression for `fn`: its path if there is one, else the name of a constant."""
        if isinstance(fn, internals.OpOverload):
            return self.at(f"torch.ops.{fn}")
        for path in (
            name,
            f"{getattr(fn, '__module__', None)}.{getattr(fn, '__qualname__', None)}",
        ):
            if path.partition(".")[0] not in self._names and _evaluates_to(path, fn):
                return self.at(path)
        return self.constant(fn, name if is_name(name) else str(getattr(fn, "__name__", "")))

    def at(self, path: str) -> str:
        """Return the expression for a path, and import its root."""
        root, *names = path.split(".")
        self.modules.add(root)
        return functools.reduce(attribute, names, root)

    def expression(self, value: object) -> str:
        """Return Python for a value among the arguments of a call."""
        if isinstance(value, TensorProxy):
            return value.name
        if value is BOXED:
            return "args"
        if isinstance(value, tuple):
            return f"({self.items(value)},)" if len(value) == 1 else f"({self.items(value)})"
        if isinstance(value, list):
            return f"[{self.items(value)}]"
        if isinstance(value, dict):
            return (
                "{"
                + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items())
                + "}"
            )
        if isinstance(value, slice):
            return f"slice({self.items((value.start, value.stop, value.step))})"
        if isinstance(value, float):
            text = float.__repr__(value)
            return text if math.isfinite(value) else f'float("{text}")'
        if isinstance(value, complex):
            return f"complex({self.expression(value.real)}, {self.expression(value.imag)})"
        if isinstance(value, internals.SYMBOLIC):
            return self.number(internals.python_of_number(value))
        if value is Ellipsis:
            return "..."
        if isinstance(value, torch.device) and self._bound is None:
            return f'torch.device("{value}")'
        if isinstance(value, internals.OpOverload) and self._bound is None:
            return self.at(f"torch.ops.{value}")
        if type(value) in _REPRESENTED:
            return repr(value)
        return self.constant(value, f"{type(value).__name__}_{len(self.values)}")

    def index(self, value: object) -> str:
        """Return Python for the index in brackets after a tensor."""
        if isinstance(value, slice):
            ends = (value.start, value.stop, value.step)
            start, stop, step = ("" if end is None else self.expression(end) for end in ends)
            return f"{start}:{stop}" + (f":{step}" if step else "")
        if type(value) is tuple and value:
            return ", ".join(map(self.index, value)) + ("," if len(value) == 1 else "")
        return self.expression(value)

    def number(self, text: str) -> str:
        """Return a symbolic number as text, and add the sizes that it needs to `sizes`."""
        root = ast.parse(text, mode="eval")
        names = {node.id for node in ast.walk(root) if isinstance(node, ast.Name)}
        self.modules.update(names & {"math"})
        self.sizes |= names - {"math", "torch", "max", "min", "abs"}
        return text

    def items(self, values: Iterable[object]) -> str:
        """Return the values, separated by commas."""
        return ", ".join(map(self.expression, values))


def _evaluates_to(path: str, fn: Callable[..., object]) -> bool:
    """Check whether evaluating `path` after importing its root gives `fn`."""
    if "." not in path or not all(map(is_name, path.split("."))):
        return False
    # builtin functions have several names, each with its own object
    return (target := object_at(path)) is fn or (target is not None and target == fn)


def object_at(path: str) -> Any:
    """Return the object at a path whose root is imported, or None."""
    root, *parts = path.split(".")
    value: Any = sys.modules.get(root)
    for part in parts:
        value = getattr(value, part, None)
    return value


def describe(value: object) -> str:
    """Return a description of a constant, on a single line."""
    try:
        text = (
            f"tensor {list(value.shape)} {value.dtype}"
            if isinstance(value, torch.Tensor)
            else repr(value)
        )
    except Exception:  # from a user's `__repr__`
        text = f"a {type(value).__qualname__}"
    return re.sub(" at 0x[0-9a-f]+", "", f"constant {text}".splitlines()[0])

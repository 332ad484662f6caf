"""The nesting of arguments and return values: PyTorch's pytrees, and unregistered dataclasses."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch

from switchgear_core.record.guards import value_key
from switchgear_core.record.shell import Shell, closed, shell_of
from switchgear_core.source_text import attribute
from switchgear_core.torch_private import pytree

#: The names of a call's arguments, whose types are known.
_CALL = ("args", "kwargs")


@dataclass(frozen=True, slots=True)
class Structure:
    """A pytree in which the leaves at the positions in `records` are flattened in turn.

    They are dataclass instances, or tensors with inner tensors.
    """

    spec: pytree.TreeSpec
    records: tuple[tuple[int, type | Shell, tuple[str, ...], Structure], ...] = ()

    @property
    def is_leaf(self) -> bool:
        """Whether there is no nesting."""
        return self.spec.is_leaf() and not self.records

    def unflatten(self, leaves: list[object], closed: Callable[..., Any] = closed) -> Any:
        """Return the nested value with the given leaves; `closed` makes tensors with inner tensors."""
        if self.records:
            leaves = list(leaves)
        for index, kind, names, inner in self.records:
            span = slice(index, index + inner.num_leaves)
            values = inner.unflatten(leaves[span], closed)
            leaves[span] = [
                _record(kind, names, values) if isinstance(kind, type) else closed(kind, values)
            ]
        return pytree.tree_unflatten(leaves, self.spec)

    def expression(self, leaves: Iterable[str]) -> str | None:
        """Return Python source of the nested value, given source of its leaves; None beyond tuples, lists and dicts."""
        return None if self.records else _expression(self.spec, iter(leaves))

    def taking_apart(self, scope: dict[str, object]) -> list[str]:
        """Return statements that flatten the `args` and `kwargs` of a call into leaves named `a0`, `a1`, ...

        The statements return `miss` if the structure differs. Objects that they use are added to `scope`. They raise
        KeyError for a class that is no longer registered.
        """
        lines: list[str] = []
        _take_parts(self, _CALL, (f"a{number}" for number in count()), scope, lines)
        return lines

    def shells(self) -> Iterator[Shell]:
        """Yield the shells of tensors with inner tensors."""
        yield from (kind for _, kind, _, _ in self.records if not isinstance(kind, type))
        yield from chain.from_iterable(inner.shells() for *_, inner in self.records)

    @property
    def num_leaves(self) -> int:
        """The number of leaves in total."""
        return self.spec.num_leaves + sum(inner.num_leaves - 1 for _, _, _, inner in self.records)


def _expression(spec: pytree.TreeSpec, leaves: Iterator[str]) -> str | None:
    if spec.is_leaf():
        return next(leaves)
    items = [_expression(child, leaves) for child in spec.children()]
    texts = [item for item in items if item is not None]
    if len(texts) < len(items):
        return None
    if spec.type is tuple:
        return f"({''.join([f'{item}, ' for item in texts])})"
    if spec.type is list:
        return f"[{', '.join(texts)}]"
    if spec.type is dict and all(type(key) is str for key in spec.context):
        return (
            "{"
            + ", ".join([f"{key!r}: {item}" for key, item in zip(spec.context, texts, strict=True)])
            + "}"
        )
    return None


def _take_parts(
    structure: Structure,
    parts: Iterable[str],
    leaves: Iterator[str],
    scope: dict[str, object],
    lines: list[str],
) -> None:
    records = {index: (kind, fields, inner) for index, kind, fields, inner in structure.records}
    places = count()
    pending = [*zip(structure.spec.children(), parts, strict=True)][::-1]
    while pending:
        spec, name = pending.pop()
        if not spec.is_leaf():
            pending += [*zip(spec.children(), _open(spec, name, scope, lines), strict=True)][::-1]
        elif record := records.get(next(places)):
            kind, fields, inner = record
            field_names = [f"{name}_{index}" for index in range(len(fields))]
            if isinstance(kind, type):
                scope[f"type_{name}"] = kind
                lines.append(f"if type({name}) is not type_{name}: return miss")
                if kind.__dictoffset__:
                    lines.append(f"if len({name}.__dict__) > {len(fields)}: return miss")
                lines.extend(
                    [
                        f"{part} = {attribute(name, field)}"
                        for part, field in zip(field_names, fields, strict=True)
                    ]
                )
            else:
                scope |= {f"fits_{name}": kind.checking(), f"opened_{name}": kind.opening()}
                lines.append(f"if not fits_{name}({name}): return miss")
                lines.append(f"{', '.join(field_names)}, *_ = opened_{name}({name})")
            _take_parts(inner, field_names, leaves, scope, lines)
        else:
            lines.append(f"{next(leaves)} = {name}")


def _open(
    spec: pytree.TreeSpec, name: str, scope: dict[str, object], lines: list[str]
) -> list[str]:
    """Return the names of a container's children; append statements for comparing and unpacking to `lines`."""
    kind, size = spec.type, spec.num_children
    parts = [f"{name}_{index}" for index in range(size)]
    targets = "".join([f"{part}, " for part in parts])
    if kind in (tuple, list) or (kind is dict and all(type(key) is str for key in spec.context)):
        different = [f"type({name}) is not {kind.__name__}", f"len({name}) != {size}"][
            name in _CALL :
        ]
        if kind is dict and size:
            # in order, because a function can see the order
            different.append(f"[*{name}] != {spec.context!r}")
            if name not in _CALL:  # a key of another class may be equal
                different.append(f"{{*map(type, {name})}} != {{str}}")
        opened = f"{name}.values()" if kind is dict else name
    else:
        # pytree has a single node type for named tuples, with the class as context
        scope[f"type_{name}"] = spec.context if kind is namedtuple else kind
        scope |= {
            "registered": pytree.SUPPORTED_NODES,
            f"kind_{name}": kind,
            f"context_{name}": spec.context,
        }
        opened = f"{name}_parts"
        lines.append(f"if type({name}) is not type_{name}: return miss")
        lines.append(f"(*{opened},), {name}_context = registered[kind_{name}].flatten_fn({name})")
        different = [f"len({opened}) != {size}"]
        if kind in (dict, OrderedDict, defaultdict):
            keys = spec.context[1] if kind is defaultdict else spec.context
            # 1 == True == 1.0, and 0.0 == -0.0
            scope |= {"value_key": value_key, f"keys_{name}": [*map(value_key, keys)]}
            different.append(f"[*map(value_key, {name})] != keys_{name}")
        else:
            different.append(f"{name}_context != context_{name}")
        if kind is defaultdict:
            scope[f"factory_{name}"] = spec.context[0]
            different.append(f"{name}.default_factory is not factory_{name}")
    lines.append(f"if {' or '.join(different)}: return miss")
    if parts:
        lines.append(f"{targets}= {opened}")
    return parts


def flatten(
    value: object, *, objects: bool = False, root: object = None
) -> tuple[list[Any], Structure]:
    """Return the leaves of a nested value, and its structure.

    With `objects`, an object with no state but its `__dict__` is flattened like a dataclass (caches of transformers).
    With `root`, every other part with an identity is a leaf.
    """

    def is_leaf(part: object) -> bool:
        return _is_size(part) or (part is not root and _has_identity(part))

    leaves, spec = pytree.tree_flatten(value, is_leaf=_is_size if root is None else is_leaf)
    is_record = _is_record_or_object if objects else _is_record
    flat: list[object] = []
    records = []
    for index, leaf in enumerate(leaves):
        shell = shell_of(leaf)
        kind: type | Shell = shell or type(leaf)
        if shell is not None:
            names, values = shell.names, [*shell.opening()(leaf)][: len(shell.names)]
        elif root is None and is_record(leaf):
            names = _fields(leaf) if _is_record(leaf) else tuple(vars(leaf))
            values = [getattr(leaf, name) for name in names]
        else:
            flat.append(leaf)
            continue
        itself = [value for value in values if value is leaf]  # a value of its class has no parts
        inner_leaves, inner = (itself, _LEAF) if itself else flatten(values, objects=objects)
        records.append((index, kind, names, inner))
        flat.extend(inner_leaves)
    return flat, Structure(spec, tuple(records))


_LEAF = Structure(pytree.tree_flatten([True])[1])


def _is_size(value: object) -> bool:
    # PyTorch's pytree would flatten a Size and rebuild it as a tuple
    return isinstance(value, torch.Size)


def _fields(record: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record))


def _is_record(leaf: object) -> bool:
    """Check whether a leaf is a dataclass instance without attributes other than its fields."""
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return False
    return getattr(leaf, "__dict__", {}).keys() <= leaf.__dataclass_fields__.keys()


def containers_in(value: object) -> Iterator[object]:
    """Yield the flattened lists, dicts, sets, deques and objects of a nested value, without tuples."""
    pending, parts_by_id = [value], dict[int, object]()
    while pending:
        part = pending.pop()
        if id(part) in parts_by_id:
            continue
        parts_by_id[id(part)] = part
        if _has_identity(part):
            yield part
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, (tuple, list, set, deque)):
            pending += part
        elif type(part) in pytree.SUPPORTED_NODES:
            pending += pytree.SUPPORTED_NODES[type(part)].flatten_fn(part)[0]
        elif _is_record(part):
            pending += [getattr(part, name) for name in _fields(part)]


def _has_identity(part: object) -> bool:
    """Check whether the identity of a container matters among equal containers."""
    kind = type(part)
    is_node = kind in pytree.SUPPORTED_NODES or dataclasses.is_dataclass(kind)
    is_container = is_node or issubclass(kind, (list, dict, set, deque))
    return is_container and not issubclass(kind, tuple)


def _is_record_or_object(leaf: object) -> bool:
    kind: Any = type(leaf)
    pickled = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    return _is_record(leaf) or (
        hasattr(leaf, "__dict__")
        and all(getattr(kind, name) is getattr(object, name) for name in pickled)
        and kind.__module__ not in ("builtins", "types")
        and not isinstance(leaf, torch.nn.Module | torch.SymInt | torch.SymFloat | torch.SymBool)
    )


def _record(kind: type, names: tuple[str, ...], values: list[object]) -> Any:
    record: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(record, name, value)
    return record

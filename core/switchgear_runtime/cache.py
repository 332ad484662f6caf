"""The cache of a jitted function: its entries, found in constant time."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from switchgear_core.errors import RecompileWarning
from switchgear_core.ir.proxy import short_name
from switchgear_core.record.guards import Known, value_key
from switchgear_core.record.signature import Arguments, can_vary, is_object, number_place
from switchgear_core.record.sizes import Marks
from switchgear_core.record.structure import Structure, flatten
from switchgear_core.record.user_code import user_frame
from switchgear_core.showing import shortened, warning_text
from switchgear_runtime.entry import Entry
from switchgear_runtime.modes import modes_key
from switchgear_runtime.module_state import modules_key

#: The key of a call: its structure, its arguments, the modes, the modules.
Key: TypeAlias = tuple[Any, ...]
_TENSOR = torch.Tensor
_TOPICS = (
    "the structure of the arguments changed from {} to {}",
    "",
    "the global modes changed from {} to {}",
    "training flags, hooks or parts of a module changed",
)

#: The limit on entries for one kind of call.
_CROWD = 16
#: The number of entries tried before a key is computed, by sizes; and the number of sizes kept.
_RECENT, _MOST_SIZES = 4, 4096


class Cache:
    """Entries in least-recently-used order, at most `size`; warns once after `recompile_limit` compilations."""

    def __init__(
        self, name: str, size: int, recompile_limit: int, function: Callable[..., object]
    ) -> None:
        self._name = name
        self._function = function
        self._size = size
        self._limit = recompile_limit
        self._buckets: dict[object, list[Entry]] = {}
        self._order: OrderedDict[Entry, object] = OrderedDict()
        self._last_key: tuple[object, ...] = ()
        #: Entries by the sizes of their calls, the most recent first: a hint, because the entry itself decides.
        self._by_sizes: dict[object, list[Entry]] = {}
        #: Keys of compiled calls, by the key without sizes of tensors and Python values.
        self._by_kind: defaultdict[object, list[Key]] = defaultdict(list)
        #: The number of compilations.
        self._compilations = 0
        #: The reason of each compilation.
        self.reasons: list[str] = []

    def find(
        self, key: Key, call: Arguments, unfit: Collection[Entry] = (), newest: bool = False
    ) -> tuple[Entry, Sequence[torch.Tensor]] | None:
        """Return the entry under a key that fits the call, and its input tensors; skip entries in `unfit`.

        With `newest`, only the newest entry is tried: with many entries, trying all takes longer than the call.
        """
        for entry in self._buckets.get(key, [])[: 1 if newest else None]:
            if entry in unfit:
                continue
            inputs = entry.prologue(call.args, call.kwargs)
            if inputs is not None:
                return entry, inputs
        return None

    def use(self, entry: Entry, sizes: object) -> None:
        """Record a call of these sizes by an entry.

        Acceptance by the prologue is not enough: the data may differ.
        """
        try:
            self._order.move_to_end(entry)
        except KeyError:  # the entry was dropped just now
            return
        others = self._by_sizes.get(sizes, ())
        if not others or others[0] is not entry:
            others = [one for one in others if one is not entry]
            self._by_sizes[sizes] = [entry, *others[: _RECENT - 1]]
            if len(self._by_sizes) > _MOST_SIZES:
                self._by_sizes.clear()

    def why_not(self, key: Key, call: Arguments) -> str:
        """Return why a call does not fit the newest entry under its key; empty if there is no entry."""
        for entry in self._buckets.get(key, ()):
            return entry.why_not(call)
        return ""

    def crowd(self, key: Key, reason: str) -> str:
        """Return why another entry under a key is not worthwhile (too many exist); empty if worthwhile."""
        most, others = max(_CROWD, 2 * self._limit), self._by_kind[_kind(key)]
        if len(self._buckets.get(key, ())) >= most:
            return (
                f"{reason}, as for all entries before; keep it as it is, or raise recompile_limit"
            )
        if len(others) < most or key in self._buckets:
            return ""
        changed = [
            f"{_parameter(self._function, key[0], place)}, {_described(leaf)},"
            for place, leaf in enumerate(key[1])
            if any(other[1][place] != leaf for other in others)
        ]
        if not changed or any(other[3] != key[3] for other in others):
            changed.append("a module, by its parts or flags,")
        fixed = next((entry.fixed for entry in self.entries() if entry.fixed), "")
        return (
            f"{' and '.join(changed)} was another in {most} calls, each compiled by itself; pass a tensor for a "
            "number, keep it as it is, or raise recompile_limit"
            + (fixed and f" (sizes are fixed, for with symbolic ones there was {fixed})")
        )

    def entries(self) -> Iterable[Entry]:
        """Return all entries, the most recently used first."""
        return [*reversed(self._order)]

    def recent(self, sizes: object) -> Sequence[Entry]:
        """Return recent entries for calls of these sizes: where kinds of calls alternate, trying entries is faster than
        a key."""
        return self._by_sizes.get(sizes, ())

    def add(self, key: tuple[object, ...], entry: Entry, reason: str = "") -> None:
        """Keep a new entry, and drop the least recently used if there are too many.

        `reason` tells which data, sizes or Python state set the call apart from the calls of other entries.
        """
        self._compilations += 1
        why = reason or (self._difference(key) if self._last_key else "the first call")
        self.reasons.append(why)
        if self._compilations == self._limit + 1:
            remedy = "" if "dynamic=" in why else "; keep it as it is"
            name = self._name.rpartition("<locals>.")[2]
            text = f"{name} has been compiled {self._compilations} times; {why}{remedy}, or raise recompile_limit"
            warnings.warn(warning_text(text), RecompileWarning, stacklevel=user_frame()[1])
        self._last_key = self._order[entry] = key
        self._by_kind[_kind(key)].append(key)
        self._buckets.setdefault(key, []).insert(0, entry)
        if len(self._order) > self._size:
            self._remove(*self._order.popitem(last=False))

    def drop(self, entry: Entry) -> object:
        """Drop an entry, if present, and return its key; safe in any thread and in garbage collections."""
        key = self._order.pop(entry, None)
        self._remove(entry, key)
        return key

    def _remove(self, entry: Entry, place: object) -> None:
        self._by_sizes.clear()
        bucket = self._buckets.get(place, [])
        with contextlib.suppress(ValueError):
            bucket.remove(entry)
        if not bucket:
            self._buckets.pop(place, None)

    def _difference(self, key: tuple[object, ...]) -> str:
        last = self._last_key
        if last[0] == key[0] and last[1] != key[1]:
            return self._changed_argument(key)
        changed = [
            topic.format(*_first_difference(before, now))
            for topic, before, now in zip(_TOPICS, last, key, strict=False)
            if topic and before != now
        ]
        return "; ".join(changed) or "a module that the compiled code belonged to was deleted"

    def _changed_argument(self, key: Key) -> str:
        """Name the first argument that changed, its old and new value, and the remedy."""
        pairs = enumerate(zip(self._last_key[1], key[1], strict=True))  # type: ignore[call-overload]
        place, (before, now) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        name = _parameter(self._function, key[0], place)
        if _is_value(before) and _is_value(now):
            return f"{name} changed from {before[1]!r} to {now[1]!r}; pass a number that changes as a tensor argument"
        if _is_value(before) and before[0] is now:
            return f"{name} changed from {before[1]}: one program is for every {now.__name__} from now on"
        if not (_is_tensor(before) and _is_tensor(now)) or len(before) != len(now):
            return f"{name} changed from {_shown(before)} to {_shown(now)}"
        if before[0] == now[0]:
            different = (
                n for n, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1]
            )
            part = next(different) - len(before)
            return f"the {_PARTS[part]} of {name} changed from {before[part]} to {now[part]}"
        text = f"{name} changed from {_shown(before)} to {_shown(now)}"
        if len(before[0]) != len(now[0]):
            return text
        dims = {
            n for n, pair in enumerate(zip(before[0], now[0], strict=True)) if pair[0] != pair[1]
        }
        if any(entry.is_of_frontend for entry in self._order):
            return text  # `dynamic` is an option of the shipped front end
        parameter = name.removeprefix("argument ")
        return f"{text}; pass dynamic={{{parameter!r}: {dims}}} for one program for all sizes"


#: Parts of a tensor's key, from its end; strides are present only where no size is dynamic.
_PARTS = ("strides", "dtype", "device", "class", "requires_grad", "conjugation", "negation")


def _is_tensor(part: object) -> bool:
    return type(part) is tuple and len(part) > 1 and isinstance(part[0], tuple)


def _shown(part: Any) -> str:
    """Describe a tensor by dtype and sizes, another argument by its class."""
    if not _is_tensor(part):
        return getattr(part[0] if _is_value(part) else part, "__name__", str(part))
    return f"{short_name(part[-6])}{list(part[0])}"


def _parameter(function: Callable[..., object], spec: Structure, place: int) -> str:
    """Return the name of the parameter that a leaf of a call belongs to, or its index if unknown."""
    with contextlib.suppress(Exception):  # classes that refuse such parts
        args, kwargs = spec.unflatten([*range(spec.num_leaves)])
        names = [*inspect.signature(function).parameters]
        names += [names[-1]] * (len(args) - len(names))
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if place in flatten(value)[0]:
                return f"argument {name}"
    return f"argument {place}"


def _kind(key: Key) -> tuple[object, ...]:
    """Return a key without sizes of tensors, Python values among the arguments and identities of modules."""
    spec, leaves, modes, state = key
    return (spec, tuple(map(_kind_of_leaf, leaves)), modes, len(state))


def _described(leaf: Any) -> str:
    if _is_value(leaf):
        return f"a {leaf[0].__name__}"
    return "a module" if isinstance(leaf, Known) else "by its sizes"


def _kind_of_leaf(leaf: Any) -> object:
    if _is_value(leaf):
        return leaf[0]
    if isinstance(leaf, Known):
        return Known
    if type(leaf) is not tuple:
        return leaf
    shape, stride, *others = leaf
    return (len(shape), *others) if isinstance(stride, tuple) else (len(shape), stride, *others)


def _first_difference(before: Any, now: Any) -> tuple[object, object]:
    if isinstance(now, Structure):
        return _nesting(before), _nesting(now)
    if not isinstance(now, tuple):
        return before, now
    different = (pair for pair in zip(before, now, strict=False) if pair[0] != pair[1])
    return next(different, (before, now))


def _nesting(spec: Structure) -> str:
    """Return a call's arguments and keyword arguments as text, each leaf as a star."""
    text = spec.expression(["*"] * spec.num_leaves) or "other containers"
    return shortened(text.replace(", )", ")"), 100)


def _is_value(part: object) -> bool:
    """Check whether a part of a key describes a Python value."""
    return type(part) is tuple and len(part) > 1 and isinstance(part[0], type)


def sizes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return the sizes of tensors among arguments, and plain values: cheap, and no more than a hint."""
    values = (*args, *kwargs.values()) if kwargs else args
    try:
        return tuple([one.shape if type(one) is _TENSOR else _size(one) for one in values])
    except RuntimeError:  # a nested tensor has no sizes
        return ()


def _size(value: Any, depth: int = 3) -> object:
    kind = type(value)
    if kind in (_TENSOR, torch.nn.Parameter):
        return value.shape
    if kind in (tuple, list, dict) and depth:
        return tuple([_size(one, depth - 1) for one in (value.values() if kind is dict else value)])
    return value if kind in (int, bool) else id(kind)


def call_key(call: Arguments, module: torch.nn.Module | None, marks: Marks) -> Key:
    """Return the key of a call, a hashable value per topic; of dynamic sizes only whether they are 0 or 1."""
    state = () if module is None else modules_key(module.modules())
    places = (
        number_place(i) if type(leaf) in (int, float) else i for i, leaf in enumerate(call.leaves)
    )
    keys = tuple(
        [
            None if index in call.unread else _leaf_key(leaf, marks.get(place, ()))
            for index, (leaf, place) in enumerate(zip(call.leaves, places, strict=True))
        ]
    )
    return (call.spec, keys, modes_key(), state)


def _leaf_key(leaf: object, dynamic: Collection[int]) -> object:
    if not isinstance(leaf, torch.Tensor):
        if dynamic and can_vary(leaf):
            return type(leaf)
        return type(leaf) if is_object(leaf) else value_key(leaf)
    bits = (type(leaf), leaf.requires_grad, leaf.is_conj(), leaf.is_neg())
    if not dynamic:
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, *bits)
    # strides may change with the sizes; the prologue checks them
    sizes = tuple(
        [None if dim in dynamic and size > 1 else size for dim, size in enumerate(leaf.shape)]
    )
    return (sizes, leaf.dtype, leaf.device, *bits)

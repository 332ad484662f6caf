"""The cache of a jitted function: its entries, found in constant time."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from switchgear.errors import RecompileWarning
from switchgear.ir.proxy import short_name
from switchgear.record.guards import Known, value_key
from switchgear.record.signature import can_vary, is_object, number_place
from switchgear.record.sizes import Marks
from switchgear.record.structure import Structure, flatten
from switchgear.record.user_code import user_frame
from switchgear.runtime.entry import Entry
from switchgear.runtime.modes import modes_key
from switchgear.runtime.module_state import modules_key
from switchgear.showing import shortened, warning_text

#: Of a call: its structure, what its arguments are, the modes, the modules.
Key: TypeAlias = tuple[Any, ...]
_TENSOR = torch.Tensor
_TOPICS = (
    "the structure of the arguments changed from {} to {}",
    "",
    "the global modes changed from {} to {}",
    "training flags, hooks or parts of a module changed",
)

#: So many entries for one kind of call are enough.
_CROWD = 16
#: So many are tried before a key is made, of those that ran calls of these sizes; and so many sizes are known.
_RECENT, _MOST_SIZES = 4, 4096


class Cache:
    """Entries in least-recently-used order, at most `size`; warns once after more than `recompile_limit` of them."""

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
        #: Entries by the sizes of what they ran, the last one first: a hint, for the entry decides what it fits.
        self._by_sizes: dict[object, list[Entry]] = {}
        #: Keys of calls that were compiled, by what they are without sizes, and Python values among the arguments.
        self._by_kind: defaultdict[object, list[Key]] = defaultdict(list)
        #: How many were compiled.
        self._compilations = 0
        #: Why each call was compiled that was.
        self.reasons: list[str] = []

    def find(
        self,
        key: tuple[object, ...],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        unfit: Collection[Entry] = (),
        newest: bool = False,
    ) -> tuple[Entry, Sequence[torch.Tensor]] | None:
        """The entry under a key that fits the call, and its input tensors; none that is known to be `unfit`.

        Where there are so many that looking at all takes longer than the call, the `newest` alone.
        """
        for entry in self._buckets.get(key, [])[: 1 if newest else None]:
            if entry in unfit:
                continue
            inputs = entry.prologue(args, kwargs)
            if inputs is not None:
                return entry, inputs
        return None

    def use(self, entry: Entry, sizes: object) -> None:
        """Note that an entry ran a call of these sizes: that its prologue accepted a call is not enough, its data may
        differ.
        """
        try:
            self._order.move_to_end(entry)
        except KeyError:  # it was dropped just now
            return
        others = self._by_sizes.get(sizes, ())
        if not others or others[0] is not entry:
            others = [one for one in others if one is not entry]
            self._by_sizes[sizes] = [entry, *others[: _RECENT - 1]]
            if len(self._by_sizes) > _MOST_SIZES:
                self._by_sizes.clear()

    def why_not(
        self,
        key: tuple[object, ...],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        leaves: list[object],
    ) -> str:
        """Why a call does not fit the newest entry under its key, if there is one."""
        for entry in self._buckets.get(key, ()):
            return entry.why_not(args, kwargs, leaves)
        return ""

    def crowd(self, key: Key, reason: str) -> str:
        """Why another entry under a key, for this reason, is not worth it: there are so many; empty where it is."""
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
        """All of them, the one used last first."""
        return [*reversed(self._order)]

    def recent(self, sizes: object) -> Sequence[Entry]:
        """Those that ran calls of these sizes: where kinds of calls take turns, to try them is faster than a key."""
        return self._by_sizes.get(sizes, ())

    def add(self, key: tuple[object, ...], entry: Entry, reason: str = "") -> None:
        """Keep a new entry, and drop the one that was used longest ago if there are too many.

        `reason` says what of data, sizes or Python state set the call apart from those that others are for.
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
        """Let go of an entry, if it is there; in any thread and at any time, garbage collections too. Gives its key."""
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

    def _changed_argument(self, key: tuple[Any, ...]) -> str:
        """Name the first argument that changed, from what to what, and what helps."""
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
        parameter = name.removeprefix("argument ")
        return f"{text}; pass dynamic={{{parameter!r}: {dims}}} for one program for all sizes"


#: Of the key of a tensor, from its end, which holds strides only where no size is dynamic.
_PARTS = ("strides", "dtype", "device", "class", "requires_grad", "conjugation", "negation")


def _is_tensor(part: object) -> bool:
    return type(part) is tuple and len(part) > 1 and isinstance(part[0], tuple)


def _shown(part: Any) -> str:
    """A tensor's type and sizes, or the class of another argument."""
    if not _is_tensor(part):
        return getattr(part[0] if _is_value(part) else part, "__name__", str(part))
    return f"{short_name(part[-6])}{list(part[0])}"


def _parameter(function: Callable[..., object], spec: Structure, place: int) -> str:
    """Return the name of the parameter that a leaf of a call belongs to, or its place where that cannot be told."""
    with contextlib.suppress(Exception):  # of classes that refuse such parts
        args, kwargs = spec.unflatten([*range(spec.num_leaves)])
        names = [*inspect.signature(function).parameters]
        names += [names[-1]] * (len(args) - len(names))
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if place in flatten(value)[0]:
                return f"argument {name}"
    return f"argument {place}"


def _kind(key: Key) -> tuple[object, ...]:
    """A key without the sizes of tensors and the Python values among the arguments, and which the modules are."""
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
    """A call's arguments and keyword arguments, each leaf as a star."""
    text = spec.expression(["*"] * spec.num_leaves) or "other containers"
    return shortened(text.replace(", )", ")"), 100)


def _is_value(part: object) -> bool:
    """Whether a part of a key is that of a Python value."""
    return type(part) is tuple and len(part) > 1 and isinstance(part[0], type)


def sizes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The sizes of the tensors among arguments, and plain values: soon made, and no more than a hint."""
    values = (*args, *kwargs.values()) if kwargs else args
    try:
        return tuple([one.shape if type(one) is _TENSOR else _size(one) for one in values])
    except RuntimeError:  # a nested tensor has none
        return ()


def _size(value: Any, depth: int = 3) -> object:
    kind = type(value)
    if kind in (_TENSOR, torch.nn.Parameter):
        return value.shape
    if kind in (tuple, list, dict) and depth:
        return tuple([_size(one, depth - 1) for one in (value.values() if kind is dict else value)])
    return value if kind in (int, bool) else id(kind)


def call_key(
    leaves: list[object],
    spec: Structure,
    module: torch.nn.Module | None,
    marks: Marks,
    unread: Container[int] = (),
) -> tuple[object, ...]:
    """What a call is compiled for, a hashable value per topic; of dynamic sizes only whether they are 0 or 1."""
    state = () if module is None else modules_key(module.modules())
    places = (number_place(i) if type(leaf) in (int, float) else i for i, leaf in enumerate(leaves))
    keys = tuple(
        [
            None if index in unread else _leaf_key(leaf, marks.get(place, ()))
            for index, (leaf, place) in enumerate(zip(leaves, places, strict=True))
        ]
    )
    return (spec, keys, modes_key(), state)


def _leaf_key(leaf: object, dynamic: Collection[int]) -> object:
    if not isinstance(leaf, torch.Tensor):
        if dynamic and can_vary(leaf):
            return type(leaf)
        return type(leaf) if is_object(leaf) else value_key(leaf)
    bits = (type(leaf), leaf.requires_grad, leaf.is_conj(), leaf.is_neg())
    if not dynamic:
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, *bits)
    # strides may go with the sizes; the prologue has a look at them
    sizes = tuple(
        [None if dim in dynamic and size > 1 else size for dim, size in enumerate(leaf.shape)]
    )
    return (sizes, leaf.dtype, leaf.device, *bits)

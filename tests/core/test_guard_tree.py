"""A tree of guards in Python: each way to a value, and each guard, tells a value that meets it from another."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest

from switchgear_core import torch_private as internals
from tests.in_turn import in_turn


class Name(str):
    """A name of a class of its own."""

    __slots__ = ()


class Keyed(dict[str, object]):
    """A dict with items of its own making."""

    def __getitem__(self, key: str) -> object:
        return VALUE


def function() -> None:
    """Has attributes."""


VALUE, OTHER = object(), object()
PLACES: dict[str, tuple[str, Any, Any, Any]] = {
    "attribute": ("attribute", "a", types.SimpleNamespace(a=VALUE), types.SimpleNamespace(a=OTHER)),
    "attribute that is no name": ("attribute", "0", types.SimpleNamespace(**{"0": VALUE}), types.SimpleNamespace()),
    "attribute by a name of another class": (
        *("attribute", Name("a")),
        *(types.SimpleNamespace(a=VALUE), types.SimpleNamespace(a=OTHER)),
    ),
    "function": ("function", "a", types.SimpleNamespace(a=VALUE), function),
    "tuple": ("tuple", 1, (OTHER, VALUE), (VALUE, OTHER)),
    "list": ("list", 0, [VALUE], [OTHER]),
    "list of fewer": ("list", 1, [OTHER, VALUE], [VALUE]),
    "dict": ("dict", "a", {"a": VALUE}, {"a": OTHER}),
    "dict without the key": ("dict", "a", {"a": VALUE}, {}),
    "dict with a way of its own": ("dict", "a", Keyed(a=VALUE), Keyed(a=OTHER)),
    "dict by another key": ("dict", (1, "a"), {(1, "a"): VALUE}, {(2, "a"): VALUE}),
    "item": ("item", 1, deque([OTHER, VALUE]), deque([VALUE, OTHER])),
}


@in_turn(place=PLACES, is_held=[False, True])
def test_places(place: str, is_held: bool) -> None:
    access, key, holder, other = PLACES[place]
    root = internals.guard_root(1)
    parent, value = root, holder
    if is_held:  # what is held is the same object for ever
        parent, value = internals.guard_child(root, "held", 0, holder), (holder,)
    node = internals.guard_child(parent, access, key, VALUE)
    node.add_id_match_guard(id(VALUE), ["is it"], None)
    check = internals.guard_check(root)
    assert check(value)
    assert root.check_verbose(value) == (True, [])
    if not is_held:
        assert not check(other)
        said = root.check_verbose(other)
        assert not said.result
        assert said.verbose_code_parts in ([], ["is it"])  # none where the place is missing


class Sized(list[int]):
    """A list of another class."""


GUARDS: dict[str, tuple[str, tuple[Any, ...], Any, Any]] = {
    "equal": ("add_equals_match_guard", (2.0,), 2.0, 3.0),
    "equal, of another class": ("add_equals_match_guard", (2,), 2, 2.0),
    "identity": ("add_id_match_guard", (id(VALUE),), VALUE, OTHER),
    "test": ("add_lambda_guard", (bool,), [1], []),
    "class": ("add_type_match_guard", (id(list),), [1], Sized([1])),
    "length": ("add_length_check_guard", (2,), [1, 2], [1]),
    "length of a dict": ("add_dict_length_check_guard", (1,), {"a": 1}, {"a": 1, "b": 2}),
    "a key": ("add_dict_contains_guard", (True, "a"), {"a": 1}, defaultdict(int)),
    "no key": ("add_dict_contains_guard", (False, "a"), {}, OrderedDict(a=1)),
    "no attribute": ("add_no_hasattr_guard", ("a",), types.SimpleNamespace(b=1), types.SimpleNamespace(a=1)),
}


@in_turn(guard=GUARDS)
def test_guards(guard: str) -> None:
    name, args, value, other = GUARDS[guard]
    root = internals.guard_root(1)
    node = internals.guard_child(root, "attribute", "value", value)
    getattr(node, name)(*args, ["told"], None)
    check = internals.guard_check(root)
    for one, is_met in ((value, True), (other, False)):
        holder = types.SimpleNamespace(value=one)
        assert bool(check(holder)) is is_met
        assert root.check_verbose(holder) == (is_met, [] if is_met else ["told"])


def test_the_first_guard_that_is_not_met_is_told() -> None:
    root = internals.guard_root(1)
    for key in ("a", "b"):
        node = internals.guard_child(root, "dict", key, 1)
        node.add_equals_match_guard(1, [key], None)
    assert root.check_verbose({"a": 1, "b": 2}) == (False, ["b"])
    assert root.check_verbose({"a": 2, "b": 2}) == (False, ["a"])
    with pytest.raises(AttributeError):
        root.remove_guards()


HOLDERS: list[Any] = [
    *(
        [VALUE, OTHER],
        [VALUE] * 100,
        {"a": VALUE},
        OrderedDict(a=VALUE),
        {VALUE},
        deque([VALUE]),
        defaultdict(int, a=3),
    ),
]


@in_turn(holder=HOLDERS)
def test_a_holder_holds_still_until_one_object_is_another(holder: Any) -> None:
    check = internals.holds_still(holder)
    assert check()
    if isinstance(holder, dict):
        before, holder["a"] = holder["a"], object()
    elif isinstance(holder, set):
        holder.add(1)
    else:
        before, holder[-1] = holder[-1], object()
    assert not check()
    if isinstance(holder, set):
        holder.remove(1)
        assert check()
    elif not isinstance(holder, dict):  # of a dict, the version tells
        holder[-1] = before
        assert check()
        holder.append(before)
        assert not check()

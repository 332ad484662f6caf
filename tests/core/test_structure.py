"""Nested arguments and return values: lists, tuples, dicts, dataclasses, named tuples, registered classes."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch.utils import _pytree as pytree
from transformers.modeling_outputs import BaseModelOutput

import switchgear as sg
from switchgear import errors
from switchgear_core.record.structure import flatten
from tests.core.against_eager import numbers
from tests.falling_back import falls_back
from tests.in_turn import in_turn

T = torch.Tensor


class Pair(NamedTuple):
    """A named tuple, with a method."""

    first: Any
    second: Any = None

    def total(self) -> Any:
        return self.first + self.second


@dataclass
class Batch:
    """A dataclass that nobody registered."""

    ids: Any
    mask: Any = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass without a `__dict__`."""

    value: Any
    note: str = "note"


@dataclass
class Strict:
    """A dataclass that counts how often it is checked, and cannot be made from one argument."""

    value: Any
    twice: Any = field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.value * 2


class Registered:
    """A class that pytree knows, for it was told."""

    def __init__(self, left: Any, right: Any, label: str) -> None:
        self.left, self.right, self.label = left, right, label


pytree.register_pytree_node(
    Registered,
    lambda value: ([value.left, value.right], value.label),
    lambda children, label: Registered(*children, label),  # type: ignore[call-arg]
)


def jit(function: Any) -> Any:
    return sg.jit(function, executors=["torch"])


def described(value: Any) -> Any:
    """A nested value in terms that compare: types, names, and numbers of tensors."""
    if isinstance(value, T):
        return ("tensor", value.detach().tolist(), value.requires_grad)
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        return (type(value), [(f.name, described(getattr(value, f.name))) for f in dataclasses.fields(value)])
    if isinstance(value, Registered):
        return (Registered, described(value.left), described(value.right), value.label)
    if isinstance(value, dict):
        return (type(value), [(key, described(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple, collections.deque)):
        return (type(value), [described(item) for item in value])
    return (type(value), value)


A, B = numbers(2), numbers(3) * 2
NESTED: dict[str, Any] = {
    "tensor": A,
    "tuple": (A, B),
    "tuple of one": (A,),
    "list": [A, B],
    "dict": {"a": A, "b": B},
    "dict of other keys": {3: A, None: B, (1, "x"): A},
    "ordered dict": collections.OrderedDict([("z", A), ("a", B)]),
    "default dict": collections.defaultdict(list, {"a": A}),
    "deque": collections.deque([A, B]),
    "named tuple": Pair(A, B),
    "dataclass": Batch(A, B, {"c": A}),
    "frozen dataclass": Frozen(A),
    "dataclass with a field of its own": Strict(A),
    "registered": Registered(A, [B], "label"),
    "model output": BaseModelOutput(last_hidden_state=A, hidden_states=(A, B)),
    "dataclass in everything": [{"a": (Batch(A, Frozen(B)), None)}, Pair(Frozen(A), Batch(B))],
    "empty": [(), [], {}, None],
    "mixed": {"a": [A, 1, 2.5, "text", None, True], "b": (torch.float32, slice(0, 1)), "c": ...},
    "sizes": [torch.Size([2, 3]), A],
}


@in_turn(value=NESTED.values())
def test_flatten_and_back(value: Any) -> None:
    leaves, structure = flatten(value)
    assert structure.num_leaves == len(leaves)
    assert described(structure.unflatten(leaves)) == described(value)
    again_leaves, again = flatten(value)
    assert again == structure
    assert hash(again) == hash(structure)
    assert all(one is other for one, other in zip(leaves, again_leaves, strict=True))


def test_structures_of_different_values_differ() -> None:
    structures = [flatten(value)[1] for name, value in NESTED.items() if name != "sizes"]  # a size is a leaf
    assert len(set(structures)) == len(structures)
    assert flatten(Batch(A, B))[1] != flatten(Batch(A, (B,)))[1]
    assert flatten(A)[1].is_leaf
    assert not flatten((A,))[1].is_leaf
    assert not flatten(Frozen(A))[1].is_leaf


# but for a model's output: making one by its structure alone asks a set of Transformers' which kinds it has met
@in_turn(grad=[False, True], value=[value for name, value in NESTED.items() if name != "model output"])
def test_argument_and_result(value: Any, grad: bool) -> None:
    """What goes in is seen inside as it is, and comes out so."""
    seen = Mock()

    def changed(given: Any) -> Any:
        leaves, structure = flatten(given)
        seen(str([type(item) for item in pytree.tree_leaves(given)]))
        return structure.unflatten([leaf * 3 if isinstance(leaf, T) else leaf for leaf in leaves])

    leaves, structure = flatten(value)
    prepared = [leaf.clone().requires_grad_(grad) if isinstance(leaf, T) else leaf for leaf in leaves]
    given = structure.unflatten(prepared)
    expected = changed(given)
    jitted = jit(changed)
    for _ in range(2):
        found = jitted(given)
        assert described(found) == described(expected)
    assert seen.call_count == 2
    tensors = [leaf for leaf in prepared if isinstance(leaf, T)]
    if grad and tensors:
        outputs = [leaf for leaf in flatten(found)[0] if isinstance(leaf, T)]
        gradients = torch.autograd.grad([output.sum() for output in outputs], tensors)
        assert all(torch.equal(gradient, torch.full_like(gradient, 3.0)) for gradient in gradients)


class Other(NamedTuple):
    """A named tuple of the same fields as `Pair`."""

    first: Any
    second: Any = None


@dataclass
class Wider(Batch):
    """A dataclass of another, with its fields."""


class Listed(list[Any]):
    """A list that pytree does not know."""


class Mapped(dict[Any, Any]):
    """A dict that pytree does not know."""


class Subclass(T):
    """A tensor that no trace can hold."""


#: What differs from a value of `NESTED` in one thing.
VARIED: dict[str, Any] = {
    "parameter": torch.nn.Parameter(A, requires_grad=False),
    "tensor subclass": A.as_subclass(Subclass),
    "list that grew": [A, B, A],
    "list that shrank": [A],
    "list with None": [A, None],
    "list subclass": Listed([A, B]),
    "list for a tensor": [[A], B],
    "dict in another order": {"b": A, "a": B},
    "dict with a key more": {"a": A, "b": B, "c": A},
    "dict subclass": Mapped(a=A, b=B),
    "dict of int": {1: A},
    "dict of bool": {True: A},
    "dict of float": {1.0: A},
    "ordered dict in another order": collections.OrderedDict([("a", A), ("z", B)]),
    "ordered dict for a dict": collections.OrderedDict(a=A, b=B),
    "default dict of int": collections.defaultdict(list, {1: A}),
    "default dict of bool": collections.defaultdict(list, {True: A}),
    "default dict of another factory": collections.defaultdict(dict, {"a": A}),
    "bounded deque": collections.deque([A, B], maxlen=3),
    "named tuple of another class": Other(A, B),
    "named tuple with None": Pair(A),
    "dataclass with None": Batch(A, None, {"c": A}),
    "dataclass with a list": Batch(A, [B], {"c": A}),
    "dataclass of a dataclass": Wider(A, B, {"c": A}),
    "dataclass with another note": Frozen(A, "other"),
    "registered with another label": Registered(A, [B], "other"),
    "registered with a list that grew": Registered(A, [B, B], "label"),
    "registered with a tensor for a list": Registered(A, B, "label"),
    "model output with None": BaseModelOutput(last_hidden_state=A),
    "model output of another length": BaseModelOutput(last_hidden_state=A, hidden_states=(A,)),
    "size in a tuple": [(2, 3), A],
}


@in_turn(name=NESTED | VARIED)
def test_an_entry_fits_its_own_structure_and_no_other(name: str) -> None:
    values = NESTED | VARIED
    jitted = jit(lambda value: [leaf * 3 for leaf in flatten(value)[0] if isinstance(leaf, T)])
    try:
        jitted(values[name])
    except errors.FallbackWarning:
        assert name in ("tensor subclass", "list subclass", "dict subclass")
        return
    fits = jitted._switchgear.last.prologue
    assert [other for other, value in values.items() if fits((value,), {}) is not None] == [name]
    assert fits((), {"value": values[name]}) is None
    leaves, structure = flatten(values[name])
    assert fits((structure.unflatten(leaves),), {}) is not None


def test_keys_that_are_equal_are_told_apart_by_type() -> None:
    jitted = jit(lambda value: [key * tensor for key, tensor in value.items()])
    for key in (1, True, 1.0, 1):
        (found,) = jitted({key: torch.tensor([True])})
        assert found.dtype == (key * torch.tensor([True])).dtype


class Text(str):
    __slots__ = ()


def test_a_text_as_a_key_is_told_from_an_equal_one_of_another_class() -> None:
    jitted = jit(lambda value: [tensor * (type(key) is Text) for key, tensor in value.items()])
    results = [jitted({key: A})[0] for key in ("a", Text("a"), "a", Text("a"))]
    assert [bool(result.any()) for result in results] == [False, True, False, True]


def test_class_that_is_registered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(lambda value: value.left * (2 if value.label else 3))
    given = Registered(A, B, "label")
    assert torch.equal(jitted(given), A * 2)
    unlabelled = pytree.SUPPORTED_NODES[Registered]._replace(flatten_fn=lambda value: ([value.left, value.right], ""))
    with monkeypatch.context() as patched:
        patched.setitem(pytree.SUPPORTED_NODES, Registered, unlabelled)
        assert torch.equal(jitted(given), A * 3)
    assert torch.equal(jitted(given), A * 2)
    monkeypatch.delitem(pytree.SUPPORTED_NODES, Registered)
    assert torch.equal(jitted(given), A * 2)


def test_attributes_and_methods_of_what_is_passed() -> None:
    def uses(pair: Pair, batch: Batch, output: Any) -> Any:
        assert isinstance(pair, Pair)
        assert isinstance(batch, Batch)
        assert isinstance(output, BaseModelOutput)
        return (
            pair.total()
            + batch.ids * batch.more["scale"]
            + output.last_hidden_state
            + output[0]
            + output["hidden_states"][0]
        )

    arguments = (
        Pair(A, A * 2),
        Batch(A, more={"scale": 2.0}),
        BaseModelOutput(last_hidden_state=A, hidden_states=(A,)),
    )
    jitted = jit(uses)
    for _ in range(2):
        assert torch.equal(jitted(*arguments), uses(*arguments))


def test_model_output_keeps_its_behaviour() -> None:
    def model(x: T) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x, x * 3))

    jitted = jit(model)
    for _ in range(2):
        output = jitted(A)
        assert type(output) is BaseModelOutput
        assert output.keys() == model(A).keys()
        assert torch.equal(output["last_hidden_state"], A * 2)
        assert torch.equal(output.hidden_states[1], A * 3)
        assert output.attentions is None
        assert len(output.to_tuple()) == 2


def test_named_tuples_of_pytorch() -> None:
    def ranked(x: T) -> Any:
        return x.topk(2), x.max(0), torch.linalg.slogdet(x.outer(x) + torch.eye(2, dtype=x.dtype))

    jitted = jit(ranked)
    for _ in range(2):
        for one, other in zip(ranked(A), jitted(A), strict=True):
            assert type(one) is type(other)
            assert torch.equal(one[0], other[0])
        assert torch.equal(jitted(A)[0].values, ranked(A)[0].values)


def test_results_are_made_anew_at_every_call() -> None:
    def listed(x: T) -> dict[str, Any]:
        return {"list": [x * 2], "batch": Batch(x, more={"a": 1})}

    jitted = jit(listed)
    jitted(A)["list"].append("more")
    first = jitted(A)
    first["batch"].more["b"] = 2
    assert described(jitted(A)) == described(listed(A))


def test_changes_to_a_container_among_the_arguments() -> None:
    """They are a side effect of the function: done as in eager by every call."""

    def caches(x: T, cache: dict[str, Any]) -> T:
        cache["last"] = x * 2
        return x * 3

    jitted = jit(caches)
    for scale in range(1, 4):
        cache: dict[str, Any] = {}
        jitted(A * scale, cache)
        assert torch.equal(cache["last"], A * scale * 2)


def test_same_tensor_at_several_places() -> None:
    def both(value: dict[str, Any]) -> Any:
        return value["a"] * 2 if value["a"] is value["b"][0] else value["a"] * 3

    jitted = jit(both)
    for given in ({"a": A, "b": [A]}, {"a": A, "b": [A.clone()]}, {"a": A, "b": [A]}):
        assert torch.equal(jitted(given), both(given))


def test_written_tensor_inside_a_structure() -> None:
    def writes(batch: Batch) -> T:
        batch.ids.add_(1)
        batch.more["x"][0] = 5.0
        return batch.ids * batch.more["x"]  # type: ignore[no-any-return]

    jitted = jit(writes)
    for _ in range(2):
        ours, eagers = (Batch(A.clone(), more={"x": A.clone()}) for _ in range(2))
        assert torch.equal(jitted(ours), writes(eagers))
        assert described(ours) == described(eagers)


class Opaque:
    """Nothing that can be opened."""

    __slots__ = ("tensor",)
    tensor: T

    def __new__(cls, tensor: T) -> Opaque:
        self = super().__new__(cls)
        self.tensor = tensor
        return self


class Plain:
    """An ordinary object: its attributes are all there is."""

    def __init__(self, tensor: T) -> None:
        self.tensor = tensor
        self.inner = {"scaled": tensor * 2}


@pytest.mark.parametrize("make", [lambda: Opaque(A), lambda: [Opaque(A)], lambda: Batch(Opaque(A))])
def test_object_that_nothing_opens_is_refused(make: Any) -> None:
    jitted = jit(lambda value: A * 2)
    assert torch.equal(jitted(make()), A * 2)
    assert torch.equal(jitted(make()), A * 2)
    assert jitted._switchgear.cache._compilations == 1
    with falls_back("leaves a .*Opaque in what it returns, which a later call could not rebuild"):
        jit(lambda x: make())(A)


def test_plain_object_as_a_result_is_opened() -> None:
    jitted = jit(Plain)
    for _ in range(2):
        found = jitted(A)
        assert type(found) is Plain
        assert torch.equal(found.tensor, A)
        assert torch.equal(found.inner["scaled"], A * 2)


@pytest.mark.parametrize("value", [{1, 2}, frozenset({1}), iter([1]), (n for n in [1]), {"a": 1}.keys(), object])
def test_containers_that_pytree_does_not_know(value: Any) -> None:
    def given(x: T, other: Any) -> T:
        return x * 2

    if value is object or type(value) in (set, frozenset):  # values, or looked into
        assert torch.equal(jit(given)(A, value), A * 2)
        return
    with falls_back(type(value).__name__):
        jit(given)(A, value)


def test_keys_that_are_equal_and_not_alike_are_told_apart() -> None:
    def function(x: T, held: dict[Any, Any]) -> T:
        return x * sum(map(ord, " ".join([repr(key) for key in held])))

    groups: list[list[Any]] = [[0.0, -0.0, False], [range(0), range(3, 3)], [(1, 5), (True, 5), (1.0, 5)]]
    kinds: list[Any] = [dict, collections.OrderedDict, functools.partial(collections.defaultdict, int)]
    for kind, keys in itertools.product(kinds, groups):
        jitted = sg.jit(function, executors=["torch"], strict=True)
        for key in (*keys, *keys):
            held = kind([(key, 1)])
            assert torch.equal(jitted(numbers(2), held), function(numbers(2), held))


def test_a_dict_with_another_factory_is_another_structure() -> None:
    jitted = sg.jit(lambda x, held: x * held["missing"], executors=["torch"], strict=True)
    for value in (2, 3):
        held: dict[str, int] = collections.defaultdict(functools.partial(int, value))
        assert torch.equal(jitted(torch.ones(2), held), torch.full((2,), float(value)))

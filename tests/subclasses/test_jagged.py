"""Nested tensors of the jagged layout: results and gradients as in eager mode, and what falls back."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nested import as_nested_tensor, nested_tensor, nested_tensor_from_jagged
from torch.nn.attention import SDPBackend, sdpa_kernel

import switchgear as sg
from switchgear_subclasses.torch_private import jagged as internals
from tests.subclasses.classes import assert_alike

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
_numbers = torch.randn


def jagged(*lengths: int, width: int = 4, grad: bool = False) -> Any:
    """A nested tensor of random numbers."""
    return nested_tensor([_numbers(n, width) for n in lengths], layout=torch.jagged, requires_grad=grad)


def _offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _heads(x: Any) -> Any:
    return x.unflatten(-1, [2, -1]).transpose(1, 2)


def _attended(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), **options).transpose(1, 2).flatten(-2)


def _written_values(x: Any) -> Any:
    y = x.values()
    y.mul_(2)
    return x + 1


def _written(x: Any) -> Any:
    y = x * 1
    y.add_(1)
    return y.relu_() * 2


def alike(lengths: Sequence[int], grad: bool = False) -> tuple[Any, Any]:
    """Two nested tensors that share their offsets."""
    x = jagged(*lengths, grad=grad)
    y = nested_tensor_from_jagged(
        _numbers(*x.values().shape), x.offsets(), min_seqlen=min(lengths), max_seqlen=max(lengths)
    )
    return x, y.detach().requires_grad_(grad)


#: Calls with a nested tensor, without and with gradients.
COMPILED: dict[str, Callable[..., Any]] = {
    "a chain": lambda x: (x.sin() * 2 + 1).exp(),
    "values": lambda x: (x.sin() * 2).values() + 1,
    "offsets": lambda x: x.offsets().diff() * x.values().sum(),
    "used twice": lambda x: x * x.sin() + x,
    "a number of its sizes": lambda x: x * x.size(0) + x.shape[2] + x.dim(),
    "softmax": lambda x: x.softmax(-1),
    "gelu": lambda x: F.gelu(x),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "another dtype": lambda x: x.to(torch.bfloat16).sin(),
    "detached": lambda x: x.detach() * x,
    "cloned": lambda x: x.clone() + torch.zeros_like(x),
    "random numbers": lambda x: torch.rand_like(x) * x,
    "where": lambda x: torch.where(x.detach() > 0, x, x * 2),
    "masked": lambda x: x.masked_fill(x.detach() > 0, 0.0),
    "concatenated": lambda x: torch.cat([x, x * 2], -1),
    "chunks": lambda x: x.chunk(2, -1)[1] * 3,
    "unflattened": lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2).sin().transpose(1, 2).flatten(-2),
    "viewed": lambda x: x.view(x.shape[0], x.shape[1], 2, 2).permute(0, 2, 1, 3) * 2,
    "contiguous": lambda x: x.transpose(1, 2).contiguous() * 2,
    "squeezed": lambda x: x.unsqueeze(-1).squeeze(-1) * 2,
    "written in place": _written,
    "the sum": lambda x: x.sum() * 2,
    "the mean": lambda x: x.mean() * 2,
    "padded": lambda x: x.to_padded_tensor(0.5) * 2,
    "padded, of heads": lambda x: x.unflatten(-1, [2, 2]).to_padded_tensor(0.5, output_size=(2, 9, 2, 2)),
    "attention": lambda x: _attended(x, x, x),
    "attention with a scale": lambda x: _attended(x, x * 2, x + 1, scale=0.3),
    "attention with dropout": lambda x: _attended(x, x, x, dropout_p=0.3),
    "attention, of which the values alone": lambda x: _attended(x.detach(), x.detach(), x),
    "attention of a ragged batch": lambda x: F.scaled_dot_product_attention(*[x.unflatten(-1, [1, 2, 2])] * 3),
    "under no_grad": lambda x: torch.no_grad()(lambda: x.sin())() + x,
    "a list": lambda x: [x.sin(), (x * 2).values()],
    "its gradient state": lambda x: x * 2 if x.requires_grad else x * 3,
    "its class": lambda x: x * 2 if x.is_nested and x.layout is torch.jagged else x,
}


#: Calls with other arguments, and functions that make these for components of some lengths.
OTHERS: dict[str, tuple[Callable[..., Any], Callable[[Sequence[int]], tuple[Any, ...]]]] = {
    "two": (lambda x, y: x * y + x, lambda n: alike(n, grad=True)),
    "attention of two": (lambda x, y: _attended(x, y, y), lambda n: alike(n, grad=True)),
    "attention to others": (
        lambda x, y: _attended(x, y, y),
        lambda n: (jagged(*n, grad=True), jagged(*reversed(n), grad=True)),
    ),
    "a dense one": (lambda x, d: d * x + d, lambda n: (jagged(*n, grad=True), _numbers(4, requires_grad=True))),
    "a weight": (
        lambda x, w, b: F.linear(x, w, b),
        lambda n: (jagged(*n, grad=True), _numbers(3, 4, requires_grad=True), _numbers(3, requires_grad=True)),
    ),
    "a weight of heads": (
        lambda x, w: F.linear(x.unflatten(-1, [2, 2]), w),
        lambda n: (jagged(*n), _numbers(3, 2, requires_grad=True)),
    ),
    "a product": (lambda x, w: x @ w, lambda n: (jagged(*n), _numbers(4, 3))),
    "an embedding": (
        lambda i, w: F.embedding(i, w),
        lambda n: (
            nested_tensor_from_jagged(torch.arange(sum(n)) % 5, _offsets(*n)),
            _numbers(5, 3, requires_grad=True),
        ),
    ),
    "of values and offsets": (
        lambda x, o: nested_tensor_from_jagged(x * 2, o).sin(),
        lambda n: (_numbers(sum(n), 4, requires_grad=True), _offsets(*n)),
    ),
    "a view of values": (
        lambda x, o: nested_tensor_from_jagged(x, o),
        lambda n: (_numbers(sum(n), 4, requires_grad=True), _offsets(*n)),
    ),
    "of a list": (
        lambda x, y: as_nested_tensor([x * 2, y, x[:1]], layout=torch.jagged).softmax(-1),
        lambda n: tuple(_numbers(size, 4, requires_grad=True) for size in n),
    ),
    "of a list, without gradients": (
        lambda x, y: nested_tensor([x * 2, y, x[:1]], layout=torch.jagged).softmax(-1),
        lambda n: tuple(_numbers(size, 4) for size in n),
    ),
    "a reduction over components": (lambda x: x.sum(1) + x.mean(1), lambda n: (jagged(*n),)),
    "softmax over components": (lambda x: x.softmax(1), lambda n: (jagged(*n),)),
    "a comparison": (lambda x: (x > 0).to(torch.float32), lambda n: (jagged(*n),)),
    "values written in place": (_written_values, lambda n: (jagged(*n),)),
    "the greatest length": (lambda x: x * x._get_max_seqlen(), lambda n: (jagged(*n),)),
    "not a leaf": (lambda x: x.sin(), lambda n: (jagged(*n, grad=True) * 2,)),
}
#: Calls that run in eager mode, with a part of the reason.
IN_EAGER: dict[str, tuple[Case, str]] = {
    "lengths": (
        (lambda x: x * 2, lambda: (nested_tensor_from_jagged(_numbers(6, 2), _offsets(3, 3), torch.tensor([2, 1])),)),
        "argument 0 is a NestedTensor",
    ),
    "lengths inside": (
        (
            lambda x, o, n: nested_tensor_from_jagged(x, o, n).sin(),
            lambda: (_numbers(6, 2), _offsets(3, 3), torch.tensor([2, 1])),
        ),
        "a nested tensor with lengths",
    ),
    "the strided layout": ((lambda x: x * 2, lambda: (nested_tensor([_numbers(3, 2), _numbers(2, 2)]),)), "or nested"),
    "the argument itself": ((lambda x: x, lambda: (jagged(3, 2),)), "that it gets from outside"),
    "components": ((lambda x: x.unbind()[0] * 2, lambda: (jagged(3, 2, grad=True),)), "has another gradient"),
    "a product with a gradient": (
        (lambda x, w: x @ w, lambda: (jagged(3, 2, grad=True), _numbers(4, 3))),
        "has another gradient",
    ),
    "backends of attention": (
        (lambda x: sdpa_kernel(SDPBackend.MATH)(lambda: _attended(x, x, x))(), lambda: (jagged(3, 2),)),
        "settings of its backends",
    ),
    "autocast": (
        (lambda x: torch.autocast("cpu")(lambda: _attended(x, x, x))(), lambda: (jagged(3, 2),)),
        "under autocast",
    ),
    "another device": ((lambda x: x * x.to("meta").shape[2], lambda: (jagged(3, 2),)), "a copy of its offsets"),
}


def _ones(result: Any) -> Any:
    return torch.linspace(0.5, 2, result.numel()).view(result.shape)


def _outcome(called: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the results of a call and the gradients of its arguments."""
    torch.manual_seed(1)
    results = called(*args)
    listed = [result for result in (results if isinstance(results, list) else [results]) if result.requires_grad]
    dense = [result.values() if result.is_nested else result for result in listed]
    inputs = [arg for arg in args if arg.requires_grad]
    gradients = torch.autograd.grad(dense, inputs, [_ones(part) for part in dense]) if dense and inputs else ()
    return [results, *gradients]


def _assert_same(value: Any, expected: Any) -> None:
    """Assert that values are equal, and nested tensors in all that the user sees."""
    assert type(value) is type(expected)
    if isinstance(value, (list, tuple)):
        for one, other in zip(value, expected, strict=True):
            _assert_same(one, other)
    elif type(value) is internals.NestedTensor:
        assert value.requires_grad == expected.requires_grad
        assert value._ragged_idx == expected._ragged_idx
        assert [*value._metadata_cache] == [*expected._metadata_cache]
        names = [name for name in ("_values", "_offsets", *_CACHED) if getattr(expected, name) is not None]
        assert_alike(*([getattr(one, name).detach() for name in names] for one in (value, expected)))
    elif isinstance(value, Tensor):
        assert_alike(value, expected)
    else:
        assert value == expected


_CACHED = "_min_seqlen_tensor", "_max_seqlen_tensor"


def _sizes(values: Sequence[Any]) -> list[list[bool]]:
    """Return which of the nested tensors among values have equal sizes."""
    nested = [value for value in values if type(value) is internals.NestedTensor]
    return [[one.shape[one._ragged_idx] == other.shape[other._ragged_idx] for other in nested] for one in nested]


def _assert_compiled(function: Callable[..., Any], makes: Sequence[Callable[[], tuple[Any, ...]]]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    for make in makes:
        outcomes = []
        for called in (jitted, function):
            torch.manual_seed(0)
            args = make()
            outcome = _outcome(called, *args)
            outcomes.append([outcome, [*args], _sizes([*args, *outcome])])
        _assert_same(*outcomes)
    assert ", 0 in eager" in repr(jitted)
    assert "no call fell back" in str(sg.explain(jitted).fallbacks())


_LENGTHS = ((3, 5), (3, 5), (4, 2), (6, 3), (2, 9), (7, 8))


def _made(lengths: Sequence[int], grad: bool) -> tuple[Any, ...]:
    return (jagged(*lengths, grad=grad),)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_as_eager(name: str, grad: bool) -> None:
    _assert_compiled(COMPILED[name], [functools.partial(_made, n, grad) for n in _LENGTHS])


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments(name: str) -> None:
    function, make = OTHERS[name]
    _assert_compiled(function, [functools.partial(make, n) for n in _LENGTHS])


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
@pytest.mark.parametrize("name", IN_EAGER)
def test_in_eager(name: str) -> None:
    (function, make), reason = IN_EAGER[name]
    jitted, args = sg.jit(function, executors=["torch"], fallback="eager"), make()
    torch.manual_seed(0)
    result = jitted(*args)
    torch.manual_seed(0)
    expected = function(*args)
    parts = [one.unbind() if one.is_nested else [one] for one in (result, expected)]
    assert_alike(*parts)
    assert reason in str(sg.explain(jitted).fallbacks())


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        y = self.norms[0](x)
        x = x + self.out(_attended(self.query(y), self.key(y), self.value(y), dropout_p=self.dropout))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def _trained(called: Any, grad: bool) -> list[Any]:
    """Return the results, and the gradients, of several batches."""
    kept: list[Any] = []
    optimizer = torch.optim.SGD(called.parameters(), 0.1)
    for lengths in ((3, 5, 2), (3, 5, 2), (4, 4, 2), (7, 2, 6), (2, 8, 9), (5, 3, 3)):
        torch.manual_seed(len(kept))
        x = jagged(*lengths, width=8, grad=grad)
        result = called(x)
        optimizer.zero_grad()
        (result.values() * _ones(result.values())).sum().backward()
        kept += [result.values(), *[part.grad.clone() for part in called.parameters()]]
        if grad:
            assert x.grad._offsets is x._offsets
            kept.append(x.grad.values())
        assert (result + x).shape == x.shape  # the ragged dimensions are equal
        optimizer.step()
    return kept


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_block_trains(dropout: float, grad: bool) -> None:
    torch.manual_seed(0)
    block = Block(dropout=dropout)
    jitted: Any = sg.jit(copy.deepcopy(block), executors=["torch"])
    assert_alike(_trained(jitted, grad), _trained(block, grad))
    assert "2 compiled entries, 0 in eager" in jitted._switchgear.state()


def test_in_a_module_and_closed_over() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extra = jagged(2, 3)

        def forward(self, x: Any) -> Any:
            return x * 2 + self.extra.values().sum()

    holder = Holder()
    jitted: Any = sg.jit(holder, executors=["torch"])
    for _ in range(2):
        x = jagged(2, 3)
        assert torch.equal(jitted(x).values(), holder(x).values())
    holder.extra = jagged(4, 1)
    assert torch.equal(jitted(x).values(), holder(x).values())
    assert ", 0 in eager" in jitted._switchgear.state()


def _compared(x: Any, y: Any) -> Any:
    return x * 2 if x.shape[1] == y.shape[1] else y * 3


def _of_equal_sizes(is_noted: bool) -> tuple[Any, Any]:
    x = jagged(3, 2)
    offsets = x.offsets().clone()
    if is_noted:  # as by a move to another device
        internals.share_size(offsets, x.offsets())
    return x, nested_tensor_from_jagged(_numbers(5, 4), offsets)


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)])
@pytest.mark.parametrize(
    "make", [lambda is_shared: alike((3, 2)) if is_shared else (jagged(3, 2), jagged(3, 2)), _of_equal_sizes]
)
def test_which_sizes_are_equal_is_guarded(make: Callable[[bool], tuple[Any, Any]], order: tuple[bool, ...]) -> None:
    jitted = sg.jit(_compared, executors=["torch"])
    for is_equal in order:
        x, y = make(is_equal)
        assert (x.shape[1] == y.shape[1]) is is_equal
        assert torch.equal(jitted(x, y).values(), _compared(x, y).values())
    assert "2 compiled entries, 0 in eager" in repr(jitted)


def test_results_made_inside_have_equal_sizes() -> None:
    def function(x: Tensor) -> list[Any]:
        y = as_nested_tensor([x, x[:2]], layout=torch.jagged)
        return [y * 2, y.sin()]

    for grad in (False, True):
        one, two = sg.jit(function, executors=["torch"])(_numbers(3, 2).requires_grad_(grad))
        assert (one + two).shape == one.shape


def _hooked(tensor: Tensor) -> Tensor:
    return tensor.clone()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_hooks_on_saved_tensors() -> None:
    function = COMPILED["attention"]
    jitted, x = sg.jit(function, executors=["torch"]), jagged(3, 2, grad=True)
    expected = _outcome(function, x)
    with torch.autograd.graph.saved_tensors_hooks(_hooked, lambda tensor: tensor):
        _assert_same(_outcome(jitted, x), expected)
    dropped = sg.jit(COMPILED["attention with dropout"], executors=["torch"])
    with torch.autograd.graph.saved_tensors_hooks(_hooked, lambda tensor: tensor):
        result = dropped(x)
    with pytest.raises(RuntimeError, match="random numbers are lost"):
        result.values().sum().backward()


def test_a_backward_twice() -> None:
    x = jagged(3, 2, grad=True)
    result = sg.jit(COMPILED["attention"], executors=["torch"])(x).values().sum()
    one, two = (torch.autograd.grad(result, x, retain_graph=True)[0].values() for _ in range(2))
    assert torch.equal(one, two)


def test_a_second_derivative() -> None:
    gradients = []
    for called in (COMPILED["a chain"], sg.jit(COMPILED["a chain"], executors=["torch"])):
        torch.manual_seed(0)
        # PyTorch differentiates twice without cached lengths alone
        x = nested_tensor_from_jagged(_numbers(5, 4), _offsets(3, 2)).requires_grad_()
        (first,) = torch.autograd.grad(called(x).values().sum(), x, create_graph=True)
        gradients.append(torch.autograd.grad(first.values().sin().sum(), x)[0].values())
    torch.testing.assert_close(*gradients)


def test_attention_without_cached_lengths() -> None:
    outcomes = []
    for called in (COMPILED["attention"], sg.jit(COMPILED["attention"], executors=["torch"], fallback="error")):
        for _ in range(2):
            torch.manual_seed(0)
            x = nested_tensor_from_jagged(_numbers(5, 4), _offsets(3, 2)).requires_grad_()
            result = called(x).values()
            (gradient,) = torch.autograd.grad(result.sum(), x)
            outcomes.append((result, gradient.values()))
    for result, gradient in outcomes:
        assert torch.equal(result, outcomes[0][0])
        assert torch.equal(gradient, outcomes[0][1])


def test_the_graph_of_attention_is_freed() -> None:
    jitted, x = sg.jit(COMPILED["attention"], executors=["torch"]), jagged(3, 2, grad=True)
    counts = []
    for _ in range(3):
        jitted(x)
        gc.collect()
        counts.append(sum(hasattr(part, "attended") for part in gc.get_objects() if type(part) is Tensor))
    assert counts == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_operators() -> None:
    values = [_numbers(5, 2, 3, requires_grad=True) for _ in range(3)]
    layouts = [_offsets(3, 2), None, None] * 3
    options = 0.0, False, None, False, [True] * 3
    torch.library.opcheck(
        torch.ops.switchgear_subclasses.jagged_attention.default,
        (*values, layouts, *options),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )

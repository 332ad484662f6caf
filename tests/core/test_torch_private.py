"""Each private API of PyTorch that the core leans on does on this torch what the core takes it to do."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import re
import subprocess
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from switchgear.errors import Unsupported
from switchgear_core import torch_private as internals
from switchgear_core.record.values import metadata_proxy
from switchgear_core.torch_private import common_fakes, fake_mode
from switchgear_dynamo import torch_private as splitting
from tests.core.against_eager import numbers
from tests.databases.verdict import global_state

T = torch.Tensor
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = global_state()
    yield
    assert global_state() == before


@pytest.fixture
def mode() -> Any:
    return internals.new_fake_mode()


class Seen(internals.TorchDispatchMode):
    """Notes the overloads that reach it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_every_public_name_is_tested_here() -> None:
    # what finds the names is tested by test_private_names.py
    files = [file for file in Path(inspect.getfile(internals)).parent.glob("*.py") if file.name != "names.py"]
    nodes = [node for file in files for node in ast.parse(file.read_text()).body]
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    public = {name for name in functions if name[0] != "_" and inspect.isfunction(getattr(internals, name, None))}
    assert len(public) > 50
    text = Path(__file__).read_text()
    assert {name for name in public if not re.search(rf"\.{name}\b", text)} == set()


@pytest.mark.parametrize("size", [2, 500])
def test_a_container_holds_still_until_something_else_lies_in_it(size: int) -> None:
    values: list[Any] = [object() for _ in range(size)]
    containers: list[Any] = [values, dict.fromkeys(values, 1), {*values}, deque(values), OrderedDict.fromkeys(values)]
    containers.append(MappingProxyType(containers[4]))
    checks = [internals.holds_still(one) for one in containers]
    assert all(check() for check in checks)
    new = object()
    values[1] = new
    containers[1][new] = containers[4][new] = 2
    containers[2].add(new)
    containers[3][1] = new
    assert not any(check() for check in checks)


def test_no_code_is_traced_outside_of_torchdynamo() -> None:
    assert splitting.traced_code() == []


# --- TorchDynamo ---


def test_opaque_functions_and_what_they_call_are_not_traced() -> None:
    def inner(x: T) -> bool:
        return torch.compiler.is_compiling()

    def outer(x: T) -> bool:
        return inner(x)

    def called(x: T) -> tuple[T, bool]:
        return x + 1, opaque(x)

    opaque = internals.opaque(outer)
    assert opaque is outer
    assert torch.compile(called, backend="eager")(torch.ones(2))[1] is False
    torch.compiler.reset()


def test_taken_apart() -> None:
    sizes: list[int] = []
    notes: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if len(sizes) == 2:
            raise RuntimeError("of the backend")
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    def function(x: T, factor: float) -> T:
        y = x * factor
        torch._dynamo.graph_break()
        return y + factor

    torch.compiler.reset()
    taken = splitting.taken_apart(function, backend, notes.append, None)
    assert torch.equal(taken(torch.ones(2), 2.5), torch.full((2,), 5.0))
    assert sizes == [3, 3]  # of an input, a call and an output: the float is none
    assert notes == ["Call to `torch._dynamo.graph_break()`"]
    assert torch.equal(taken(torch.ones(2), 1.5), torch.full((2,), 3.0))
    assert any("of the backend" in note for note in notes)
    torch.compiler.reset()


def test_tracing() -> None:
    found = []

    def function(x: T) -> T:
        found.append(internals.tracing())
        return x.sum()

    function(torch.ones(2))
    torch.func.grad(function)(torch.ones(2))
    with internals.new_fake_mode():
        function(torch.ones(2))
    assert found == [False, True, True]


# --- fake tensors ---


LAYOUTS: dict[str, Callable[[], T]] = {
    "contiguous": lambda: numbers(2, 3),
    "transposed": lambda: numbers(3, 2).t(),
    "with offset": lambda: numbers(4, 3)[1:, ::2],
    "expanded": lambda: numbers(3).expand(2, 3),
    "scalar": lambda: numbers(),
    "empty": lambda: torch.empty(0, 3),
    "empty with offset": lambda: numbers(4, 3)[2:2],
    "integer": lambda: torch.arange(3),
    "half": lambda: numbers(3, dtype=torch.float16),
    "parameter": lambda: torch.nn.Parameter(numbers(3)),
    "conjugate": lambda: torch.complex(numbers(3), numbers(3)).conj(),
    "negative": lambda: torch.complex(numbers(3), numbers(3)).conj().imag,
}


def fake_of(mode: Any, tensor: T) -> T:
    numbers = int(tensor.storage_offset()), tensor.is_conj(), tensor.is_neg()
    return internals.make_fake(mode, (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, *numbers))


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_make_fake_has_the_metadata(mode: Any, make: Callable[[], T]) -> None:
    tensor = make()
    fake = fake_of(mode, tensor)
    assert internals.is_fake(fake)
    assert not internals.is_wrapper(fake)
    assert metadata_proxy("t", fake, False) == metadata_proxy("t", tensor, False)
    assert not fake.requires_grad
    assert not internals.is_fake(tensor)


def test_fake_mode_computes_metadata_and_refuses_real_tensors(mode: Any) -> None:
    real = numbers(2, 3)
    with mode:
        fake = fake_of(mode, real)
        assert (fake @ fake.t()).shape == (2, 2)
        with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
            torch.mul(fake, real)


def channels_last(x: T) -> T:
    return (
        x.contiguous().view(1, 10, 1, 5).contiguous().expand(2, 10, 3, 5).contiguous(memory_format=torch.channels_last)
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: torch.logical_and(x, y),
        lambda x, y: torch.logaddexp(x, y),
        lambda x, y: torch.copysign(x, y),
        lambda x, y: torch.floor_divide(x, y),
        lambda x, y: torch.div(y, torch.ones(()), rounding_mode="floor"),
        lambda x, y: torch.zeros_like(x),
        lambda x, y: torch.empty_like(x, memory_format=torch.contiguous_format),
        lambda x, y: torch.flip(x, (0,)),
        lambda x, y: y[:1].as_strided((1, 5), (1, 1)) + 0.5,
        lambda x, y: 2 - x,
        lambda x, y: y[:1].as_strided((1, 5), (1, 1)).masked_fill(y[:1] > 0.5, 1.0),
        lambda x, y: y.masked_fill(y > 0.5, 1.0),
        lambda x, y: x > 0.5,
        lambda x, y: x.index_put((torch.zeros(1, dtype=torch.int64),), x[0]),
        lambda x, y: y[:, :1].t().contiguous().mT.relu(),
        lambda x, y: y[:, :1].t().contiguous().mT.clamp(max=0.5),
        lambda x, y: y[:, :1].t().contiguous().mT.clamp(None, y[:, :1].t().contiguous().mT),
        lambda x, y: y[:, :1].t().contiguous().mT.tril(),
        lambda x, y: torch.log_softmax(y[:, :1].t().contiguous().mT, 0),
        lambda x, y: 2**y,
        lambda x, y: torch.xlogy(x.mT, y.t()),
        lambda x, y: x.sort(0).values,
        lambda x, y: torch.nn.functional.batch_norm(x.expand(10, 3, 5).mT, None, None, training=True),
        lambda x, y: x.transpose(0, 1).contiguous().unflatten(1, (2, 5)),
        lambda x, y: x.flatten(1),
        lambda x, y: channels_last(x).roll(1, 0),
        lambda x, y: torch.log_softmax(channels_last(x), 1),
        lambda x, y: torch.nn.functional.logsigmoid(channels_last(x)),
    ],
)
def test_fakes_have_the_strides_of_results(mode: Any, call: Callable[[T, T], T]) -> None:
    x, y = torch.rand(5, 1, 10).permute(2, 1, 0).as_strided((10, 1, 5), (1, 7, 10)), torch.rand(5, 10).t()
    real = call(x, y)
    with mode:
        fake = call(fake_of(mode, x), fake_of(mode, y))
    assert (fake.stride(), fake.dtype) == (real.stride(), real.dtype)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: torch.nonzero(x),
        lambda x: x[x > 0],
        lambda x: torch.unique(x),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: bool(torch.equal(x, x * 1)),
    ],
    ids=["item", "nonzero", "mask", "unique", "masked_select", "equal"],
)
def test_data_dependent_errors(mode: Any, ask: Callable[[T], Any]) -> None:
    with mode, pytest.raises(internals.DATA_DEPENDENT):
        ask(fake_of(mode, numbers(3)))


def test_operator_without_a_fake(mode: Any) -> None:
    with torch.library._scoped_library("switchgear_test_internals", "DEF") as library:
        library.define("unfakeable(Tensor x) -> Tensor")
        library.impl("unfakeable", lambda x: x.clone(), "CPU")
        operator = torch.ops.switchgear_test_internals.unfakeable.default
        assert isinstance(operator, internals.OpOverload)
        with mode, pytest.raises((internals.NO_FAKE, RuntimeError)):
            operator(fake_of(mode, numbers(3)))


@pytest.mark.parametrize("overload", sorted(map(str, internals.fake_mode._SUBTRACTIONS)))
def test_fakes_refuse_to_subtract_booleans_as_kernels_do(mode: Any, overload: str) -> None:
    packet, name = overload.split(".")[1:]
    call = getattr(getattr(torch.ops.aten, packet), name)
    for operand in [torch.tensor(True)] if name == "Tensor" else [True]:
        for first, second in ((numbers(3), operand), (torch.ones(3, dtype=torch.bool), operand)):
            with pytest.raises(RuntimeError, match="bool tensor"):
                call(first, second)
            fakes = [fake_of(mode, t) if isinstance(t, torch.Tensor) else t for t in (first, second)]
            with pytest.raises(RuntimeError, match="bool tensor"), mode:
                call(*fakes)


def test_fake_of_grouped_mm_is_as_the_kernels_result(mode: Any) -> None:
    a, b = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(2, 8, 16, dtype=torch.bfloat16)
    offsets = torch.tensor([2, 6], dtype=torch.int32)
    with mode:
        fakes = [fake_of(mode, value) for value in (a, b, offsets)]
        fake = torch.ops.aten._grouped_mm.default(fakes[0], fakes[1], fakes[2])
    real = torch.ops.aten._grouped_mm.default(a, b, offsets)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


# --- functionalization ---


REMEMBERED: dict[str, Callable[[T, T], Any]] = {
    "pointwise": lambda x, y: x + y,
    "promoted": lambda x, y: x.to(torch.int64) + 1.5,
    "of the default dtype": lambda x, y: aten.div.Tensor(x.to(torch.int64), 2),
    "reduction": lambda x, y: x.sum(0, keepdim=True),
    "a view": lambda x, y: x[1:].transpose(0, 1),
    "a view of a view": lambda x, y: x.view(-1)[2:].unsqueeze(0),
    "unsafe view": lambda x, y: aten._unsafe_view.default(x, (6,)),
    "several results": lambda x, y: aten.native_layer_norm.default(x, [3], None, None, 1e-5),
    "views in a list": lambda x, y: x.split(1),
    "a list of arguments": lambda x, y: torch.cat([x, y]),
    "a factory": lambda x, y: torch.ones(2, 3),
    "expanded": lambda x, y: x[:, :1].expand(2, 5),
    "complex": lambda x, y: torch.complex(x, y).conj(),
    "negated": lambda x, y: torch.complex(x, y).conj().imag,
}
NOT_REMEMBERED: dict[str, Callable[[T, T], Any]] = {
    "its argument": lambda x, y: aten.lift_fresh.default(x),
    "bounds of memory": lambda x, y: x.as_strided((2,), (1,)),
    "written to": lambda x, y: x.add_(y),
}


def described(result: Any, given: tuple[T, ...]) -> Any:
    """Layouts, dispatch keys, and which tensors share memory."""
    made = [result] if isinstance(result, T) else list(result)
    homes = [internals.storage_key(tensor) for tensor in (*given, *made)]
    shared = [homes.index(key) for key in homes]
    return type(result), shared, [(metadata_proxy("", t, False), str(torch._C._dispatch_key_set(t))) for t in made]


@pytest.mark.parametrize("call", [*REMEMBERED.values(), *NOT_REMEMBERED.values()], ids=[*REMEMBERED, *NOT_REMEMBERED])
def test_what_operators_return_is_as_without_memory(mode: Any, call: Callable[[T, T], Any]) -> None:
    plain = internals.FakeMode(allow_non_fake_inputs=False)
    internals.clear_fake_results()
    found = []
    for each in (plain, mode, mode, internals.new_fake_mode()):
        with each:
            given = torch.empty(2, 3), torch.empty(2, 3)
            found.append(described(call(*given), given))
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("name", [*REMEMBERED, *NOT_REMEMBERED])
def test_operators_are_not_run_again_on_equal_layouts(mode: Any, name: str, monkeypatch: Any) -> None:
    call = {**REMEMBERED, **NOT_REMEMBERED}[name]
    internals.clear_fake_results()
    ran: list[str] = []
    dispatch = internals.FakeMode.dispatch

    def noting(self: Any, func: Any, *rest: Any) -> Any:
        ran.append(str(func))
        return dispatch(self, func, *rest)

    def noting_common(mode: Any, func: Any, *rest: Any) -> Any:
        ran.append(str(func))
        return common_fakes.common_fake(mode, func, *rest)

    monkeypatch.setattr(internals.FakeMode, "dispatch", noting)
    monkeypatch.setattr(fake_mode, "common_fake", noting_common)
    with mode:
        given = torch.empty(2, 3), torch.empty(2, 3)
        call(*given)
        ran.clear()
        call(*given)
    assert bool(ran) == (name in NOT_REMEMBERED)


def test_what_operators_return_depends_on_defaults_and_aliases(mode: Any) -> None:
    internals.clear_fake_results()
    with mode:
        x = torch.empty(2, 3)
        assert torch.ones(2).dtype == torch.float32
        with replaced_default(torch.float64):
            assert torch.ones(2).dtype == torch.float64
        assert internals.storage_key(x.view(6)) == internals.storage_key(x)
        assert internals.storage_key(y := torch.empty(2, 3)) == internals.storage_key(y.view(6))
        with pytest.raises(ValueError, match="Cannot view"):
            torch.empty(3, 2).t().view(6)


def test_the_device_of_a_fake_is_asked_for(mode: Any) -> None:
    with mode:
        fake = torch.empty(2)
    assert internals.asks_device(torch.ops.prim.device.default, (fake,))
    assert not internals.asks_device(aten.neg.default, (fake,))
    assert not internals.asks_device(torch.ops.prim.device.default, (torch.empty(2),))


@contextlib.contextmanager
def replaced_default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_wrap_and_unwrap(mode: Any) -> None:
    with mode:
        fake = fake_of(mode, numbers(2, 3))
        wrapper = internals.wrap(fake)
    assert internals.is_wrapper(wrapper)
    assert not internals.is_wrapper(fake)
    assert internals.unwrap(wrapper) is fake
    assert internals.unwrap(wrapper) is fake


def test_functionalization_says_what_it_cannot_do(mode: Any) -> None:
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake_of(mode, numbers(6)))
        with pytest.raises(RuntimeError) as raised:
            internals.unwrap(wrapper.unfold(0, 3, 1).add_(1))
    assert internals.is_functionalization_error(raised.value)
    assert not internals.is_functionalization_error(RuntimeError("something else"))


def test_unwrap_without_synchronising_gives_what_an_operator_made(mode: Any) -> None:
    """A view that is made after a write is made again when it is first synchronised."""
    fake = fake_of(mode, numbers(2, 3))
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake)
        wrapper.add_(1)
        view = wrapper[0]
        made = internals.unwrap(view, synchronise=False)
        assert internals.unwrap(view) is not made
        assert internals.unwrap(view, synchronise=False) is internals.unwrap(view)


def test_is_one_of_several_knows_views_that_are_made_together() -> None:
    x = torch.randn(4, 3, requires_grad=True) * 1
    assert all(map(internals.is_one_of_several, (x.chunk(2)[0], x.unbind(1)[1], x.split(1)[2])))
    assert not any(map(internals.is_one_of_several, (x, x[0], x.narrow(0, 1, 2), x.detach())))


def test_view_again_makes_the_same_view_of_another_base() -> None:
    base, other = numbers(3, 4), numbers(3, 4) * 2
    for view in (base[1:].t(), base.view(-1)[2:5], base.as_strided((2, 2), (4, 1), 1)):
        again = internals.view_again(view, other)
        assert again._base is other
        assert (again.shape, again.stride(), again.storage_offset()) == (
            view.shape,
            view.stride(),
            view.storage_offset(),
        )


def test_in_place_on_wrappers_is_functional_and_changes_what_they_stand_for(mode: Any) -> None:
    seen = Seen()
    with mode, internals.functionalization(), seen:
        fake = fake_of(mode, numbers(2, 3))
        wrapper = internals.wrap(fake)
        seen.names.clear()
        view = wrapper[0]
        wrapper.mul_(2)
        assert internals.unwrap(wrapper) is not fake
        assert "aten.mul.Tensor" in seen.names
        assert "aten.mul_.Tensor" not in seen.names
        seen.names.clear()
        view.add_(1)
        changed = internals.unwrap(wrapper)
        assert changed is not fake
        assert "aten.select_scatter.default" in seen.names
        assert internals.unwrap(view).shape == (3,)


def test_own_kernels_of_an_operator() -> None:
    """A custom operator counts its writes, and functionalization has no kernel for it until one is registered."""

    @torch.library.custom_op("switchgear_test_torch_private::write", mutates_args=("x",))
    def write(x: torch.Tensor) -> None:
        x.zero_()

    operator = write._opoverload
    keys = ("ADInplaceOrView", "Autograd", "Functionalize", "CompositeImplicitAutograd")
    assert [internals.has_kernel(operator, key) for key in keys] == [True, True, False, False]
    assert internals.has_kernel(torch.ops.aten.matmul.default, "CompositeImplicitAutograd")
    library = torch.library.Library("switchgear_test_torch_private", "IMPL")
    library.impl("write", lambda x: None, "Functionalize")
    assert internals.has_kernel(operator, "Functionalize")
    library._destroy()
    assert not internals.has_kernel(operator, "Functionalize")


def test_functionalization_nests_and_ends() -> None:
    def included() -> bool:
        return torch._C._dispatch_tls_is_dispatch_key_included("Functionalize")

    assert not included()
    with internals.functionalization():
        assert included()
        with internals.functionalization():
            assert included()
        assert included()
    assert not included()
    with pytest.raises(ZeroDivisionError), internals.functionalization():
        raise ZeroDivisionError
    assert not included()


@pytest.mark.parametrize(("fn", "noticed"), [(torch.gru_cell, [(6, 1)]), (torch.relu, [])])
def test_writes_noticed(mode: Any, fn: Any, noticed: list[Any]) -> None:
    with mode:
        whole = torch.empty(4, 6)
    seen: list[Any] = []
    with internals.functionalization(), internals.writes_noticed(fn, lambda _, stride: seen.append(stride)):
        part, *_ = internals.wrap(whole).unsafe_chunk(3, 1)
        part.add_(part)
    assert seen == noticed


def test_with_dtypes(mode: Any) -> None:
    with mode:
        half, single = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(8)
    args = half, [8], single, None, 1e-5
    found = internals.with_dtypes(mode, aten.native_layer_norm.default, (half, half, half), args)
    assert [one.dtype for one in found] == [torch.bfloat16, torch.float32, torch.float32]
    assert internals.with_dtypes(mode, aten.relu.default, half, (half,)) is half


@pytest.mark.parametrize("aliases", [True, False])
def test_rebind(mode: Any, aliases: bool) -> None:
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake_of(mode, numbers(2, 3)))
        view = wrapper[0]
        before = internals.unwrap(view)
        with internals.outside_autograd():
            other = internals.unwrap(wrapper).detach()
        internals.rebind(wrapper, other, aliases=aliases)
        assert internals.unwrap(wrapper) is other
        assert (internals.unwrap(view) is not before) is aliases


def test_storage_keys_are_those_of_each() -> None:
    x, y = numbers(2, 3), numbers(2)
    assert internals.storage_keys([x, y, x[0]]) == [internals.storage_key(tensor) for tensor in (x, y, x)]
    empty = [torch.empty(0), torch.empty(0), torch.empty(2, device="meta"), torch.empty(2, device="meta")]
    assert internals.none_share_storage([x, y, *empty])
    assert not internals.none_share_storage([x, y, x[0]])
    assert not internals.none_share_storage([x, y, y.detach()])
    assert not internals.none_share_storage([x, x])


def test_foreach_copy_copies_in_order_and_counts_versions() -> None:
    x, y = numbers(2), numbers(2) * 3
    expected = y.clone()
    with torch.no_grad():
        internals.foreach_copy([x, y], [y, x])
    assert torch.equal(x, expected)
    assert torch.equal(y, expected)
    assert (x._version, y._version) == (1, 1)


def test_storage_key_is_equal_for_aliases_alone(mode: Any) -> None:
    x = numbers(2, 3)
    assert internals.storage_key(x) == internals.storage_key(x[0]) == internals.storage_key(x.detach().t())
    assert internals.storage_key(x) != internals.storage_key(x.clone())
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake_of(mode, x))
        other = internals.wrap(fake_of(mode, x))
        assert internals.storage_key(wrapper) == internals.storage_key(wrapper.t()[0])
        assert internals.storage_key(wrapper) != internals.storage_key(other)


def test_make_non_leaf(mode: Any) -> None:
    for ambient in (torch.enable_grad, torch.no_grad):
        with mode, internals.functionalization(), ambient():
            wrapper = internals.wrap(fake_of(mode, numbers(3)))
            assert wrapper.is_leaf
            internals.make_non_leaf(wrapper)
            assert wrapper.requires_grad
            assert not wrapper.is_leaf
            assert wrapper.grad_fn is not None
            with torch.enable_grad():
                wrapper.mul_(2)  # allowed: it is no leaf


def test_leaf_wrappers_refuse_in_place_as_eager_does(mode: Any) -> None:
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake_of(mode, numbers(3))).requires_grad_()
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            wrapper.mul_(2)


def test_autograd_runs_above_functionalization(mode: Any) -> None:
    with mode, internals.functionalization():
        wrapper = internals.wrap(fake_of(mode, numbers(3))).requires_grad_()
        result = wrapper.sin()
        assert internals.is_wrapper(result)
        assert result.requires_grad
        with torch.no_grad():
            assert not wrapper.sin().requires_grad
        assert result.detach().grad_fn is None


# --- dispatch state and modes ---


def test_outside_autograd(mode: Any) -> None:
    class Calls(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = numbers(3, grad=True)
    with Calls() as calls, internals.functionalization(), internals.outside_autograd():
        doubled, made = x * 2, torch.ones(2)
    assert {"mul", "__mul__", "ones"}.isdisjoint(calls.names)
    assert not doubled.requires_grad
    assert not internals.is_wrapper(made)
    assert (x * 2).requires_grad


def test_real_dispatch_computes_whatever_is_active(mode: Any) -> None:
    seen = Seen()
    with mode, internals.functionalization(), seen:
        with internals.real_dispatch():
            result = torch.tensor([1.0, 2.0]) * 2
            assert result.tolist() == [2.0, 4.0]
        assert internals.is_fake(internals.unwrap(torch.ones(2)))
    assert "aten.mul.Tensor" not in seen.names


def test_dispatch_from_top_has_autograd_on_inside_a_mode() -> None:
    flags: list[tuple[bool, bool]] = []

    class Asks(internals.TorchDispatchMode):
        state: Any = None
        inside = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.sin.default and not self.inside:
                self.inside = True
                leaf = args[0].detach().requires_grad_()
                plain = args[0].detach().requires_grad_().mul(2).requires_grad
                with internals.dispatch_from_top(self.state):
                    flags.append((plain, func(leaf).requires_grad))
                self.inside = False
            return func(*args, **(kwargs or {}))

    x = numbers(3)
    with Asks() as mode:  # type: ignore[no-untyped-call]
        mode.state = internals.dispatch_state()
        torch.sin(x)
        with torch.no_grad():
            torch.sin(x)
    assert flags == [(False, True), (False, True)]


def test_dispatch_mode_count_and_function_modes() -> None:
    assert internals.dispatch_mode_count() == 0
    assert internals.function_modes() == []
    with Seen(), torch.device("meta"):
        assert internals.dispatch_mode_count() == 1
        (device,) = internals.function_modes()
        assert device.device == torch.device("meta")


def test_functorch_is_seen() -> None:
    answers: list[tuple[bool, bool]] = []

    def inner(x: T) -> T:
        answers.append((internals.inside_functorch(), internals.is_functorch_tensor(x)))
        return x * 2

    assert not internals.inside_functorch()
    assert not internals.is_functorch_tensor(numbers(3))
    torch.func.vmap(inner)(numbers(3, 2))
    torch.func.grad(lambda x: inner(x).sum())(numbers(3))
    assert answers == [(True, True)] * 2
    assert not internals.inside_functorch()


def test_transforms_can_be_left_for_a_while() -> None:
    def inner(x: T) -> T:
        with internals.outside_functorch():
            assert not internals.inside_functorch()
            plain = numbers(3) * 2
            assert not internals.is_functorch_tensor(plain)
        assert internals.inside_functorch()
        return x * plain

    x = numbers(4, 3)
    assert torch.equal(torch.func.vmap(inner)(x), x * (numbers(3) * 2))
    found = torch.func.grad(lambda y: inner(y).sum())(numbers(3))
    assert torch.equal(found, numbers(3) * 2)


def test_what_transforms_wrap_can_be_replaced() -> None:
    x, asked = numbers(2, 3), []
    doubled = x * 2

    def operand(tensor: T) -> T:
        asked.append(tensor)
        return doubled

    def through(call: Callable[[], Any]) -> Any:
        with internals.functorch_operands(operand):
            return call()

    assert torch.equal(through(lambda: torch.func.vmap(torch.sin)(x)), torch.sin(x * 2))
    gradient = through(lambda: torch.func.grad(lambda y: y.square().sum())(x))
    assert torch.equal(gradient, x * 4)
    value, pull = through(lambda: torch.func.vjp(torch.sin, x))
    assert torch.equal(value, torch.sin(x * 2))
    assert torch.equal(pull(torch.ones_like(x))[0], torch.cos(x * 2))
    assert all(tensor is x for tensor in asked)
    assert len(asked) == 3
    assert torch.equal(torch.func.vmap(torch.sin)(x), torch.sin(x))


@pytest.mark.parametrize("name", ["functionalize", "linearize"])
def test_transforms_that_trace_are_seen(name: str) -> None:
    def refuse(found: str) -> None:
        raise LookupError(found)

    def call() -> Any:
        x = numbers(3)
        if name == "functionalize":
            return torch.func.functionalize(torch.sin)(x)
        return torch.func.linearize(torch.sin, x)

    with internals.tracers_refused(refuse), pytest.raises(LookupError, match=name):
        call()
    if name == "functionalize":
        call()


@pytest.mark.parametrize("value", [True, False])
def test_compiling_flag(value: bool) -> None:
    assert not torch.compiler.is_compiling()
    with internals.compiling_flag(value), futures.ThreadPoolExecutor() as pool:
        assert torch.compiler.is_compiling() is value
        # once: what this thread was told
        assert pool.submit(lambda: torch.compiler.is_compiling()).result() is False
    assert not torch.compiler.is_compiling()
    with pytest.raises(ZeroDivisionError), internals.compiling_flag(value):
        raise ZeroDivisionError
    assert not torch.compiler.is_compiling()


def test_outside_inference_mode() -> None:
    with internals.outside_inference_mode():
        assert torch.is_grad_enabled()
    with torch.inference_mode():
        with internals.outside_inference_mode():
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
            assert not torch.ones(2).is_inference()
        assert torch.ones(2).is_inference()


def test_checkpoint_regions() -> None:
    """A region is entered, run once, and left; afterwards checkpoint is PyTorch's."""
    events: list[str] = []

    @contextlib.contextmanager
    def region(function: Any, context_fn: Any) -> Iterator[None]:
        assert function is body
        assert context_fn is internals.NO_CONTEXT
        events.append("in")
        yield
        events.append("out")

    def body(x: T) -> T:
        events.append("run")
        return x.sin()

    x = numbers(3, grad=True)

    with internals.checkpoint_regions(region):
        checkpoint(body, x, use_reentrant=False).sum().backward()
        assert events == ["in", "run", "out"]
    assert x.grad is not None
    assert torch.equal(x.grad, numbers(3).cos())
    checkpoint(body, x, use_reentrant=False).sum().backward()
    assert events == ["in", "run", "out", "run", "run"]  # PyTorch's own recomputes


def test_selective_policy() -> None:
    """The policy behind a `context_fn`, asked as PyTorch asks it."""
    seen: list[Any] = []

    def policy(context: Any, overload: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((context.is_recompute, context.op_output, args, kwargs))
        answers = {
            aten.mm.default: CheckpointPolicy.MUST_SAVE,
            aten.sin.default: CheckpointPolicy.PREFER_SAVE,
            aten.cos.default: CheckpointPolicy.PREFER_RECOMPUTE,
        }
        return answers.get(overload, overload is aten.exp.default)

    saves = internals.selective_policy(functools.partial(create_selective_checkpoint_contexts, policy))
    assert saves is not None
    x = numbers(3)
    found = [saves(op, (x,), {"a": 1}, x) for op in (aten.mm.default, aten.sin.default, aten.cos.default)]
    assert found == [True, True, False]
    assert [saves(op, (x,), {}, x) for op in (aten.exp.default, aten.tanh.default)] == [True, False]
    assert seen[0] == (False, x, (x,), {"a": 1})
    asked = len(seen)
    assert not saves(aten.detach.default, (x,), {}, x)
    assert len(seen) == asked
    assert internals.selective_policy(internals.NO_CONTEXT) is None
    nothing: Any = contextlib.nullcontext
    assert internals.selective_policy(lambda: (nothing(), nothing())) is NotImplemented


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_declares_its_writes(mode: Any, statistics: bool) -> None:
    seen = Seen()
    running = numbers(3) if statistics else None
    with internals.exact_functionalization(), mode, internals.functionalization(), seen:
        x = internals.wrap(fake_of(mode, numbers(4, 3)))
        mean = internals.wrap(fake_of(mode, running)) if running is not None else None
        var = internals.wrap(fake_of(mode, running)) if running is not None else None
        before = internals.unwrap(mean) if mean is not None else None
        torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
        if mean is not None:
            assert internals.unwrap(mean) is not before
    assert "aten.native_batch_norm.default" not in seen.names
    x = numbers(4, 3)
    assert torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0].shape == (4, 3)


def test_exact_kernels_stay_until_the_last_one_leaves(mode: Any) -> None:
    seen = Seen()
    with internals.exact_functionalization():
        with internals.exact_functionalization():
            pass
        with mode, internals.functionalization(), seen:
            torch.native_batch_norm(
                internals.wrap(fake_of(mode, numbers(4, 3))), None, None, None, None, True, 0.1, 1e-5
            )
    assert "aten.native_batch_norm.default" not in seen.names
    assert not internals.functionalize._EXACT


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_masked_fill_in_place_keeps_strides(mode: Any, value: Any) -> None:
    with internals.exact_functionalization(), mode, internals.functionalization():
        base = internals.wrap(fake_of(mode, numbers(4, 3)))
        before = internals.unwrap(base)
        given = internals.wrap(fake_of(mode, value)) if isinstance(value, torch.Tensor) else value
        x = base.mT
        assert x.masked_fill_(x > 0, given) is x
        assert internals.unwrap(x).stride() == (1, 3)
        assert internals.unwrap(base) is not before
        with pytest.raises(RuntimeError, match="mask"):
            x.masked_fill_(x[None].expand(2, 3, 4) > 0, given)
    x = numbers(4, 3).mT
    assert torch.equal(x.clone().masked_fill_(x > 0, value), x.masked_fill(x > 0, value))


# --- guards ---


GUARDED: dict[str, tuple[Callable[[T], T], bool]] = {
    "itself": (lambda x: x, True),
    "other values": (lambda x: x * 7, True),
    "an offset": (lambda x: torch.cat([x, x])[3:], True),
    "shape": (lambda x: x[:2], False),
    "rank": (lambda x: x[None], False),
    "stride": (lambda x: x.t(), False),
    "dtype": (lambda x: x.float(), False),
    "device": (lambda x: x.to("meta"), False),
    "requires_grad": (lambda x: x.clone().requires_grad_(), False),
    "subclass": (lambda x: x.as_subclass(type("Subclass", (T,), {})), False),
    "parameter": (lambda x: torch.nn.Parameter(x, requires_grad=False), False),
    "conjugate": (lambda x: torch.complex(x, x).conj(), False),
}


@pytest.mark.parametrize(("change", "holds"), GUARDED.values(), ids=GUARDED)
def test_tensor_guards(change: Callable[[T], T], holds: bool) -> None:
    x, w = numbers(3, 3), numbers(2)
    check = internals.tensor_guards([x, w])
    assert check(x, w)
    assert check(change(x), w) is holds
    assert not any(check(other, w) for other in (None, 3, "x", torch.nn.Parameter(x)))
    assert internals.tensor_guards([])() is True
    with pytest.raises(TypeError, match="wrong length"):
        check(x)


def test_tensor_guards_tell_the_conjugate_bit_and_hold_no_tensor() -> None:
    z = torch.complex(numbers(3), numbers(3))
    check = internals.tensor_guards([z])
    assert not check(z.conj())
    reference = weakref.ref(z)
    del z
    assert reference() is None


def test_global_state_guard() -> None:
    guard = internals.GlobalStateGuard()
    assert guard.check()
    with torch.no_grad():
        assert not guard.check()
    with torch.autocast("cpu", torch.bfloat16):
        assert not guard.check()
    torch.set_default_dtype(torch.float64)
    try:
        assert not guard.check()
    finally:
        torch.set_default_dtype(torch.float32)
    assert guard.check()


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_has_tangents() -> None:
    x = torch.ones(2)
    with torch.autograd.forward_ad.dual_level():
        assert not internals.has_tangents([x])
        assert internals.has_tangents([x, torch.autograd.forward_ad.make_dual(x, x)])


def test_forward_mode_active() -> None:
    assert not internals.forward_mode_active()
    with torch.autograd.forward_ad.dual_level():
        assert internals.forward_mode_active()
    assert not internals.forward_mode_active()


def test_node_apply() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    x = numbers(2, grad=True)
    internals.node_apply(Double)(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 2.0, dtype=x.dtype))
    assert not internals.functorch_active()
    assert torch.func.vmap(lambda row: row + int(internals.functorch_active()))(torch.zeros(2)).tolist() == [1, 1]


def test_is_python_node() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    class Other(Double):
        pass

    x = torch.ones(2, requires_grad=True)
    node = Double.apply(x).grad_fn  # type: ignore[no-untyped-call]
    assert internals.is_python_node(node, excluded=Other)
    assert not internals.is_python_node(node, excluded=Double)
    assert not internals.is_python_node((x * 2).grad_fn, excluded=Other)
    assert not internals.is_python_node(None, excluded=Other)


def test_make_lean() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            ctx.save_for_backward(x)
            ctx.factor, ctx.other = 2, "in the dict"
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            callers.append(sys._getframe(1).f_code)
            held.append(dict(vars(ctx)))
            assert torch.equal(ctx.saved_tensors[0], x)
            assert ctx.needs_input_grad == (True,)
            return grads[0] * ctx.factor

    callers: list[Any] = []
    held: list[dict[str, Any]] = []
    x = numbers(2, grad=True)
    before = Double.apply(x)  # type: ignore[no-untyped-call]
    before.sum().backward()
    assert callers[0] is torch.autograd.function.BackwardCFunction.apply.__code__
    internals.make_lean(Double, "factor")
    after = Double.apply(x)  # type: ignore[no-untyped-call]
    assert after.grad_fn.name() == before.grad_fn.name()
    after.sum().backward()
    assert callers[1] is not callers[0]
    assert held == [{"factor": 2, "other": "in the dict"}, {"other": "in the dict"}]
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 4.0, dtype=x.dtype))
    assert torch.equal(Double.apply(x).grad_fn.apply(torch.ones(2)), torch.full((2,), 2.0))  # type: ignore[no-untyped-call]


def test_graph_task() -> None:
    seen: list[int] = []
    x = numbers(2, grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(internals.graph_task()))
    (y * 3).register_hook(lambda grad: seen.append(internals.graph_task()))
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert internals.graph_task() == -1
    assert len(set(seen)) == 2
    assert min(seen) >= 0


@pytest.mark.parametrize(
    ("backward", "answers"),
    [
        (lambda y, leaf, inner: y.backward(), (True, True, False)),
        (lambda y, leaf, inner: y.backward(inputs=[leaf]), (True, False, False)),
        (lambda y, leaf, inner: torch.autograd.grad(y, leaf), (True, False, False)),
        (lambda y, leaf, inner: torch.autograd.grad(y, inner), (False, True, False)),
    ],
    ids=["of all", "inputs", "grad of a leaf", "grad of a result"],
)
def test_the_gradients_that_a_backward_needs(backward: Callable[..., object], answers: object) -> None:
    seen: list[object] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *factors: T) -> T:
            return factors[0] * factors[1]

        @staticmethod
        def backward(ctx: Any, *grads: T) -> Any:
            seen.append(internals.needed_edges(ctx, ctx.needs_input_grad))
            return grads[0], grads[0], None

    leaf, inner = numbers(2, grad=True), numbers(2, grad=True) * 2
    y: T = Product.apply(leaf, inner, numbers(2))  # type: ignore[no-untyped-call]
    backward(y.sum(), leaf, inner)
    assert seen == [answers]


def test_arithmetic_is_done_once(environment: Any) -> None:
    """For sizes of the environment, and inside alone."""
    other = internals.new_shape_env(str)
    one, two = (internals.new_size(env, "x.size(0)", 7) for env in (environment, other))
    with internals.arithmetic_remembered(environment):
        assert (one * 3).node is (one * 3).node
        assert (one + one == 14).node is (one + one == 14).node  # type: ignore[attr-defined]
        assert (two * 3).node is not (two * 3).node
        assert str(one * 3 - one // 2) == "3*s0 - ((s0//2))"
    assert (one * 3).node is not (one * 3).node


def test_fastest_entry() -> None:
    x = numbers(3)
    entry = internals.fastest_entry(aten.add.Tensor)
    assert isinstance(entry, types.BuiltinFunctionType)
    assert torch.equal(entry(x, x, alpha=2), x * 3)
    with Seen() as seen:
        entry(x, x)
    assert seen.names == ["aten.add.Tensor"]
    assert internals.fastest_entry(torch.add) is torch.add


def test_global_modes() -> None:
    assert internals.function_mode_count() == 0
    with torch.device("meta"):
        assert internals.function_mode_count() == 1
        assert internals.default_devices() == [torch.device("meta")]
    assert internals.float32_precision() == torch.get_float32_matmul_precision()
    for precision in ("high", internals.float32_precision()):
        internals.set_float32_precision(precision)
        internals.set_float32_precision("")
        assert torch.get_float32_matmul_precision() == precision
    before = internals.attention_backends()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        inside = internals.attention_backends()
    assert inside != before == internals.attention_backends()
    internals.set_attention_backends(inside)
    assert internals.attention_backends() == inside
    internals.set_attention_backends(before)
    assert internals.attention_backends() == before


RARE: dict[str, Callable[[], object]] = {
    "attention is asked for": torch.backends.cuda.flash_sdp_enabled,
    "attention is set": lambda: torch.backends.cuda.enable_math_sdp(torch.backends.cuda.math_sdp_enabled()),
    "attention's backends in a region": sdpa_kernel(SDPBackend.MATH)(lambda: None),
    "a region of autocast": torch.autocast("cpu", enabled=False)(lambda: None),
    "precision is asked for": torch.get_float32_matmul_precision,
    "a backend's precision": lambda: torch.backends.cuda.matmul.allow_tf32,
}


@pytest.mark.parametrize("name", RARE)
def test_rare_modes_are_noticed(name: str) -> None:
    before, noticed = internals.rare_modes(), list[str]()

    def elsewhere() -> None:
        assert internals.rare_modes() == before
        torch.get_float32_matmul_precision()

    with internals.rare_modes_noticed(lambda: noticed.append(name)):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert internals.rare_modes() == before
        assert not noticed
        RARE[name]()
        assert noticed
    count = len(noticed)
    torch.get_float32_matmul_precision()
    assert len(noticed) == count
    assert internals.rare_modes() == before
    with torch.enable_grad():
        internals.set_grad_enabled(False)
        assert not torch.is_grad_enabled()


# --- random streams, saved tensors ---


def test_autocast_cache_cleared() -> None:
    weight, x = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)

    def cast() -> int:
        return id((x @ weight).grad_fn.next_functions[1][0])  # type: ignore[union-attr]

    with torch.autocast("cpu", torch.bfloat16):
        first = (x @ weight).grad_fn.next_functions[1][0]  # type: ignore[union-attr]
        assert cast() == id(first)
        with internals.autocast_cache_cleared():
            pass
        assert cast() != id(first)


def test_autocast_is_put_back_after_regions_that_were_not_left() -> None:
    before = internals.autocast_state()
    for outer in (False, True):
        with torch.autocast("cpu", torch.float16, enabled=outer, cache_enabled=False):
            around = internals.autocast_state()
            torch.autocast("cpu", torch.bfloat16).__enter__()
            assert internals.autocast_state() != around
            internals.set_autocast_state(around)
            assert internals.autocast_state() == around
        assert internals.autocast_state() == before
    assert not internals.autocast_nested()


def test_autocast() -> None:
    x = torch.ones(2, 2)
    assert not internals.autocast_active()
    assert not internals.autocast_nested()
    assert internals.autocast_key() == ()
    with torch.autocast("cpu", torch.bfloat16):
        keys = {internals.autocast_key()}
        with internals.autocast_off():
            assert not internals.autocast_active()
            assert internals.autocast_key() == ()
            assert (x @ x).dtype == torch.float32
        assert internals.autocast_active()
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert not internals.autocast_active()
            assert internals.autocast_nested()
    for dtype, cache in ((torch.float16, True), (torch.bfloat16, False)):
        with torch.autocast("cpu", dtype, cache_enabled=cache):
            keys.add(internals.autocast_key())
    assert len(keys) == 3
    assert hash(tuple(keys))


def test_global_module_hooks() -> None:
    before = [len(hooks) for hooks in internals.global_module_hooks()]
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert [len(hooks) for hooks in internals.global_module_hooks()] != before
    handle.remove()
    assert [len(hooks) for hooks in internals.global_module_hooks()] == before


def test_unwatch_saved_tensors() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> tuple[T, T]:
            result = x * 2, x * 3
            ctx.save_for_backward(x, *result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: T) -> Any:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                _ = ctx.saved_tensors
            internals.unwatch_saved_tensors(ctx, (0, 1))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                _ = ctx.saved_tensors
            internals.unwatch_saved_tensors(ctx, (2,))
            assert [t.requires_grad for t in ctx.saved_tensors] == [True, True, True]
            return grads[0]

    x = numbers(3, grad=True)
    one, two = Double.apply(x)  # type: ignore[no-untyped-call]
    one.detach().mul_(2)
    two.detach().mul_(2)
    (one + two).sum().backward()


def test_clear_saved_tensors() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: T) -> Any:
            (x,) = ctx.saved_tensors
            internals.clear_saved_tensors(ctx)
            cleared.append(_saved(ctx))
            return grads[0] * 2 + x * 0

    cleared: list[bool] = []
    x = numbers(3, grad=True)
    y = Double.apply(x)  # type: ignore[no-untyped-call]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    has_it = hasattr(torch.autograd.function.FunctionCtx, "maybe_clear_saved_tensors") or hasattr(
        y.grad_fn, "maybe_clear_saved_tensors"
    )
    assert cleared == [True, not has_it]  # a graph that is retained keeps them
    internals.clear_saved_tensors(object())


def test_function_modes_on() -> None:
    seen: list[str] = []
    x = numbers(2)

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Sees(), torch._C.DisableTorchFunction():
        torch.sin(x)
        with internals.function_modes_on():
            torch.cos(x)
        torch.exp(x)
    assert seen == ["cos"]


def test_saved_tensors_hooks_off() -> None:
    packed: list[str] = []

    def hooks(name: str) -> Any:
        def pack(tensor: T) -> T:
            packed.append(name)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def save() -> list[str]:
        packed.clear()
        numbers(2, grad=True).sin()
        return list(packed)

    with internals.saved_tensors_hooks_off():
        assert save() == []
    with hooks("outer"), hooks("inner"):
        with internals.saved_tensors_hooks_off():
            assert save() == []
        assert save() == ["inner"]
        with internals.saved_tensors_hooks_off(), hooks("own"):
            assert save() == ["own"]
    with hooks("outer"):
        assert save() == ["outer"]


def _saved(ctx: Any) -> bool:
    try:
        return len(ctx.saved_tensors) == 1
    except RuntimeError:
        return False


def test_storage_replaced() -> None:
    with internals.new_fake_mode():
        fakes = torch.empty(3), torch.empty(3)
    with internals.functionalization():
        one, other = map(internals.wrap, fakes)
        assert not internals.storage_replaced(one)
        assert not internals.storage_resized(one)
        with torch.no_grad():
            one.set_(other)  # type: ignore[call-overload]  # the stubs know storages only
        assert internals.storage_replaced(one)
        assert not internals.storage_replaced(other)


# -- symbolic sizes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def environment() -> Any:
    return internals.new_shape_env(lambda: "here")


def test_symbolic_sizes_are_named_in_order_and_decided_with_their_place(environment: Any) -> None:
    one, other = internals.new_size(environment, "x.size(0)", 7), internals.new_size(environment, "x.size(1)", 7)
    assert (str(one), str(other)) == ("s0", "s1")
    assert all(isinstance(one, kind) for kind in internals.SYMBOLIC[:1])
    assert internals.decided(environment) == []
    assert one >= 2
    assert internals.decided(environment) == []
    assert one * 2 > other
    assert internals.decided(environment) == [("2*s0 > s1", "here")]
    assert one == other
    assert internals.decided(environment, 1) == [("s0 == s1", "here")]
    assert internals.guard_count(environment) == 2


def test_a_closed_environment_decides_no_more(environment: Any) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    assert size < 9
    internals.set_closed(environment, True)
    assert size < 9
    with pytest.raises(Unsupported, match="is asked for"):
        bool(size < 8)
    internals.set_closed(environment, False)
    assert size < 8


def test_symbolic_numbers_print_as_python(environment: Any) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    numbers_of = {
        "2*s0": size * 2,
        "((1 + s0) // 2)": (size + 1) // 2,
        "(s0 % 3)": size % 3,
        "(s0 / 2)": size / 2,
        "max(2, s0 // 3)": torch.sym_max(2, size // 3),
    }
    for number in numbers_of.values():
        text = internals.python_of_number(number)
        assert eval(text, {"torch": torch, "s0": 7}) == internals.hint_of(number)
    assert internals.python_of_number(size * 2) == internals.python_of_expression((size * 2).node.expr) == "2*s0"


def test_what_was_decided_simplifies_a_number_or_not(environment: Any) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    double = size * 2
    assert int(size) == 7
    assert internals.python_of_number(double) == "14"
    assert internals.python_of_number(double, simplified=False) == "2*s0"


def test_the_sizes_that_a_number_is_made_of(environment: Any) -> None:
    one, other = (internals.new_size(environment, f"x.size({dim})", 7) for dim in (0, 1))
    assert internals.names_in(one * other + 1) == {"s0", "s1"}
    assert internals.names_in((other + 1) // 2) == {"s1"}
    assert other == 7
    assert internals.names_in(one * other) == {"s0"}


def test_floats_of_sizes_that_are_compared_are_refused(environment: Any) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    assert size * 0.5 > 2
    with pytest.raises(Unsupported, match="computes with floats, here"):
        internals.decided(environment)


def test_all_sizes_in_a_number_are_decided(environment: Any) -> None:
    one, other = internals.new_size(environment, "x.size(0)", 7), internals.new_size(environment, "x.size(1)", 3)
    internals.decide_all(one * 0.1 + other * 0.3)
    assert internals.decided(environment) == [("s0 == 7", "here"), ("s1 == 3", "here")]


def test_a_float_of_decided_sizes_is_what_python_computed() -> None:
    def computed(size: Any) -> Any:
        return 0.1 * size * 0.3 + 0.7 + (size / 3 + size / 7) * 0.1

    for value in range(2, 60):
        size = internals.new_size(internals.new_shape_env(lambda: "here"), "x.size(0)", value)
        assert internals.decide_all(computed(size)) == computed(value)


def test_fakes_of_symbolic_sizes_decide_nothing_where_python_knows_a_kernel(environment: Any) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    with internals.new_fake_mode(environment):
        padded = aten.constant_pad_nd.default(torch.empty(size, 4), [0, 1])
    assert str(padded.shape) == "torch.Size([s0, 5])"
    assert internals.decided(environment) == []


@pytest.mark.parametrize("fn", [torch.matmul, torch.Tensor.__matmul__, F.linear])
def test_products_of_matrices_decide_nothing(environment: Any, fn: Callable[..., T]) -> None:
    size = internals.new_size(environment, "x.size(0)", 7)
    with internals.new_fake_mode(environment):
        x, weight = internals.wrap(torch.empty(size, 3, 4)), internals.wrap(torch.empty(4, 4))
        with internals.functionalization(), internals.composites_of_sizes(fn, ()):
            assert str(fn(x, weight).shape) == "torch.Size([s0, 3, 4])"
    assert {text for text, _ in internals.decided(environment)} <= {"s0 != 3"}


def test_marked_dynamic() -> None:
    x = torch.ones(2, 3, 4)
    assert internals.marked_dynamic(x) == frozenset()
    torch._dynamo.mark_dynamic(x, [0, 2])
    assert internals.marked_dynamic(x) == {0, 2}


def test_tensor_guards_leave_out_sizes_and_strides() -> None:
    check = internals.tensor_guards([torch.empty(3, 4)], [[None, 4]], [[4, 1]])
    assert check(torch.empty(3, 4))
    assert check(torch.empty(9, 4))
    assert not check(torch.empty(3, 5))
    assert not check(torch.empty(3, 4, 1))
    assert not check(torch.empty(4, 3).t())
    check = internals.tensor_guards([torch.empty(3, 4)], [[None, None]], [[None, 1]])
    assert check(torch.empty(5, 6))
    assert not check(torch.empty(6, 5).t())


def test_default_device_as_it_is_set_for_the_process() -> None:
    assert internals.global_default_device() is None
    torch.set_default_device("meta")
    try:
        assert internals.global_default_device() == torch.device("meta")
    finally:
        torch.set_default_device(None)


def test_streams_are_told_apart() -> None:
    one, other = torch.Generator(), torch.Generator()
    assert internals.stream_key(one) == internals.stream_key(one)
    assert internals.stream_key(one) != internals.stream_key(other)


# --- found by the list of all ---


def test_the_key_of_functionalization_is_excluded_by_its_set() -> None:
    with internals.functionalization():
        included = torch._C._dispatch_tls_is_dispatch_key_included
        assert included("Functionalize")
        with torch._C._ExcludeDispatchKeyGuard(internals.functionalize_keys()):
            assert torch._C._dispatch_tls_is_dispatch_key_excluded("Functionalize")


def test_a_guard_tree_follows_attributes_items_and_elements() -> None:
    value = types.SimpleNamespace(items={"a": [1, (2, 3)]})
    root = internals.guard_root(1)
    node = internals.guard_child(root, "attribute", "items", value.items)
    node = internals.guard_child(node, "dict", "a", value.items["a"])
    node = internals.guard_child(node, "list", 1, value.items["a"][1])
    node = internals.guard_child(node, "tuple", 0, 2)
    node.add_id_match_guard(id(2), ["two"], None)
    assert internals.guard_check(root)(value)
    assert internals.has_dict_versions(torch._C._dynamo.guards.RootGuardManager()) is not internals.MISSES_UPDATES
    assert not internals.has_dict_versions(root)
    value.items["a"][1] = (4, 3)
    assert not internals.guard_check(root)(value)


@pytest.mark.parametrize("reads", [1, 100])
def test_a_guard_tree_tells_objects_apart(reads: int) -> None:
    importlib.import_module("torch._dynamo.guards")  # the tree in C++ is there from then on
    one, other = [1], [1]
    root = internals.guard_root(reads)
    nodes = [internals.guard_child(root, "tuple", place, value) for place, value in enumerate((one, other))]

    def are_two(pair: Any) -> bool:
        return pair[0] is not pair[1]

    internals.add_all_different(root, nodes, are_two, ["different"])
    check = internals.guard_check(root)
    is_in_c = reads > 1 and not internals.HAS_INLINE_VALUES
    assert isinstance(root, torch._C._dynamo.guards.RootGuardManager) is is_in_c
    for _ in range(2):
        assert check((one, other))
        assert not check((one, one))


def test_the_version_of_a_dict() -> None:
    held: dict[str, int] = {}
    before = internals.dict_version(held)
    assert internals.dict_version(held) == before
    held.update(a=1)
    assert (internals.dict_version(held) == before) is internals.MISSES_UPDATES


def test_kernels_of_many_tensors_keep_the_strides_that_a_pointwise_one_gives() -> None:
    x = torch.randn(2, 3, 4).transpose(0, 2)
    for count in (1, 2, 3):
        assert internals.iterated(*[x.to("meta")] * count).stride() == torch.neg(x).stride()


def test_fakes_get_the_strides_of_their_kernels(mode: Any) -> None:
    x = torch.randn(2, 3).t()
    with mode:
        given: Any = internals.fake_of_layout(mode, (x.shape, x.stride(), x.dtype, x.device, 0, False, False))
        result = torch.empty(3, 2)
    kernel = (slice(0, 1), internals.iterated)
    made: Any = internals.laid_out(mode, kernel, result, (given,), {})
    assert made.stride() == x.stride()
    assert internals.layout_of(mode, given) == (x.shape, x.stride(), x.dtype, x.device, 0, False, False)
    assert internals.layout_of(internals.new_fake_mode(), given) is None


def test_a_class_shown_is_shown_no_longer_than_asked() -> None:
    with internals.shown_class(torch.SymInt, lambda number: int):
        assert isinstance(torch.SymInt.__new__(torch.SymInt), int)
    assert not isinstance(torch.SymInt.__new__(torch.SymInt), int)


def test_what_was_compiled_runs_plainly() -> None:
    def function(x: T) -> bool:
        return torch.compiler.is_compiling()

    compiled = torch.compile(function, backend="eager")
    assert compiled(torch.ones(2))
    with internals.compiled_run_plainly():
        assert not compiled(torch.ones(3))
        assert torch.compile(function) is function


def test_gradients_are_those_of_autograd() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.sin()
    (found,) = internals.gradients([y], [x], [torch.ones(3)], create_graph=True)
    (expected,) = torch.autograd.grad(y, [x], [torch.ones(3)], create_graph=True)
    assert found is not None
    assert torch.equal(found, expected)
    assert found.requires_grad
    assert internals.gradients([y], [torch.randn(2, requires_grad=True)], [torch.ones(3)], create_graph=False) == (
        None,
    )


def test_what_python_imports_for_pytorch_is_imported_on_another_thread() -> None:
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        threads.append(thread)
        start(thread)

    sys.modules.pop("this", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", noting)
        with contextlib.redirect_stdout(None):
            internals.import_aside("this")
        internals.import_aside("this")
    assert len(threads) == 1
    assert sys.modules.pop("this")
    with internals.imports_aside():
        assert __import__("math") is sys.modules["math"]


def test_imports_aside_wait_for_no_module_that_is_being_imported_here() -> None:
    source = """
from switchgear_core import torch_private as internals
scope = {"__name__": "torch.made_up"}
with internals.imports_aside():
    exec("from torch.distributed import tensor", scope)
    import torch.distributed.fsdp
print(scope["tensor"].__name__)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "torch.distributed.tensor", done.stderr


def test_dynamo_is_here() -> None:
    assert splitting.can_take_apart()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python's dicts have no versions any more")
def test_a_dict_that_is_written_to_is_noticed() -> None:
    held: tuple[dict[Any, Any], ...] = {"a": 1}, {}
    is_untouched = internals.not_written(held)
    assert is_untouched()
    held[1]["b"] = 2
    assert not is_untouched()


def test_to_compile_forgets_no_warning_that_was_shown() -> None:
    source = """
import torch, warnings
import switchgear as sg
jitted = sg.jit(lambda x: x * 2, executors=["torch"], dynamic=False)
jitted(torch.ones(()))  # PyTorch forgets them where it is first asked for an operator's name
for length in range(1, 5):
    warnings.warn("once for this line")
    jitted(torch.ones(length))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stderr.count("once for this line") == 1

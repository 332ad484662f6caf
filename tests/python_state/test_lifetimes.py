"""What a jitted function was called with is let go, as in eager."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg


class Box:
    """Holds a tensor and a word."""

    def __init__(self, word: str) -> None:
        self.x = torch.ones(3)
        self.word = word


class Growing(list[Any]):
    """A list that can be referred to weakly."""


def written(box: Any, x: Tensor) -> Tensor:
    box.out = x * box.x
    return x + len(box.word)


def appended(boxes: Any, x: Tensor) -> Tensor:
    boxes.append(x * boxes[0])
    return x * boxes[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda number: torch.ones(3), torch.add),
        (lambda number: Box("a" * number), written),
        (lambda number: Growing([torch.ones(3), number]), appended),
        (lambda number: types.SimpleNamespace(x=torch.ones(3), word="a" * number), written),
    ],
)
def test_arguments(make: Callable[[int], Any], function: Callable[..., Tensor]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    alive = []
    for number in range(4):
        argument = make(number)
        held = argument.x if isinstance(argument, types.SimpleNamespace) else argument
        alive.append(weakref.ref(held))
        jitted(argument, torch.ones(3))
        del argument, held
    gc.collect()
    assert [one() for one in alive] == [None] * 4
    assert sg.cache_info(jitted).fallbacks == 0


def test_parameters_that_were_replaced() -> None:
    module = nn.Linear(3, 3)
    jitted = sg.jit(module, executors=["torch"])
    jitted(torch.ones(3))
    weight = weakref.ref(module.weight)
    module.weight = nn.Parameter(torch.ones(3, 3))
    jitted(torch.ones(3))
    gc.collect()
    assert weight() is None


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of eager flex_attention, and of its own modules
def test_flex_attention_outside_afterwards() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    query = torch.randn(1, 1, 16, 8)
    jitted = sg.jit(lambda x: flex.flex_attention(x, x, x) * 2, executors=["torch"])
    found = jitted(query)
    torch.testing.assert_close(found, flex.flex_attention(query, query, query) * 2)


class Net(nn.Module):
    """A head, and another that lies in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.others = [nn.Linear(3, 3)]
        self.factor = 2

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.factor + self.others[0](x)  # type: ignore[no-any-return]


def jitted(function: Any) -> Any:
    return sg.jit(function, executors=["torch"], recompile_limit=1000)


def refers_to(module: nn.Module) -> list[weakref.ref[Any]]:
    return [weakref.ref(one) for one in (module, *module.modules(), *module.parameters())]


def are_gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return [one for one in references if one() is not None] == []


@pytest.mark.parametrize(
    "function",
    [
        lambda module, x: module(x),
        lambda module, x: x @ module.head.weight + module.factor,
        lambda module, x: module.forward(x),
        pytest.param(lambda module, x: module(x)[x > 0].tolist(), id="split"),
    ],
)
@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_modules_as_arguments(function: Callable[..., Any]) -> None:
    run, module = jitted(function), Net()
    alive = refers_to(module)
    run(module, torch.ones(3))
    run(module, torch.ones(2, 3))
    assert bool(sg.cache_info(run).entries) == ("tolist" not in function.__code__.co_names)
    del module
    assert are_gone(alive)
    assert sg.cache_info(run).entries == 0


def test_modules_in_containers_and_objects() -> None:
    module = Net()
    alive = refers_to(module)
    run = jitted(lambda box, one, x: box.x[0](x) + one["a"](x))
    box = types.SimpleNamespace(x=[module])
    run(box, {"a": module}, torch.ones(3)).sum().backward()
    del module, box
    assert are_gone(alive)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_submodule_that_was_replaced(hooked: bool) -> None:
    net = Net()
    run = jitted(net)
    if hooked:
        net.head.register_forward_hook(lambda module, args, out: out + 1)
    alive = [*refers_to(net.head), *refers_to(net.others[0])]
    run(torch.ones(3))
    net.head, net.others[0] = nn.Linear(3, 3), nn.Linear(3, 3)
    assert are_gone(alive)
    assert torch.equal(run(torch.ones(3)), net(torch.ones(3)))


@pytest.mark.parametrize("of", ["module", "method", "tuple", "list"])
def test_a_variable_that_is_bound_to_another_module(of: str) -> None:
    def bound() -> Any:
        module = Net()
        kinds = {"method": module.forward, "tuple": (module,), "list": [module]}
        return module, kinds.get(of, module)

    module, value = bound()
    run = jitted(lambda x: value[0](x) if isinstance(value, (tuple, list)) else value(x))
    alive = refers_to(module)
    run(torch.ones(3))
    module, value = bound()
    assert are_gone(alive)
    assert torch.equal(run(torch.ones(3)), module(torch.ones(3)))
    assert sg.cache_info(run).reasons == ("the first call", "a module that the compiled code belonged to was deleted")


def test_a_submodule_that_comes_back() -> None:
    net = Net()
    run, heads, x = jitted(net), (net.head, nn.Linear(3, 3)), torch.ones(3)
    for head in (*heads, *heads):
        net.head = head
        assert torch.equal(run(x), net(x))
    assert sg.cache_info(run).misses == 2


def test_a_module_made_inside() -> None:
    run = jitted(lambda x: nn.Sequential(nn.ReLU(), nn.Softmax(-1))(x))
    for _ in range(3):
        run(torch.ones(3))
        gc.collect()
    assert sg.cache_info(run).misses == 1


def test_ids_that_are_used_again() -> None:
    run, x, known = jitted(lambda module, x: module(x)), torch.ones(3), set[int]()
    net = Net()
    of_net, used_again = jitted(net), [0, 0]
    for number in range(12):
        module = nn.Linear(3, 3, bias=number % 2 == 0)
        used_again[0] += id(module) in known
        known.add(id(module))
        assert torch.equal(run(module, x), module(x))
        reference = weakref.ref(module)
        del module
        assert reference() is None
    known.clear()
    for number in range(12):
        del net.head
        net.head = nn.Linear(3, 3, bias=number % 2 == 0)
        used_again[1] += id(net.head) in known
        known.add(id(net.head))
        assert torch.equal(of_net(x), net(x))
    assert all(used_again)
    assert sg.cache_info(of_net).entries == 1


def test_modules_that_go_in_other_threads() -> None:
    run, x = jitted(lambda module, x: module(x)), torch.ones(3)
    kept = nn.Linear(3, 3)
    expected = kept(x)

    def many(collects: bool) -> int:
        for _ in range(15):
            module = nn.Sequential(nn.Linear(3, 3))
            cycle: list[Any] = [module]
            cycle.append(cycle)
            assert torch.equal(run(module, x), module(x))
            del module, cycle
            if collects:
                gc.collect()
            assert torch.equal(run(kept, x), expected)
        return 15

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(many, [False, True, False])) == 45
    gc.collect()
    assert torch.equal(run(kept, x), expected)
    assert sg.cache_info(run).entries == 1


def test_what_was_called_last_is_gone() -> None:
    run = jitted(lambda module, x: module(x))
    run(nn.Linear(3, 3), torch.ones(3))
    with pytest.raises(sg.errors.SwitchgearError, match="a module that its last call was for is"):
        sg.last_traces(run)

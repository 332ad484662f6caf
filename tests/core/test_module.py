"""`sg.jit(module)` is an `nn.Module` around the original: the state is the original's; changes are noticed."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import switchgear as sg
from tests.core.against_eager import check, numbers
from tests.core.made_up import Runs
from tests.falling_back import falls_back

T = torch.Tensor


def jit(module: torch.nn.Module) -> Any:
    return sg.jit(module, executors=["torch"], recompile_limit=1000)


class Net(torch.nn.Module):
    """A module with parameters, buffers, attributes, a method, and a count of how often Python ran its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(4, 2)
        self.register_buffer("offset", torch.tensor([0.5, -0.5]))
        self.scale = 2.0
        self.ran = Runs()  # which is not looked into: what becomes of it, a trace does not do again

    def forward(self, x: T) -> T:
        self.ran.value += 1
        hidden = self.drop(functional.gelu(self.norm(self.first(x))))
        return self.last(hidden) * self.scale + self.offset  # type: ignore[no-any-return]

    @property
    def runs(self) -> int:
        return self.ran.value

    def predict(self, x: T) -> T:
        """Calls the module itself."""
        return self(x).argmax(-1)  # type: ignore[no-any-return]


def data() -> T:
    return numbers(5, 3, dtype=torch.float32)


def step(module: Any, x: T) -> list[T]:
    """Everything that a training step leaves behind."""
    torch.manual_seed(4)
    module.zero_grad()
    result = module(x)
    result.square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [result.detach(), *gradients, *[value.clone() for value in module.state_dict().values()]]


def assert_steps_equal(one: Any, other: Any, x: T | None = None) -> None:
    x = data() if x is None else x
    expected, found = step(one, x), step(other, x)
    assert len(expected) == len(found)
    assert all(map(torch.equal, expected, found))


# --- state is the original's ---


def test_module_database_of_small_ones() -> None:
    check(Net(), data())
    check(Net().eval(), data())
    check(Net(), data(), gradient=False)


def test_it_is_a_module_of_the_same_class_with_the_same_state() -> None:
    net = Net()
    jitted = jit(net)
    assert isinstance(jitted, Net)
    assert type(jitted).__name__ == "Net"
    assert repr(jitted) == repr(net)
    assert [name for name, _ in jitted.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(jitted.parameters(), net.parameters(), strict=True))
    assert all(a is b for a, b in zip(jitted.buffers(), net.buffers(), strict=True))
    assert list(jitted.state_dict()) == list(net.state_dict())
    assert [name for name, _ in jitted.named_modules()] == [name for name, _ in net.named_modules()]
    assert list(jitted.children()) == list(net.children())
    assert jitted.get_submodule("norm") is net.norm


def test_attributes_are_shared_both_ways() -> None:
    net = Net()
    jitted = jit(net)
    jitted.note = "from outside"
    net.other = 3  # type: ignore[assignment]
    assert net.note == "from outside"
    assert jitted.other == 3
    assert jitted.scale == 2.0
    del jitted.note
    assert not hasattr(net, "note")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        jitted.missing  # noqa: B018
    jitted.extra = torch.nn.Parameter(torch.ones(1))
    assert "extra" in dict(net.named_parameters())
    jitted.register_buffer("more", torch.zeros(1))
    assert "more" in dict(net.named_buffers())


def test_methods_that_call_the_module_run_the_compiled_one() -> None:
    net = Net().eval()
    jitted = jit(net)
    expected = net.predict(data())
    runs = net.runs
    for _ in range(3):
        assert torch.equal(jitted.predict(data()), expected)
    assert net.runs == runs + 1


def test_forward_called_directly() -> None:
    net = Net().eval()
    assert torch.equal(jit(net).forward(data()), net.forward(data()))


def test_state_dict_is_saved_and_loaded() -> None:
    net, other = Net(), Net()
    jitted = jit(net)
    jitted(data())
    assert jitted.load_state_dict(other.state_dict()) == torch.nn.Module().load_state_dict({})
    assert_steps_equal(other, jitted)
    buffer = io.BytesIO()
    torch.save(jitted.state_dict(), buffer)
    buffer.seek(0)
    third = Net()
    third.load_state_dict(torch.load(buffer))
    assert_steps_equal(third, jitted)


def test_state_dict_assigned() -> None:
    net, other = Net(), Net()
    jitted = jit(net)
    jitted(data())
    jitted.load_state_dict(other.state_dict(), assign=True)
    for parameter in jitted.parameters():
        parameter.requires_grad_()
    assert_steps_equal(copy.deepcopy(other), jitted)


# --- train and eval ---


@pytest.mark.parametrize("through", ["jitted", "original", "submodule"])
def test_train_and_eval_switch(through: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    jitted = jit(net)
    for training in (True, False, True, False, False):
        twin.drop.train(training)
        if through == "submodule":
            net.drop.train(training)
        else:
            twin.train(training)
            (jitted if through == "jitted" else net).train(training)
        assert_steps_equal(twin, jitted)
    assert net.runs == 2
    assert jitted.training is net.training


def test_functional_training_flag() -> None:
    class Flagged(torch.nn.Module):
        def forward(self, x: T) -> T:
            return functional.dropout(x, 0.5, self.training) if self.training else x * 3

    check(Flagged(), numbers(4))
    check(Flagged().eval(), numbers(4))


# --- to, requires_grad_, optimisers ---


@pytest.mark.parametrize("through", ["jitted", "original"])
def test_to_another_dtype(through: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    jitted = jit(net)
    assert_steps_equal(twin, jitted)
    twin.double()
    (jitted if through == "jitted" else net).to(torch.float64)
    assert next(jitted.parameters()).dtype is torch.float64
    assert_steps_equal(twin, jitted, data().double())
    twin.float()
    jitted.float()
    assert_steps_equal(twin, jitted)


def test_to_returns_the_jitted_module() -> None:
    jitted = jit(Net())
    for result in (jitted.to(torch.float64), jitted.eval(), jitted.train(), jitted.requires_grad_(False), jitted.cpu()):
        assert result is jitted


def test_meta_module() -> None:
    jitted = jit(Net().to("meta"))
    assert jitted(data().to("meta")).device.type == "meta"


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_training_with_an_optimiser(kind: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    jitted = jit(net)
    optimisers = [getattr(torch.optim, kind)(module.parameters(), lr=0.1) for module in (twin, jitted)]
    for _ in range(4):
        assert_steps_equal(twin, jitted)
        for optimiser in optimisers:
            optimiser.step()
    assert net.runs == 1


def test_frozen_parameter_is_noticed() -> None:
    net = Net()
    twin = copy.deepcopy(net)
    jitted = jit(net)
    for frozen in ("first.weight", "last.bias", "norm.weight"):
        assert_steps_equal(twin, jitted)
        for module in (twin, net):
            module.get_parameter(frozen).requires_grad_(False)
            module.get_parameter(frozen).grad = None
    assert_steps_equal(twin, jitted)
    for module in (twin, net):
        module.requires_grad_(False)
    assert twin(data()).requires_grad is jitted(data()).requires_grad is False
    for module in (twin, net):
        module.requires_grad_(True)
    assert_steps_equal(twin, jitted)


def test_gradient_nobody_asked_for_is_not_built() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    net[0].requires_grad_(False)
    jitted = jit(net)
    jitted(data()).sum().backward()
    names = [item.symbol.name for item in sg.last_backward_traces(jitted)[-1].bound_symbols]
    assert not any("tanh_backward" in name for name in names)
    assert sum(".mm." in name for name in names) == 1


@pytest.mark.parametrize("place", ["first.weight", "last.bias", "offset", "norm.running_mean"])
def test_replaced_tensor_is_noticed(place: str) -> None:
    net = Net()
    twin = copy.deepcopy(net)
    jitted = jit(net)
    assert_steps_equal(twin, jitted)
    path, _, name = place.rpartition(".")
    for module in (twin, net):
        holder = module.get_submodule(path)
        old = getattr(holder, name)
        new = numbers(*old.shape, dtype=torch.float32)
        setattr(holder, name, torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new)
    assert_steps_equal(twin, jitted)
    assert net.runs == 1


def test_replaced_by_one_of_another_shape() -> None:
    net = torch.nn.Linear(3, 2)
    jitted = jit(net)
    assert jitted(data()).shape == (5, 2)
    net.weight, net.bias = torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(4))
    assert torch.equal(jitted(data()), net(data()))


def test_removed_parameter_is_noticed() -> None:
    net = torch.nn.Linear(3, 2)
    jitted = jit(net)
    jitted(data())
    net.bias = None  # type: ignore[assignment]
    assert torch.equal(jitted(data()), net(data()))
    # once: an entry does not check that a parameter that was None still is
    net.bias = torch.nn.Parameter(torch.ones(2))
    assert torch.equal(jitted(data()), net(data()))


def test_replaced_submodule_is_noticed() -> None:
    net = Net().eval()
    jitted = jit(net)
    jitted(data())
    net.last = torch.nn.Linear(4, 2, bias=False)
    assert torch.equal(jitted(data()), net(data()))
    net.drop = torch.nn.Tanh()  # type: ignore[assignment]
    assert torch.equal(jitted(data()), net(data()))


def test_parameter_data_assigned() -> None:
    net = torch.nn.Linear(3, 2)
    jitted = jit(net)
    jitted(data())
    net.weight.data = torch.ones(2, 3)
    assert torch.equal(jitted(data()), net(data()))
    net.weight.data = torch.ones(3, 2).t()
    assert torch.equal(jitted(data()), net(data()))


# --- tied parameters, submodules called twice ---


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 3)
        self.head = torch.nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: T) -> T:
        return self.head(self.embed(ids))  # type: ignore[no-any-return]


def test_tied_parameters_are_one_input() -> None:
    net = Tied()
    ids = torch.tensor([1, 2, 6, 1])
    check(net, ids)
    jitted = jit(net)
    jitted(ids).sum().backward()
    assert [proxy.name for proxy in sg.last_traces(jitted)[0].inputs] == ["t_0", "t_embed_weight"]


def test_parameters_that_are_tied_or_untied_later() -> None:
    net = Tied()
    jitted = jit(net)
    ids = torch.tensor([1, 2, 6, 1])
    jitted(ids)
    for weight in (torch.nn.Parameter(numbers(7, 3, dtype=torch.float32)), net.embed.weight):
        net.head.weight = weight
        # once: an entry does not check that tied parameters still are: the new weight is not used
        twin = copy.deepcopy(net)
        assert_steps_equal(twin, jitted, ids)


def test_submodule_called_twice_and_under_two_names() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.alias = self.layer
            self.drop = torch.nn.Dropout(0.3)

        def forward(self, x: T) -> T:
            return self.drop(self.layer(self.drop(self.alias(self.layer(x)).relu())))  # type: ignore[no-any-return]

    check(Twice(), data())
    jitted = jit(Twice())
    jitted(data())
    assert [proxy.name for proxy in sg.last_traces(jitted)[0].inputs] == ["t_0", "t_layer_weight", "t_layer_bias"]


class MakesItsLoss(torch.nn.Module):
    """Makes a module in each call, which goes some time later: an error holds the frame, and the frame the error."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: T, classes: T) -> T:
        loss = torch.nn.CrossEntropyLoss()
        try:
            raise KeyError
        except KeyError as error:
            kept = error
        assert kept
        result: T = loss(self.layer(x), classes)
        return result


def test_module_that_a_call_makes() -> None:
    net = MakesItsLoss()
    jitted, given = jit(net), (numbers(3, 4, dtype=torch.float32), torch.tensor([0, 1, 2]))
    for _ in range(2):
        assert torch.equal(jitted(*given), net(*given))
        gc.collect()
    info = sg.cache_info(jitted)
    assert (info.fallbacks, info.entries, info.misses) == (0, 1, 1)


class WrapsAPart(torch.nn.Module):
    """Calls a part of its own inside of a module that each call makes, and a copy of another."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [torch.nn.Linear(4, 4), torch.nn.ReLU()]

    def forward(self, x: T) -> T:
        made = torch.nn.Sequential(self.parts[0]), copy.deepcopy(self.parts[1])
        try:
            raise KeyError
        except KeyError as error:
            kept = error
        assert kept
        result: T = made[1](made[0](x))
        return result


def test_part_inside_of_a_module_that_a_call_makes() -> None:
    net = WrapsAPart()
    jitted, x = jit(net), numbers(3, 4, dtype=torch.float32)
    for _ in range(2):
        assert torch.equal(jitted(x), net(x))
    assert sg.cache_info(jitted).fallbacks == 0
    net.parts[0].register_forward_hook(lambda module, args, output: output * 2)
    assert torch.equal(jitted(x), net(x))


def test_module_inside_another_module_and_jitted_inside_jitted() -> None:
    inner = torch.nn.Linear(3, 3)
    for outer in (
        torch.nn.Sequential(jit(inner), torch.nn.Tanh()),
        jit(torch.nn.Sequential(jit(inner), torch.nn.Tanh())),
    ):
        assert torch.equal(outer(data()), torch.tanh(inner(data())))
        outer(data()).sum().backward()
        assert list(outer.state_dict()) == ["0.weight", "0.bias"]


def test_jit_of_a_jitted_module_is_of_the_original() -> None:
    net = Net().eval()
    again = jit(jit(net))
    assert torch.equal(again(data()), net(data()))
    assert type(again).__mro__.count(Net) == 1
    assert type(again).__mro__[2] is Net


# --- buffers written to ---


def test_batch_norm_buffers_are_written_once_per_call() -> None:
    norm = torch.nn.BatchNorm1d(3)
    twin = copy.deepcopy(norm)
    jitted = jit(norm)
    for calls in range(1, 4):
        assert torch.equal(jitted(data()), twin(data()))
        assert norm.num_batches_tracked.item() == calls  # type: ignore[union-attr]
        assert torch.equal(norm.running_mean, twin.running_mean)  # type: ignore[arg-type]
        assert torch.equal(norm.running_var, twin.running_var)  # type: ignore[arg-type]
        assert norm.running_mean._version == twin.running_mean._version  # type: ignore[union-attr]


def test_batch_norm_called_twice_writes_twice() -> None:
    norm = torch.nn.BatchNorm1d(3)
    check(torch.nn.Sequential(norm, norm), data())
    jitted = jit(torch.nn.Sequential(norm, norm))
    jitted(data())
    assert norm.num_batches_tracked.item() == 2  # type: ignore[union-attr]


def test_batch_norm_in_eval_writes_nothing() -> None:
    norm = torch.nn.BatchNorm1d(3)
    norm(data())
    norm.eval()
    check(norm, data().requires_grad_())
    before = {name: (value.clone(), value._version) for name, value in norm.named_buffers()}
    jitted = jit(norm)
    jitted(data())
    # once: the statistics are copied onto themselves, which bumps their versions
    assert all(torch.equal(v, before[n][0]) and v._version == before[n][1] for n, v in norm.named_buffers())


def _cudnn_batch_norm(x: T, weight: T, bias: T, mean: T, var: T) -> T:
    return torch.cudnn_batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)[0]


def _batch_norm(x: T, weight: T, bias: T, mean: T, var: T) -> T:
    return functional.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)


def test_batch_norm_of_cudnn() -> None:
    """Its kernel writes running statistics without saying so; what stands for it in a trace runs on the CPU as well."""
    contestants: list[Callable[..., T]] = [sg.jit(_cudnn_batch_norm, executors=["torch"]), _batch_norm]
    found = []
    for called in contestants:
        leaves = [numbers(4, 3, 5, dtype=torch.float32).requires_grad_(), torch.ones(3).requires_grad_()]
        bias, mean, var = torch.zeros(3), torch.zeros(3), torch.ones(3)
        results = [called(*leaves, bias, mean, var) for _ in range(2)]
        gradients = torch.autograd.grad(results[1].square().sum(), leaves)
        found.append([*(one.detach() for one in results), mean, var, *gradients])
    assert all(map(torch.equal, *found))


def test_cumulative_batch_norm_depends_on_data() -> None:
    norm = torch.nn.BatchNorm1d(3, momentum=None)
    jitted = jit(norm)
    jitted(data())
    with falls_back("data of a tensor", "DataDependent"):
        jitted(data())
    assert norm.num_batches_tracked.item() == 2  # type: ignore[union-attr]
    check(norm.eval(), data())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.BatchNorm1d(3, affine=False),
        lambda: torch.nn.BatchNorm1d(3, track_running_stats=False),
        lambda: torch.nn.InstanceNorm1d(3, track_running_stats=True),
    ],
    ids=["not affine", "no statistics", "instance norm"],
)
@pytest.mark.parametrize("training", [True, False])
def test_norms_of_every_kind(make: Callable[[], torch.nn.Module], training: bool) -> None:
    check(make().train(training), numbers(2, 3, 4, dtype=torch.float32, grad=True))


def test_batch_norm_without_gradients_writes_too() -> None:
    norm = torch.nn.BatchNorm1d(3)
    check(norm, data(), gradient=False)
    jitted = jit(norm)
    with torch.no_grad():
        jitted(data())
    jitted(data())
    assert norm.num_batches_tracked.item() == 2  # type: ignore[union-attr]


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("steps", torch.tensor(0), persistent=False)
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: T) -> T:
        self.seen[1:] += x.detach()[0, 1:]  # type: ignore[index, operator]
        self.seen.mul_(0.5)  # type: ignore[operator]
        self.steps += 1  # type: ignore[assignment, operator]
        return x * self.weight + self.seen  # type: ignore[operator]


def test_buffer_written_in_place_in_pieces() -> None:
    # once: `self.steps += 1` assigns what is there already; refused as an assignment, with the advice to write in place
    check(Counter(), data())


def test_parameter_written_under_no_grad() -> None:
    class Clamps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(numbers(3, dtype=torch.float32) * 5)

        def forward(self, x: T) -> T:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
            return x * self.weight

    check(Clamps(), data())


def test_buffer_assigned_instead_of_written() -> None:
    class Assigns(Counter):
        def forward(self, x: T) -> T:
            self.seen = self.seen + x[0]  # type: ignore[has-type]
            return x * self.weight

    net = Assigns()
    held = net.seen
    jitted = jit(net)
    for calls in range(1, 4):
        jitted(data())
        assert torch.equal(net.seen, data()[0] * calls)
    assert torch.equal(held, torch.zeros(3))
    assert jitted._switchgear.cache._compilations == 1


def test_plain_attribute_that_is_given_a_tensor() -> None:
    class Keeps(torch.nn.Module):
        cached: Any = None

        def forward(self, x: T) -> T:
            self.cached = x * 2
            return self.cached * 3  # type: ignore[no-any-return]

    net = Keeps()
    jitted = jit(net)
    for scale in range(1, 4):
        jitted(data() * scale)
        assert torch.equal(net.cached, data() * scale * 2)


def test_tensor_kept_in_a_list() -> None:
    class Appends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[T] = []

        def forward(self, x: T) -> T:
            self.kept.append(x * 2)
            return x * 3

    net = Appends()
    jitted = jit(net)
    for _ in range(3):
        jitted(data())
    assert [torch.equal(one, data() * 2) for one in net.kept] == [True, True, True]


# --- hooks ---


def test_hooks_on_the_root_run_on_every_call() -> None:
    net = torch.nn.Linear(3, 2)
    jitted = jit(net)
    seen: list[str] = []

    def before(module: Any, args: Any) -> Any:
        seen.append("before")
        return (args[0] * 2,)

    def after(module: Any, args: Any, result: T) -> T:
        seen.append("after")
        return result + 1

    handles = [jitted.register_forward_pre_hook(before), net.register_forward_hook(after)]
    expected = functional.linear(data() * 2, net.weight, net.bias) + 1
    for _ in range(3):
        assert torch.equal(jitted(data()), expected)
    assert seen == ["before", "after"] * 3
    for handle in handles:
        handle.remove()
    assert torch.equal(jitted(data()), net(data()))


def test_hooks_that_come_after_the_first_calls() -> None:
    jitted = jit(torch.nn.Linear(3, 2))
    x = data()
    plain = jitted(x)
    assert torch.equal(jitted(x), plain)
    handle = jitted.register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(jitted(x), plain + 1)
    handle.remove()
    assert torch.equal(jitted(x), plain)


@pytest.mark.parametrize("owner", [torch.nn.Module, torch.nn.Linear])
def test_call_that_is_replaced_after_the_first_calls(owner: type, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(torch.nn.Linear(3, 2))
    x = data()
    plain = jitted(x)
    call = torch.nn.Module.__call__
    monkeypatch.setattr(owner, "__call__", lambda self, *args: call(self, *args) + 1)
    assert torch.equal(jitted(x), plain + 1)


def test_hooks_on_submodules_are_part_of_the_trace() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    jitted = jit(net)
    jitted(data())
    handles = [
        net[0].register_forward_hook(lambda module, args, result: result * 3),
        net[1].register_forward_pre_hook(lambda module, args, kwargs: ((args[0] - 1,), kwargs), with_kwargs=True),
    ]
    twin = copy.deepcopy(net)
    assert_steps_equal(twin, jitted)
    handles[0].remove()
    assert torch.equal(jitted(data()), net(data()))
    handles[1].remove()
    assert torch.equal(jitted(data()), net(data()))


def replaced(part: torch.nn.Module, first: Any) -> None:
    part._forward_hooks = part._forward_hooks.copy()
    part._forward_hooks.popitem()


def moved(part: torch.nn.Module, first: Any) -> None:
    hooks: Any = part._forward_hooks
    hooks.move_to_end(first.id)


def exchanged(part: torch.nn.Module, first: Any) -> None:
    first.remove()
    part.register_forward_hook(lambda module, args, result: result - 5)


@pytest.mark.parametrize("change", [replaced, moved, exchanged, lambda part, first: first.remove()])
@pytest.mark.parametrize("count", [1, 20])
def test_changed_hooks_of_submodules_are_noticed(change: Callable[..., None], count: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    first = net[0].register_forward_hook(lambda module, args, result: result * 3)
    net[0].register_forward_hook(lambda module, args, result: result + 7)
    jitted = jit(net)
    for _ in range(count):  # after some writes to the dicts the check is made anew
        net[1].train(not net[1].training)
        assert torch.equal(jitted(data()), net(data()))
    change(net[0], first)
    for _ in range(2):
        assert torch.equal(jitted(data()), net(data()))


def test_full_backward_hook_on_the_root() -> None:
    def gradients(target: Any, net: torch.nn.Module) -> list[Any]:
        seen: list[Any] = []
        handle = net.register_full_backward_hook(
            lambda module, given, got: seen.append((given[0].clone(), got[0].clone()))  # type: ignore[index]
        )
        x = data().requires_grad_()
        target(x).square().sum().backward()
        handle.remove()
        return [x.grad, *seen[0]]

    net = torch.nn.Linear(3, 2)
    expected, found = gradients(net, net), gradients(jit(net), net)
    assert all(map(torch.equal, expected, found))


def test_full_backward_hook_on_a_submodule_is_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    jitted = jit(net)
    jitted(data())
    net[0].register_full_backward_hook(lambda module, given, got: None)
    with falls_back(r"backward hook|BackwardHook|register_hook"):
        jitted(data())


def test_global_hooks_are_noticed() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3))
    jitted = jit(net)
    jitted(data())
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result * 2 if isinstance(module, torch.nn.Linear) else result
    )
    try:
        expected = net(data())
        found = jitted(data())
    finally:
        handle.remove()
    assert torch.equal(found, expected)


# --- copies ---


def test_deepcopy_is_jitted_and_independent() -> None:
    jitted = jit(Net())
    jitted(data())
    twin = copy.deepcopy(jitted)
    assert isinstance(twin, Net)
    assert sg.jit.__name__ == "jit"
    assert all(a is not b for a, b in zip(jitted.parameters(), twin.parameters(), strict=True))
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert not torch.equal(next(twin.parameters()), next(jitted.parameters()))
    expected = copy.deepcopy(twin._switchgear.module)  # type: ignore[union-attr]
    assert_steps_equal(expected, twin)
    assert sg.last_traces(twin)[-1].inputs


def test_shallow_copy_works() -> None:
    jitted = jit(Net().eval())
    twin = copy.copy(jitted)
    assert torch.equal(twin(data()), jitted(data()))


def test_pickle_keeps_state_and_options() -> None:
    net = Net()
    jitted = jit(net)
    jitted(data())
    again = pickle.loads(pickle.dumps(jitted))
    assert isinstance(again, Net)
    assert_steps_equal(copy.deepcopy(net), again)
    assert [choice.owner for choice in sg.last_choices(again) if choice.kind == "execution"].count("torch") > 0


def test_torch_save_of_the_whole_module() -> None:
    jitted = jit(Net().eval())
    buffer = io.BytesIO()
    torch.save(jitted, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(data()), jitted(data()))


# --- other kinds of modules ---


def test_forward_replaced_on_the_instance() -> None:
    net = torch.nn.Linear(3, 2)
    jitted = jit(net)
    jitted(data())
    net.forward = lambda x: x * 7  # type: ignore[assignment, method-assign]
    # once: the forward of an instance is in no guard: the entry from before is used
    assert torch.equal(jitted(data()), data() * 7)


def test_parametrised_module() -> None:
    net = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2))
    check(net, data())
    jitted = jit(net)
    assert torch.equal(jitted(data()), net(data()))


def test_module_with_slots_properties_and_kwargs() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._weight = torch.nn.Parameter(torch.ones(3))

        @property
        def weight(self) -> T:
            return self._weight * 2

        def forward(self, x: T, *rest: T, scale: float = 1.0, **more: T) -> dict[str, T]:
            return {"sum": sum(rest, x) * self.weight * scale, **more}

    check(Odd(), data(), data(), scale=3.0, other=data())


def test_module_list_and_dict_and_parameter_list() -> None:
    class Lists(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])
            self.named = torch.nn.ModuleDict({"a": torch.nn.Tanh(), "b": torch.nn.Linear(3, 1)})
            self.scales = torch.nn.ParameterList([torch.ones(3), torch.ones(1)])

        def forward(self, x: T) -> T:
            for layer in self.layers:
                x = layer(x) * self.scales[0]
            return self.named["b"](self.named["a"](x)) * self.scales[1]  # type: ignore[no-any-return]

    check(Lists(), data())


def test_rnn_modules() -> None:
    # once: under SWITCHGEAR_VERIFY: mkldnn_rnn_layer_backward returns one tensor twice, `t27, t27 =`, InvalidTrace
    check(torch.nn.LSTM(3, 4, num_layers=2, dropout=0.2), numbers(5, 2, 3, dtype=torch.float32))
    check(torch.nn.GRU(3, 4, bidirectional=True), numbers(5, 2, 3, dtype=torch.float32))


@pytest.mark.parametrize("hidden", [8, 50])
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.GRUCell])
def test_gru_to_the_last_bit(kind: Any, hidden: int) -> None:
    """It writes in place to parts of rows, of which kernels compute the last elements one by one."""
    module, x = kind(8, hidden), torch.randn(*[3] * (kind is torch.nn.GRU), 16, 8)

    def results(called: Any) -> list[torch.Tensor]:
        out = called(x)[0] if kind is torch.nn.GRU else called(x)
        return [out, *torch.autograd.grad(out.square().sum(), list(module.parameters()))]

    found = results(sg.jit(module, executors=["torch"]))
    assert all(map(torch.equal, found, results(module)))


def test_transformer_encoder_layer_in_train_and_eval() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = numbers(2, 3, 8, dtype=torch.float32)
    check(layer, x)
    check(layer.eval(), x)
    # without grad eager takes a fused path
    with torch.no_grad():
        assert torch.equal(jit(layer)(x), layer(x))


PADDING = torch.tensor([[False, False, True], [False, False, False]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("options", [{}, {"src_key_padding_mask": PADDING}])
def test_fused_encoder(options: dict[str, T]) -> None:
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, jitted = numbers(2, 3, 8, dtype=torch.float32), sg.jit(encoder, executors=["torch"], fallback="split")
    with torch.no_grad(), falls_back("it makes a tensor of another kind") if options else contextlib.nullcontext():
        assert torch.equal(jitted(x, **options), encoder(x, **options))


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"key_padding_mask": PADDING}])
def test_fused_attention(options: dict[str, Any]) -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = numbers(2, 3, 8, dtype=torch.float32)
    with torch.no_grad():
        found, expected = (called(x, x, x, **options) for called in (jit(attention), attention))
    assert torch.equal(found[0], expected[0])
    assert found[1] is expected[1] or torch.equal(found[1], expected[1])


def test_parameters_and_buffers_added_later_are_noticed() -> None:
    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))])

        def forward(self, x: T) -> T:
            return sum((p for p in self.held), x) + sum(self.buffers())

    module = Summed()
    jitted, x = jit(module), numbers(2)
    for change in (
        lambda: module.held.append(torch.nn.Parameter(torch.ones(2))),
        lambda: module.register_buffer("more", torch.ones(2)),
        lambda: None,
    ):
        assert torch.equal(jitted(x), module.forward(x))
        change()
        assert torch.equal(jitted(x), module.forward(x))

"""What `sg.jit` returns as a Python object: its forward, copies, methods, lazy parts."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import pytest
import torch
from torch.nn.utils import prune

import switchgear as sg
from switchgear import errors
from switchgear_runtime.last_call import compiler_of
from tests.core.made_up import Runs
from tests.falling_back import falls_back
from tests.oracle import fallbacks_recorded

T = torch.Tensor


class Net(torch.nn.Module):
    """A model with two methods, and a count of how often Python ran one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)
        self.gain = torch.nn.Parameter(torch.tensor(2.0))
        self.runs = Runs()  # which is not looked into

    def forward(self, x: T, *, labels: T | None = None) -> T:
        """A result that `labels` shift."""
        self.runs.value += 1
        y = self.encode(x)
        return y if labels is None else y + labels

    def encode(self, x: T, power: int = 1) -> T:
        """Without labels."""
        self.runs.value += 1
        return (self.inner(x) * self.gain) ** power  # type: ignore[no-any-return]


def jit(function: Any, **options: Any) -> Any:
    return sg.jit(function, executors=["torch"], **options)


def data() -> T:
    return torch.linspace(-1, 1, 6).view(2, 3)


def is_compiled(jitted: Any, net: Net, *args: Any) -> bool:
    """Whether a call gives eager's result and runs none of the module's Python, after one that may."""
    call = net.forward if isinstance(jitted, torch.nn.Module) else jitted._switchgear.function
    expected = call(*args)
    first, before = jitted(*args), net.runs.value
    return torch.equal(first, expected) and torch.equal(jitted(*args), expected) and net.runs.value == before


@jit
def decorated(x: T, scale: float = 2.0) -> T:
    """Stands where pickle looks for its original."""
    return x.sin() * scale


def plain(x: T) -> T:
    """Is jitted under another name."""
    return x.cos()


def test_forward_is_a_function_with_the_signature_of_the_original() -> None:
    # once: a property: TypeError, "<property object> is not a callable object", in Trainer
    jitted = jit(Net())
    assert isinstance(type(jitted).forward, types.FunctionType)
    assert inspect.signature(type(jitted).forward) == inspect.signature(Net.forward)
    assert inspect.signature(jitted.forward) == inspect.signature(Net().forward)
    assert (jitted.forward.__name__, jitted.forward.__doc__) == ("forward", Net.forward.__doc__)
    assert jitted.forward == jitted.forward
    assert inspect.unwrap(jitted.forward) == jitted.forward, "accelerate would put the original in its place"


def test_forward_assigned_calls_the_one_before() -> None:
    net = Net()
    jitted = jit(net)
    jitted(data())
    before = jitted.forward

    def doubled(self: Net, *args: T) -> T:
        assert self is jitted
        return before(*args) * 2  # type: ignore[no-any-return]

    jitted.forward = types.MethodType(doubled, jitted)
    runs = net.runs.value
    assert torch.equal(jitted(data()), Net.forward(net, data()) * 2)
    assert torch.equal(jitted.forward(data()), jitted(data()))
    assert net.runs.value == runs + 2, "what it calls is compiled"
    assert torch.equal(net(data()) * 2, jitted(data())), "the original has its own"
    del jitted.forward
    assert jitted.forward == before
    assert is_compiled(jitted, net, data())
    with pytest.raises(AttributeError):
        del jitted.forward


def test_forward_assigned_as_mixed_precision_does() -> None:
    net = Net()
    jitted = jit(net)
    function = jitted.forward.__func__
    inside = torch.autocast("cpu", torch.bfloat16)(function)
    jitted.forward = types.MethodType(inside, jitted)
    with torch.autocast("cpu", torch.bfloat16):
        expected = net(data())
    assert expected.dtype is torch.bfloat16
    assert torch.equal(jitted(data()), expected)
    jitted.forward = types.MethodType(function, jitted)
    assert jitted._switchgear_forward is None, "the same method is no assignment"
    jitted.forward = functools.partial(jitted.forward, labels=torch.ones(4))
    assert torch.equal(jitted(data()), net(data(), labels=torch.ones(4)))


def test_forward_assigned_that_calls_nothing_compiled_is_compiled() -> None:
    def fused(self: Any, x: T) -> T:
        return Net.forward(self, x).relu() * scale

    net, scale = Net(), 2.0
    jitted = jit(net, strict=True)
    jitted(data())
    before = jitted.forward
    jitted.forward = types.MethodType(fused, jitted)
    for _ in range(3):
        x = data()
        assert torch.equal(jitted(x), fused(net, x))
    assert sg.cache_info(jitted).hits == 1
    assert [item.symbol.name for item in sg.last_traces(jitted)[0].bound_symbols][-2:] == ["torch.relu", "torch.mul"]
    scale = 3.0
    assert torch.equal(jitted(x), fused(net, x))
    twin = copy.deepcopy(jitted)
    assert torch.equal(twin(x), fused(net, x))
    jitted.forward = before
    assert torch.equal(jitted(x), Net.forward(net, x))


def test_forward_assigned_that_calls_the_compiled_one_at_times() -> None:
    jitted = jit(net := Net())
    before, calls = jitted.forward, []

    def alternating(x: T) -> T:
        calls.append(1)
        return before(x) if len(calls) % 2 else x.sum() + x

    jitted.forward = alternating
    for call in range(6):
        x = data()
        assert torch.equal(jitted(x), x.sum() + x if call % 2 else Net.forward(net, x))


def test_forward_assigned_to_a_part_is_seen_by_the_whole() -> None:
    part = jit(torch.nn.Linear(3, 3))
    whole = jit(torch.nn.Sequential(part))
    first = whole(data())
    before = part.forward
    part.forward = lambda x: before(x) * 3
    assert torch.equal(whole(data()), first * 3)
    del part.forward
    assert torch.equal(whole(data()), first)


def test_forward_assigned_survives_a_copy() -> None:
    jitted = jit(Net())
    jitted.forward = functools.partial(jitted.forward, labels=torch.ones(4))
    for twin in (copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted))):
        assert twin.forward.func.__self__ is twin
        assert torch.equal(twin(data()), jitted(data()))


def test_module_that_holds_its_jitted_self_is_copied() -> None:
    net: Any = Net()
    jitted = jit(net)
    net.__dict__["fast"] = jitted
    for twin in (copy.deepcopy(jitted), copy.deepcopy(net).fast):
        assert twin.fast.__dict__ is twin.__dict__
        assert torch.equal(twin(data()), jitted(data()))


class Wrapper(torch.nn.Module):
    """Hands unknown attributes on, as PEFT's models do."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: T) -> T:
        return self.head(self.model(x))  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def test_wrapper_that_hands_attributes_on_is_copied() -> None:
    # once: the copy was one of the inner module
    wrapper = Wrapper(jit(torch.nn.Linear(3, 4)))
    expected = wrapper(data())
    averaged: Any = torch.optim.swa_utils.AveragedModel(wrapper)
    for twin in (copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper)), averaged.module):
        assert type(twin) is Wrapper
        assert torch.equal(twin(data()), expected)
        assert compiler_of(twin.model).last is not None


class Noted(type):
    """Notes what its classes make."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = super().__call__(*args, **kwargs)
        made.notes = getattr(made, "notes", 0) + 1
        return made


class Sized(torch.nn.Linear, metaclass=Noted):
    """A module that makes others of its class."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(size, size)

    def twin(self) -> Any:
        return type(self)(self.in_features)

    @classmethod
    def of(cls, size: int) -> Any:
        return cls(size=size)


def test_module_made_of_a_jitted_modules_class_is_not_jitted() -> None:
    # once: AttributeError: 'Sequential' object has no attribute '_switchgear'
    net = jit(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)))
    assert type(net[:2]) is torch.nn.Sequential
    assert torch.equal(net[:2](data()), net[0](data()).relu())
    sized = jit(Sized(3))
    for made in (sized.twin(), sized.of(3), type(sized)()):
        assert type(made) is Sized
        assert made.notes == 1
        assert made(data()).shape == (2, 3)
    assert inspect.signature(type(sized)) == inspect.signature(Sized)


@pytest.mark.parametrize("function", [decorated, jit(plain), jit(torch.sin), jit(functools.partial(plain))])
def test_functions_are_copied_and_pickled_without_what_was_compiled(function: Any) -> None:
    # once: "cannot pickle '_thread.RLock' object"
    function(data())
    buffer = io.BytesIO()
    torch.save(function, buffer)
    buffer.seek(0)
    for twin in (
        copy.copy(function), copy.deepcopy(function), pickle.loads(pickle.dumps(function)),
        torch.load(buffer, weights_only=False),
    ):  # fmt: skip
        assert torch.equal(twin(data()), function(data()))
        assert [executor.name for executor in twin._switchgear.selection.executors] == ["torch"]
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert pickle.loads(pickle.dumps(jit(plain, dynamic=True)))._switchgear.dynamic is True


def test_model_whose_forward_is_a_jitted_method_is_copied() -> None:
    net = Net()
    net.forward = jit(net.forward, dynamic=True)  # type: ignore[method-assign]
    net(data())
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    pickled = pickle.loads(pickle.dumps(net.forward))
    for twin in (
        copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(buffer, weights_only=False),
        compiler_of(pickled).module, compiler_of(copy.deepcopy(net.forward)).module,
    ):  # fmt: skip
        assert isinstance(twin, Net)
        assert twin is not net
        compiler = compiler_of(twin.forward)
        assert compiler.module is twin
        assert compiler.dynamic is True
        assert compiler.last is None
        with torch.no_grad():
            twin.gain.fill_(5.0)
        assert torch.equal(twin(data()), Net.forward(twin, data()))
        assert torch.equal(net(data()), Net.forward(net, data()))


def test_loads_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch, switchgear as sg\n"
        "class Net(torch.nn.Linear):\n    pass\n"
        "def f(x):\n    return x.sin()\n"
        "g = sg.jit(f, executors=['torch'])\n"
    )
    save = (
        "import torch, mine, switchgear as sg; net = mine.Net(3, 4); net.forward = sg.jit(net.forward);"
        "torch.save((net, mine.g, sg.jit(mine.Net(3, 4), executors=['torch'])), 'saved')"
    )
    load = (
        "import torch; net, g, jitted = torch.load('saved', weights_only=False); x = torch.ones(3);"
        "assert torch.equal(g(x), x.sin()); assert net(x).shape == jitted(x).shape == (4,);"
        "print(type(g).__name__, type(net.forward).__name__)"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for code in (save, load)
    ]
    assert outputs[1].split() == ["JitFunction", "JitFunction"]


def test_bound_method_has_the_state_of_its_module() -> None:
    net = Net()
    encode = jit(net.encode)
    assert is_compiled(encode, net, data())
    # once: a tensor closed over: the one before
    net.gain = torch.nn.Parameter(torch.tensor(7.0))
    net.inner = torch.nn.Linear(3, 4)
    assert is_compiled(encode, net, data())
    assert is_compiled(encode, net, data(), 2)
    encode(data()).sum().backward()
    assert net.gain.grad is not None
    names = [proxy.name for proxy in sg.last_traces(encode)[0].inputs]
    assert names == ["t_0", "t_inner_weight", "t_inner_bias", "t_gain"]


def test_forward_jitted_as_a_method_in_its_own_place() -> None:
    net, expected = Net(), Net()
    expected.load_state_dict(net.state_dict())
    net.forward = jit(net.forward)  # type: ignore[method-assign]
    assert torch.equal(net(data()), expected(data()))
    runs = net.runs.value
    net.gain = expected.gain = torch.nn.Parameter(torch.tensor(7.0))
    assert torch.equal(net(data()), expected(data()))
    assert net.runs.value == runs, "one entry serves both"
    handle = net.register_forward_hook(lambda module, args, output: output * 2)
    assert torch.equal(net(data()), expected(data()) * 2)
    handle.remove()
    assert torch.equal(net(data()), expected(data()))


def test_methods_beside_forward() -> None:
    net = Net()
    jitted = jit(net, methods=["encode"])
    assert is_compiled(jitted, net, data())
    assert is_compiled(jitted.encode, net, data(), 3)
    assert inspect.signature(jitted.encode) == inspect.signature(net.encode)
    assert type(jitted).encode is Net.encode
    for twin in (copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted)), jit(jitted, methods=["encode"])):
        assert is_compiled(twin.encode, compiler_of(twin).module, data())  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(jitted.encode))(data()).shape == (2, 4)
    with pytest.raises(errors.InvalidInput, match="methods names 'decode', which Net lacks; did you mean 'encode'"):
        jit(net, methods=["decode"])
    with pytest.raises(errors.InvalidInput, match="is for modules"):
        jit(plain, methods=["encode"])


async def awaited(x: T) -> T:
    return x + 1


class Awaited(torch.nn.Module):
    """Its forward is a coroutine function."""

    async def forward(self, x: T) -> T:
        return x


@pytest.mark.parametrize("function", [awaited, functools.partial(awaited), Awaited()])
def test_coroutine_functions_are_refused(function: Any) -> None:
    # once: split, and "coroutine was never awaited"
    with pytest.raises(errors.InvalidInput, match=r"(?i)awaited.* is a coroutine function"):
        jit(function)


def test_decorator_with_methods() -> None:
    jitted = sg.jit(methods=["encode"], executors=["torch"])(Net())
    assert compiler_of(jitted.encode).calls == 0


def test_lazy_module_is_initialised_by_its_first_call() -> None:
    # once: refused; before, TypeError, "__class__ assignment: 'Linear' object layout differs from 'LazyLinear'"
    net = torch.nn.LazyLinear(2)
    jitted = jit(net)
    first = jitted(data())
    assert type(net) is torch.nn.Linear
    assert isinstance(jitted, torch.nn.Linear)
    assert not isinstance(jitted, torch.nn.LazyLinear)
    assert type(jitted).__name__ == "Linear"
    assert torch.equal(first, net(data()))
    assert torch.equal(jitted(data()), first)
    assert torch.equal(copy.deepcopy(jitted)(data()), first)
    assert "2 calls, compiled once, 0 fell back" in str(sg.explain(jitted))


def test_lazy_parts_are_initialised_by_the_first_call() -> None:
    net = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(), torch.nn.ReLU())
    jitted = jit(net)
    first = jitted(data())
    assert [type(part).__name__ for part in jitted] == ["Linear", "BatchNorm1d", "ReLU"]
    assert jitted[1].num_batches_tracked == 1
    assert torch.equal(jitted(data()), first)
    assert jitted[1].num_batches_tracked == 2
    assert compiler_of(jitted).last is not None
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4))
    method = jit(lazy.forward)
    assert torch.equal(method(data()), method(data()))


def test_compiled_parts_are_captured() -> None:
    # once: KeyError: 'training'
    for as_part in (False, True):
        net = Net()
        compiled: Any = torch.compile(net, backend="eager")
        whole = torch.nn.Sequential(compiled, torch.nn.ReLU()) if as_part else compiled
        jitted = jit(whole)
        first = jitted(data())
        runs = net.runs.value
        assert torch.equal(jitted(data()), first)
        assert net.runs.value == runs
        eager = net(data())
        assert torch.equal(first, eager.relu() if as_part else eager)
        net.eval()
        runs = net.runs.value
        jitted(data())
        assert net.runs.value > runs, "a flag is in the key"


def test_module_compiled_in_place_by_its_original() -> None:
    # once: the original's `compile()` ran, and nothing of this
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    net.compile(backend="eager")
    jitted = jit(net)
    assert torch.equal(jitted(data()), net.forward(data()))
    assert compiler_of(jitted).last is not None


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
def test_scripted_parts_run_in_eager_and_are_named() -> None:
    # once: KeyError: 'training'
    net = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(3, 4)), torch.nn.ReLU())
    expected = net(data())
    with falls_back(r"0 is a scripted Linear, .*use the module that was scripted"):
        assert torch.equal(jit(net)(data()), expected)
    with falls_back(r"is a scripted Sequential"):
        scripted = torch.jit.script(net)
        assert torch.equal(jit(lambda x: scripted(x))(data()), expected)
    with pytest.raises(errors.InvalidInput, match="a scripted Sequential has no Python to capture"):
        jit(scripted)


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
def test_tracing_takes_the_original_and_scripting_refuses() -> None:
    net = torch.nn.Sequential(jit(torch.nn.Linear(3, 4)), torch.nn.ReLU())
    jitted = jit(net)
    expected = jitted(data())
    traced = torch.jit.trace(jitted, data())
    assert torch.equal(traced(data()), expected)
    for whole in (jitted, net, Wrapper(jitted), jit(plain)):
        with pytest.raises(
            (RuntimeError, torch.jit.frontend.FrontendError),
            match=r"switchgear_runtime/jitted\.py|variable number of arguments",
        ):
            torch.jit.script(whole)
    assert "aten::linear" in str(traced.inlined_graph)
    assert torch.equal(torch.jit.trace(jit(plain), data())(data()), data().cos())
    graph = torch.fx.symbolic_trace(lambda x: jit(plain)(x) + 1)
    assert torch.equal(graph(data()), data().cos() + 1)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
def test_exported_modules() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    exported = torch.export.export(net, (data(),)).module()
    jitted = jit(exported)
    assert torch.equal(jitted(data()), net(data()))
    assert torch.equal(copy.deepcopy(jitted)(data()), net(data()))
    assert compiler_of(jitted).last is not None
    with falls_back("argument 0 is a FakeTensor"):
        again = torch.export.export(jit(net), (data(),)).module()
    assert torch.equal(again(data()), net(data()))


def test_functional_call() -> None:
    net = Net()
    jitted = jit(net)
    doubled = {name: value.detach() * 2 for name, value in net.named_parameters()}

    x = data()

    def loss(module: Any) -> Any:
        return lambda parameters: torch.func.functional_call(module, parameters, (x,)).square().sum()

    assert torch.equal(loss(jitted)(doubled), loss(net)(doubled))
    runs = net.runs.value
    assert torch.equal(loss(jitted)(doubled), loss(jitted)(doubled))
    assert net.runs.value == runs
    # once: an AssertionError of FakeTensorMode
    expected = torch.func.grad(loss(net))(doubled)
    with falls_back("belongs to a torch.func transform that is active around the call"):
        actual = torch.func.grad(loss(jitted))(doubled)
    for _ in range(2):
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
        actual = torch.func.grad(loss(jitted))(doubled)
    inside = jit(torch.func.grad(loss(jitted)))(doubled)
    assert all(torch.equal(inside[name], expected[name]) for name in expected)


def test_functional_call_under_a_transform_first() -> None:
    net = Net()
    jitted = jit(net)
    stacked = {name: torch.stack([value.detach()] * 2) for name, value in net.named_parameters()}
    x = data()
    with falls_back("belongs to a torch.func transform"):
        torch.func.vmap(lambda values: torch.func.functional_call(jitted, values, (x,)))(stacked)
    assert is_compiled(jitted, net, data())


NORMS = [
    torch.nn.utils.weight_norm,
    torch.nn.utils.spectral_norm,
    lambda part: prune.l1_unstructured(part, "weight", 0.5),
]


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_that_set_a_weight(norm: Any, when: str) -> None:
    def steps(wrap: Any) -> list[T]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        if when == "before":
            norm(net[0])
        module = wrap(net)
        if when == "after":
            module(data())
            norm(module[0])
        results = []
        for _ in range(3):
            result = module(data())
            result.sum().backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(parameter.grad)
            results += [result.detach(), *[state.detach().clone() for state in module.state_dict().values()]]
        return results

    with fallbacks_recorded():
        actual = steps(jit)
    expected = steps(lambda net: net)
    assert all(map(torch.equal, actual, expected))


def test_types_are_the_originals() -> None:
    """Is for mypy: a function keeps its parameters, a module its class."""
    net = assert_type(sg.jit(Net()), Net)
    assert_type(sg.jit(executors=["torch"])(net), Net)
    assert_type(sg.jit(net.encode)(data(), power=2), T)
    function: Callable[[T], T] = sg.jit(plain, executors=["torch"])
    assert torch.equal(assert_type(function(data()), T), plain(data()))

    class Other(torch.nn.Module):
        @sg.jit(executors=["torch"])
        def encode(self, x: T) -> T:
            return x.sin()

    assert torch.equal(assert_type(Other().encode(data()), T), data().sin())

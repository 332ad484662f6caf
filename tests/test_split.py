"""What capture refuses is taken apart by TorchDynamo, each graph compiled; it leaves alone what is jitted."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from switchgear.errors import DataDependent, FallbackWarning, Unsupported
from switchgear_dynamo import dynamo_backend
from switchgear_dynamo import split as splitting
from switchgear_dynamo.doubts import Doubts
from switchgear_runtime.last_call import compiler_of
from switchgear_tools.explain import explained_split
from tests.falling_back import fallback_told
from tests.python_state.cases import CASES
from tests.python_state.running import examine
from tests.split_programs import PROGRAMS, verdict

#: TorchDynamo reads `.grad` of everything that it wraps.
GRAD = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def split(function: Any, **options: Any) -> Any:
    """The function, split at each branch on data."""
    given: dict[str, Any] = {"specialize_on_data": False, "fallback": "split", **options}
    return sg.jit(function, executors=["torch"], **given)


@contextlib.contextmanager
def says_split(reason: str = "") -> Iterator[None]:
    with fallback_told(rf"is split by TorchDynamo.*{reason}") as caught:
        yield
    assert [warning.category for warning in caught] == [FallbackWarning]


def branch(x: Tensor) -> Tensor:
    y = torch.sin(x @ WEIGHT)
    if y.sum() > 0:
        y = y * 2
    return torch.cos(y)


def broken(x: Tensor) -> Tensor:
    if x.sum() > 100:
        x = x + 1
    torch._dynamo.graph_break()
    return (x @ WEIGHT).tanh()


def drawing(x: Tensor) -> Tensor:
    x = torch.dropout(x, 0.5, True)
    x = x * 2 if x.sum() > 0 else torch.rand_like(x) + x
    return torch.dropout(x @ WEIGHT, 0.5, True)


def drawing_from_numpy(x: Tensor) -> Tensor:
    x = x * 2 if x.sum() > 0 else x
    return x @ WEIGHT * float(numpy.random.rand()) + torch.from_numpy(numpy.random.randint(0, 9, 4))


def hooked(x: Tensor) -> Tensor:
    y = (x @ WEIGHT).sin()
    y.register_hook(lambda grad: grad * 3)
    return y * 2


def hooked_behind_a_branch(x: Tensor) -> Tensor:
    return hooked(x * 2 if x.sum() > 0 else x)


def retaining(x: Tensor) -> Tensor:
    y = (x @ WEIGHT).sin()
    y.retain_grad()
    return y * 2


def regions(x: Tensor) -> Tensor:
    x = x * 2 if x.sum() > 0 else x
    y = checkpoint(lambda x: torch.dropout((x @ WEIGHT).relu(), 0.5, True), x, use_reentrant=False)
    with torch.no_grad():
        z = y.cos()
    return y * z + torch.vmap(torch.sin)(x)  # type: ignore[no-any-return]


def item(x: Tensor) -> Tensor:
    total: float = x.sum().item()
    return x * total + WEIGHT.sum()


def consumed(x: Tensor) -> Tensor:
    return torch.stack([x * factor for factor in (n for n in range(int(x.sum().abs()) % 3 + 1))]).sum(0) @ WEIGHT


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    branch,
    broken,
    drawing,
    retaining,
    regions,
    item,
    consumed,
    drawing_from_numpy,
]


def observed(called: Callable[..., Tensor], *args: Any) -> list[Tensor]:
    """The result, the first and the second derivatives, and the random stream afterwards."""
    torch.manual_seed(3)
    numpy.random.seed(3)
    x = torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()
    result = called(x, *args)
    first = torch.autograd.grad(result.sin().sum(), (x, WEIGHT), create_graph=True)
    second = torch.autograd.grad(torch.cat(first).square().sum(), (x, WEIGHT))
    return [result, *first, *second, torch.get_rng_state()]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_in_eager(function: Callable[[Tensor], Tensor]) -> None:
    jitted, expected = split(function), observed(function)
    with says_split():
        assert_same(observed(jitted), expected)
    assert_same(observed(jitted), expected)
    assert "2 of 2 calls (100%) were split by TorchDynamo:" in str(sg.explain(jitted))


def test_generator_as_an_argument() -> None:
    def function(x: Tensor, factors: Iterator[float]) -> Tensor:
        x = x * next(factors) @ WEIGHT
        return x * next(factors)

    jitted, expected = split(function), observed(function, iter([2.0, 3.0]))
    factors = (factor for factor in (2.0, 3.0, 5.0))
    with says_split("generator"):
        assert_same(observed(jitted, factors), expected)
    assert next(factors) == 5


def test_module_in_training() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
            self.calls = 0
            self.seen: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.parts(x)
            self.seen.append(self.calls)
            return self.parts(x * 2 if x.sum() > 0 else x)  # type: ignore[no-any-return]

    def trained(jit: bool) -> Any:
        torch.manual_seed(0)
        model = Counting()
        called = split(model) if jit else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            called(torch.randn(5, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.calls, model.seen, [value.tolist() for value in model.state_dict().values()]

    expected = trained(jit=False)
    with says_split():
        assert trained(jit=True) == expected


def test_sizes_that_change() -> None:
    jitted = split(branch)
    with says_split():
        for rows in (3, 4, 5, 6, 7, 8):
            x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4)
            assert torch.equal(jitted(x), branch(x))
    text = str(sg.explain(jitted).fallbacks())
    assert "TorchDynamo: 4 of 4 graphs compiled" in text  # two for the first sizes, two for any


def test_explain_counts_graphs_and_their_calls() -> None:
    jitted = split(broken)
    with says_split("item|data"):
        jitted(torch.ones(3, 4))
    assert "\nTorchDynamo: 2 of 2 graphs compiled, with 4 of 4 calls (100%)\n" in str(sg.explain(jitted).fallbacks())
    assert "graph break: 1 x Call to `torch._dynamo.graph_break()`" in str(sg.explain(jitted).fallbacks())


def test_a_graph_that_is_refused_runs_as_it_is() -> None:
    jitted = split(hooked_behind_a_branch, specialize_on_data=False)
    expected = observed(hooked_behind_a_branch)
    with says_split():
        assert_same(observed(jitted), expected)
    text = str(sg.explain(jitted).fallbacks())
    assert "TorchDynamo: 1 of 2 graphs compiled, with " in text
    assert "in eager: a graph of" in text


def test_an_error_of_the_user_comes_as_it_is_and_what_was_done_is_done_once() -> None:
    done = []

    def function(x: Tensor) -> Tensor:
        if x.sum() > 0:
            done.append("first")
        torch._dynamo.graph_break()
        done.append("second")
        return x @ torch.ones(7)

    jitted = split(function)
    with says_split(), pytest.raises(RuntimeError, match="size mismatch") as caught:
        jitted(torch.ones(3, 4))
    assert type(caught.value) is RuntimeError
    assert done == ["first", "second"]


def test_eager_and_error() -> None:
    x = torch.ones(3, 4)
    jitted = sg.jit(branch, specialize_on_data=False, executors=["torch"], fallback="eager")
    with fallback_told("runs in eager, not compiled"):
        assert torch.equal(jitted(x), branch(x))
    assert "1 of 1 calls (100%) ran in eager, not compiled:" in str(sg.explain(jitted))
    with pytest.raises(DataDependent):
        sg.jit(branch, specialize_on_data=False, executors=["torch"], fallback="error")(x)
    with pytest.raises(ValueError, match=r"fallback='none' is not one of 'split', 'eager', 'error'"):
        sg.jit(branch, specialize_on_data=False, fallback="none")  # type: ignore[call-overload]


class Subclass(Tensor):
    pass


@pytest.mark.parametrize("argument", [torch.ones(3, 4).to_sparse(), torch.ones(3, 4).as_subclass(Subclass)])
def test_a_call_that_is_refused_for_its_tensors_runs_in_eager(argument: Tensor) -> None:
    jitted = split(lambda x: x + x)
    with fallback_told("runs in eager, not compiled"):
        jitted(argument)
    assert not jitted._switchgear.splits


def test_inside_a_transform_and_around_a_builtin_it_is_eager() -> None:
    x = torch.ones(3, 4)
    jitted = split(hooked)
    with fallback_told("runs in eager, not compiled"):
        torch.func.grad(lambda x: jitted(x).sum())(x)
    jitted = split(torch.Tensor.item)
    with fallback_told("runs in eager, not compiled"):
        assert jitted(x.sum()) == 12


def test_running_statistics_in_a_checkpointed_region() -> None:
    norm = nn.BatchNorm1d(4)

    def function(x: Tensor) -> Tensor:
        x = x * 2 if x.sum() > 0 else x
        y: Tensor = checkpoint(norm, x, use_reentrant=False)
        return y @ WEIGHT

    jitted, x = split(function), torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()
    with says_split():
        found = torch.autograd.grad(jitted(x).sin().sum(), x)
    assert norm.num_batches_tracked == 2
    norm.reset_running_stats()
    assert torch.equal(*found, *torch.autograd.grad(function(x).sin().sum(), x))


@pytest.mark.parametrize("parts", [0.5, 2.0])
def test_calls_without_gradients_run_what_is_faster(parts: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts, in so many seconds, or in one the function itself, which no call with gradients does."""
    split_up, itself = 0, 0

    def run_parts(x: Tensor) -> Tensor:
        nonlocal split_up
        split_up += 1
        return x * 2

    def run_itself(x: Tensor) -> Tensor:
        nonlocal itself
        itself += 1
        return x * 2

    monkeypatch.setattr(splitting, "taken_apart", lambda *_: run_parts)
    clock = types.SimpleNamespace(perf_counter=lambda: split_up * parts + itself)
    monkeypatch.setattr(splitting, "time", clock)
    apart = splitting.Split(run_itself, lambda *_: None, None)  # type: ignore[arg-type]
    with torch.no_grad():
        for _ in range(splitting.WARM + 2 * splitting.TIMED):
            apart.run(torch.ones(2))
    assert apart.ratio == parts
    assert (split_up, itself) == (splitting.WARM + splitting.TIMED, splitting.TIMED)
    assert ("run in eager" in str([*explained_split(apart).lines()])) == (parts > 1)
    with torch.no_grad():
        apart.run(torch.ones(2))
    assert itself == splitting.TIMED + (parts > 1)
    apart.run(torch.ones(2))
    assert itself == splitting.TIMED + (parts > 1)


def test_a_forward_that_is_replaced() -> None:
    model = nn.Linear(4, 4)
    model.forward = branch  # type: ignore[method-assign, assignment]
    jitted, x = split(model), torch.ones(3, 4)
    with says_split():
        assert torch.equal(jitted(x), branch(x))
    model.forward = broken  # type: ignore[method-assign, assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        assert torch.equal(jitted(x), broken(x))


REFUSED = [name for name, case in CASES.items() if case.falls_back]


@pytest.mark.parametrize("name", REFUSED)
def test_python_state(name: str) -> None:
    with sg.defaults(fallback="split"):
        finding = examine(CASES[name])
    assert finding.is_good, f"{finding.outcome.value}: {finding.detail}"


# --- where TorchDynamo is not trusted ---

#: Of programs that were wrong, one of each kind, and how each is run; `python -m tests.split_programs` runs all.
SAMPLE = {
    "grad": "eager",
    "vmap_of_grad": "eager",
    "custom_function_behind_a_registry": "split",
    "helper_is_replaced": "split",
    "subclass_of_int_comes": "split",
    "class_changes": "split",
    "is_compiling": "split",
    "numpy_ufunc": "split",
    "own_random_generators": "eager",
    "defaults_change": "split",
    "code_changes": "split",
    "sizes_change": "split",
}


@GRAD
@pytest.mark.parametrize("name", SAMPLE)
def test_a_program_that_torchdynamo_gets_wrong_alone(name: str) -> None:
    how, why = verdict(name, "print")
    assert how == SAMPLE[name], why


#: Programs that are not split at all, by the reason.
DOUBTED = {
    "version": "_version tells of",
    "is_leaf_of_input_and_result": "is_leaf tells of",
    "grad_fn_name": "grad_fn tells of",
    "base": "_base tells of",
    "output_nr": "output_nr tells of",
    "inplace_versions": "_version tells of",
    "swap": "swap_tensors changes",
    "data_assigned": r"\.data is assigned",
    "weak_reference": "weakref asks how long",
    "getframe": "_getframe looks at frames",
    "forward_mode": "dual_level differentiates forwards",
    "try_attribute": "AttributeError catches",
    "suppressed": "AttributeError catches",
    "str_enum": "Word, a str with operators",
    "float_subclass": "SpecialFloat, a float with operators",
    "own_random_generators": "draws from a random.Random",
    "branch_to_another_function": r"_version .*test|_version .*split_programs.py:\d+",
    "user_compiled_inside": "compiled by torch.compile",
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_torchdynamo_gets_wrong_is_recognised(name: str) -> None:
    made = PROGRAMS[name](print)
    function = made[0] if isinstance(made, tuple) else made
    assert re.search(DOUBTED[name], Doubts(function, (torch.ones(2, 3),)).reason)


def test_nothing_is_held_against_ordinary_programs() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    for function in (branch, broken, drawing_from_numpy, regions, hooked, lambda x: model(x).item()):
        assert not Doubts(function, (torch.ones(3, 4),)).reason


def test_why_a_call_is_not_split_is_told_when_it_becomes_known() -> None:
    def reading(x: Tensor) -> Any:
        return x.sum().item(), x._version

    x = torch.ones(2)
    with fallback_told(r"runs in eager.*not split, because _version tells of .*test_split.py:\d"):
        split(reading)(x)
    helper = {"run": torch.sin}

    def function(x: Tensor) -> Any:
        return x.sum().item(), helper["run"](x)

    jitted = split(function)
    with says_split():
        jitted(x)
    helper["run"] = reading  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        jitted(x)
    with fallback_told(r"function runs in eager.*not split, because _version"):
        assert jitted(x) == (2, (2, 0))


def test_a_function_that_the_user_compiled_runs_compiled() -> None:
    runs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(graph)
            return graph.forward(*args)

        return run

    inner = torch.compile(lambda x: x.sin() * 2, backend=backend)
    jitted = split(lambda x: (x.sum().item(), inner(x)))
    with fallback_told(r"runs in eager.*compiled by torch.compile, which would be taken apart"):
        jitted(torch.ones(2))
    jitted(torch.ones(2))
    assert len(runs) == 2


def test_closures_of_one_factory_are_all_split() -> None:
    def scaled(factor: float) -> Any:
        def function(x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return x * factor if x.sum() > 0 else x

        return split(function)

    jitted = [scaled(float(factor)) for factor in range(10)]
    with fallback_told("is split"):
        assert [one(torch.ones(1)).item() for one in jitted] == [*range(10)]
    splits = [split for one in jitted for split in compiler_of(one).splits.values()]
    assert [len(one.graphs) for one in splits] == [2] * 10


def test_sizes_that_vary_compile_each_graph_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # with a handler, as of TORCH_TRACE, PyTorch reads sources for each symbol inside of the capture, which refuses that
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    model = nn.Linear(4, 4)

    def function(x: Tensor) -> Tensor:
        h = model(x).relu()
        torch._dynamo.graph_break()
        return model(h).sum() if h.sum() > -1 else h  # type: ignore[no-any-return]

    jitted = split(function)
    with says_split():
        for rows in range(3, 13):
            jitted(torch.ones(rows, 4))
    (graphs,) = [one.graphs for one in compiler_of(jitted).splits.values()]
    assert len(graphs) == 6
    assert [len(graph.compiler.cache.reasons) for graph in graphs] == [1] * 6  # type: ignore[attr-defined]


def test_code_that_is_taken_apart_too_often_runs_in_eager_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "_CONVERSIONS", 2)
    state = {"factor": 0.5}

    def function(x: Tensor) -> Any:
        return x.sum().item(), x * state["factor"]

    jitted, x = split(function), torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in range(6):
            state["factor"] = factor + 0.5
            assert torch.equal(jitted(x)[1], x * state["factor"])
    assert re.search(r"function .*test_split.py:\d+\) was taken apart for 2 kinds of calls", caught[-1].message.reason)  # type: ignore[union-attr]
    assert len(caught) == 2
    (parts,) = compiler_of(jitted).splits.values()
    assert len(parts.graphs) == 3  # the sum, and two products


def test_graphs_are_named_by_their_function_and_line() -> None:
    jitted = split(broken)
    with says_split():
        jitted(torch.ones(3, 4))
    line = broken.__code__.co_firstlineno
    text = str(sg.explain(jitted).fallbacks())
    assert f"broken, graph 1 of 2, {__file__}:{line + 1}: a graph of 2 calls" in text
    assert f"broken, graph 2 of 2, {__file__}:{line + 4}: a graph of 2 calls" in text
    (graphs,) = [one.graphs for one in compiler_of(jitted).splits.values()]
    assert graphs[1].compiler.cache._name == f"broken, graph 2, {__file__}:{line + 4}"  # type: ignore[attr-defined]


def test_torchdynamo_says_nothing_of_its_own(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("torch._dynamo")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, caplog.handler])
    line_of = splitting._line_of

    def advising(graph: torch.fx.GraphModule) -> str:
        logging.getLogger("torch._dynamo.symbolic_convert").warning("set torch._dynamo.config.this")
        return line_of(graph)

    monkeypatch.setattr(splitting, "_line_of", advising)
    with says_split():
        split(broken)(torch.ones(3, 4))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    logging.getLogger("torch._dynamo.symbolic_convert").warning("of another's torch.compile")
    assert {record.message for record in caplog.records if record.levelno >= logging.WARNING} == {
        "of another's torch.compile"
    }


# --- the backend ---


@GRAD
@pytest.mark.parametrize("function", [branch, broken, drawing, regions])
def test_backend(function: Callable[[Tensor], Tensor]) -> None:
    options: dict[str, Any] = {"executors": ["torch"]}
    compiled = torch.compile(function, backend=dynamo_backend, options=options)
    expected = observed(function)
    for _ in range(2):
        assert_same(observed(compiled), expected)


def test_backend_for_any_size() -> None:
    compiled = torch.compile(lambda x: (x @ WEIGHT).reshape(-1), backend=dynamo_backend, dynamic=True)
    for rows in (3, 4, 5):
        x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4)
        assert torch.equal(compiled(x), (x @ WEIGHT).reshape(-1))


def test_backend_says_what_it_refuses_and_raises_if_asked() -> None:
    compiled = torch.compile(hooked, backend=dynamo_backend)
    with fallback_told(r"runs in eager.*register_hook"):
        compiled(torch.ones(3, 4))
    compiled = torch.compile(hooked, backend=dynamo_backend, options={"fallback": "error"})
    torch.compiler.reset()
    with pytest.raises(Unsupported, match="register_hook"):
        compiled(torch.ones(3, 4))


# --- TorchDynamo around what is jitted ---


def asserting(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all(), "not finite"
    total = x.sum().item()
    return x / total if total > 1 else x


def asserting_later(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "not positive")
    return x.log()


def test_an_assertion_holds() -> None:
    jitted = split(asserting)
    with fallback_told():
        assert torch.equal(jitted(torch.ones(2)), asserting(torch.ones(2)))
    with pytest.raises(AssertionError, match="not finite"):
        jitted(torch.tensor([1, torch.inf]))


def test_an_assertion_of_a_graph_holds() -> None:
    for jitted in (split(asserting_later, strict=True), torch.compile(asserting_later, backend=dynamo_backend)):
        assert torch.equal(jitted(torch.ones(2)), torch.zeros(2))
        with pytest.raises(RuntimeError, match="not positive"):
            jitted(-torch.ones(2))


def test_a_hook_that_comes_after_the_first_call() -> None:
    class Net(nn.Module):
        """Reads data."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, float]:
            y = self.body(x)
            return y * 2, y.mean().item()

    net, x, seen = Net(), torch.ones(1, 2), list[Tensor]()
    jitted = split(net)
    with fallback_told():
        jitted(x)

    def hook(module: nn.Module, args: object, result: Tensor) -> Tensor:
        seen.append(result)
        return result * 3

    net.body.register_forward_hook(hook)
    assert torch.equal(jitted(x)[0], net(x)[0])
    assert len(seen) == 2


def test_a_hook_of_all_modules_that_comes_after_the_first_call() -> None:
    body, x, seen = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True), list[str]()

    def function(x: Tensor) -> Any:
        y = body(x)
        return y * 2 if y.sum().item() > 100 else body(y)

    jitted = split(function)
    with says_split():
        jitted(x)
    expected = function(x)
    for register, calls in (
        (nn.modules.module.register_module_forward_pre_hook, 2),
        (nn.modules.module.register_module_forward_hook, 2),
        (nn.modules.module.register_module_full_backward_hook, 2),
    ):
        seen.clear()
        handle = register(lambda module, *_: seen.append(type(module).__name__))
        jitted(x).sum().backward()
        handle.remove()
        assert seen == ["Linear"] * calls
    assert torch.equal(jitted(x), expected)
    assert seen == ["Linear"] * 2


@GRAD
def test_gradients_that_a_function_writes() -> None:
    model = nn.Linear(3, 2)

    def projected(x: Tensor) -> None:
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(model(x).sum(), [*model.parameters()]), strict=True
        ):
            parameter.grad = gradient * 2

    def anew(x: Tensor) -> Tensor:
        for parameter in model.parameters():
            parameter.grad = None
        result: Tensor = model(x).sum()
        return result

    x = torch.ones(4, 3)
    with says_split("the function writes to .grad of a tensor"):
        split(projected)(x)
    assert [parameter.grad is not None and parameter.grad.sum().item() for parameter in model.parameters()] == [48, 16]
    jitted = split(anew)
    with says_split("the function writes to .grad of a tensor"):
        for _ in range(3):
            jitted(x).backward()
            found = [parameter.grad for parameter in model.parameters()]
            assert [grad is not None and grad.sum().item() for grad in found] == [24, 8]


@GRAD
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_steps_as_in_eager(kind: type[torch.optim.Optimizer]) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 4))
        step = wrap(optimizer.step)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().mean().backward()
            step()
            schedule.step()
        return [parameter.detach() for parameter in model.parameters()]

    with says_split("reads .grad"):
        found = trained(split)
    assert all(map(torch.equal, found, trained(lambda step: step)))


def test_integers_that_graphs_are_given() -> None:
    class Counted:
        steps = 0

        def loss(self, x: Tensor) -> Tensor:
            self.steps += 1
            return (x @ WEIGHT).sum() * self.steps

    def function(x: Tensor, loss: Any) -> Tensor:
        result: Tensor = loss(x)
        return result

    counted, jitted = Counted(), split(function)
    counted.steps = 2
    x = torch.ones(2, 4)
    with says_split("is a builtins.method"):
        for step in range(3, 20):
            assert torch.equal(jitted(x, counted.loss), (x @ WEIGHT).sum() * step)
    (graphs,) = [one.graphs for one in compiler_of(jitted).splits.values()]
    assert all(len(graph.compiler.cache.reasons) <= 2 for graph in graphs)  # type: ignore[attr-defined]


@GRAD
def test_what_is_jitted_is_opaque() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    function, module = sg.jit(torch.sin, executors=["torch"]), sg.jit(model, executors=["torch"])
    method = sg.jit(model.forward, executors=["torch"])
    gradient = sg.grad(lambda x: x.sin().sum(), executors=["torch"])
    frames: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        frames.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call_"))
        return graph.forward

    def around(x: Tensor) -> Tensor:
        y = function(x) + module(x) + module.forward(x) + method(x) + gradient(x)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return grad.sum()

    x = torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()
    expected = torch.autograd.grad(around(x), x)
    assert torch.equal(*expected, *torch.autograd.grad(torch.compile(around, backend=backend)(x), x))
    assert all("add" in frame or "sum" in frame or "grad" in frame for frame in frames), frames


def test_what_is_jitted_inside_is_split_as_it_is_outside() -> None:
    jitted, x = split(branch), torch.ones(3, 4)
    with says_split():
        found = torch.compile(lambda x: jitted(x) + 1, backend="eager")(x)
    assert torch.equal(found, branch(x) + 1)
    assert "TorchDynamo: 2 of 2 graphs compiled" in str(sg.explain(jitted).fallbacks())


def test_dynamo_is_not_imported_with_the_package() -> None:
    code = "import sys, switchgear; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Every kind of bad input has a typed error that says what to do, and leaves nothing behind."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from switchgear import errors
from switchgear_core.record.signature import flatten_arguments
from switchgear_core.registry import plugins
from switchgear_runtime import compiler
from tests.core.made_up import Site
from tests.databases.verdict import global_state
from tests.falling_back import falls_back


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before, streams = global_state(), torch.get_rng_state()
    yield
    assert global_state() == before
    assert torch.equal(torch.get_rng_state(), streams)


def numbers() -> torch.Tensor:
    """A tensor made without touching the random stream."""
    return torch.linspace(-1, 2, 3)


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


class Unavailable(sg.Executor):
    """An executor whose device is not there."""

    def unavailable(self) -> str | None:
        return "no such device in this machine"


# --- the options of jit ---


def test_unknown_executor_lists_the_known_ones() -> None:
    with pytest.raises(errors.UnknownExecutor, match=r"torhc.*did you mean 'torch'.*installed: torch"):
        sg.jit(double, executors=["torhc"])


def test_unknown_executor_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="nobody"):
        sg.jit(double, executors=["nobody"])


def test_unknown_option_names_the_known_ones() -> None:
    misspelled: dict[str, Any] = {"executor": ["torch"]}
    with pytest.raises(TypeError, match="no option executor; did you mean 'executors'"):
        sg.jit(double, **misspelled)


def test_jit_of_something_that_cannot_be_called() -> None:
    number: Any = 3
    with pytest.raises(TypeError, match="function or a module, not a int"):
        sg.jit(number)


def test_unavailable_executor_is_skipped_with_one_warning_and_the_reason_in_every_choice() -> None:
    with pytest.warns(errors.PluginWarning, match=r"distant.*no such device") as caught:
        jitted = sg.jit(double, executors=[Unavailable("distant"), "torch"])
    assert len(caught) == 1
    x = numbers().requires_grad_()
    assert torch.equal(jitted(x), double(x))
    choices = sg.last_choices(jitted)
    assert choices
    for choice in choices:
        assert any("distant" in who and "no such device" in why for who, why in choice.declined), choice


def test_unavailable_executor_is_an_error_under_strict() -> None:
    with pytest.raises(errors.ExecutorUnavailable, match=r"distant.*no such device"):
        sg.jit(double, executors=[Unavailable("distant"), "torch"], strict=True)


# --- what goes in and comes out ---


class Opaque:
    """An object that no pytree knows."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Subclass(torch.Tensor):
    """A tensor with behaviour of its own."""


def returns_generator(x: torch.Tensor) -> Any:
    return (x * index for index in range(3))


def returns_opaque(x: torch.Tensor) -> Any:
    return Opaque(x * 2)


def returns_nested_opaque(x: torch.Tensor) -> Any:
    return {"a": x * 2, "b": [Opaque(x)]}


def test_a_generator_as_return_value() -> None:
    x = numbers().requires_grad_()
    with falls_back("generator.*return a list"):
        sg.jit(returns_generator, executors=["torch"])(x)
    assert x.grad is None


def test_objects_that_no_pytree_knows_are_returned() -> None:
    x = numbers()
    jitted, nested = (sg.jit(f, executors=["torch"], fallback="error") for f in (returns_opaque, returns_nested_opaque))
    for _ in range(2):
        result, (inner,) = jitted(x), nested(x)["b"]
        assert type(result) is type(inner) is Opaque
        assert torch.equal(result.tensor, x * 2)
        assert inner.tensor is x


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ((index for index in range(3)), "generator"),
        (torch.ones(3).as_subclass(Subclass), "Subclass.*subclass"),
        (torch.ones(3).to_sparse(), "sparse"),
        (torch.ones(3, device="meta"), "cpu.*meta.*move"),
    ],
    ids=["generator", "subclass", "sparse", "mixed devices"],
)
def test_argument_that_is_refused(argument: Any, message: str) -> None:
    jitted = sg.jit(lambda x, more: torch.sin(x), executors=["torch"])
    x = numbers()
    with falls_back(message):
        assert torch.equal(jitted(x, argument), torch.sin(x))
    assert torch.equal(jitted(x, None), torch.sin(x))  # the same function goes on working


@pytest.mark.parametrize("number", [np.float32(3.5), np.int64(3), np.float64(3.5)])
def test_numbers_of_numpy_stay_what_they_are(number: Any) -> None:
    def function(x: torch.Tensor, n: Any) -> Any:
        return x * n, n.astype("int32")

    jitted = sg.jit(function, executors=["torch"])
    with falls_back(r"\.item\(\)|returns a numpy.int32"):
        (scaled, found), expected = jitted(numbers(), number), function(numbers(), number)
    assert torch.equal(scaled, expected[0])
    assert (type(found), found) == (np.int32, 3)


def test_closed_over_tensor_subclass_is_refused() -> None:
    held = torch.ones(3).as_subclass(Subclass)
    with falls_back("Subclass"):
        sg.jit(lambda x: x + held, executors=["torch"])(numbers())


def item(x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def data_dependent_shape(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@pytest.mark.parametrize("function", [item, data_dependent_shape])
def test_data_dependence_names_the_line(function: Any) -> None:
    line = function.__code__.co_firstlineno + 1
    with falls_back(rf"test_bad_input\.py:{line}", "DataDependent"):
        sg.jit(function, executors=["torch"])(numbers())


def test_the_users_own_exception_comes_through_unchanged() -> None:
    class Mine(Exception):
        pass

    mine = Mine("as raised")

    def fails(x: torch.Tensor) -> torch.Tensor:
        torch.sin(x)
        raise mine

    with pytest.raises(Mine) as caught:
        sg.jit(fails, executors=["torch"])(numbers())
    assert caught.value is mine
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails"


def test_a_failed_capture_leaves_the_module_as_it_was() -> None:
    class Fails(torch.nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            normalised = super().forward(input)
            return normalised * normalised.sum().item()

    module = Fails(4)
    before = {name: value.clone() for name, value in module.state_dict(keep_vars=True).items()}
    held = dict(module.state_dict(keep_vars=True))
    with pytest.raises(errors.DataDependent):
        sg.jit(module, executors=["torch"], strict=True)(torch.arange(20.0).view(5, 4))
    for name, value in module.state_dict(keep_vars=True).items():
        assert value is held[name]
        assert torch.equal(value, before[name])


# --- plugins that misbehave ---


def table_whose(*, rule: Any = None, checker: Any = None, implementation: bool = False) -> sg.Table:
    """A table for `torch.sin` of an executor called faulty."""
    table = sg.Table("faulty")
    if implementation:
        table.implementation(torch.sin, checker=checker)(lambda x: torch.sin(x))
    else:
        table.grad_rule(torch.sin, checker=checker)(rule)
    return table


def raises(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("the plugin's own bug")


def correct(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda gradient: gradient * torch.cos(x)


def no_pair(x: torch.Tensor) -> Any:
    return torch.sin(x)


def wrong_shape(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda gradient: gradient.sum()


def wrong_dtype(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda gradient: gradient.double()


def too_many(x: torch.Tensor) -> Any:
    return torch.sin(x), lambda gradient: (gradient, gradient)


def raising_pullback(x: torch.Tensor) -> Any:
    return torch.sin(x), raises


@pytest.mark.parametrize(
    "table",
    [
        table_whose(rule=raises),
        table_whose(rule=raising_pullback),
        table_whose(rule=no_pair),
        table_whose(rule=wrong_shape),
        table_whose(rule=wrong_dtype),
        table_whose(rule=too_many),
        table_whose(rule=correct, checker=raises),
        table_whose(rule=correct, checker=lambda bound_symbol: None),
        table_whose(implementation=True, checker=raises),
    ],
    ids=[
        "rule raises",
        "pullback raises",
        "rule returns no pair",
        "gradient of a wrong shape",
        "gradient of a wrong dtype",
        "too many gradients",
        "checker of the rule raises",
        "checker of the rule says nothing",
        "checker of the implementation raises",
    ],
)
def test_faulty_plugin_is_named_with_operator_and_line(table: sg.Table) -> None:
    executor = sg.Executor("faulty", version="1.2", table=table)
    x = numbers().requires_grad_()
    line = double.__code__.co_firstlineno + 1
    with pytest.raises(errors.RuleError, match="faulty") as caught:
        sg.jit(double, executors=[executor, "torch"])(x)
    message = str(caught.value)
    assert "torch.sin" in message
    assert f"test_bad_input.py:{line}" in message
    assert torch.equal(sg.jit(double, executors=["torch"])(x), double(x))


def test_faulty_rule_passed_to_the_call_is_named_too() -> None:
    with pytest.raises(errors.RuleError, match=r"raises \(tests\.test_bad_input.*torch\.sin.*test_bad_input\.py"):
        sg.jit(double, executors=["torch"], grad_rules=table_whose(rule=raises))(numbers().requires_grad_())


def test_implementation_that_raises_when_run() -> None:
    table = sg.Table("faulty")
    table.implementation(torch.sin)(raises)
    jitted = sg.jit(double, executors=[sg.Executor("faulty", table=table), "torch"])
    with pytest.raises(errors.ExecutorFailed, match=r"faulty.*torch\.sin") as caught:
        jitted(numbers())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_plugin_that_fails_to_import_is_one_warning_and_a_line_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    shipped = [found for found in entry_points(group="switchgear") if found.name == "torch"]
    broken = Site(tmp_path).add("broken", "import a_module_that_nobody_has")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [broken, *shipped])
    plugins.loaded_once.cache_clear()
    try:
        with pytest.warns(errors.PluginWarning, match=r"broken.*a_module_that_nobody_has") as caught:
            report = {status.name: status for status in sg.plugin_report()}
        assert len(caught) == 1
        assert report["broken"].status == "failed"
        assert "a_module_that_nobody_has" in report["broken"].error
        assert report["torch"].status == "loaded"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(sg.jit(double)(torch.ones(3)), double(torch.ones(3)))
        with pytest.raises(errors.UnknownExecutor, match=r"broken has failed"):
            sg.jit(double, executors=["broken"])
    finally:
        plugins.loaded_once.cache_clear()


# --- functions that fail, or fall back, in eager's own way ---

FALLBACKS = pytest.mark.parametrize("fallback", ["split", "eager"])


def mismatched(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y @ torch.ones(7)


def missing_argument(x: torch.Tensor) -> Any:
    return torch.cat()  # type: ignore[call-arg]


def out_of_range(x: torch.Tensor) -> torch.Tensor:
    return x[5]


def total(x: torch.Tensor) -> float:
    return float(x.detach().numpy().sum())


def refused_and_raising(x: torch.Tensor) -> torch.Tensor:
    x.detach().numpy()
    raise KeyError("the function's own")


@FALLBACKS
@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
@pytest.mark.parametrize("function", [mismatched, missing_argument, out_of_range, refused_and_raising])
def test_what_raises_in_eager_raises_eagers_error_from_the_line_where_eager_does(function: Any, fallback: Any) -> None:
    jitted = sg.jit(function, executors=["torch"], fallback=fallback)
    with pytest.raises((RuntimeError, TypeError, IndexError, KeyError)) as expected:
        function(numbers())
    for _ in range(2):
        with pytest.raises(expected.type) as caught:
            jitted(numbers())
        assert str(caught.value) == str(expected.value)
        assert caught.value.__context__ is None
        place = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (place.filename, place.lineno) == (__file__, expected.traceback[-1].lineno + 1)


@FALLBACKS
def test_what_raises_in_eager_has_done_in_eager_what_came_before(fallback: Any) -> None:
    counts, x, twin = {"calls": 0}, numbers(), numbers()

    def function(x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        x.mul_(2)
        return x @ torch.ones(7)

    jitted = sg.jit(function, executors=["torch"], fallback=fallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)
        for called, argument in ((jitted, x), (function, twin)):
            with pytest.raises(RuntimeError, match="size"):
                called(argument)
    assert counts == {"calls": 2}
    assert torch.equal(x, twin)


@FALLBACKS
def test_a_generator_function_gives_a_generator(fallback: Any) -> None:
    def powers(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x
        yield x * x
        raise KeyError("at the third")

    jitted = sg.jit(powers, executors=["torch"], fallback=fallback)
    with falls_back("generator.*return a list"):
        results: Any = jitted(numbers())
    assert torch.equal(next(results), numbers())
    assert torch.equal(next(results), numbers().square())
    with pytest.raises(KeyError, match="at the third") as caught:
        next(results)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "powers"


@FALLBACKS
@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_a_fallback_inside_a_fallback(fallback: Any) -> None:
    """Each is named once; an error of the inner one comes through both."""
    inside = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        inside.append(len(x))
        if len(x) == 2:
            raise KeyError("the inner one's own")
        return x * total(x)

    jitted_inner = sg.jit(inner, executors=["torch"], fallback=fallback)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return jitted_inner(x).cos() + total(x)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return (x * total(x)).cos() + total(x)

    jitted = sg.jit(outer, executors=["torch"], fallback=fallback)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(jitted(numbers()), plain(numbers()))
    named = [str(warning.message) for warning in caught if warning.category is errors.FallbackWarning]
    assert sorted(message.partition(" ")[0].rpartition(".")[2] for message in named) == ["inner", "outer"]
    assert inside == [3, 3, 3]
    with pytest.raises(KeyError, match="the inner one's own") as raised:
        jitted(numbers()[:2])
    assert inside == [3, 3, 3, 2]
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "inner"


@pytest.mark.parametrize("inside", ["plain", "checkpoint", "vmap"])
def test_kernel_of_jiterator(inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be launched on what stands for tensors, where there is no memory."""
    launched: list[torch.Tensor] = []

    def launch(code: str, name: str, by_reference: bool, outputs: int, tensors: Any, options: Any) -> torch.Tensor:
        launched.extend(tensors)
        return tensors[0] * 2  # type: ignore[no-any-return]

    monkeypatch.setattr(torch._C, "_cuda_jiterator_compile_and_launch_kernel", launch, raising=False)
    kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x * 2; }")
    monkeypatch.setattr(kernel, "is_cuda_available", True)

    def function(x: torch.Tensor) -> Any:
        if inside == "vmap":
            return torch.func.vmap(kernel)(x)
        return kernel(x) if inside == "plain" else checkpoint(kernel, x, use_reentrant=False)

    x = torch.ones(3, requires_grad=True)
    with falls_back("torch.cuda.jiterator"):
        found = sg.jit(function, executors=["torch"])(x)
    assert torch.equal(found, torch.full((3,), 2.0))
    assert len(launched) == 1


def test_a_call_like_the_one_that_fell_back_is_not_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[object] = []
    original = flatten_arguments

    def counting(*args: Any) -> Any:
        described.append(args)
        return original(*args)

    monkeypatch.setattr(compiler, "flatten_arguments", counting)
    wide = [*range(100)]  # is compared by identity

    def function(x: Tensor, batch: dict[str, Any], factor: float, numbers: list[int]) -> Tensor:
        return x * float(batch["y"].numpy().sum()) * factor + numbers[1]

    jitted = sg.jit(function, executors=["torch"])
    with falls_back("numpy"):
        jitted(torch.ones(2), {"y": torch.ones(3)}, 0.5, wide)
    for _ in range(200):
        assert torch.equal(jitted(torch.ones(2), {"y": torch.ones(3)}, 0.5, wide), torch.full((2,), 2.5))
    assert len(described) < 8  # some, for what stood in the way may have gone
    few = len(described)
    assert torch.equal(jitted(torch.ones(3), {"y": torch.ones(3)}, 0.5, wide), torch.full((3,), 2.5))
    assert torch.equal(jitted(torch.ones(3), {"y": torch.ones(4)}, 0.5, wide), torch.full((3,), 3.0))
    assert len(described) == few + 2
    assert "203 calls" in str(sg.explain(jitted))

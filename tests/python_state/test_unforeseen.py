"""Code that nothing named beforehand: the call runs in eager; what is found by computed names is guarded."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import operator
import pdb
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.falling_back import falls_back

FACTOR = 2
FACTORS = [2]
SETTINGS = SimpleNamespace(factor=1.0)
HERE = sys.modules[__name__]


def _scale_by_number(x: Tensor) -> Tensor:
    return x * FACTOR


def _scale_by_list(x: Tensor) -> Tensor:
    return x * FACTORS[0]


def _scale_and_count(x: Tensor) -> Tensor:
    global FACTOR
    FACTOR += 1
    return x * FACTOR


def _shared(factors: list[int]) -> Callable[[Tensor], Tensor]:
    def _scale(x: Tensor) -> Tensor:
        return x * factors[0]

    return _scale


_scale_by_shared_list = _shared(FACTORS)


class Scaling:
    """Its methods are reached by nobody's name for them."""

    def __init__(self) -> None:
        self.factor = FACTOR

    def __str__(self) -> str:
        return str(FACTOR)

    def again(self) -> Any:
        return type(self)()


THE_ONE = Scaling()
KINDS: dict[str, Any] = {"scaling": Scaling}


def _computed(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(HERE, "_scale" + kind)(x)


def _assigned() -> nn.Module:
    module = nn.Sequential(nn.Identity())
    module[0].forward = _scale_by_number
    return module


class Factor(torch.autograd.Function):
    """Its gradient has a factor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        scaled: Tensor = _scale_by_number(grad) * SETTINGS.factor
        return scaled


SEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a function that is mapped": torch.func.vmap(_scale_by_number),
    "a function that is differentiated": sg.grad(lambda x: _scale_by_number(x).sum()),
    "a forward that was assigned": _assigned(),
    "a function by a computed name": _computed("_by_number"),
    "a function of what is loaded": lambda x: getattr(sys.modules[__name__], "_scale" + "_by_number")(x),
    "what shows an object": lambda x: x * float(str(THE_ONE)),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_it_reads_is_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, jitted = torch.ones(2), sg.jit(SEEN[name], executors=["torch"])
    assert torch.equal(jitted(x), 2 * x)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert torch.equal(jitted(x), 5 * x)
    assert sg.cache_info(jitted).entries == 2


def test_what_a_backward_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(lambda x: Factor.apply(x), executors=["torch"])  # type: ignore[no-untyped-call]
    for factor, other in ((2, 1.0), (5, 1.0), (3, 1.0), (5, 1.0), (5, 0.5)):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        monkeypatch.setattr(SETTINGS, "factor", other)
        x = torch.ones(2, requires_grad=True)
        jitted(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, factor * other))
    assert sg.cache_info(jitted).entries == 4


def _deco(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def wrapper(x: Tensor) -> Tensor:
        return function(x)

    return wrapper


_decorated = _deco(lambda x: x * FACTORS[0])
_aliased: Callable[[Tensor], Tensor] = lambda x: x * FACTORS[0]  # noqa: E731
HELPERS: dict[str, Callable[[Tensor], Tensor]] = {"scale": lambda x: x * FACTORS[0]}


class ByDecorated(Factor):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _decorated(grad)


class ByAlias(Factor):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _aliased(grad)


class ByDict(Factor):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return HELPERS["scale"](grad)


@pytest.mark.parametrize("kind", [ByDecorated, ByAlias, ByDict])
def test_what_helpers_of_a_backward_read_is_guarded(kind: type[Factor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers that go by other names than those of their code."""
    jitted = sg.jit(lambda x: kind.apply(x), executors=["torch"])  # type: ignore[no-untyped-call]
    for factor in (2, 5):
        monkeypatch.setitem(globals(), "FACTORS", [factor])
        x = torch.ones(2, requires_grad=True)
        jitted(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, factor))


def _loaded(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(sys.modules[__name__], "_scale" + kind)(x)


UNFORESEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "by a list": _loaded("_by_list"),
    "by a shared list": _loaded("_by_shared_list"),
    "and count": _loaded("_and_count"),
    "a class out of a dict": lambda x: x * KINDS["scaling"]().factor,
    "the class of an object": lambda x: x * THE_ONE.again().factor,
}


@pytest.mark.parametrize("name", UNFORESEEN)
def test_what_nothing_named_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(UNFORESEEN[name], executors=["torch"])
    for factor in (2, 5):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        expected = UNFORESEEN[name](torch.ones(2))
        monkeypatch.setitem(globals(), "FACTOR", factor)
        with falls_back("ran though nothing named it") if factor == 2 else contextlib.nullcontext():
            assert torch.equal(jitted(torch.ones(2)), expected)
    assert not sg.cache_info(jitted).entries


def test_a_function_that_catches_what_is_refused() -> None:
    """What is refused when code starts is raised where the function may catch it: it falls back all the same."""
    numbers = iter(range(100))

    def following() -> int:
        return next(numbers)

    def function(x: Tensor) -> Tensor:
        try:
            return x * following()
        except sg.errors.SwitchgearError:
            return x * 1000

    jitted, x = sg.jit(function, executors=["torch"]), torch.ones(2)
    with falls_back("numbers, a range_iterator"):
        assert torch.equal(jitted(x), 0 * x)
    assert torch.equal(jitted(x), x)


def test_with_a_debugger_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees what it would without us, stays where it was, and what code reads is guarded."""
    started: list[str] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        started.append(frame.f_code.co_name)
        if frame.f_code is _scale_by_number.__code__:
            sys.settrace(trace)  # as one does that puts itself there for the calls that follow

    jitted, x = sg.jit(SEEN["a function by a computed name"], executors=["torch"]), torch.ones(2)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        first = jitted(x)
        monkeypatch.setitem(globals(), "FACTOR", 5)
        second = jitted(x)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, 5 * x)
    assert started.count("_scale_by_number") == 2


def _stops(x: Tensor) -> Tensor:
    double = x * 2
    breakpoint()
    return double.sum()


def _stops_by_pdb(x: Tensor) -> Tensor:
    double = x * 2
    pdb.Pdb().set_trace()
    return double.sum()


@pytest.mark.parametrize("function", [_stops, _stops_by_pdb])
def test_a_debugger_stops_in_the_users_function(
    function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda: pdb.Pdb().set_trace(sys._getframe(1)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("p double\nc\n"))
    with falls_back("starts a debugger"):
        assert sg.jit(function, fallback="split")(torch.ones(3)) == 6
    assert capsys.readouterr().out.count("tensor([2., 2., 2.])") == 1


def test_a_function_sees_no_trace_but_the_users() -> None:
    def function(x: Tensor) -> Tensor:
        return x * (sys.gettrace() is None)

    x = torch.ones(2)
    assert torch.equal(sg.jit(function, executors=["torch"], strict=True)(x), function(x))


class Totals:
    """Its attributes are found by names that are computed, before code names them."""

    hits = 0
    seen: ClassVar[list[float]] = []


def _count() -> None:
    for name in ("hi" + "ts",):
        setattr(Totals, name, getattr(Totals, name) + 1)
    for value in vars(Totals).values():
        if isinstance(value, list):
            value.append(1.0)


def _total(x: Tensor) -> Tensor:
    return x * Totals.hits + sum(Totals.seen)


def test_attributes_of_classes_by_computed_names_before_others_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        _count()
        return _total(x)

    jitted, x, found = sg.jit(function, executors=["torch"]), torch.ones(2), []
    for one in (jitted, function):
        monkeypatch.setattr(Totals, "hits", 0)
        monkeypatch.setattr(Totals, "seen", [])
        found.append(([float(one(x)[0]) for _ in range(3)], Totals.hits, Totals.seen))
    assert found[0] == found[1]


CALLS: list[int] = []


def _ended() -> None:
    CALLS.append(1)


def _to_the_end_of_the_stack(depth: int = 0) -> int:
    try:
        return _to_the_end_of_the_stack(depth + 1)
    except RecursionError:
        return FACTOR


def test_what_a_function_does_at_its_end_when_it_was_refused() -> None:
    numbers = iter(range(9))

    def following() -> int:
        return next(numbers)

    def function(x: Tensor) -> Tensor:
        try:
            return x * following()
        finally:
            _ended()

    CALLS.clear()
    with falls_back("numbers, a range_iterator"):
        sg.jit(function, executors=["torch"])(torch.ones(2))
    assert CALLS == [1]


def _in_a_thread(x: Tensor) -> Tensor:
    thread = threading.Thread(target=_ended)
    thread.start()
    thread.join()
    return x * len(CALLS)


def _by_its_defaults(x: Tensor) -> Tensor:
    assert _shared.__defaults__ is None
    return x


#: Later, `sys.monitoring` tells which code starts, which does not end with the stack.
BY_TRACE = pytest.mark.skipif(sys.version_info >= (3, 12), reason="a profile function tells it on Python 3.11 alone")


def _untraced(x: Tensor) -> Tensor:
    sys.settrace(None)
    return x * _scale_by_number(x)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_in_a_thread, "starts a thread"),
        (_by_its_defaults, "__defaults__"),
        (_untraced, "sets a trace"),
        pytest.param(lambda x: x * _to_the_end_of_the_stack(), "stack had ended", marks=BY_TRACE),
    ],
)
def test_ways_around_what_tells_that_code_starts_are_refused(function: Callable[[Tensor], Tensor], why: str) -> None:
    CALLS.clear()
    with falls_back(why):
        sg.jit(function, executors=["torch"])(torch.ones(2))
    assert len(CALLS) == (function is _in_a_thread)


NAME = "FACTOR"
VARIABLES: dict[str, Callable[[Tensor], Tensor]] = {
    "getattr": lambda x: x * getattr(HERE, NAME),
    "attrgetter": lambda x: x * operator.attrgetter(NAME)(HERE),
    "vars": lambda x: x * vars(HERE)[NAME],
    "__dict__": lambda x: x * HERE.__dict__[NAME],
    "getmembers": lambda x: x * dict(inspect.getmembers(HERE))[NAME],
    "import_module": lambda x: x * getattr(importlib.import_module(__name__), NAME),
    "a list": lambda x: x * getattr(HERE, "_scale" + "_by_list")(torch.ones(())),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_modules_by_names_that_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, jitted = torch.ones(2), sg.jit(VARIABLES[name], executors=["torch"], strict=True)
    for factor in (2, 5):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        monkeypatch.setitem(globals(), "FACTORS", [factor])
        assert torch.equal(jitted(x), factor * x)
    assert type(HERE) is ModuleType


UNKNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "globals": lambda x: x * globals()[NAME],
    "eval": lambda x: x * eval(NAME),
    "sys._getframe": lambda x: x * sys._getframe().f_globals[NAME],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_name_leads_to_falls_back(name: str) -> None:
    with falls_back(name):
        assert torch.equal(sg.jit(UNKNOWN[name], executors=["torch"])(torch.ones(2)), torch.full((2,), FACTOR))


TAGGED = torch.ones(2)
OF_TENSORS: dict[str, Callable[[Any, Tensor], Any]] = {
    "of a parameter": lambda module, x: module(x) * module.weight.rate,
    "of a buffer": lambda module, x: x * module.running_mean.rate,
    "by getattr": lambda module, x: x * getattr(module.weight, "rate", 1.0),
    "of all parameters": lambda module, x: x * sum(getattr(one, "rate", 1.0) for one in module.parameters()),
    "whether it is there": lambda module, x: x * (2.0 if hasattr(module.weight, "rate") else 1.0),
    "of a global tensor": lambda module, x: x * getattr(TAGGED, "rate", 1.0),
    "in a dict": lambda module, x: x * module.weight.config["rate"],
}


@pytest.mark.parametrize("name", OF_TENSORS)
def test_attributes_that_tensors_were_given(name: str) -> None:
    module, x = nn.BatchNorm1d(2).eval(), torch.ones(3, 2)
    assert isinstance(module.running_mean, Tensor)
    tensors = module.weight, module.running_mean, TAGGED

    def function(x: Tensor) -> Any:
        return OF_TENSORS[name](module, x)

    jitted = sg.jit(function, executors=["torch"], strict=True)
    settings = [{"rate": 2.0}, {}, {"rate": 5.0}, {"rate": 2.0}]
    for given in settings if "get" in name or "all" in name or "there" in name else settings[::2]:
        for one in tensors:
            vars(one).clear()
            vars(one).update(given)
        vars(module.weight)["config"] = {**given}
        assert torch.equal(jitted(x), function(x))


def test_an_attribute_that_a_parameter_is_given_is_given_in_every_call() -> None:
    module = nn.Linear(2, 2)

    def function(x: Tensor) -> Tensor:
        module.weight.calls = getattr(module.weight, "calls", 0) + 1  # type: ignore[attr-defined]
        return module(x)  # type: ignore[no-any-return]

    jitted = sg.jit(function, executors=["torch"])
    for calls in (1, 2, 3, 4):
        jitted(torch.ones(1, 2))
        assert module.weight.calls == calls  # type: ignore[attr-defined]


def test_an_attribute_of_a_tensor_that_is_made_inside_is_not_lost_by_its_name() -> None:
    def function(x: Tensor) -> Tensor:
        doubled = x * 2
        doubled._rate = 3  # type: ignore[attr-defined]
        torch._dynamo.mark_static_address(doubled)
        return doubled

    with falls_back("attribute, _rate"):
        result: Any = sg.jit(function, executors=["torch"])(torch.ones(2))
    assert result._rate == 3


class Cached:
    @functools.cached_property
    def rate(self) -> float:
        return 3.0


def test_the_standard_library_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that keeps a copy of one of its modules in `sys.modules` makes that none of the user's."""
    copy = ModuleType("vendored_functools")
    copy.__file__ = functools.__file__
    monkeypatch.setitem(sys.modules, copy.__name__, copy)

    def function(x: Tensor) -> Tensor:
        return x * Cached().rate

    assert sg.jit(function, executors=["torch"], strict=True)(torch.ones(2)).sum() == 6

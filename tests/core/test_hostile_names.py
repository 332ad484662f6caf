"""Text of users in generated source: 50 hostile strings in each of 24 places run nothing, and change no result."""

from __future__ import annotations

import builtins
import enum
import io
import logging
import tokenize
import types
from collections import namedtuple
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import switchgear as sg
from switchgear.errors import InvalidTrace
from switchgear_core.ir import trace as traces
from switchgear_core.ir.verify import verify
from switchgear_core.source_text import is_name, with_comment

T = torch.Tensor
_CODE = "run_sentinel()"
_BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x00", "\\\n"]
NAMES = [
    *[f"a{end}    {_CODE}{end}    #" for end in _BREAKS],
    *[f"a{end}{_CODE}" for end in ("\n", "\r", "\x0c", "\u2028")],
    *[f"{quote} + {_CODE} + {quote}" for quote in ("'", '"', "'''", '"""', "\\'", '\\"')],
    *[f"]{_CODE}", f"){_CODE}", f"}}{_CODE}{{", f"{{{_CODE}}}", "{0}", "{", "%s", f"; {_CODE}", f"# {_CODE}", "\\"],
    # keywords, names that generated source has, names that Python normalises or knows otherwise
    *["class", "None", "__debug__", "__class_", "args", "inputs", "miss", "v0", "a0", "t0", "computation", "getattr"],
    *["\ufb01", "fi", "\ud800", "\U0001f600", "n" * 500],
]


class Odd(str):
    """A string whose methods give code."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _CODE

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return _CODE


def tensors(names: Sequence[str]) -> dict[str, T]:
    return {name: torch.full((3,), float(number)) for number, name in enumerate(names, 1)}


def named(name: str, scope: dict[str, Any], file: str = "", text: str = "def f(x): return torch.sin(x) * 1.5") -> Any:
    """A function of this name, from a file of this name."""
    exec(compile(text, "file", "exec"), scope)
    function = scope.pop("f")
    code = function.__code__.replace(co_filename=file or "file", co_name=name, co_qualname=name)
    made = types.FunctionType(code, scope, name)
    made.__qualname__ = made.__name__ = name
    return made


def total(values: Any) -> T:
    result: T = sum(values, torch.zeros(3))
    return result


def of_a_class(name: str) -> str:
    """The name without what Python takes in no name of a class."""
    return name.encode(errors="replace").decode().replace("\0", "")


class Holder(nn.Module):
    """Calls its parts, and adds its parameters and buffers."""

    def forward(self, x: T) -> T:
        own = [*self._parameters.values(), *self._buffers.values()]
        return total([part(x) for part in self.children()]) + total([x * one for one in own if one is not None])


def module_keys(names: Sequence[str]) -> Any:
    class Tabular(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.ModuleDict({name: nn.Tanh() for name in names})

        def forward(self, x: T) -> T:
            return total([part(x) for part in self.embed.values()])

    return Tabular()


def submodules(names: Sequence[str]) -> Any:
    holder = Holder()
    for name in names:
        holder.add_module(name, nn.Tanh())
    return holder


def parameters(names: Sequence[str]) -> Any:
    holder = Holder()
    for name, value in tensors(names).items():
        holder.register_parameter(name, nn.Parameter(value))
    return holder


def odd_parameters(names: Sequence[str]) -> Any:
    holder = Holder()
    for name, value in tensors(names).items():
        holder.register_parameter(Odd(name), nn.Parameter(value))
    return holder


def buffers(names: Sequence[str]) -> Any:
    holder = Holder()
    for name, value in tensors(names).items():
        holder.register_buffer(name, value)
    return holder


def module_classes(names: Sequence[str]) -> Any:
    holder = Holder()
    for number, name in enumerate(names):
        holder.add_module(str(number), type(of_a_class(name), (nn.Tanh,), {"__module__": name})())
    return holder


def file_names(names: Sequence[str]) -> Any:
    functions = [named("f", {"torch": torch}, file=name) for name in names]
    return lambda x: total([function(x) for function in functions])


def function_names(names: Sequence[str]) -> Any:
    functions = [named(name, {"torch": torch}) for name in names]
    return lambda x: total([function(x) for function in functions])


def global_names(names: Sequence[str]) -> Any:
    functions = [named("f", {name: 2, "v0": 3}, text="def f(x): return x * name") for name in names]
    for function, name in zip(functions, names, strict=True):
        function.__code__ = function.__code__.replace(co_names=(name,))
    return lambda x: total([function(x) for function in functions])


def keywords(names: Sequence[str]) -> Any:
    own = tensors(names)

    def inner(x: T, **given: T) -> T:
        return total([x * one for one in given.values()])

    return lambda x: inner(x, **own)


def keyword_arguments(names: Sequence[str]) -> Any:
    return (lambda x, **given: total([x * one for one in given.values()])), tensors(names)


def odd_keyword_arguments(names: Sequence[str]) -> Any:
    return keyword_arguments([Odd(name) for name in names])


def dict_argument(names: Sequence[str]) -> Any:
    return (lambda x, own: total([x * own[name] for name in names])), {"own": tensors(names)}


def strings_argument(names: Sequence[str]) -> Any:
    return (lambda x, own: x * len("".join(own))), {"own": [*names, *map(Odd, names)]}


def namespace_argument(names: Sequence[str]) -> Any:
    own = SimpleNamespace(**tensors(names))
    return (lambda x, own: total([x * getattr(own, name) for name in names])), {"own": own}


def named_tuple_argument(names: Sequence[str]) -> Any:
    kind = namedtuple("kind", [f"field{number}" for number, _ in enumerate(names)])  # type: ignore[misc]
    kind.__name__ = kind.__qualname__ = of_a_class("".join(names))
    return (lambda x, own: total([x * one for one in own])), {"own": kind(*tensors(names).values())}


def enumerated_argument(names: Sequence[str]) -> Any:
    kind = enum.Enum("kind", {f"name{number}": name for number, name in enumerate(names)})  # type: ignore[misc]
    return (lambda x, own: x * len(own)), {"own": [*kind]}


def attributes(names: Sequence[str]) -> Any:
    own = SimpleNamespace(**dict.fromkeys(names, 2))
    return lambda x: total([x * getattr(own, name) for name in names])


def keys(names: Sequence[str]) -> Any:
    own: dict[str, dict[str, int]] = {"inner": dict.fromkeys(names, 2), "odd": dict.fromkeys(map(Odd, names), 3)}
    return lambda x: total([x * own["inner"][name] * own["odd"][name] for name in names])


def function_attributes(names: Sequence[str]) -> Any:
    def holder() -> None:
        pass

    vars(holder).update(dict.fromkeys(names, 2))
    return lambda x: total([x * vars(holder)[name] * getattr(holder, name) for name in names])


def returned(names: Sequence[str]) -> Any:
    return lambda x: (dict.fromkeys(names, x * 2), SimpleNamespace(**dict.fromkeys(names, x * 3)))


def custom_functions(names: Sequence[str]) -> Any:
    def made(name: str) -> Any:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: T) -> T:
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: T) -> T:
                return grad * 2

        Double.__name__ = Double.__qualname__ = of_a_class(name)
        Double.__module__ = name
        return Double

    kinds = [made(name) for name in names]
    return lambda x: total([kind.apply(x) for kind in kinds])


def loggers(names: Sequence[str]) -> Any:
    own = [logging.getLogger(name) for name in names]
    return lambda x: total([x * (2 if logger.isEnabledFor(logging.INFO) else 3) for logger in own])


def docstrings(names: Sequence[str]) -> Any:
    functions = [named("f", {"torch": torch}) for _ in names]
    for function, name in zip(functions, names, strict=True):
        function.__doc__, function.__module__ = name, name
    return lambda x: total([function(x) for function in functions])


PLACES = [
    *(module_keys, submodules, parameters, odd_parameters, buffers, module_classes, file_names, function_names),
    *(global_names, keywords, keyword_arguments, odd_keyword_arguments, dict_argument, strings_argument),
    *(namespace_argument, named_tuple_argument, enumerated_argument, attributes, keys, function_attributes, returned),
    *(custom_functions, loggers, docstrings),
]


@pytest.fixture(autouse=True)
def sentinel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run of the hostile strings."""
    runs: list[str] = []
    monkeypatch.setattr(builtins, _CODE[:-2], lambda: runs.append("run"), raising=False)
    return runs


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The source of each program that is compiled."""
    sources: list[str] = []

    def noting(source: str, *args: Any) -> Any:
        sources.append(source)
        return compile(source, *args)

    monkeypatch.setattr(traces, "compile", noting, raising=False)
    return sources


def leaves(result: Any) -> list[T]:
    return [result] if isinstance(result, T) else [*result[0].values(), *vars(result[1]).values()]


def trained(function: Callable[..., Any], given: dict[str, Any]) -> list[T]:
    """The results and the gradient of a call."""
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    results = leaves(function(x, **given))
    sum([one.sum() for one in results], torch.zeros(())).backward()
    assert x.grad is not None
    return [*results, x.grad]


def runs_from_its_text(trace: sg.Trace) -> None:
    namespace: dict[str, Any] = dict(trace.constants)
    exec(trace.python(link=True, decompositions=True), namespace)
    inputs = [torch.rand(proxy.shape) for proxy in trace.inputs]
    results = zip(namespace[trace.name](*inputs), trace.function()(*inputs), strict=True)
    assert all(torch.equal(one, two) for one, two in results if one is not None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("place", PLACES)
def test_hostile_strings_run_nothing(place: Callable[[Sequence[str]], Any], sentinel: list[str]) -> None:
    # once: the key of a ModuleDict and the name of a file with a line break were run as Python
    forbids_dots = place in (module_keys, submodules, parameters, odd_parameters, buffers)
    names = [name for name in NAMES if not (forbids_dots and "." in name)]
    assert len(names) >= 49
    target = place(names)
    function, given = target if isinstance(target, tuple) else (target, {})
    expected = trained(function, given)
    jitted = sg.jit(function, executors=["torch"], fallback="error")
    assert all(map(torch.equal, trained(jitted, given), expected))
    assert all(map(torch.equal, leaves(jitted(torch.linspace(-1, 1, 3, requires_grad=True), **given)), expected))
    assert sg.cache_info(jitted).hits == 1
    first, *_, last = sg.last_traces(jitted)
    for trace in (first, last, sg.last_backward_traces(jitted)[-1]):
        runs_from_its_text(trace)
    assert not sentinel


class Fuser(sg.FusionExecutor):
    """Fuses everything; declines what a name says."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if "sin" not in bound_symbol.symbol.name else sg.Declined(self.name)

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


@pytest.mark.parametrize("name", [*NAMES[:30:3], *NAMES[30:], "2fast"])
def test_names_of_plugins_run_nothing(name: str, sentinel: list[str]) -> None:
    # once: an executor that fuses and whose name begins with a digit was a SyntaxError
    table = sg.Table(name)

    def sine(x: T) -> T:
        return torch.sin(x)

    sine.__name__ = sine.__qualname__ = sine.__module__ = name
    table.implementation(torch.sin)(sine)
    executors: list[sg.Executor | str] = [sg.Executor(name, table=table), Fuser(f"{name} too"), "torch"]
    passes = [sg.passes.PassPlacement(name, "before_claim", lambda trace, context: trace)]

    def function(x: T) -> T:
        return torch.sin(x).exp() * 2 + x.tanh()

    jitted = sg.jit(function, executors=executors, passes=passes, compile="now", fallback="error")
    assert all(map(torch.equal, trained(jitted, {}), trained(function, {})))
    for trace in (*sg.last_traces(jitted), *sg.last_backward_traces(jitted)):
        runs_from_its_text(trace)
    assert not sentinel


def test_the_program_that_runs_has_no_comments(programs: list[str]) -> None:
    trained(sg.jit(module_keys(["a\nb", "c"]), executors=["torch"]), {})
    assert len(programs) >= 2
    for source in programs:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        assert not [token for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("value", [Odd("a"), type("Number", (int,), {"__repr__": Odd.__repr__})(3)])
def test_what_subclasses_of_python_s_types_say_of_themselves_is_no_source(value: Any, sentinel: list[str]) -> None:
    # once: a constant whose class is a subclass of `str` or `int` was printed by its own `__repr__`
    proxy = sg.TensorProxy("x", (2,), (1,), torch.float32, torch.device("cpu"))
    call = sg.BoundSymbol(sg.Symbol("mine", lambda *given: given), (value, [value]), {}, proxy)
    (result,) = sg.Trace("computation", (), (proxy,), (call,)).function()()
    assert result[0] is value
    assert not sentinel


def test_two_paths_that_python_takes_for_one_name_stay_apart() -> None:
    # once: t_ﬁ and t_fi were two names for us and one for Python, and one weight was computed with twice
    holder = parameters(["\ufb01", "fi"])
    x = torch.ones(3)
    assert torch.equal(sg.jit(holder, executors=["torch"], fallback="error")(x), holder(x))


def test_a_name_that_is_none_is_refused() -> None:
    proxy = sg.TensorProxy("x\nrun_sentinel()", (2,), (1,), torch.float32, torch.device("cpu"))
    with pytest.raises(InvalidTrace, match="is no name"):
        verify(sg.Trace("computation", (proxy,), (proxy,), ()))


def test_comments_are_one_line_that_can_be_read() -> None:
    assert with_comment("x = 1", "grün") == "x = 1  # grün"
    for name in NAMES:
        line = with_comment("x = 1", name)
        assert line.isprintable()
        assert len(line.splitlines()) == 1
    assert [name for name in NAMES if is_name(name)] == [
        *["__class_", "args", "inputs", "miss", "v0", "a0", "t0", "computation", "getattr", "fi", "n" * 500]
    ]

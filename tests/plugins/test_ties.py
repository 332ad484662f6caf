"""Every row of the table of ties in docs/choice.md, with installed packages, in every order of these."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.errors import ExecutorUnavailable, InvalidInput, PluginWarning, UnknownExecutor
from switchgear_core.registry.plugins import Plugins, load
from switchgear_runtime.last_call import compiler_of
from tests.core.made_up import Site

PAGE = Path(__file__).parents[2] / "docs" / "choice.md"
SHIPPED = [EntryPoint(name, f"switchgear_{name}", "switchgear") for name in ("torch", "contest")]
X = torch.linspace(-1, 1, 6)


def rows() -> list[str]:
    """What competes, of each row of the page's table of ties."""
    table = PAGE.read_text().partition("## How ties are settled")[2]
    cells = re.findall(r"^\| (.*?) \| .* \|$", table, re.MULTILINE)
    return [cell for cell in cells if cell not in ("competitors", "---")]


@dataclass(frozen=True)
class Package:
    """A package whose module has these statements, which may stand in any order."""

    statements: Sequence[str]
    entry: str = ""


def executor(name: str, *statements: str, options: str = "", kind: str = "sg.Executor", hooks: str = "") -> Package:
    """A package of one executor with a table; `hooks` come at the end."""
    return Package([f"table = sg.Table({name!r})", *statements, _hooks(name, f"{kind}({name!r}, {options})"), hooks])


def rules(name: str, *statements: str, priority: int = 0) -> Package:
    """A package of rules alone."""
    head = f"switchgear_priority = {priority}\ntable = sg.Table({name!r})"
    return Package([head, *statements, _INSTALLS["grad_rules"]])


_INSTALLS = {
    what: f"""
@sg.hookimpl
def switchgear_register_{what}(registry):
    table.install_{what}(registry)
"""
    for what in ("implementations", "grad_rules")
}


def _hooks(name: str, made: str) -> str:
    listed = f"\n@sg.hookimpl\ndef switchgear_executors():\n    return [{made}]\n"
    return listed + "".join(_INSTALLS.values())


def adds(number: int) -> str:
    """An implementation of the sine that is off by a number, so that who ran is seen."""
    return f"@table.implementation(torch.sin)\ndef run{number}(x): return torch.sin(x) + {number}"


def slopes(number: float, target: str = "torch.sin") -> str:
    """A grad rule whose gradient is a number."""
    return (
        f"@table.grad_rule({target!r})\ndef rule{number}(x, **kw):\n"
        f"    return {target}(x), lambda grad: torch.full_like(x, {number})"
    )


def skips(answer: object) -> str:
    return f"@sg.hookimpl\ndef switchgear_is_constant_for_vjp(bound_symbol): return {answer}"


def fuses(name: str, *operators: str, seconds: float = 0.0, minimum: int = 2) -> Package:
    """An executor of regions of these operators, as slow as that."""
    return Package(
        [
            f"""
import time

class Fusing(sg.FusionExecutor):
    minimum = {minimum}

    def supports(self, bound_symbol):
        return None if bound_symbol.symbol.name in {operators!r} else sg.Declined("not mine")

    def compile(self, region):
        function = region.function()
        def run(*args):
            time.sleep({seconds})
            return function(*args)
        return run

@sg.hookimpl
def switchgear_executors():
    return [Fusing({name!r})]
"""
        ]
    )


@dataclass(frozen=True)
class Case:
    packages: Mapping[str, Package]
    check: Callable[[Plugins], None]


CASES: dict[str, Case] = {}


def row(start: str, **packages: Package) -> Callable[[Callable[[Plugins], None]], None]:
    """The test of the one row that starts so."""

    def register(check: Callable[[Plugins], None]) -> None:
        (text,) = [text for text in rows() if text.startswith(start)]
        assert text not in CASES
        CASES[text] = Case(packages, check)

    return register


def execution(jitted: Any, *args: Any) -> dict[str, str]:
    """Who runs which operator."""
    jitted(*args)
    return {one.symbol: one.owner for one in sg.last_choices(jitted) if one.kind == "execution"}


def gradient(function: Callable[[Tensor], Tensor], **options: Any) -> tuple[list[float], Any]:
    """The gradient at some x, and the jitted function."""
    jitted, x = sg.jit(function, **options), X.clone().requires_grad_()
    jitted(x).sum().backward()
    assert x.grad is not None
    return sorted({round(float(one), 4) for one in x.grad}), jitted


GELU, LEAF = "torch.nn.functional.gelu", "aten.gelu.default"
WHOLE = executor("whole", f"@table.implementation({GELU!r})\ndef whole(x, approximate='none'): return F.gelu(x) + 1")
PART = executor("part", f"@table.implementation({LEAF!r})\ndef part(x, approximate='none'): return F.gelu(x) + 2")


@row("two executors implement one", a=executor("a", adds(1)), b=executor("b", adds(2)))
def _two_executors(plugins: Plugins) -> None:
    assert torch.equal(sg.jit(torch.sin, executors=["a", "b", "torch"])(X), torch.sin(X) + 1)
    assert torch.equal(sg.jit(torch.sin, executors=["b", "a", "torch"])(X), torch.sin(X) + 2)
    assert torch.equal(sg.jit(torch.sin)(X), torch.sin(X) + 1)
    table = sg.Table("picky")
    table.implementation(torch.sin, checker=lambda call: "not today")(torch.cos)
    jitted = sg.jit(torch.sin, executors=[sg.Executor("picky", table=table), "b", "torch"])
    assert torch.equal(jitted(X), torch.sin(X) + 2)
    assert "torch.sin: execution by b; picky: not today" in str(sg.explain(jitted).operators())


@row("an executor takes a composite, another", whole=WHOLE, part=PART)
def _composite_and_part(plugins: Plugins) -> None:
    assert execution(sg.jit(F.gelu, executors=["whole", "part", "torch"]), X) == {GELU: "whole"}
    jitted = sg.jit(F.gelu, executors=["part", "whole", "torch"])
    assert execution(jitted, X) == {GELU: "decomposition", LEAF: "part"}
    assert "whole: part, which comes before it, takes aten.gelu.default inside" in str(sg.explain(jitted).operators())


@row("a fusing executor takes a part, and gives it back", whole=WHOLE, fuser=fuses("fuser", LEAF))
def _given_back(plugins: Plugins) -> None:
    jitted = sg.jit(F.gelu, executors=["fuser", "whole", "torch"])
    assert execution(jitted, X)[GELU] == "whole"
    assert "fuser: a region of 1 operators, fewer than 2" in str(sg.explain(jitted).operators())


def _gelus(x: Tensor) -> Tensor:
    return F.gelu(F.gelu(x))


@row(
    "a region, and an executor further back",
    whole=WHOLE,
    quick=fuses("quick", LEAF),
    lazy=fuses("lazy", LEAF, seconds=0.02),
)
def _region_and_composite(plugins: Plugins) -> None:
    assert execution(sg.jit(_gelus, executors=["lazy", "whole", "torch"]), X)[LEAF] == "lazy"
    measured = sg.jit(_gelus, executors=["lazy", ..., "-quick"])
    assert execution(measured, X)[GELU] == "whole"
    assert re.search(r"not faster as measured, lazy: [\d.]+ µs", str(sg.explain(measured).operators()))
    slow = sg.Table("slow")
    slow.implementation(F.gelu)(lambda x, approximate="none": importlib.import_module("time").sleep(0.02) or x)
    measured = sg.jit(_gelus, executors=["quick", sg.Executor("slow", table=slow), ..., "-lazy", "-whole"])
    assert execution(measured, X)[LEAF] == "quick"
    assert re.search(r"quick: [\d.]+ µs", str(sg.explain(measured).operators()))


@row("`prefer={operator: name}` and", a=executor("a", adds(1)), b=executor("b", adds(2)), whole=WHOLE, part=PART)
def _prefer(plugins: Plugins) -> None:
    order = ["a", "b", "part", "whole", "torch"]
    assert torch.equal(sg.jit(torch.sin, executors=order, prefer={torch.sin: "b"})(X), torch.sin(X) + 2)
    assert execution(sg.jit(F.gelu, executors=order, prefer={F.gelu: "whole"}), X) == {GELU: "whole"}
    assert execution(sg.jit(F.gelu, executors=order), X)[LEAF] == "part"


@row("`avoid={operator: name}` and", a=executor("a", adds(1)), b=executor("b", adds(2)))
def _avoid(plugins: Plugins) -> None:
    both = {torch.sin: "b"}
    jitted = sg.jit(torch.sin, executors=["b", "a", "torch"], prefer=both, avoid=both)
    assert torch.equal(jitted(X), torch.sin(X) + 1)


@row(
    "grad rules for one operator",
    one=rules("one", slopes(1)),
    two=rules("two", slopes(2)),
    own=executor("own", slopes(3)),
)
def _grad_rules(plugins: Plugins) -> None:
    def slope(*executors: Any, **options: Any) -> list[float]:
        return gradient(torch.sin, executors=[*executors, "torch"], **options)[0]

    table = sg.Table("call")
    table.grad_rule(torch.sin)(lambda x: (torch.sin(x), lambda grad: torch.full_like(x, 4)))
    assert slope("one", "two", "own") == [1]
    assert slope("two", "one", "own") == [2]
    assert slope("own", "two", "one") == [3]
    assert slope("one", grad_rules=["two", table]) == [2]
    assert slope("one", grad_rules=[table, "two"]) == [4]
    assert slope(..., "-own") == [1]
    table.grad_rule(torch.sin, checker=lambda call: "never", override=True)(torch.cos)
    found, jitted = gradient(torch.sin, executors=["two", "torch"], grad_rules=table)
    assert found == [2]
    assert "torch.sin: gradient by two (pullback rule); call: never" in str(sg.explain(jitted).gradients())


@row("a grad rule for a composite", composite=rules("composite", slopes(1, GELU)), part=rules("part", slopes(2)))
def _composite_rule(plugins: Plugins) -> None:
    def function(x: Tensor) -> Tensor:
        return F.gelu(x)

    leaf = sg.Table("leaf")
    leaf.grad_rule(LEAF)(lambda x, **kw: (F.gelu(x), lambda grad: torch.full_like(x, 2)))
    for names in itertools.permutations(["composite", sg.Executor("leaf", table=leaf), "torch"]):
        assert gradient(function, executors=list(names))[0] == [1]


@row("a grad rule of one, an implementation", ruling=rules("ruling", slopes(5)), running=executor("running", adds(1)))
def _rule_and_implementation(plugins: Plugins) -> None:
    found, jitted = gradient(torch.sin, executors=["running", "ruling", "torch"])
    assert found == [5]
    assert torch.equal(jitted(X), torch.sin(X) + 1)


@row("no grad rule", one=rules("one", slopes(1, "torch.cos")))
def _no_rule(plugins: Plugins) -> None:
    _, jitted = gradient(F.gelu, executors=["one", "torch"])
    text = str(sg.explain(jitted).gradients())
    assert f"{GELU}: gradient by decomposition" in text
    assert f"{LEAF}: gradient by derived (PyTorch's autograd formula)" in text


KEEPS = "class Keeps(sg.Executor):\n    def is_constant_for_vjp(self, bound_symbol): return False"


@row(
    "skip rules",
    silent=rules("silent", slopes(1, "torch.cos"), skips(None)),
    steady=rules("steady", slopes(1, "torch.cos"), skips(True)),
    keeps=executor("keeps", KEEPS, skips(True), kind="Keeps"),
)
def _skip_rules(plugins: Plugins) -> None:
    def is_constant(*names: str) -> bool:
        jitted = sg.jit(torch.sin, executors=[*names, "torch"])
        return not jitted(X.clone().requires_grad_()).requires_grad

    assert is_constant("silent", "steady")
    assert not is_constant("silent")
    assert is_constant("steady", "keeps")
    assert not is_constant("keeps", "steady")  # its own rule comes before its plugin's


@row(
    "two fusing executors",
    quick=fuses("quick", "aten.sin.default", "aten.cos.default"),
    lazy=fuses("lazy", "aten.sin.default", "aten.cos.default", seconds=0.02),
)
def _two_fusing(plugins: Plugins) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cos(torch.sin(x))

    operator = "aten.sin.default"
    assert execution(sg.jit(function, executors=["lazy", "quick", "torch"]), X)[operator] == "lazy"
    assert execution(sg.jit(function, executors=["quick", "lazy", "torch"]), X)[operator] == "quick"
    dawdling = sg.Table("dawdling")
    for one in (torch.sin, torch.cos):
        dawdling.implementation(one)(lambda x, one=one: importlib.import_module("time").sleep(0.02) or one(x))
    slow = sg.Executor("dawdling", table=dawdling)
    assert execution(sg.jit(function, executors=["lazy", "quick", slow, ...]), X)[operator] == "quick"


def _watching(name: str) -> tuple[str, str]:
    """A pass and a feature, each of which says that it was there."""
    listed = f"""
import contextlib
from dataclasses import replace

class Watching(sg.capture.Handler):
    def finish(self, recorder, result):
        torch.order_of_ties.append({name!r})
        return result

@sg.hookimpl
def switchgear_features():
    return [sg.capture.Feature({name!r}, (Watching(),))]
"""
    placed = f"""
@sg.hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement({name!r}, "before_grad", lambda trace, context: replace(trace))]
"""
    return listed, placed


@row(
    "passes and features",
    a=executor("a", hooks="".join(_watching("a"))),
    b=executor("b", hooks="".join(_watching("b"))),
    c=executor("c", hooks="".join(_watching("c"))),
)
def _passes(plugins: Plugins) -> None:
    for names in (["c", "a"], ["a", "b", "c"]):
        torch.order_of_ties = []  # type: ignore[attr-defined]
        jitted = sg.jit(torch.sin, executors=[*names, "torch"])
        jitted(X)
        assert torch.order_of_ties == names  # type: ignore[attr-defined]
        assert [one.name for one in compiler_of(jitted).selection.passes_at("before_grad")] == names


@row("two functions for one operator in one table", twice=executor("twice", adds(1), adds(2)), other=executor("other"))
def _twice(plugins: Plugins) -> None:
    (fault,) = [status.error for status in plugins.report if status.status == "failed"]
    assert re.search(r"twice registers two functions for torch.sin: run\d \(.*\) and run\d \(.*\)", fault)
    table = sg.Table("own")
    table.implementation(torch.sin)(torch.cos)
    table.implementation(torch.sin, override=True)(torch.exp)
    assert torch.equal(sg.jit(torch.sin, executors=[sg.Executor("own", table=table), "torch"])(X), torch.exp(X))


@row(
    "two plugins of one name",
    a=Package(executor("same", adds(1)).statements, "same"),
    b=Package(executor("same", adds(2)).statements, "same"),
    c=executor("shared", adds(3)),
    d=executor("shared", adds(4)),
)
def _one_name(plugins: Plugins) -> None:
    assert sorted((one.name, one.status) for one in plugins.report if one.status != "loaded") == [
        ("c", "conflict"),
        ("d", "conflict"),
        ("same", "conflict"),
        ("same", "conflict"),
    ]
    for name in ("same", "shared", "c"):
        with pytest.raises(UnknownExecutor, match="conflict: "):
            sg.jit(torch.sin, executors=[name, "torch"])
    assert torch.equal(sg.jit(torch.sin)(X), torch.sin(X))


@row("an executor object, and an installed one", a=executor("a", adds(1)))
def _object(plugins: Plugins) -> None:
    table = sg.Table("a")
    table.implementation(torch.sin)(torch.cos)
    for own, function in (
        (sg.Executor("a"), lambda x: torch.sin(x) + 1),
        (sg.Executor("a", table=table), torch.cos),
        (type("Other", (sg.Executor,), {})("a"), torch.sin),
    ):
        assert torch.equal(sg.jit(torch.sin, executors=[own, "torch"])(X), function(X))
        assert torch.equal(sg.jit(torch.sin, executors=[own, ..., "torch"])(X), function(X))


OPTIONED = """
class Optioned(sg.Executor):
    def __init__(self, *, number=1):
        super().__init__("a")
        self.number = number

    def claim(self, call, entry):
        if call.symbol.name != "torch.sin":
            return sg.Declined("no sine")
        return sg.executors.Implementation(self.name, lambda x: torch.sin(x) + self.number)

@sg.hookimpl
def switchgear_executors():
    return [Optioned()]
"""


@row("`options={name: {...}}` and", a=Package([OPTIONED]))
def _options(plugins: Plugins) -> None:
    assert torch.equal(sg.jit(torch.sin, executors=["a", "torch"])(X), torch.sin(X) + 1)
    jitted = sg.jit(torch.sin, executors=["a", "torch"], options={"a": {"number": 2}})
    assert torch.equal(jitted(X), torch.sin(X) + 2)
    with pytest.raises(InvalidInput, match="its options are number"):
        sg.jit(torch.sin, executors=["a", "torch"], options={"a": {"count": 2}})


ABSENT = "class Absent(sg.Executor):\n    def unavailable(self): return 'no device'"


@row("a listed executor that cannot run here", absent=executor("absent", ABSENT, adds(1), kind="Absent"))
def _absent(plugins: Plugins) -> None:
    with pytest.warns(PluginWarning, match="absent is listed but skipped, it cannot run here: no device") as caught:
        jitted = sg.jit(torch.sin, executors=["absent", "torch"])
    assert len(caught) == 1
    assert torch.equal(jitted(X), torch.sin(X))
    assert "skipped: absent: unavailable: no device" in str(sg.explain(jitted).operators())
    with pytest.raises(ExecutorUnavailable, match="no device"):
        sg.jit(torch.sin, executors=["absent", "torch"], strict=True)


def _orders(count: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], bool]]:
    """Orders of installing and of finding packages; and whether they import and register the other way around."""
    ahead, back = tuple(range(count)), tuple(reversed(range(count)))
    yield ahead, ahead, False
    yield back, ahead, True
    yield ahead, back, True
    yield back, (*ahead[1:], ahead[0]), False


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Plugins]]:
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "cache"))
    number = itertools.count()

    def installed(packages: Mapping[str, Package], order: Sequence[int], found: Sequence[int], around: bool) -> Plugins:
        for name in [name for name in sys.modules if name.startswith("made_up_")]:
            del sys.modules[name]
        folder = tmp_path / str(next(number))
        folder.mkdir()
        monkeypatch.setattr(sys, "path", [str(folder), *[one for one in sys.path if not one.startswith(str(tmp_path))]])
        site, names = Site(folder), list(packages)
        entries = {}
        for name in [names[place] for place in order]:
            package = packages[name]
            head, *body, last = package.statements if len(package.statements) > 1 else ("", *package.statements)
            source = "\n".join(["import torch.nn.functional as F", head, *(reversed(body) if around else body), last])
            entries[name] = site.add(package.entry or name, source, distribution=f"switchgear-{name}")
        candidates = [entries[names[place]] for place in found]
        for entry in candidates if around else ():
            with contextlib.suppress(sg.errors.SwitchgearError):  # as a program may import them before
                entry.load()
        plugins = load([*SHIPPED, *candidates] if not around else [*candidates, *SHIPPED])
        for module in ("switchgear.jitting", "switchgear.options"):
            monkeypatch.setattr(importlib.import_module(module), "installed", lambda *listed: plugins)
        return plugins

    yield installed
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


@pytest.mark.parametrize("text", rows())
def test_row(text: str, install: Callable[..., Plugins]) -> None:
    assert text in CASES, f"docs/choice.md has a row without a test here: {text}"
    case = CASES[text]
    for order, found, around in _orders(len(case.packages)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            plugins = install(case.packages, order, found, around)
        case.check(plugins)


def test_one_implementation_is_used_under_auto(install: Callable[..., Plugins]) -> None:
    """Or loses a measurement that `explain` shows."""
    softplus = "@table.implementation(F.softplus)\ndef softplus(x, beta=1.0, threshold=20.0): return F.softplus(x)"
    fuser = fuses("fuser", "aten.softplus.default", "aten.mul.Tensor")
    packages = {"mine": executor("mine", softplus), "fuser": fuser}
    install(packages, (0, 1), (0, 1), False)
    alone = sg.jit(F.softplus)
    assert execution(alone, X)["torch.nn.functional.softplus"] == "mine"
    region = sg.jit(lambda x: F.softplus(x * 2))
    owners = execution(region, X)
    text = str(sg.explain(region).operators())
    assert owners.get("torch.nn.functional.softplus") == "mine" or re.search(r"fuser: [\d.]+ µs", text), text

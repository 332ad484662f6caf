"""Faults of plugins: packages with one each, and what is said of them.

`python -m tests.plugins.faults` prints docs/faults.md; with `--installed KIND`, in an environment where packages with
that fault and without are installed, what a user is told there, as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import switchgear as sg
from switchgear.errors import SwitchgearError
from switchgear_core.registry.plugins import Plugins, installed, load
from tests.core.made_up import SIN, Site, executor_plugin

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
GOOD = executor_plugin("good", SIN)
TORCH = EntryPoint("torch", "switchgear_torch", "switchgear")


@dataclass(frozen=True)
class Fault:
    """A plugin `bad` 0.7 with a fault; `message` says where it is told of."""

    source: str
    #: "load": a warning, once; "report": `switchgear plugins -v`; "call": an error; "check": one under `check=True`.
    told: str
    gradient: bool = False
    auto: bool = False


def implements(body: str, checker: str = "None") -> str:
    return executor_plugin(
        "bad",
        f"""
import torch.nn.functional as F
count = [0]

@table.implementation(F.silu, checker={checker})
def silu(x, inplace=False):
    count[0] += 1
    {body}
""",
    )


def rules(body: str) -> str:
    return executor_plugin(
        "bad",
        f"""
import torch.nn.functional as F

@table.grad_rule(F.silu)
def silu_rule(x, inplace=False):
    {body}
""",
    )


def passes(body: str) -> str:
    return executor_plugin(
        "bad",
        f"""
from dataclasses import replace

def run(trace, context):
    {body}

@sg.hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("run", "before_grad", run)]
""",
    )


def fuses(supports: str = "return None", compiles: str = "return region.function()") -> str:
    return f"""
class Fusing(sg.FusionExecutor):
    def supports(self, bound_symbol):
        {supports}

    def compile(self, region):
        {compiles}

@sg.hookimpl
def switchgear_executors():
    return [Fusing("bad")]
"""


HOOK = "@sg.hookimpl\ndef {name}({arguments}):\n    {body}\n"
FAULTS: dict[str, Fault] = {
    "its import raises": Fault("raise RuntimeError('no driver')", "load"),
    "a dependency is missing": Fault("import no_such_module_anywhere", "load"),
    "a syntax error": Fault("def f(:", "load"),
    "its import calls sys.exit": Fault("import sys; sys.exit(3)", "load"),
    "it brings nothing": Fault("x = 1", "load"),
    "it is for another contract": Fault("switchgear_contract = 9\n" + executor_plugin("bad"), "load"),
    "two functions for one operator": Fault(executor_plugin("bad", SIN + SIN), "load"),
    "a hook is misspelled": Fault("@sg.hookimpl\ndef switchgear_executor():\n    return []", "load"),
    "a hook is not marked": Fault("def switchgear_executors():\n    return []", "load"),
    "a hook raises": Fault(HOOK.format(name="switchgear_executors", arguments="", body="1 / 0"), "load"),
    "a hook returns something else": Fault(
        HOOK.format(name="switchgear_executors", arguments="", body="return 'bad'"), "load"
    ),
    "a table belongs to nobody": Fault(
        executor_plugin("bad").replace("sg.Table('bad')", "sg.Table('typo')") + SIN, "load"
    ),
    "no such operator": Fault(executor_plugin("bad", "table.implementation('torch.silux')(torch.sin)"), "load"),
    "a class for an operator": Fault(executor_plugin("bad", "table.implementation(torch.nn.SiLU)(torch.sin)"), "load"),
    "a priority that is no number": Fault(executor_plugin("bad", options="priority='high'"), "load"),
    "it changes the default dtype": Fault("torch.set_default_dtype(torch.float64)\n" + executor_plugin("bad"), "load"),
    "it turns gradients off": Fault("torch.set_grad_enabled(False)\n" + executor_plugin("bad"), "load"),
    "it seeds": Fault("torch.manual_seed(3)\n" + executor_plugin("bad"), "load"),
    "it prints": Fault("print('hello')\n" + executor_plugin("bad"), "report"),
    "it sets a variable of the environment": Fault(
        "import os; os.environ['BAD'] = '1'\n" + executor_plugin("bad"), "report"
    ),
    "its availability check raises": Fault(
        "class Bad(sg.Executor):\n    def unavailable(self):\n        1 / 0\n"
        + HOOK.format(name="switchgear_executors", arguments="", body="return [Bad('bad')]"),
        "report",
    ),
    "a checker raises": Fault(implements("return F.silu(x)", "lambda call: 1 / 0"), "call"),
    "a checker returns a number": Fault(implements("return F.silu(x)", "lambda call: 42"), "call"),
    "`supports` raises": Fault(fuses(supports="1 / 0"), "call"),
    "an implementation raises": Fault(implements("raise RuntimeError('kernel')"), "call"),
    "a wrong shape": Fault(implements("return F.silu(x)[:1]"), "call"),
    "a wrong dtype": Fault(implements("return F.silu(x).double()"), "call"),
    "wrong strides": Fault(implements("return F.silu(x).repeat_interleave(2)[::2]"), "call"),
    "a sparse tensor for a dense one": Fault(implements("return F.silu(x).to_sparse()"), "call"),
    "no result": Fault(implements("return None"), "call"),
    "it writes to its argument": Fault(implements("return F.silu(x, inplace=True).clone()"), "call"),
    "it returns its argument": Fault(implements("return x"), "call"),
    "it leaves gradients off": Fault(implements("torch.set_grad_enabled(False); return F.silu(x)"), "call"),
    "a rule raises": Fault(rules("1 / 0"), "call", gradient=True),
    "a rule returns nothing": Fault(rules("pass"), "call", gradient=True),
    "a gradient of a wrong shape": Fault(rules("return F.silu(x), lambda grad: grad.sum()"), "call", gradient=True),
    "a gradient too many": Fault(rules("return F.silu(x), lambda grad: (grad, grad)"), "call", gradient=True),
    "a rule writes to its argument": Fault(rules("return x.mul_(2), lambda grad: grad"), "call", gradient=True),
    "a rule returns its argument": Fault(rules("return x, lambda grad: grad"), "call", gradient=True),
    "a skip rule raises": Fault(
        executor_plugin("bad")
        + HOOK.format(name="switchgear_is_constant_for_vjp", arguments="bound_symbol", body="1 / 0"),
        "call",
        gradient=True,
    ),
    "a pass raises": Fault(passes("1 / 0"), "call"),
    "a pass returns nothing": Fault(passes("return None"), "call"),
    "a pass breaks the trace": Fault(passes("return replace(trace, bound_symbols=trace.bound_symbols[1:])"), "call"),
    "a pass changes the results": Fault(passes("return replace(trace, outputs=())"), "call"),
    "`compile` raises": Fault(fuses(compiles="1 / 0"), "call"),
    "`compile` returns nothing": Fault(fuses(compiles="pass"), "call"),
    "a region returns too little": Fault(fuses(compiles="return lambda *args: ()"), "call"),
    "who chooses raises": Fault(
        HOOK.format(name="switchgear_choose", arguments="regions, context", body="1 / 0") + fuses(),
        "call",
        auto=True,
    ),
    "a wrong value": Fault(implements("return F.silu(x) * 1.01"), "check"),
    "other values in each run": Fault(implements("return F.silu(x) + count[0]"), "check"),
    "a wrong shape from the second call on": Fault(implements("return F.silu(x)[: 4 if count[0] < 3 else 1]"), "check"),
}


def function(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x * 2)


def told(fault: Fault, plugins: Plugins, caught: Sequence[warnings.WarningMessage]) -> str:
    """What a user is told of it, by these warnings, by the report, or by a call."""
    if fault.told == "load":
        (warning,) = caught
        return str(warning.message)
    assert not caught, [str(one.message) for one in caught]
    (status,) = [one for one in plugins.report if one.name == "bad"]
    if fault.told == "report":
        return "; ".join(filter(None, [f"{status.label}: {status.status}", status.error, *status.notes]))
    x = torch.linspace(-1, 1, 4).requires_grad_(fault.gradient)
    executors: Any = "auto" if fault.auto else ["bad", "torch"]
    jitted = sg.jit(function, executors=executors, check=fault.told == "check")
    try:
        for _ in range(3):
            jitted(x).sum().backward() if fault.gradient else jitted(x)
    except SwitchgearError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was said")


@contextmanager
def laid_out(fault: Fault, folder: Path) -> Iterator[str]:
    """Have a package with the fault and one without in a folder as pip leaves them; yields what a user is told."""
    site = Site(folder)
    jit_module: Any = importlib.import_module("switchgear.jitting")
    before = jit_module.installed
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bad = site.add("bad", fault.source, version="0.7")
            plugins = load([TORCH, bad, site.add("good", GOOD)])
        jit_module.installed = lambda *listed: plugins
        yield told(fault, plugins, caught)
    finally:
        sys.path.remove(str(folder))
        jit_module.installed = before
        for name in [name for name in sys.modules if name.startswith("made_up_")]:
            del sys.modules[name]


def unharmed() -> str:
    """What is wrong with the plugin without a fault, and with calls that do not name the one with; empty if nothing."""
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    good = sg.jit(torch.sin, executors=["good", "torch"])
    if not torch.equal(good(x), torch.sin(x)) or "execution by good" not in str(sg.explain(good).operators()):
        return "the other plugin is not used"
    if not torch.equal(sg.jit(function, executors=["torch"])(x), function(x)):
        return "a call without plugins is wrong"
    return "" if torch.get_default_dtype() is torch.float32 else "the default dtype is another one"


def strictly(executors: Sequence[str]) -> str:
    """The error of a call that lists the plugin and is strict."""
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    try:
        sg.jit(function, executors=[*executors], strict=True)(x).sum().backward()
    except SwitchgearError as error:
        return f"{type(error).__name__}: {error}"
    return ""


#: The headings of the page, by where a fault is reported.
_HEADINGS = {
    "load": "When the plugin is loaded",
    "report": "In `switchgear plugins -v`",
    "call": "In a call",
    "check": "In a call with `check=True`",
}


def page() -> str:
    """Return docs/faults.md."""
    lines = [
        "# Plugin error messages\n",
        "Each message is that of a package `bad`, version 0.7, with one fault. Other plugins, and calls that do not"
        " name it, go on. To list a plugin that did not load is an error.\n",
        "`python -m tests.plugins.faults` writes this page.",
    ]
    for told, heading in _HEADINGS.items():
        lines.append(f"\n## {heading}")
        for kind, fault in FAULTS.items():
            if fault.told == told:
                with tempfile.TemporaryDirectory() as place, laid_out(fault, Path(place)) as message:
                    text = textwrap.indent(textwrap.fill(_plain(message, place), 100, break_long_words=False), "    ")
                    lines.append(f"\n### {kind[0].upper()}{kind[1:]}\n\n{text}")
    return "\n".join(lines) + "\n"


def _plain(message: str, place: str) -> str:
    """Return a message without addresses, folders and lines, which differ from run to run."""
    message = re.sub(r"made_up_switchgear_", "", message.replace(place, ""))
    return re.sub(r"<function [^>]*>|0x[0-9a-f]+|(?<=faults\.py:|\.executor:)\d+", "…", re.sub(r"\s+", " ", message))


def _observed(kind: str) -> dict[str, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugins = installed()
    message = told(FAULTS[kind], plugins, caught)
    return {"message": message, "harm": unharmed(), "strictly": strictly(["bad", "torch"])}


def main() -> None:
    """Print the page, or what one kind comes to here."""
    parser = argparse.ArgumentParser(prog="python -m tests.plugins.faults", description=__doc__)
    parser.add_argument("--installed", metavar="KIND")
    options = parser.parse_args()
    print(page() if options.installed is None else json.dumps(_observed(options.installed)), end="")


if __name__ == "__main__":
    main()

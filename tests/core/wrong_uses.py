"""Wrong uses of Switchgear: the code, what its message says, and the code as the message has it corrected.

`# HERE` marks the wrong line. Its file and number stand in the traceback, in the warning, or in the message itself.
"""

# ruff: noqa: E501 - a table: one use a line

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """Code with a mistake, the error or warning that it gives, the parts of that message, and the code corrected."""

    name: str
    code: str
    error: str
    says: tuple[str, ...]
    right: str


PREAMBLE = """
import os, warnings
import torch
import torch.nn.functional as F
from torch import nn
import switchgear as sg

def f(x):
    return torch.sin(x) * 2

def loss(x):
    return torch.sin(x).sum()

class Toggle(sg.Executor):
    def __init__(self, name="toggle", fast=False):
        super().__init__(name)

x = torch.ones(3)
w = torch.ones(3, requires_grad=True)
table = sg.Table("mine")
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
"""
ONE = 'one = sg.jit(f, executors=["torch"])\n'


def _option(name: str, wrong: str, says: tuple[str, ...], right: str, error: str = "InvalidInput") -> Wrong:
    code, corrected = (f"sg.jit(f, {option})(x)" for option in (wrong, right))
    return Wrong(name, f"{code}  # HERE", error, says, corrected)


OPTIONS = [
    _option("a misspelled option", "executor=['torch']", ("executor", "did you mean 'executors'"), "executors=['torch']", "TypeError"),
    _option("an unknown option", "mode='max'", ("no option mode", "its options are executors, strict"), "executors=['torch']", "TypeError"),
    _option("a misspelled executor", "executors=['tourch']", ("'tourch'", "did you mean 'torch'"), "executors=['torch']", "UnknownExecutor"),
    _option("a stranger's executor that is not installed", "executors=['mine']", ("'mine'", "installed: torch"), "executors=['torch']", "UnknownExecutor"),
    _option("no executor", "executors=[]", ("executors=[]", "['torch']", "leave it out"), "executors=['torch']"),
    _option("an executor without a list", "executors='torch'", ("'torch'", "write ['torch']"), "executors=['torch']", "TypeError"),
    _option("a number among executors", "executors=[3]", ("executors[0] is 3", "'torch'"), "executors=['torch']", "TypeError"),
    _option("a set of executors", "executors={'torch'}", ("a list", "['torch']"), "executors=['torch']", "TypeError"),
    _option("an executor twice", "executors=['torch', 'torch']", ("'torch' is listed twice", "list each once"), "executors=['torch']", "InvalidInput"),
    _option("leaving out of an explicit list", "executors=['torch', '-torch']", ("'-torch'", "executors=[..., '-torch']"), "executors=['torch']", "InvalidInput"),
    _option("a table among executors", "executors=[table, 'torch']", ("Table", "sg.Executor('mine', table=table)"), "executors=[sg.Executor('mine', table=table), 'torch']", "TypeError"),
    _option("a class of an executor", "executors=[Toggle, 'torch']", ("executors[0]", "Toggle()"), "executors=[Toggle(), 'torch']", "TypeError"),
    _option("an unknown memory", "memory='low'", ("'low'", "'lean'", "'2GB'"), "memory='lean'"),
    _option("a misspelled memory", "memory='leen'", ("'leen'", "did you mean 'lean'"), "memory='lean'"),
    _option("a negative budget", "memory=-1", ("-1", "over 0, up to 1"), "memory=0.5"),
    _option("a budget in bytes without a unit", "memory=2000000000", ("2000000000", "'2GB'"), "memory='2GB'"),
    _option("a budget with an unknown unit", "memory='2 gigs'", ("'2 gigs'", "'2GB'"), "memory='2GB'"),
    _option("a misspelled compile", "compile='nwo'", ("compile='nwo'", "did you mean 'now'"), "compile='now'"),
    _option("compile as a flag", "compile=True", ("compile=True", "'background', 'now', 'never'"), "compile='now'"),
    _option("a misspelled fallback", "fallback='eeger'", ("fallback='eeger'", "did you mean 'eager'"), "fallback='eager'"),
    _option("strict as a word", "strict='yes'", ("strict='yes'", "True, False"), "strict=True"),
    _option("a limit that is no number", "recompile_limit='8'", ("recompile_limit='8'", "integer of at least 0"), "recompile_limit=8"),
    _option("no cache", "cache_size=0", ("cache_size=0", "at least 1"), "cache_size=1"),
    _option("a dimension of no parameter", "dynamic={'xs': {0}}", ("'xs'", "the parameters are x"), "dynamic={'x': {0}}"),
    _option("dynamic as a list", "dynamic=['x']", ("dynamic", "{'x': {0}}"), "dynamic={'x': {0}}"),
    _option("a dimension that is no number", "dynamic={'x': 'batch'}", ("dynamic", "{'x': {0}}"), "dynamic={'x': {0}}"),
    _option("options of an executor that takes no part", "executors=['torch'], options={'inductr': {}}", ("'inductr'", "torch"), "executors=['torch'], options={'torch': {}}", "UnknownExecutor"),
    _option("options of a near name", "executors=['torch'], options={'troch': {}}", ("'troch'", "did you mean 'torch'"), "executors=['torch'], options={'torch': {}}", "UnknownExecutor"),
    _option("an option that an executor lacks", "options={'torch': {'fast': 1}}", ("torch", "fast"), "options={'torch': {}}"),
    _option("options as a list", "options=['fast']", ("options=['fast']", "dict"), "options={'torch': {}}"),
    _option("preferring somebody unknown", "executors=['torch'], prefer={torch.sin: 'tourch'}", ("'tourch'", "did you mean 'torch'"), "executors=['torch'], prefer={torch.sin: 'torch'}", "UnknownExecutor"),
    _option("preferring for no operator", "prefer={'torch.sinn': 'torch'}", ("torch.sinn", "did you mean 'torch.sin'"), "prefer={'torch.sin': 'torch'}", "RegistrationError"),
    _option("preferring for a module's class", "prefer={nn.GELU: 'torch'}", ("GELU", "torch.nn.functional.gelu"), "prefer={F.gelu: 'torch'}", "RegistrationError"),
    _option("avoiding as a list", "avoid=['torch']", ("avoid=['torch']", "dict"), "avoid={torch.cos: ['torch']}"),
    _option("rules of nobody", "grad_rules='mine'", ("'mine'",), "grad_rules=table", "UnknownExecutor"),
    _option("rules that are a number", "grad_rules=3", ("grad_rules=3", "Table"), "grad_rules=table"),
    _option("a pass that is a function", "passes=[f]", ("passes", "sg.passes.PassPlacement"), "passes=[sg.passes.PassPlacement('f', 'before_claim', lambda trace, context: trace)]"),
    _option("leaving out no pass", "passes=['-nothing']", ("'-nothing'",), "passes=[]"),
    _option("negative fuel", "fuel=-1", ("-1", "0 or more"), "fuel=0", "InvalidInput"),
    _option("decisions that is a number", "decisions=3", ("decisions=3", "path"), "decisions='decisions.json'"),
    _option("decisions compiled later", "decisions='decisions.json', compile='background'", ("compile='background'", "leave one out"), "decisions='decisions.json'"),
    _option("methods of a function", "methods=['f']", ("methods", "modules"), "executors=['torch']"),
]  # fmt: skip

USES = [
    Wrong("a class", "sg.jit(nn.Linear)  # HERE", "InvalidInput", ("Linear", "is a class", "sg.jit(Linear(...))"), "sg.jit(nn.Linear(3, 3))(x)"),
    Wrong("a number", "sg.jit(3)  # HERE", "TypeError", ("not a int", "sg.jit(f)"), "sg.jit(f)(x)"),
    Wrong("the result of a call", "sg.jit(f(x))  # HERE", "TypeError", ("Tensor", "sg.jit(f)"), "sg.jit(f)(x)"),
    Wrong("a coroutine function", "async def g(x): return x\nsg.jit(g)  # HERE", "InvalidInput", ("g", "coroutine", "functions that it calls"), "sg.jit(f)(x)"),
    Wrong("a scripted module", "sg.jit(torch.jit.script(net))  # HERE", "InvalidInput", ("scripted", "that was scripted"), "sg.jit(net)(x)"),
    Wrong("a method that a module lacks", "sg.jit(net, methods=['forwardd'])  # HERE", "InvalidInput", ("'forwardd'", "did you mean 'forward'"), "sg.jit(net, methods=['forward'])(x)"),
    Wrong("the name of a method", "sg.jit(net, methods='forward')  # HERE", "InvalidInput", ("methods='forward'", "a list of names", "['generate']"), "sg.jit(net, methods=['forward'])(x)"),
    Wrong("two positional arguments", "sg.jit(f, ['torch'])  # HERE", "TypeError", ("sg.jit", "executors=['torch']"), "sg.jit(f, executors=['torch'])(x)"),
    Wrong("a misspelled name of the package", "sg.last_trace(one)  # HERE", "AttributeError", ("last_trace", "did you mean 'last_traces'"), "one(x); sg.last_traces(one)"),
    Wrong("the name of torch.compile's decorator", "sg.disable(f)  # HERE", "AttributeError", ("disable",), "sg.jit(f)(x)"),
    Wrong("explain before a call", "sg.explain(one).gradients(), sg.last_traces(one)  # HERE", "SwitchgearError", ("has not been called", "call it"), "one(x); sg.last_traces(one)"),
    Wrong("explain of a plain function", "sg.explain(f)  # HERE", "TypeError", ("jitted function", "sg.jit(f)", "function"), "sg.explain(one)"),
    Wrong("explain of a built-in function", "sg.explain(torch.sin)  # HERE", "TypeError", ("sg.jit(f)",), "sg.explain(torch.sin, x)"),
    Wrong("traces of a plain function", "sg.last_traces(f)  # HERE", "TypeError", ("sg.jit(f)",), "one(x); sg.last_traces(one)"),
    Wrong("plan of a plain function", "sg.plan(f)  # HERE", "TypeError", ("missing", "'x'",), "sg.plan(sg.jit(loss, executors=['torch']), w)"),
    Wrong("profile without arguments", "sg.profile(one)  # HERE", "TypeError", ("missing",), "sg.profile(one, x)"),
    Wrong("a jitted function's arguments", "one(x, x)  # HERE", "TypeError", ("f() takes 1 positional argument but 2 were given",), "one(x)"),
    Wrong("defaults with a misspelled option", "with sg.defaults(memmory='lean'):  # HERE\n    pass", "TypeError", ("memmory", "did you mean 'memory'"), "with sg.defaults(memory='lean'):\n    pass"),
    Wrong("defaults with a misspelled executor", "with sg.defaults(executors=['troch']):  # HERE\n    pass", "UnknownExecutor", ("'troch'", "did you mean 'torch'"), "with sg.defaults(executors=['torch']):\n    pass"),
    Wrong("a gradient of a vector", "sg.grad(f)(x)  # HERE", "InvalidInput", ("scalar", "shape [3]", "sum"), "sg.grad(lambda x: f(x).sum())(x)"),
    Wrong("a gradient by an argument that is not there", "sg.grad(loss, argnums=1)(x)  # HERE", "InvalidInput", ("argument 1", "called with 1", "argnums"), "sg.grad(loss, argnums=0)(x)"),
    Wrong("a gradient by integers", "sg.grad(loss)(torch.arange(3))  # HERE", "InvalidInput", ("argument 0", "integers", ".float()"), "sg.grad(loss)(torch.arange(3).float())"),
    Wrong("has_aux of one result", "sg.value_and_grad(loss, has_aux=True)(x)  # HERE", "InvalidInput", ("has_aux", "(value, aux)"), "sg.value_and_grad(lambda x: (loss(x), x), has_aux=True)(x)"),
    Wrong("cotangents of another number", "sg.vjp(f, x)[1]((x, x))  # HERE", "InvalidInput", ("`cotangents` has 2 items for 1 result", "give one"), "sg.vjp(f, x)[1](x)"),
    Wrong("a cotangent of another shape", "sg.vjp(f, x)[1](torch.ones(4))  # HERE", "RuntimeError", ("[4]", "[3]"), "sg.vjp(f, x)[1](x)"),
    Wrong("vjp without primals", "sg.vjp(f)  # HERE", "TypeError", ("missing", "x"), "sg.vjp(f, x)"),
    Wrong("put_grad outside of a rule", "sg.put_grad(x, x)  # HERE", "SwitchgearError", ("put_grad", "grad rule", "@table.grad_transform"), "@table.grad_transform(torch.sin)\ndef sin(x):\n    y = torch.sin(x)\n    sg.put_grad(x, sg.get_grad(y) * torch.cos(x))\n    return y\nsg.jit(loss, executors=['torch'], grad_rules=table)(w).backward()"),
    Wrong("a budget that cannot be met", "sg.jit(lambda a: F.dropout(a.sin()).cos().sum(), executors=['torch'], memory='1B')(w)  # HERE", "InvalidInput", ("memory='1B'", "the least possible is 3", "give it that or more"), "sg.jit(lambda a: F.dropout(a.sin()).cos().sum(), executors=['torch'], memory='1GB')(w)"),
    Wrong("printing", "def g(x):\n    print(x)  # HERE\n    return x * 2\nsg.jit(g, executors=['torch'], strict=True)(x)", "Unsupported", ("prints", "outside"), "def g(x):\n    return x * 2\nsg.jit(g, executors=['torch'], strict=True)(x)"),
    Wrong("reading data", "def g(x):\n    return x * x.sum().item()  # HERE\nsg.jit(g, executors=['torch'], strict=True)(x)", "DataDependent", ("torch.where", "specialize_on_data=True"), "def g(x):\n    return x * x.sum().item()\nsg.jit(g, executors=['torch'], strict=True, specialize_on_data=True)(x)"),
    Wrong("NumPy's numbers", "import numpy as np\nsg.jit(lambda x, n: x * n, executors=['torch'], strict=True)(x, np.float32(2))  # HERE", "Unsupported", ("argument 1", "NumPy", ".item()"), "import numpy as np\nsg.jit(lambda x, n: x * n, executors=['torch'], strict=True)(x, np.float32(2).item())"),
    Wrong("a generator as argument", "sg.jit(lambda x, it: x * 2, executors=['torch'], strict=True)(x, (n for n in [1]))  # HERE", "Unsupported", ("argument 1", "generator"), "sg.jit(lambda x, it: x * 2, executors=['torch'], strict=True)(x, [1])"),
    Wrong("a mixture of devices", "sg.jit(lambda x, y: x, executors=['torch'], strict=True)(x, x.to('meta'))  # HERE", "Unsupported", ("cpu", "meta", "move them to one"), "sg.jit(lambda x, y: x, executors=['torch'], strict=True)(x, x)"),
    Wrong("a custom operator without fake", "@torch.library.custom_op('wrong::nofake', mutates_args=())\ndef nofake(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\ndef g(x):\n    return nofake(x)  # HERE\nsg.jit(g, executors=['torch'])(x)", "FallbackWarning", ("wrong::nofake", "register_fake"), "@torch.library.custom_op('wrong::nofake', mutates_args=())\ndef nofake(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n@nofake.register_fake\ndef _(x):\n    return torch.empty_like(x)\nsg.jit(lambda x: nofake(x), executors=['torch'])(x)"),
    Wrong("a custom operator without gradient", "@torch.library.custom_op('wrong::nograd', mutates_args=())\ndef nograd(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n@nograd.register_fake\ndef _(x):\n    return torch.empty_like(x)\ndef g(x):\n    return nograd(x).sum()  # HERE\nsg.jit(g, executors=['torch'], strict=True)(w)", "NotDifferentiable", ("wrong.nograd", "grad rule", "no_grad"), "@torch.library.custom_op('wrong::nograd', mutates_args=())\ndef nograd(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n@nograd.register_fake\ndef _(x):\n    return torch.empty_like(x)\nnograd.register_autograd(lambda ctx, g: g * 2)\nsg.jit(lambda x: nograd(x).sum(), executors=['torch'], strict=True)(w).backward()"),
    Wrong("many sizes", "g = sg.jit(f, executors=['torch'], dynamic=False, recompile_limit=2)\nfor n in (2, 3, 4):\n    g(torch.ones(n))  # HERE", "RecompileWarning", ("x", "f32[3]", "f32[4]", "dynamic={'x': {0}}"), "g = sg.jit(f, executors=['torch'], dynamic={'x': {0}}, recompile_limit=2)\nfor n in (2, 3, 4):\n    g(torch.ones(n))"),
    Wrong("many words", "g = sg.jit(lambda x, word: x * len(word), executors=['torch'], recompile_limit=2)\nfor n in 'abc':\n    g(x, n)  # HERE", "RecompileWarning", ("word", "'b'", "'c'", "argument"), "g = sg.jit(lambda x, n: x * n, executors=['torch'], recompile_limit=2)\nfor n in 'abc':\n    g(x, len(n))"),
    Wrong("wait for a plain function", "sg.wait(f)  # HERE", "TypeError", ("sg.jit(f)",), "sg.wait(one)"),
]  # fmt: skip

ENVIRONMENT = [
    Wrong(f"{variable}={value}", f"os.environ['{variable}'] = '{value}'\nsg.jit(f)(x)  # HERE", error, says, f"os.environ['{other}'] = '{right}'\nsg.jit(f)(x)")
    for variable, value, error, says, other, right in [
        ("SWITCHGEAR_EXECUTOR", "torch", "PluginWarning", ("SWITCHGEAR_EXECUTOR ", "did you mean 'SWITCHGEAR_EXECUTORS'"), "SWITCHGEAR_EXECUTORS", "torch"),
        ("SWITCHGEAR_EXECUTORS", "troch", "InvalidInput", ("SWITCHGEAR_EXECUTORS=troch", "did you mean 'torch'"), "SWITCHGEAR_EXECUTORS", "torch"),
        ("SWITCHGEAR_MEMORY", "least", "InvalidInput", ("SWITCHGEAR_MEMORY=least", "'lean'"), "SWITCHGEAR_MEMORY", "lean"),
        ("SWITCHGEAR_COMPILE", "later", "InvalidInput", ("SWITCHGEAR_COMPILE=later", "'background'"), "SWITCHGEAR_COMPILE", "now"),
        ("SWITCHGEAR_FALLBACK", "none", "InvalidInput", ("SWITCHGEAR_FALLBACK=none", "'error'"), "SWITCHGEAR_FALLBACK", "error"),
        ("SWITCHGEAR_CHECK", "yes", "InvalidInput", ("SWITCHGEAR_CHECK=yes", "1 or 0"), "SWITCHGEAR_CHECK", "1"),
        ("SWITCHGEAR_DISABLE", "cubals", "PluginWarning", ("SWITCHGEAR_DISABLE", "cubals"), "SWITCHGEAR_DISABLE", ""),
    ]
]  # fmt: skip

HOOKS = "\n@sg.hookimpl\ndef {}:\n    return {}\n"
EXECUTOR = HOOKS.format("switchgear_executors()", "[sg.Executor('bad')]")
TABLE = "\ntable = sg.Table('bad')\n"
INSTALLED = HOOKS.format("switchgear_executors()", "[sg.Executor('bad', table=table)]")
RULE = (
    TABLE
    + "\n@table.{}(torch.sin)\ndef rule(x):\n    return torch.sin(x), lambda grad: grad * torch.cos(x)\n"
    + INSTALLED
)

#: Modules of plugins that are not loaded: what is wrong, what the warning says, and the module corrected.
PLUGINS = [
    ("a misspelled hook", EXECUTOR.replace("executors()", "executor()"), ("switchgear_executor is no hook", "did you mean 'switchgear_executors'"), EXECUTOR),
    ("a hook that is not marked", EXECUTOR.replace("@sg.hookimpl\n", ""), ("not marked as a hook", "@switchgear.hookimpl"), EXECUTOR),
    ("an argument that a hook lacks", EXECUTOR.replace("executors()", "executors(registry)"), ("switchgear_executors", "registry"), EXECUTOR),
    ("a hook with one executor", EXECUTOR.replace("[", "").replace("]", ""), ("switchgear_executors returned", "sequence of Executor"), EXECUTOR),
    ("names of executors", EXECUTOR.replace("sg.Executor('bad')", "'bad'"), ("'bad' in its sequence", "Executor"), EXECUTOR),
    ("two executors of one name", EXECUTOR.replace("[sg", "[sg.Executor('bad'), sg"), ("two executors of one name: bad",), EXECUTOR),
    ("a priority that is a word", EXECUTOR.replace("'bad'", "'bad', priority='high'"), ("'high'", "0 is usual"), EXECUTOR.replace("'bad'", "'bad', priority=1")),
    ("no hook at all", "import math", ("brings nothing", "switchgear_executors", "sg.hookimpl"), EXECUTOR),
    ("an operator that is not there", RULE.format("grad_rule").replace("torch.sin)", "'torch.sinn')", 1), ("'torch.sinn'", "did you mean 'torch.sin'"), RULE.format("grad_rule")),
    ("two implementations", TABLE + 2 * "\n@table.implementation(torch.sin)\ndef fast(x):\n    return torch.sin(x)\n" + INSTALLED, ("two functions for torch.sin", "override=True"), TABLE + 2 * "\n@table.implementation(torch.sin, override=True)\ndef fast(x):\n    return torch.sin(x)\n" + INSTALLED),
    ("another contract", "switchgear_contract = 9\n" + EXECUTOR, ("contract 9", "install versions that fit"), "switchgear_contract = 1\n" + EXECUTOR),
    ("a syntax error", "def f(:", ("SyntaxError", "line 3"), EXECUTOR),
]  # fmt: skip

MODEL = """
import torch

def loss(x):
    return torch.sin(x).sum()

def example():
    return torch.ones(3, requires_grad=True)

def fails():
    raise OSError("no data")

number = 3
"""

#: Command lines: what is wrong, the exit status, what is said, and the command line corrected.
COMMANDS = [
    ("", 2, ("usage: switchgear",), "plugins"),
    ("plugin", 2, ("'plugin'", "did you mean 'plugins'"), "plugins"),
    ("explian model.py:loss", 2, ("'explian'", "did you mean 'explain'"), "explain model.py:loss --inputs example"),
    ("explain", 2, ("MODULE:FUNCTION", "switchgear explain --help"), "explain model.py:loss --inputs example"),
    ("explain model.py:loss", 1, ("missing a required argument: 'x'", "give --inputs"), "explain model.py:loss --inputs example"),
    ("explain model.py:los --inputs example", 1, ("model.py has no los", "did you mean 'loss'"), "explain model.py:loss --inputs example"),
    ("explain modle.py:loss --inputs example", 1, ("modle.py", "did you mean 'model.py'"), "explain model.py:loss --inputs example"),
    ("explain loss", 1, ("'loss'", "script.py:function"), "explain model.py:loss --inputs example"),
    ("explain model.py:number", 1, ("int", "called"), "explain model.py:loss --inputs example"),
    ("explain model.py:loss --inputs exampel", 1, ("exampel", "did you mean 'example'"), "explain model.py:loss --inputs example"),
    ("explain model.py:loss --inputs fails", 1, ("OSError: no data", "model.py:11"), "explain model.py:loss --inputs example"),
    ("explain model.py:loss --inputs example --executors tourch", 1, ("did you mean 'torch'",), "explain model.py:loss --inputs example --executors torch"),
    ("explain model.py:loss --inputs example --details operator", 2, ("'operator'", "did you mean 'operators'"), "explain model.py:loss --inputs example --details operators"),
    ("operators torch.sinn", 1, ("torch.sinn", "switchgear explain"), "explain model.py:loss --inputs example"),
    ("operators --executor troch", 1, ("'troch'", "did you mean 'torch'"), "explain model.py:loss --inputs example"),
    ("test", 2, ("required: name", "switchgear test --help"), "plugins"),
    ("cache clean", 2, ("'clean'", "did you mean 'clear'"), "cache clear"),
    ("cache export", 2, ("cache export FILE",), "cache export file.zip"),
    ("cache info file", 2, ("takes no FILE",), "cache info"),
    ("cache import file.zip", 1, ("--trust",), "cache info"),
    ("cache import no_such_file --trust", 1, ("no_such_file", "No such file"), "cache info"),
    ("new 3d", 1, ("3d",), "new mine"),
    ("bisect model.py:check", 1, ("has no check",), "plugins"),
    ("plugins --jsn", 2, ("--jsn", "did you mean '--json'"), "plugins --json"),
]  # fmt: skip

"""A random program: the text of a function or module, and of the calls of it.

    def f(a0, k0=0.5): ...          or    class Net(torch.nn.Module): ...
    def call_0(): return [leaves], (arguments), {keywords}

One seed makes one program. The text that is printed is the text that runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.fuzz import functions
from tests.fuzz.state import ATTRIBUTES, GLOBALS, scope_of, state_of, with_state
from tests.fuzz.templates import step
from tests.fuzz.writer import Writer

Call = Callable[[], tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]]

#: Not by `torch.manual_seed`, which formats the whole stack for every device that is not there.
SEED = 7

SCOPE: dict[str, Any] = {
    "__name__": "program",
    "torch": torch,
    "F": torch.nn.functional,
    "math": math,
    "functools": functools,
    "SimpleNamespace": SimpleNamespace,
    "checkpoint": checkpoint,
    **{function.__name__: function for function in functions.FUNCTIONS},
}

IMPORTS = """import functools
import inspect
import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from tests.fuzz.compare import judge
from tests.fuzz.programs import Program, Write"""


@dataclass(frozen=True, slots=True)
class Write:
    """A write to something that the program returned, or to an argument, after its first gradient."""

    slot: int
    no_grad: bool


@dataclass(frozen=True, slots=True)
class Program:
    """Text that defines `f` or `Net`, texts that each define a call, and the options of `sg.jit`."""

    function: str
    calls: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    write: Write | None = None
    seed: str = ""

    def make(self) -> Callable[..., Any]:
        """The function or a new module."""
        scope = dict(SCOPE)
        exec(compile(self.function, "<program>", "exec"), scope)
        if "Net" not in scope:
            function: Callable[..., Any] = scope["f"]
            return function
        torch.default_generator.manual_seed(SEED)
        module: torch.nn.Module = scope["Net"]()
        return module

    def call(self, place: int) -> tuple[list[Tensor], tuple[Any, ...], dict[str, Any]]:
        """Leaves, arguments and keywords of a call, made anew."""
        scope = dict(SCOPE)
        torch.default_generator.manual_seed(SEED)
        exec(compile(self.calls[place], "<call>", "exec"), scope)
        call: Call = scope[f"call_{place}"]
        return call()

    def change(self, place: int, target: Any) -> None:
        """What happens before a call to the state of what `make` made."""
        if "change" in (scope := scope_of(target)):
            scope["change"](place, target)

    def state(self, target: Any) -> dict[str, Any]:
        """What there is of Python state after a call."""
        return state_of(target)

    def __str__(self) -> str:
        """A file that runs, from the repository's root: every call in eager and jitted, then what differs."""
        used = [kind for kind in functions.FUNCTIONS if f"{kind.__name__}." in self.function]
        sources = [inspect.getsource(kind) for kind in used]
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        calls = "".join(f"call_{place}, " for place in range(len(self.calls)))
        function = f'FUNCTION = r"""\n{self.function}\n"""'
        last = f"""calls = tuple(inspect.getsource(call) for call in ({calls}))
program = Program(FUNCTION, calls, {self.options}, {self.write})
for jitted in (False, True):
    f = program.make()
    g = sg.jit(f, executors=["torch"]{options}) if jitted else f
    for place, call in enumerate(({calls})):
        program.change(place, f)
        torch.manual_seed({SEED})
        _, args, kwargs = call()
        print(g(*args, **kwargs), args, program.state(f))

# Gradients too, and everything else.
print(judge(program).detail)
"""
        return "\n\n\n".join([IMPORTS, *sources, function, *self.calls, last])


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument: `grad` says where in an autograd graph it stands, `alias` what of the one before it is."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    grad: str = "leaf"
    layout: str = "contiguous"
    alias: str = ""

    def lines(self, name: str, before: str | None) -> list[str]:
        """The lines that make it; `l` and its name is its leaf, if it has one."""
        if self.alias and before is not None:
            return [f"{name} = {ALIASES[self.alias].format(before)}"]
        shape = self.shape if self.layout != "transposed" else (*self.shape[:-2], *reversed(self.shape[-2:]))
        fresh = f"torch.randn({shape}, dtype=torch.{self.dtype})" + LAYOUTS[self.layout]
        if self.grad == "leaf":
            return [f"{name} = l{name} = {fresh}.detach().requires_grad_()"]
        if self.grad == "parameter":
            return [f"{name} = l{name} = torch.nn.Parameter({fresh})"]
        if self.grad == "none":
            return [f"{name} = {fresh}"]
        return [f"l{name} = {fresh}.detach().requires_grad_()", f"{name} = l{name}{GRADS[self.grad]}"]

    @property
    def has_leaf(self) -> bool:
        """Whether gradients are asked for."""
        return self.grad != "none"


ALIASES = {
    "same": "{0}",
    "view": "{0}.view({0}.shape)",
    "rows": "{0}[1:]",
    "transpose": "{0}.mT",
    "detached": "{0}.detach()",
    "data": "{0}.data",
}
LAYOUTS = {"contiguous": "", "transposed": ".mT", "copied": ".contiguous()"}
#: What is written behind the leaf.
GRADS = {"non-leaf": " * 1", "view": "[...]", "view of a non-leaf": ".sin()[...]"}
SHAPES: tuple[tuple[int, ...], ...] = ((3, 4), (3, 4), (2, 3, 4), (2, 3, 4), (4,), (4, 4), (1, 4), (2, 2, 4, 4), ())


def write_program(seed: str, leave_out: frozenset[str] = frozenset()) -> Program:
    """The program of a seed, without the templates that are left out."""
    random = Random(seed)
    while True:
        with contextlib.suppress(_Unfit):
            return replace(_draw(random, leave_out), seed=seed)


class _Unfit(Exception):
    """Eager raises."""


def _draw(random: Random, leave_out: frozenset[str]) -> Program:
    """One attempt."""
    arguments = [_argument(random) for _ in range(random.randint(1, 3))]
    keywords = _keywords(random)
    first = _call_text(0, arguments, keywords)
    module, stateful = random.random() < 0.25, random.random() < 0.5
    closure = stateful and not module and random.random() < 0.4
    options = random.choice([{}] * 7 + [{"specialize_on_data": True}] * 2 + [{"dynamic": True}])
    write = Write(random.randrange(6), random.random() < 0.5) if random.random() < 0.3 else None
    draft = Program("", (first,), options, write)
    function = _function(random, draft, module, keywords, leave_out, stateful, closure)
    if stateful:
        function = with_state(random, function, module=module, closure=closure)
    program = replace(draft, function=function)
    others = [_varied(random, arguments, keywords) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    kinds = [(arguments, keywords), *others, (arguments, keywords)]
    random.shuffle(kinds)
    calls = [call for call in kinds if _runs(replace(program, calls=(_call_text(0, *call),)))]
    # A call that raises in eager is eager's error, once in a while.
    if (not calls or not _runs(program)) and random.random() < 0.98:
        raise _Unfit
    if not calls:
        return program
    return replace(program, calls=tuple(_call_text(place, *call) for place, call in enumerate(calls)))


def _argument(random: Random) -> Argument:
    return Argument(
        shape=random.choice(SHAPES),
        dtype=random.choices(("float32", "float64", "bfloat16"), (8, 3, 1))[0],
        grad=random.choices(
            ("leaf", "none", "non-leaf", "parameter", "view", "view of a non-leaf"), (6, 5, 5, 2, 1, 1)
        )[0],
        layout=random.choices(("contiguous", "transposed"), (8, 1))[0],
        alias=random.choice(list(ALIASES)) if random.random() < 0.12 else "",
    )


Keywords = dict[str, Any]


def _keywords(random: Random) -> Keywords:
    """Python values that a function takes: numbers, flags, a tensor or None."""
    choices: Keywords = {
        "k0": random.choice((2, 0.5, -1.5, 3)),
        "flag": random.choice((True, False)),
        "mask": random.choice((None, Argument((3, 4), grad="none"))),
        "scale": random.choice((1.0, Argument((), grad="leaf"))),
    }
    return {name: value for name, value in choices.items() if random.random() < 0.25}


def _varied(random: Random, arguments: list[Argument], keywords: Keywords) -> tuple[list[Argument], Keywords]:
    """Arguments of other kinds: dtype, gradient, shape, memory, a number in place of another or of a tensor."""
    arguments, keywords = list(arguments), dict(keywords)
    if keywords and random.random() < 0.4:
        name = random.choice(list(keywords))
        others = {
            "k0": (2, 2.0, True, 0.25, -1),
            "flag": (True, False, 1),
            "mask": (None, Argument((3, 4), grad="none"), Argument((2, 2), grad="leaf")),
            "scale": (1, 0.5, Argument((), grad="leaf"), Argument((), grad="none", dtype="float64")),
        }
        keywords[name] = random.choice(others[name])
        return arguments, keywords
    place = random.randrange(len(arguments))
    argument = arguments[place]
    changes: list[dict[str, Any]] = [
        {"dtype": random.choice(("float32", "float64", "bfloat16"))},
        {"grad": random.choice(("leaf", "none", "non-leaf", "parameter"))},
        {"grad": "none"},
        {"layout": "transposed" if len(argument.shape) > 1 else "contiguous"},
        {"shape": (random.randint(1, 5), *argument.shape[1:]) if argument.shape else (2,)},
        {"alias": random.choice(list(ALIASES)) if place else ""},
    ]
    arguments[place] = replace(argument, **random.choice(changes))
    return arguments, keywords


def _call_text(place: int, arguments: Sequence[Argument], keywords: Keywords) -> str:
    lines, leaves = [], []
    tensors = {f"a{number}": argument for number, argument in enumerate(arguments)}
    tensors |= {name: value for name, value in keywords.items() if isinstance(value, Argument)}
    before = None
    for name, argument in tensors.items():
        lines += argument.lines(name, before)
        if argument.has_leaf and not (argument.alias and before is not None):
            leaves.append(f"l{name}")
        before = name if name.startswith("a") else before
    passed = "".join(f"a{number}, " for number in range(len(arguments)))
    named = ", ".join(f'"{name}": {name if name in tensors else repr(value)}' for name, value in keywords.items())
    lines.append(f"return [{', '.join(leaves)}], ({passed}), {{{named}}}")
    return f"def call_{place}():\n" + textwrap.indent("\n".join(lines), "    ")


MODULE = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.bias = torch.nn.Parameter(torch.randn(4))
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(3, 4))
        self.register_buffer("count", torch.tensor(0.0))
"""
STATE = ("self.weight", "self.bias", "self.running", "self.cache", "self.count", "self.linear.weight")


def _function(
    random: Random,
    draft: Program,
    module: bool,
    keywords: Keywords,
    leave_out: frozenset[str],
    stateful: bool,
    closure: bool,
) -> str:
    """The text of the function, written beside a run of its statements in eager."""
    try:
        _, arguments, values = draft.call(0)
    except Exception as error:  # an alias that the argument before it does not have
        raise _Unfit from error
    names = [f"a{place}" for place in range(len(arguments))]
    scope = {**SCOPE, **values, **dict(zip(names, arguments, strict=True))}
    exec(GLOBALS if stateful else "", scope)
    scope |= {"rate": 0.5, "seen": []} if closure else {}
    w = Writer(random, scope, list(names), leave_out=leave_out)
    head = MODULE + textwrap.indent(ATTRIBUTES, "        ") * stateful
    if module:
        scope["self"] = replace(draft, function=head).make()
        w.tensors[:0] = STATE
    w.numbers += [name for name in ("k0", "scale") if name in keywords]
    w.flags += ["flag"] * ("flag" in keywords)
    w.optional += ["mask"] * ("mask" in keywords)
    torch.default_generator.manual_seed(SEED)
    for _ in range(random.choice((2, 3, 4, 5, 6, 8, 10, 14))):
        step(w)
    defaults = [f"{name}=None" for name in keywords]
    w.lines.append(f"return {_returned(w)}")
    body = "\n".join(["global SCALE"] * stateful + w.lines)
    if not module:
        return f"def f({', '.join([*names, *defaults])}):\n{textwrap.indent(body, '    ')}"
    signature = f"    def forward(self, {', '.join([*names, *defaults])}):"
    return f"{head}\n\n{signature}\n{textwrap.indent(body, '        ')}"


def _returned(w: Writer) -> str:
    """One tensor, several, or a structure of them with other values."""
    results = [w.tensor(lambda _: True) for _ in range(w.random.choice((1, 1, 2, 3)))]
    results += [name for name in w.tensors[-1:] if name not in results and w.chance(0.5)]
    first = results[0]
    return w.choose(
        ", ".join(results),
        ", ".join(results),
        ", ".join(results),
        first,
        f"[{', '.join(results)}]",
        f'{{"out": {first}, "all": ({", ".join(results)},), "dim": {first}.dim(), "name": f"{{{first}.dtype}}"}}',
        f"{first}, None",
        f"{first}.sum()",
    )


def _runs(program: Program) -> bool:
    try:
        function = program.make()
        _, arguments, keywords = program.call(0)
        function(*arguments, **keywords)
    except Exception:
        return False
    return True

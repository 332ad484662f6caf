"""Functions of other modules that do or ask for something outside of Python's objects, by many ways to call them."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import random
import time
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.python_state.families.program import Program, family, new_box, source

#: Modules in a function's source, and an expression that changes with `world`, or is seen in it.
_ASKED = {
    "time": "import time as m\n@@ m.time() * 0 + counted()",
    "os": "import os as m\n@@ float(m.getpid() > 0) + counted()",
    "getcwd": "import os as m\n@@ len(m.getcwd()) * 0 + counted()",
    "environ": "import os as m\n@@ float(m.environ.get('SWITCHGEAR_FAMILY', '3'))",
    "environ in": "import os as m\n@@ 2.0 if 'SWITCHGEAR_FAMILY' in m.environ else 3.0",
    "getenv": "import os as m\n@@ float(m.getenv('SWITCHGEAR_FAMILY', '4'))",
    "recursion": "import sys as m\n@@ float(m.getrecursionlimit() > 0)",
    "stdout": "import sys as m\n@@ float(m.stdout.write('k'))",
    "print": "import sys as m\n@@ float(print('k') is None)",
    "argv": "import sys as m\n@@ float(len(m.argv))",
    "modules": "import sys as m\n@@ 2.0 if 'switchgear_family_module' in m.modules else 3.0",
    "refcount": "import sys as m\n@@ float(m.getrefcount(world) > 0) + counted()",
    "gc": "import gc as m\n@@ float(m.isenabled())",
    "decimal": "import decimal as m\n@@ float(len(str(m.Decimal(1) / m.Decimal(3))))",
    "locale": "import locale as m\n@@ float(len(m.localeconv()) > 0)",
    "exists": "import os as m\n@@ 2.0 if m.path.exists(world.path) else 3.0",
    "read": "import pathlib as m\n@@ float(m.Path(world.path).read_text() if m.Path(world.path).exists() else 3)",
    "open": "import io as m\n@@ float(m.StringIO('2').read())",
    "thread": "import threading as m\n@@ float(m.active_count() > 0)",
    "uuid": "import uuid as m\n@@ float(len(str(m.uuid4()))) * 0 + 2.0",
    "array": "import array as m\n@@ float(m.array('d', [2.0])[0])",
    "struct": "import struct as m\n@@ m.unpack('d', m.pack('d', world.a))[0]",
    "hashlib": "import hashlib as m\n@@ float(m.sha256(str(world.a).encode()).digest()[0])",
    "zlib": "import zlib as m\n@@ float(m.crc32(str(world.a).encode()) % 97)",
    "bisect": "import bisect as m\n@@ float(m.bisect([1, 3, 5, 7], world.a))",
    "math": "import math as m\n@@ m.sqrt(world.a)",
    "statistics": "import statistics as m\n@@ float(m.mean([world.a, 1.0]))",
    "fractions": "import fractions as m\n@@ float(m.Fraction(world.a))",
    "datetime": "import datetime as m\n@@ float(m.timedelta(seconds=world.a).total_seconds())",
    "now": "import datetime as m\n@@ float(m.datetime.now().year > 0) + counted()",
    "random": "import random as m\n@@ m.random()",
    "Random": "import random as m\n@@ m.Random(3).random()",
    "numpy": "import numpy as m\n@@ float(m.sqrt(m.asarray([world.a])).sum())",
    "numpy random": "import numpy as m\n@@ float(m.random.rand())",
    "numpy errstate": "import numpy as m\n@@ float(m.geterr()['divide'] == 'warn')",
    "torch threads": "import torch as m\n@@ float(m.get_num_threads())",
    "torch dtype": "import torch as m\n@@ float(m.get_default_dtype().itemsize)",
    "torch seed": "import torch as m\n@@ float(m.initial_seed() % 7)",
    "grad mode": "import torch as m\n@@ 2.0 if m.is_grad_enabled() else 3.0",
    "weakref count": "import weakref as m\n@@ float(m.getweakrefcount(world))",
    "subclasses": "import abc as m\n@@ float(len(world.kind.__subclasses__()))",
    "inspect": "import inspect as m\n@@ float(m.getattr_static(world, 'a'))",
    "signature": "import inspect as m\n@@ float(len(m.signature(world.read).parameters))",
    "frame": "import sys as m\n@@ float(m._getframe(0).f_lineno) * 0 + world.a",
    "locals": "import sys as m\n@@ float(len(locals()) + len(vars(world)))",
    "eval": "import sys as m\n@@ float(eval('world.a'))",
    "exec": "import sys as m\n@@ float(run('value = world.a'))",
    "globals": "import sys as m\n@@ float(globals()['world'].a)",
    "import": "import sys as m\n@@ float(__import__('math').sqrt(world.a))",
    "id": "import sys as m\n@@ float(id(world) > 0)",
    "hash": "import sys as m\n@@ float(hash(str(world.a)) % 7)",
}
_SHAPES = {
    "direct": "def read(x):\n    return x * (@@)\n",
    "helper": "def helper():\n    return @@\ndef read(x):\n    return x * helper()\n",
    "lambda": "helper = lambda: @@\ndef read(x):\n    return x * helper()\n",
    "map": "def read(x):\n    return x * sum(map(lambda _: @@, [1]))\n",
    "method": (
        "class Own:\n    def get(self):\n        return @@\nown = Own()\ndef read(x):\n    return x * own.get()\n"
    ),
    "property": (
        "class Own:\n    @property\n    def value(self):\n        return @@\nown = Own()\n"
        "def read(x):\n    return x * own.value\n"
    ),
    "generator": "def numbers():\n    yield @@\ndef read(x):\n    return x * sum(numbers())\n",
    "default factory": ("import collections\ndef read(x):\n    return x * collections.defaultdict(lambda: @@)['k']\n"),
    "try": "def read(x):\n    try:\n        return x * (@@)\n    except ZeroDivisionError:\n        return x\n",
    "with": (
        "import contextlib\n@contextlib.contextmanager\ndef held():\n    yield @@\n"
        "def read(x):\n    with held() as value:\n        return x * value\n"
    ),
}


@family
def asked_of_the_process(rng: Random) -> Program:
    what, shape = rng.choice([*_ASKED]), rng.choice([*_SHAPES])
    head, expression = _ASKED[what].split("@@")
    counts = itertools.count(1)
    world = new_box(
        a=2.0, path=f"/tmp/switchgear_family_{rng.randrange(10**9)}", kind=type("Kind", (), {}), read=lambda a: a
    )

    def run(text: str) -> Any:
        space: dict[str, Any] = {"world": world}
        exec(text, space)
        return space["value"]

    text = head + _SHAPES[shape].replace("@@", expression.strip())
    module = source(text, world=world, counted=lambda: next(counts) * 0.0 + 2.0, run=run)
    kept: list[Any] = []

    def gain() -> None:
        world.late = 1.0
        kept.append(type("Late", (world.kind,), {}))

    steps: list[Callable[[], object]] = [functools.partial(setattr, world, "a", 5.0), gain]
    x = torch.tensor([1.0, 2.0])

    def calls(call: Callable[..., Any]) -> Any:
        out = io.StringIO()
        random.seed(7)
        np.random.seed(7)
        with contextlib.redirect_stdout(out):
            result = call(x)
        return result, out.getvalue(), random.random(), np.random.rand()

    return Program(module.read, calls, tuple(steps), f"{what} by {shape}")


@family
def functions_handed_on(rng: Random) -> Program:
    """Functions written in C that functions written in C call."""
    sink: list[Any] = []
    stream = random.Random(5)
    functions: dict[str, Callable[..., Any]] = {
        "append": sink.append,
        "print": print,
        "time": time.time,
        "random": stream.random,
        "pop": [3.0, 2.0, 1.0].pop,
        "next": functools.partial(next, itertools.count(1)),
        "write": io.StringIO().write,
        "uuid": uuid.uuid4,
        "numpy": np.random.rand,
        "abs": abs,
    }
    name = rng.choice([*functions])
    function = functions[name]
    arguments: list[Any] = ["k"] if name in ("append", "print", "write") else [2.0] if name == "abs" else []

    def number(value: Any) -> float:
        return float(value) if isinstance(value, float) and name not in ("time",) else 1.0

    ways: dict[str, Callable[[Callable[..., Any]], float]] = {
        "direct": lambda f: number(f(*arguments)),
        "map": lambda f: number(next(map(f, *[[one] for one in arguments] or [[]]), 1.0)) if arguments else 1.0,
        "partial": lambda f: number(functools.partial(f, *arguments)()),
        "defaultdict": lambda f: number(__import__("collections").defaultdict(f)["k"]) if not arguments else 1.0,
        "iter": lambda f: number(next(iter(f, object()))) if not arguments else 1.0,
        "starmap": lambda f: number(next(itertools.starmap(f, [tuple(arguments)]))),
        "sorted": lambda f: float(len(sorted([1.0], key=lambda _: number(f(*arguments))))),
        "reduce": lambda f: functools.reduce(lambda one, _: one + number(f(*arguments)), [1, 2], 0.0),
    }
    way = rng.choice([*ways])
    held = new_box(f=function, table={"f": function})
    where = rng.choice(["closure", "attribute", "dict", "partial"])
    bound = functools.partial(function)

    def read(x: Tensor) -> Tensor:
        if where == "attribute":
            return x * ways[way](held.f)
        if where == "dict":
            return x * ways[way](held.table["f"])
        return x * ways[way](bound if where == "partial" else function)

    x = torch.tensor([1.0, 2.0])

    def calls(call: Callable[..., Any]) -> Any:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            result = call(x)
        return result.shape if name in ("time", "numpy") else result, len(sink), out.getvalue()

    return Program(read, calls, (lambda: None,), f"{name} by {way} in {where}")

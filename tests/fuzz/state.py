"""Python state of random programs: what a function reads and writes beside its arguments, and what others change.

As in real code: a configuration, counters, logs and caches, as globals, attributes of a module and a closure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from random import Random
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from tests.fuzz.templates import fill, template
from tests.fuzz.writer import NotHere, Writer, floating, like, of_rank

GLOBALS = """SCALE = 0.5
CONFIG = SimpleNamespace(scale=2.0, enabled=True, dim=-1, act="gelu")
COUNTS = {"calls": 0}
LOG = []
CACHE = {}"""
#: Stands in the `__init__` of a module.
ATTRIBUTES = """self.scale = 0.5
self.config = SimpleNamespace(enabled=True, act="gelu", dropout=0.0)
self.act = torch.tanh
self.steps = 0
self.history = []
self.last = None"""
#: Stands around a function, whose text is put in.
CLOSURE = """def make():
    rate, seen = 0.5, []
{}
    def set_rate(value):
        nonlocal rate
        rate = value
    return f, set_rate, seen
f, set_rate, SEEN = make()"""
#: What a test looks at after each call.
NAMES = ("SCALE", "CONFIG", "COUNTS", "LOG", "CACHE", "SEEN")

_CHANGES = (
    "SCALE = 1.7",
    "SCALE = 0.5",
    "CONFIG.scale = 0.3",
    "CONFIG.enabled = not CONFIG.enabled",
    "CONFIG.dim = 0",
    'CONFIG.act = "silu"',
    'COUNTS["calls"] = 0',
    "LOG.clear()",
    "CACHE.clear()",
)
_CHANGES_OF_A_MODULE = (
    "target.scale = 2.0",
    "target.config.enabled = not target.config.enabled",
    "target.config = SimpleNamespace(enabled=True, act='relu', dropout=0.1)",
    "target.act = torch.sin",
    "target.steps = 0",
    "target.history.clear()",
    "target.last = None",
    "target.norm.eps = 1e-3",
    "target.train(not target.training)",
    "target.linear.weight.requires_grad_(False)",
)


def with_state(random: Random, function: str, *, module: bool, closure: bool) -> str:
    """A function or module with its state, and `change(place, target)`, which is called before each call."""
    changes = (*_CHANGES, *_CHANGES_OF_A_MODULE * (2 * module), *("set_rate(0.25)",) * (2 * closure))
    body = [f"if place == {place}:\n    {random.choice(changes)}" for place in (1, 1, 2, 3) if random.random() < 0.4]
    change = "def change(place, target):\n    global SCALE\n" + textwrap.indent("\n".join(body) or "pass", "    ")
    return "\n\n".join([GLOBALS, CLOSURE.format(textwrap.indent(function, "    ")) if closure else function, change])


def scope_of(target: Any) -> dict[str, Any]:
    """The names that a function, or the `forward` of a module, finds."""
    forward = type(target).forward if isinstance(target, torch.nn.Module) else target
    return forward.__globals__ if isinstance(forward, FunctionType) else {}


def state_of(target: Any) -> dict[str, Any]:
    """What a function or module holds that is no parameter or buffer, in values that can be walked."""
    scope = scope_of(target)
    state = {name: scope[name] for name in NAMES if name in scope}
    if isinstance(target, torch.nn.Module):
        state |= {f"self.{name}": value for name, value in vars(target).items() if name[0] != "_"}
    return {name: _walkable(value) for name, value in state.items()}


def _walkable(value: Any) -> Any:
    return vars(value) if isinstance(value, SimpleNamespace) else value


def _of_state(template: Callable[[Writer], None]) -> Callable[[Writer], None]:
    """A template of programs that have state."""

    def write(w: Writer) -> None:
        if "CONFIG" not in w.scope:
            raise NotHere
        template(w)

    write.__name__ = template.__name__
    return write


def _has(w: Writer, name: str) -> bool:
    return name in w.scope and (name != "self" or hasattr(w.scope["self"], "steps"))


def _factors(w: Writer) -> list[str]:
    return ["SCALE", "CONFIG.scale", *["self.scale"] * 3 * _has(w, "self"), *["rate"] * 3 * _has(w, "rate")]


@template(6)
@_of_state
def read_state(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    choices = [f"{x} * {w.choose(*_factors(w))}", f"{x}.mean(CONFIG.dim, keepdim=True)", f"getattr(F, CONFIG.act)({x})"]
    if _has(w, "self"):
        choices += [
            f"self.act({x})",
            f"getattr(F, self.config.act)({x})",
            f"F.dropout({x}, self.config.dropout, self.training)",
        ]
    w.value(w.choose(*choices))


@template(3)
@_of_state
def decided_by_state(w: Writer) -> None:
    x = w.tensor()
    y = w.value(f"{x} * 1")
    of_self = ("self.config.enabled", "self.training", "self.last is None") * _has(w, "self")
    condition = w.choose("CONFIG.enabled", "SCALE < 1", *of_self)
    taken = bool(w[condition])
    with w.block(f"if {condition}:" if taken else f"if not ({condition}):", local=True):
        fill(w, 2)
        z = w.tensor(like(w[x]))
        w.run(f"{y} = {y} + {z}", y)
    w.lines[-1] += f"\nelse:\n    {y} = {w.choose(f'{y} - 1', f'{y}.mul(3)')}"


@template(3)
@_of_state
def counter(w: Writer) -> None:
    x = w.tensor()
    count = w.choose('COUNTS["calls"]', *["self.steps"] * 3 * _has(w, "self"))
    w.run(f"{count} += 1")
    if w.chance(0.3):
        w.value(
            w.choose(
                f"{x} * min(1.0, {count} / 2)",
                f"{x} if {count} % 2 else {x} * 0.5",
                f"{x} + (0.1 if {count} > 2 else 0.0)",
            )
        )


@template(3)
@_of_state
def logged(w: Writer) -> None:
    x = w.tensor(of_rank(1))
    log = w.choose("LOG", *["self.history"] * 2 * _has(w, "self"), *["seen"] * 2 * _has(w, "seen"))
    w.run(
        w.choose(
            f"{log}.append({x}.shape[0])",
            f"{log}.append(tuple({x}.shape))",
            f'{log}.append(f"{{{x}.dtype}}")',
            f"{log}.append({w.choose(*_factors(w))})",
            f"{log}.append({x}.detach())",
            f"{log}[:] = [{x}.dim()]",
            f'COUNTS["last"] = {x}.dim()',
        )
    )


@template(2)
@_of_state
def remembered(w: Writer) -> None:
    """A table made once, or a value of the call before."""
    x = w.tensor(of_rank(1))
    n, y = w.new("n"), w.new()
    choices = [
        f"{n} = {x}.shape[-1]\nif {n} not in CACHE:\n    CACHE[{n}] = torch.arange({n}) * 0.1\n{y} = {x} * CACHE[{n}]",
        f'{y} = {x} + CACHE.get("last", 0.0)\nCACHE["last"] = {x}.detach().sum()',
        f'CACHE["hidden"] = {x}\n{y} = {x} * 2',
    ]
    if _has(w, "self"):
        choices += [
            f"{y} = {x} if self.last is None else {x} + self.last.sum()\nself.last = {x}.detach()",
            f"self.last = {x}\n{y} = self.last * 2",
        ] * 2
    w.run(w.choose(*choices), y)


@template(1)
@_of_state
def state_written(w: Writer) -> None:
    of_self = (
        "self.scale = self.scale * 0.5",
        'self.config.act = "silu"',
        "self.config.enabled = False",
        "self.scale = 0.25",
    ) * _has(w, "self")
    w.run(w.choose("SCALE = SCALE * 0.5", "CONFIG.scale = 0.75", "CONFIG.scale *= 0.5", *of_self))


@template(0.5)
@_of_state
def buffer_replaced(w: Writer) -> None:
    if not _has(w, "self"):
        raise NotHere
    x = w.tensor(lambda x: floating(x) and x.shape == (4,))
    w.run(f"self.running = self.running * 0.9 + {x}.detach() * 0.1")

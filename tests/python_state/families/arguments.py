"""Values among the arguments that a function reads in some way, or in none, and that change between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn

from tests.python_state.families.program import Program, family, source

#: What a function makes of a batch, as Python; `{k}` is a key of it.
USES = (
    "batch['{k}']",
    "batch.get('{k}', 2)",
    "len([*batch])",
    "len(str(batch['{k}']))",
    "sum(len(str(v)) for k, v in batch.items() if k != 'x')",
    "helper(batch)",
    "helper(**batch)",
    "len(str({{**batch}}['{k}']))",
    "len(str(locals()['batch']['{k}']))",
    "(lambda: len(str(batch['{k}'])))()",
    "len(repr(other))",
    "len(repr(keyword))",
    "('{k}' in batch) + 1",
    "len(str(vars()['other']))",
    "len(str(eval('other')))",
    "len(str([*map(batch.__getitem__, ['{k}'])]))",
    "len(str((batch,)[0]['{k}']))",
    "(2 if batch else 3)",
    "len(str(batch['nested']['{k}']))",
    "len(str(batch['ids'][0]))",
)
TEXT = """
def helper(*args, **batch):
    given = args[0] if args else batch
    return len(str([given[name] for name in given if name != 'x']))

class Net(Module):
    def forward(self, batch, other=1, *, keyword='a'):
        return batch['x'] * ({use}) + 0 * ({second})

def read(batch, other=1, *, keyword='a'):
    return batch['x'] * ({use}) + 0 * ({second})

def parts(x, *args, **kwargs):
    return x * (len(str(args)) if {second} > 100 else len(str(kwargs)))
"""


@family
def values_among_arguments(rng: Random) -> Program:
    key = rng.choice(["name", "weight", "step"])
    use, second = (rng.choice(USES).format(k=key) for _ in range(2))
    if second.startswith("batch["):
        second = "1"
    kind = rng.choice(["read", "read", "Net", "hooked"])
    world = source(TEXT.replace("{second} > 100", "1 > 100").format(use=use, second=second), Module=nn.Module)
    target: Any = world.read if kind == "read" else world.Net()
    seen = [1.0]
    if kind == "hooked":
        target.register_forward_pre_hook(lambda module, args: (args[0] | {"weight": len(str(args[0]["name"]))},))
    x = torch.ones(3)
    given: dict[str, Any] = {"name": 11, "weight": 2.0, "step": 3, "ids": ["a", "b"], "nested": {key: 5}}
    more: dict[str, Any] = {"other": 1, "keyword": "a"}

    def calls(call: Callable[..., Any]) -> Any:
        batch = {"x": x, **given, "nested": dict(given["nested"]), "ids": [*given["ids"]]}
        return call(batch, more["other"], keyword=more["keyword"]), seen

    ways: list[Callable[[], object]] = [
        lambda: given.update(name=rng.choice([1000, "text", 7])),
        lambda: given.update(weight=rng.random() * 1000),
        lambda: given.update(step=rng.randrange(2000)),
        lambda: given.update(ids=["longer", "b"]),
        lambda: given.update(nested={key: "another"}),
        lambda: more.update(other="a text"),
        lambda: more.update(keyword=12345),
    ]
    return Program(target, calls, tuple(rng.choices(ways, k=4)), f"{kind}: {use}; {second}")


@family
def values_that_nothing_reads(rng: Random) -> Program:
    """One argument of several is unread, or read by one way alone."""
    names = ["a", "b", "c"]
    reads = rng.sample(names, rng.randrange(len(names) + 1))
    forms = ["{n}", "len(str({n}))", "(lambda: {n})()", "[{n}][0]", "(0 if {n} else 1)"]
    terms = " + ".join(rng.choice(forms).format(n=name) for name in reads) or "1"
    world = source(f"def read(x, a, b=2, *, c=3.0):\n    return x * ({terms})\n")
    given = {"a": 1, "b": 2, "c": 3.0}
    by_name = rng.random() < 0.5

    def calls(call: Callable[..., Any]) -> Any:
        x = torch.ones(3, requires_grad=True)
        if by_name:
            return call(x=x, **given)
        return call(x, given["a"], given["b"], c=given["c"])

    changes: list[Callable[[], object]] = []
    for _ in range(4):
        name = rng.choice(names)
        changes.append(functools.partial(given.update, {name: rng.choice([0, 1, True, 7, 2.5])}))
    return Program(world.read, calls, tuple(changes), terms)

"""Random programs on tensors of subclasses: `python -m tests.subclasses.fuzz --programs 500 --seed 1`."""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from tests.subclasses.classes import Pair, assert_alike, pair

#: Calls on a tensor, by how they are written; `{x}` is a pair or a plain tensor of 3 x 3, `{y}` too.
_CALLS = (
    *("{x} * 2", "{x} + {y}", "{x} * {y}", "{x}.sin()", "{x}.t()", "{x} @ {y}", "{x}.reshape(9).reshape(3, 3)"),
    *("torch.cat([{x}[:1], {y}[1:]])", "{x}.softmax(-1)", "{x} - {x}.mean()", "{x}.detach()", "{x}.clone()"),
    *("torch.where({x}.detach() > 0, {x}, {y})", "{x}.chunk(3)[1].expand(3, 3)", "{x}.max(0, keepdim=True)[0] + {x}"),
    *("torch.nn.functional.dropout({x}, 0.3)", "{x}.to(torch.float64).to(torch.float32)", "torch.zeros_like({x})"),
)
_WRITES = ("{x}.add_({y})", "{x}.mul_(3)", "{x}[0] = 1.0", "{x}.t().add_(1)", "{x}.relu_()")


def program(chance: random.Random) -> str:
    """Return the source of a function of two pairs and a plain tensor."""
    names, lines = ["a", "b", "c"], []
    for number in range(chance.randint(1, 8)):
        x, y = chance.choice(names), chance.choice(names)
        if chance.random() < 0.2:
            lines.append(chance.choice(_WRITES).format(x=x, y=y))
            continue
        names.append(f"t{number}")
        call = chance.choice(_CALLS).format(x=x, y=y)
        lines.append(f"t{number} = {call}")
        if chance.random() < 0.1:
            lines = [*lines[:-1], "with torch.no_grad():", f"    {lines[-1]}"]
    results = chance.sample(names, k=min(len(names), 2))
    return "\n    ".join(["def f(a, b, c):", *lines, f"return {results[0]} * 1, {results[1]} * 1"])


def _outcome(called: Callable[..., Any], grads: tuple[bool, ...], nested: bool) -> Any:
    torch.manual_seed(0)
    leaves: list[Any] = [pair(3, 3), pair(3, 3), torch.randn(3, 3)]
    if nested:
        leaves[:2] = [Pair(one, pair(3, 3)) for one in leaves[:2]]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.requires_grad_(grad)
    args = [leaf * 1 if grad else leaf for leaf, grad in zip(leaves, grads, strict=True)]
    try:
        results = called(*args)
        outputs = [result for result in results if result.requires_grad]
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        ones = [torch.ones_like(output) for output in outputs]
        gradients = torch.autograd.grad(outputs, inputs, ones, allow_unused=True) if outputs and inputs else ()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return [type(error)]
    return [results, args, gradients]


def judge(seed: int) -> tuple[str, str]:
    """Compare a program with eager; return "compiled", "fell back", "raises" or "different", and the source."""
    chance = random.Random(seed)
    source = program(chance)
    grads = tuple(chance.random() < 0.5 for _ in range(3))
    scope: dict[str, Any] = {"torch": torch, "Tensor": Tensor}
    exec(source, scope)
    jitted, nested = sg.jit(scope["f"], executors=["torch"]), chance.random() < 0.3
    expected = _outcome(scope["f"], grads, nested)
    if isinstance(expected[0], type):
        return "raises", source
    try:
        for _ in range(2):
            assert_alike(_outcome(jitted, grads, nested), expected)
    except (AssertionError, ValueError) as error:
        return "different", f"{source}\n{grads} {nested}: {error}"
    return ("compiled" if "1 compiled entry, 0 in eager" in repr(jitted) else "fell back"), source


def main() -> int:
    """Judge programs; return 1 if any differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for number in range(options.programs):
        outcome, source = judge(options.seed * 1_000_003 + number)
        counts[outcome] += 1
        if outcome == "different":
            print(f"{options.seed * 1_000_003 + number}:\n{source}\n")
    print(dict(counts))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())

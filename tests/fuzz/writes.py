"""Random programs that write in place, jitted against eager: `python -m tests.fuzz.writes --programs 20000`.

They write through views of arguments, buffers and tensors of their own, read before and after, return views and what
they wrote to, and are called again on what earlier calls left. Arguments may share memory, or require grad. Values,
strides, versions, memory that is shared and gradients are to be eager's, to the bit; where eager raises, so must the
jitted program, and leave the arguments as eager does, or as they were.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import linecache
import os
import random
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import SwitchgearError
from tests.under_test import names

ROWS, COLUMNS = 4, 6
CALLS = 3
Function = Callable[..., Any]
Facts = dict[str, Any]


@dataclass(slots=True)
class Program:
    """The source of a function of the tensors `a`, `b`, `w`, `k` and the indices `i`, and how it is called."""

    source: str
    alias: str
    mode: str
    grads: str
    is_bad: bool


@dataclass(slots=True)
class _Writer:
    """Writes a program, statement by statement; `shapes` has the tensors that there are."""

    draw: random.Random
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def program(self) -> str:
        """The source."""
        self.shapes = {"a": (ROWS, COLUMNS), "b": (ROWS, COLUMNS), "w": (COLUMNS,), "k": (2, ROWS, COLUMNS)}
        kinds = [self.view, self.write, self.write, self.write, self.item, self.read, self.own, self.loop]
        for _ in range(self.draw.randint(2, 9)):
            self.draw.choice(kinds)()
        results = self.draw.sample(list(self.shapes), self.draw.randint(1, 3))
        body = [*self.lines, f"return {', '.join(results)},"]
        return "\n    ".join(["def function(a, b, w, k, i):", *body]) + "\n"

    def add(self, line: str) -> None:
        """A statement, sometimes where autograd does not look."""
        if self.draw.random() < 0.15:
            line = f"with torch.no_grad(): {line}"
        self.lines.append(line)

    def new(self, expression: str, shape: tuple[int, ...]) -> str:
        """A tensor that is computed."""
        name = f"v{self.count}"
        self.count += 1
        self.add(f"{name} = {expression}")
        self.shapes[name] = shape
        return name

    def any(self) -> tuple[str, tuple[int, ...]]:
        """One of the tensors."""
        return self.draw.choice(list(self.shapes.items()))

    def alike(self, shape: tuple[int, ...]) -> str:
        """An expression of a tensor, or number, that can be written where something has this shape."""
        found = [name for name, own in self.shapes.items() if own == shape]
        found += [name for name, own in self.shapes.items() if own and own == shape[-len(own) :]]
        kinds = ["{}", "{} * 2", "{}.sin()", "{} + 1", "{}.clone()"]
        number = str(self.draw.choice([0.5, 2.0, -1.0]))
        return self.draw.choice(kinds).format(self.draw.choice(found)) if found else number

    def view(self) -> None:
        """A view."""
        name, shape = self.any()
        if not shape:
            return
        dim = self.draw.randrange(len(shape))
        size, rest = shape[dim], (*shape[:dim], *shape[dim + 1 :])
        place = self.draw.randrange(size)
        turned = (*shape[:-2], *shape[-2:][::-1])
        most = self.draw.randint(1, size)
        self.new(
            *self.draw.choice(
                [
                    (f"{name}.select({dim}, {place})", rest),
                    (f"{name}.narrow({dim}, {size - most}, {most})", (*shape[:dim], most, *shape[dim + 1 :])),
                    (f"{name}.transpose(-1, -2)" if len(shape) > 1 else f"{name}[:]", turned),
                    (f"{name}.detach()", shape),
                    (f"{name}[:]", shape),
                    (f"{name}.unsqueeze(0)", (1, *shape)),
                    (f"{name}[{place - size if dim == 0 else 0}]", shape[1:]),
                    (f"{name}.diagonal(0, -2, -1)" if len(shape) > 1 else f"{name}[:]", _diagonal(shape)),
                ]
            )
        )

    def write(self) -> None:
        """A write by a method."""
        name, shape = self.any()
        value = self.alike(shape)
        target = self.draw.choice([name] * 6 + [f"{name}.data"])
        calls = ["mul_({})", "add_({})", "copy_(torch.as_tensor({}))", "sub_({})", "add_({}, alpha=2)"]
        calls += ["fill_(0.5)", "zero_()", "clamp_(-1, 1)", "sin_()", "neg_()", "uniform_()"]
        calls += [f"masked_fill_({name} > 0.2, 3.0)", "lerp_(torch.as_tensor({}).expand_as(" + name + "), 0.25)"]
        if shape:
            dim = self.draw.randrange(len(shape))
            part = (*shape[:dim], 2, *shape[dim + 1 :])
            calls += [f"index_fill_({dim}, i, 0.25)", f"index_copy_({dim}, i, torch.ones({part}) * 3)"]
            calls += [f"index_add_({dim}, i, torch.ones({part}))", "cumsum_(0)"]
        if len(shape) > 1:
            calls += ["triu_()", "scatter_(0, i.expand_as(" + name + "[:1, :2]), 2.0)"] if len(shape) == 2 else []
        call = self.draw.choice(calls)
        if self.draw.random() < 0.08:
            self.add(f"torch.add({name}, {value}, out={name})")
        else:
            self.add(f"{target}.{call.replace('{}', value)}")

    def item(self) -> None:
        """A write by an index."""
        name, shape = self.any()
        if not shape:
            return
        place, rest = self.draw.randrange(shape[0]), shape[1:]
        half = (max(shape[0] - 1, 1), *rest)
        choices = [
            (f"{name}[{place}]", rest),
            (f"{name}[..., {self.draw.randrange(shape[-1])}]", shape[:-1]),
            (f"{name}[:{half[0]}]", half),
            (f"{name}[i]", (2, *rest)),
            (f"{name}[{name} > 0]", ()),
        ]
        target, part = self.draw.choice(choices)
        sign = self.draw.choice(["=", "=", "+=", "*="])
        self.add(f"{target} {sign} {self.alike(part)}")

    def read(self) -> None:
        """A value that is computed."""
        name, shape = self.any()
        self.new(
            *self.draw.choice(
                [
                    (f"{name}.sum()", ()),
                    (f"{name} * 3", shape),
                    (f"{name}.clone()", shape),
                    (f"{name}.exp()", shape),
                    (f"{name}.index_select(0, i)" if shape else f"{name} + 1", (2, *shape[1:]) if shape else ()),
                ]
            )
        )

    def own(self) -> None:
        """Memory of the program's own."""
        name, shape = self.any()
        size = self.draw.choice([shape, (3, *shape)])
        make = self.draw.choice([f"torch.zeros({size})", f"torch.ones({size})", f"{name}.clone()"])
        self.new(make, shape if "clone" in make else size)

    def loop(self) -> None:
        """A loop that writes to one place after another."""
        name, shape = self.any()
        if not shape:
            return
        value = self.alike(shape[1:])
        more = self.draw.choice(["{} * n", "{} + n", "{}"]).format(value)
        if self.draw.random() < 0.4 and shape[0] > 1:
            self.lines.append(f"for n in range(1, {shape[0]}): {name}[n] = {name}[n - 1] * 0.5 + {value}")
        else:
            self.lines.append(f"for n in range({shape[0]}): {name}[n] = {more}")


def _diagonal(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], min(shape[-2:])) if len(shape) > 1 else shape


def written(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    return Program(
        _Writer(draw).program(),
        draw.choice(["no"] * 7 + ["same", "view", "row", "detached"]),
        draw.choice(["no_grad", "no_grad", "grad", "grad", "inference"]),
        draw.choice(["none", "none", "none", "w", "a", "w and k"]),
        draw.random() < 0.06,
    )


def _arguments(program: Program, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """The arguments, and the leaves that require grad."""
    generator = torch.Generator().manual_seed(seed)
    draw = random.Random(seed)
    a = torch.randn(ROWS, COLUMNS, generator=generator)
    if draw.random() < 0.2:
        a = torch.randn(COLUMNS, ROWS, generator=generator).t()
    elif draw.random() < 0.2:
        a = torch.randn(ROWS + 2, COLUMNS + 1, generator=generator)[1:-1, 1:]
    w = torch.randn(COLUMNS, generator=generator)
    if program.is_bad and draw.random() < 0.5:
        w = torch.randn(1, generator=generator).expand(COLUMNS)
    k = torch.randn(2, ROWS, COLUMNS, generator=generator)
    others: dict[str, Callable[[], Tensor]] = {
        "same": lambda: a,
        "view": lambda: a[:],
        "detached": a.detach,
        "row": lambda: k[0],
        "no": lambda: torch.randn(ROWS, COLUMNS, generator=generator),
    }
    b = others[program.alias]()
    leaves = []
    if "w" in program.grads:
        leaves.append(w.requires_grad_())
    if "k" in program.grads and program.alias != "row":
        leaves.append(k.requires_grad_())
        k = k * 1
    if program.grads == "a" and program.alias == "no":
        leaves.append(a.requires_grad_())
    return [a, b, w, k, torch.tensor([1, 0])], leaves


def _same_bits(one: Tensor, other: Tensor) -> bool:
    kind = torch.int32 if one.dtype is torch.float32 else one.dtype
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


class Values:
    """What tensors hold."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def equals(self, other: object, exact: bool) -> bool:
        """Whether others hold the same, to the bit or within rounding."""
        if not isinstance(other, Values):
            return False
        same = _same_bits if exact else partial(torch.allclose, rtol=1e-3, atol=1e-4, equal_nan=True)
        return all(same(*pair) for pair in zip(self.tensors, other.tensors, strict=True))

    def __repr__(self) -> str:
        return str([one.tolist() for one in self.tensors])


def _facts(results: Any, arguments: list[Tensor], leaves: list[Tensor]) -> Facts:
    """All that there is to be seen after a call."""
    facts: Facts = {}
    tensors = {f"argument {n}": one for n, one in enumerate(arguments)}
    tensors |= {f"result {n}": one for n, one in enumerate(results)}
    for name, one in tensors.items():
        plain = one.detach()
        facts[name] = (plain.shape, plain.stride(), plain.dtype, one.requires_grad, one.is_leaf)
        facts[f"{name}: values"] = Values(plain.clone())
        if not one.is_inference():
            facts[f"{name}: version"] = one._version if name.startswith("argument") else None
    for (name, one), (other, two) in itertools.combinations(tensors.items(), 2):
        facts[f"{name} and {other}"] = one.untyped_storage()._cdata == two.untyped_storage()._cdata
    ends = [one.sum() for one in tensors.values() if one.requires_grad and not one.is_leaf]
    if ends:
        found = torch.autograd.grad(ends, leaves, allow_unused=True)
        for place, one in enumerate(found):
            facts[f"gradient {place}"] = None if one is None else Values(one)
    return facts


def _mode(program: Program) -> contextlib.AbstractContextManager[object]:
    if program.mode == "inference":
        return torch.inference_mode()
    return torch.no_grad() if program.mode == "no_grad" else contextlib.nullcontext()


def calls(program: Program, function: Function, seed: int) -> Iterator[Facts]:
    """What there is to be seen after each of a few calls."""
    arguments, leaves = _arguments(program, seed)
    for number in range(CALLS):
        if program.is_bad and number == 1:
            arguments[-1] = torch.tensor([1, 99])
        torch.manual_seed(number)
        before = [one.detach().clone() for one in arguments]
        try:
            with _mode(program):
                results = function(*arguments)
        except Exception as error:
            now = [one.detach().clone() for one in arguments]
            yield {"error": type(error).__name__, "left": Values(*now), "before": Values(*before)}
            return
        try:
            yield _facts(results, arguments, leaves)
        except RuntimeError as error:
            yield {"backward": str(error).partition("\n")[0][:60]}
            return
        arguments = [one.detach() if not one.is_leaf and not one._is_view() else one for one in arguments]


def _differences(eager: Facts, jitted: Facts, exact: bool) -> list[str]:
    if "error" in eager and "error" in jitted:
        left: Any = jitted["left"]
        places = zip(left.tensors, eager["left"].tensors, eager["before"].tensors, strict=True)
        # each as eager leaves it, or as it was
        as_some = [any(Values(own).equals(Values(one), exact) for one in two) for own, *two in places]
        return [] if all(as_some) else ["left"]
    different = []
    for name in eager.keys() | jitted.keys():
        one, other = eager.get(name), jitted.get(name)
        same = one.equals(other, exact) if isinstance(one, Values) else one == other
        if not same:
            different.append(name)
    return different


def function_of(program: Program, seed: int) -> Function:
    """The program, compiled."""
    file = f"<writes {seed}>"
    linecache.cache[file] = (len(program.source), None, program.source.splitlines(True), file)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(program.source, file, "exec"), scope)
    function: Function = scope["function"]
    return function


def examine(seed: int, executors: tuple[str, ...] | None) -> tuple[str, str]:
    """The outcome for a seed, and what differs."""
    program = written(seed)
    function = function_of(program, seed)
    options: dict[str, Any] = {} if executors is None else {"executors": list(executors)}
    jitted: Any = sg.jit(function, compile="now", fallback="eager", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, ours = list(calls(program, function, seed)), list(calls(program, jitted, seed))
    nothing: dict[str, Any] = {}
    for number, (one, other) in enumerate(itertools.zip_longest(eager, ours, fillvalue=nothing)):
        if "error" in one and "error" not in other:
            return "eager alone raises", ""  # in a call that nobody reads, which is not run
        unlike = _differences(one, other, executors == ("torch",))
        if unlike:
            detail = [f"{name}: {one.get(name)} | {other.get(name)}" for name in unlike[:6]]
            return "different", "\n".join([f"call {number}: {program.mode}, {program.alias}, {program.grads}", *detail])
    try:
        lines = sg.last_traces(jitted)[-1]
    except SwitchgearError:
        return "fallback", ""
    in_place = any(sg.passes.written_arguments(line) for line in lines.bound_symbols)
    return ("in place" if in_place else "not in place"), ""


def main() -> int:
    """Run programs; 1 if any differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.writes", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of a run to repeat")
    parser.add_argument("--executors", type=names, default=("torch",), metavar="NAMES", help="or auto (default: torch)")
    options = parser.parse_args()
    os.environ.setdefault("SWITCHGEAR_VERIFY", "1")
    torch.set_num_threads(1)
    start = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"again with: python -m tests.fuzz.writes --programs {options.programs} --seed {start}")
    executors = None if options.executors in (None, ("auto",)) else options.executors
    outcomes: collections.Counter[str] = collections.Counter()
    for seed in range(start, start + options.programs):
        outcome, detail = examine(seed, executors)
        outcomes[outcome] += 1
        if outcome == "different":
            print(f"\n== {seed}\n{detail}\n{written(seed).source}", flush=True)
        if sum(outcomes.values()) % 200 == 0:
            print(dict(outcomes), flush=True)
    print(dict(outcomes))
    return int(bool(outcomes["different"]))


if __name__ == "__main__":
    sys.exit(main())

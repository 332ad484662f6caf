"""Writes statements and runs each in eager as it is written: what comes next finds operands whose shapes are known."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
Fits = Callable[[Tensor], bool]

#: Programs test exactness, not throughput: a statement whose result is larger is left out.
LARGEST = 400


class NotHere(Exception):
    """A template has no operand that fits, or its statement raises in eager: it writes nothing."""


def anything(_: Tensor) -> bool:
    return True


def floating(x: Tensor) -> bool:
    return x.is_floating_point()


def of_rank(low: int, high: int = 9) -> Fits:
    """Floating point, with elements, and so many dimensions."""
    return lambda x: x.is_floating_point() and low <= x.dim() <= high and x.numel() > 0


def like(other: Tensor) -> Fits:
    """The same shape, floating point."""
    return lambda x: x.is_floating_point() and x.shape == other.shape


def broadcasts_to(other: Tensor) -> Fits:
    """What can be added to `other` in place."""
    return lambda x: (
        x.is_floating_point()
        and x.dim() <= other.dim()
        and all(a in (b, 1) for a, b in zip(reversed(x.shape), reversed(other.shape), strict=False))
    )


def apart(other: Tensor) -> Fits:
    """What broadcasts to another tensor and lies in other memory."""
    memory = other.untyped_storage()._cdata
    return lambda x: broadcasts_to(other)(x) and x.untyped_storage()._cdata != memory


def writable(x: Tensor) -> bool:
    """What may be written to in place: no leaf that requires grad."""
    return x.is_floating_point() and not (x.is_leaf and x.requires_grad)


@dataclass(slots=True)
class Writer:
    """A body that grows.

    scope: every name of the program with its value in eager. tensors: expressions that are tensors, oldest first.
    numbers: expressions that are Python numbers. optional: names that are a tensor or None. flags: names of booleans.
    made: names of what the program made itself. leave_out: templates that are not drawn.
    """

    random: Random
    scope: dict[str, Any]
    tensors: list[str]
    numbers: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    leave_out: frozenset[str] = frozenset()
    names: int = 0
    depth: int = 0

    def __getitem__(self, expression: str) -> Any:
        return eval(expression, self.scope)

    def new(self, prefix: str = "t") -> str:
        """A name that is not in use."""
        self.names += 1
        return f"{prefix}{self.names}"

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def choose(self, *choices: T) -> T:
        """One of the choices."""
        return self.random.choice(choices)

    def tensor(self, fits: Fits = floating) -> str:
        """A tensor that fits, the newest more often than the others."""
        fitting = [name for name in self.tensors if self._fits(name, fits)]
        if not fitting:
            raise NotHere
        return fitting[-1 - min(int(self.random.expovariate(0.4)), len(fitting) - 1)]

    def held(self, fits: Fits = floating) -> str:
        """A tensor that fits and that the caller holds, or now and then any: what code writes to unseen by autograd."""
        names = self.tensors if self.chance(0.05) else [name for name in self.tensors if name not in self.made]
        fitting = [name for name in names if self._fits(name, fits)]
        if not fitting:
            raise NotHere
        return self.random.choice(fitting)

    def target(self, fits: Fits) -> str:
        """A tensor to write to in place."""
        return self.tensor(fits) if torch.is_grad_enabled() else self.held(fits)

    def _fits(self, name: str, fits: Fits) -> bool:
        try:
            return fits(self[name])
        except RuntimeError:  # a view whose base was written to may refuse to say anything
            return False

    def scale(self) -> str:
        """A number: a literal, or one that the function is passed."""
        return self.choose("0.5", "-0.03", "2", "1.7", *self.numbers)

    def run(self, text: str, *results: str) -> None:
        """Write a statement whose results, if they are tensors, may be operands from now on."""
        text = textwrap.dedent(text).strip()
        try:
            exec(text, self.scope)
        except Exception as error:
            raise NotHere from error
        if any(self[name].numel() > LARGEST for name in results if isinstance(self[name], Tensor)):
            raise NotHere
        self.lines.append(text)
        self.made.update(results)
        self.tensors += [name for name in results if isinstance(self[name], Tensor) and name not in self.tensors]

    def value(self, expression: str) -> str:
        """Write `name = expression`; the name."""
        name = self.new()
        self.run(f"{name} = {expression}", name)
        return name

    @contextlib.contextmanager
    def block(self, header: str, *, local: bool = False) -> Iterator[list[str]]:
        """Write what is written meanwhile below a header; `local` names end with it.

        The list that is given, header and then body, may be changed.
        """
        outer, tensors, numbers, body = self.lines, list(self.tensors), list(self.numbers), [header]
        self.lines = body
        self.depth += 1
        try:
            yield body
        finally:
            self.lines = outer
            self.depth -= 1
            if local:
                self.tensors, self.numbers = tensors, numbers
        if len(body) > 1:
            self.lines.append("\n".join([body[0], textwrap.indent("\n".join(body[1:]), "    ")]))

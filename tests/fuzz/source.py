"""From a program's data to Python: the text that is printed is the text that runs."""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, overload

import torch

from tests.fuzz import functions
from tests.fuzz.operators import OPERATORS, Fits, Line, anything
from tests.fuzz.programs import Argument, Program, Step, Write

T = TypeVar("T")
#: Programs test exactness, not throughput: a step whose result is larger is left out.
LARGEST = 400
CONTEXTS = {"no_grad": "torch.no_grad()", "enable_grad": "torch.enable_grad()"}
#: Not by `torch.manual_seed`, which formats the whole stack for every device that is not there.
SEED = 7


class NoOperand(Exception):
    """No tensor fits: the step does nothing."""


@dataclass(slots=True)
class Picker:
    """What an operator sees while it writes its line: the tensors so far, and the step's numbers."""

    names: Sequence[str]
    values: dict[str, Any]
    scalars: Sequence[str]
    arguments: Sequence[str]
    step: Step

    def __getitem__(self, name: str) -> torch.Tensor:
        value: torch.Tensor = self.values[name]
        return value

    @overload
    def tensor(self, slot: int, fits: Fits = anything, or_none: Literal[False] = False) -> str: ...
    @overload
    def tensor(self, slot: int, fits: Fits = anything, *, or_none: Literal[True]) -> str | None: ...
    def tensor(self, slot: int, fits: Fits = anything, or_none: bool = False) -> str | None:
        """The name of a tensor that fits, counted from the newest."""
        fitting = [name for name in reversed(self.names) if fits(self[name])]
        if fitting:
            return fitting[self.step.slots[slot] % len(fitting)]
        if or_none:
            return None
        raise NoOperand

    def is_argument(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of the arguments."""
        return any(tensor is self.values[name] for name in self.arguments)

    def number(self, which: int, count: int) -> int:
        """One of the step's numbers, below `count`."""
        return self.step.numbers[which] % count

    def choose(self, which: int, choices: Sequence[T]) -> T:
        """One of the choices, by one of the step's numbers."""
        return choices[self.number(which, len(choices))]

    def dim(self, which: int, name: str) -> int:
        """A dimension of the tensor."""
        return self.number(which, self[name].dim())

    def scalar(self, which: int) -> str:
        """A Python number: one of the arguments, or a literal."""
        return self.choose(which, ["2", "0.5", "-1.5", *self.scalars])


Arguments = Callable[[], tuple[list[Any], list[torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class Script:
    """What there is to run: arguments and their leaves, made anew on each call, and a function of them.

    calls: what each call of the jitted function passes: the `same` arguments again, or others that need another entry.
    omitted: bits of the differentiable results that the loss leaves out. write: what happens after the first gradient.
    """

    arguments: Arguments
    function: Callable[..., Any]
    calls: tuple[str, ...] = ("same", "same")
    omitted: int = 0
    write: Write | None = None
    text: str = ""
    steps: int = 0

    def __str__(self) -> str:
        """A file that can be run: once in eager, once jitted, one result below the other."""
        names = [kind.__name__ for kind in functions.FUNCTIONS if f"{kind.__name__}.apply" in self.text]
        others = {"distinct", "detached"} & set(self.calls)
        brought = [inspect.getsource(getattr(functions, name)) for name in [*names, *sorted(others)]]
        head = ["from typing import Any\n"] * bool(brought) + [_IMPORTS]
        calls = "".join(_call(kind) for kind in self.calls)
        main = f'for g in (f, sg.jit(f, executors=["torch"])):\n{textwrap.indent(calls, "    ")}\n'
        judged = f"Script(arguments, f, {self.calls}, {self.omitted}, {self.write})"
        last = f"# Gradients too, and everything else; from the repository's root.\nprint(judge({judged}).detail)\n"
        return "\n".join([*head, *(f"{source}\n" for source in brought), f"{self.text}\n", main + last])


def write_script(program: Program) -> Script:
    """The program as two functions, `arguments` and `f`.

    They are found by running it once in eager, line by line, so that operands and parameters fit.
    """
    torch.default_generator.manual_seed(SEED)
    construction = _Construction(program.arguments)
    names = [f"a{place}" for place in range(len(program.arguments))]
    scalars = [f"k{place}" for place in range(len(program.numbers))]
    passed = ", ".join([*names, *(repr(number) for number in program.numbers)])
    values = {name: construction.values[name] for name in names}
    body = _Body(values, dict(zip(scalars, program.numbers, strict=True)), program)
    outputs = [body.names[-1 - slot % len(body.names)] for slot in program.outputs]
    returned = [*construction.lines, f"return [{passed}], [{', '.join(construction.leaves)}]"]
    text = "\n\n".join(
        [
            _definition("def arguments():", returned),
            _definition(f"def f({', '.join(names + scalars)}):", [*body.lines, f"return {', '.join(outputs)}"]),
        ]
    )
    arguments, function = _run(text)
    return Script(arguments, function, program.calls, program.omitted, program.write, text, steps=body.steps)


def _run(text: str) -> tuple[Arguments, Callable[..., Any]]:
    scope: dict[str, Any] = {"torch": torch, **vars(functions)}
    exec(compile(text, "<program>", "exec"), scope)
    return scope["arguments"], scope["f"]


#: What each dtype is in float64.
_WIDE = {"float32": "float64", "bfloat16": "float64", "float16": "float64", "complex64": "complex128"}


def in_float64(script: Script) -> Script | None:
    """The script with the same values in wider dtypes; None for a script without text."""
    if not script.text:
        return None
    narrow = "|".join(_WIDE)
    arguments, mark, body = script.text.partition("def f(")
    drawn = rf"(torch\.randn\(.*?, dtype=torch\.({narrow})\))"
    arguments = re.sub(drawn, lambda found: f"{found[1]}.to(torch.{_WIDE[found[2]]})", arguments)
    body = re.sub(rf"torch\.({narrow})\b", lambda found: f"torch.{_WIDE[found[1]]}", body)
    wide = _run(arguments + mark + body.replace(".float()", ".double()"))
    return replace(script, arguments=wide[0], function=wide[1])


_IMPORTS = """import torch

import switchgear as sg
from tests.fuzz.compare import judge
from tests.fuzz.programs import Write
from tests.fuzz.source import Script

"""


def _call(kind: str) -> str:
    other = f"args, leaves = {kind}(args)\n" if kind in ("distinct", "detached") else ""
    context = "with torch.no_grad():\n    " if kind == "no_grad" else ""
    seed = f"torch.default_generator.manual_seed({SEED})\n"
    return f"args, leaves = arguments()\n{other}{seed}{context}print(g(*args), args)\n"


def _definition(head: str, lines: Sequence[str]) -> str:
    return f"{head}\n{textwrap.indent(chr(10).join(lines), '    ')}\n"


@dataclass(slots=True)
class _Construction:
    """The lines that make the arguments."""

    arguments: Sequence[Argument]
    lines: list[str] = field(default_factory=lambda: ["torch.default_generator.manual_seed(7)"])
    leaves: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, argument in enumerate(self.arguments):
            if argument.alias and place:
                of = argument.of % place
                self._line(f"a{place} = {_alias(argument.alias, of, self.values)}")
            else:
                self._own(place, argument)

    def _own(self, place: int, argument: Argument) -> None:
        differentiable = argument.dtype not in ("int64", "bool")
        grad = argument.grad if differentiable else "none"
        shape, view = _laid_out(argument)
        base, leaf = f"b{place}", f"l{place}"
        made = _values(shape, argument.dtype)
        if grad in ("none", "leaf"):
            self._line(f"{base} = {made}")
            self._line(f"a{place} = {base}{view}{'.requires_grad_()' if grad == 'leaf' else ''}")
            self.leaves += [f"a{place}"] * (grad == "leaf")
        else:
            self._line(f"{leaf} = {made}.requires_grad_()")
            self._line(f"{base} = {leaf if grad == 'view of a leaf' else f'{leaf} * 1'}")
            default = f".view_as({base})" if grad == "view of a leaf" else ""
            self._line(f"a{place} = {base}{view or default}")
            self.leaves.append(leaf)

    def _line(self, text: str) -> None:
        exec(text, {"torch": torch}, self.values)
        self.lines.append(text)


def _values(shape: Sequence[int], dtype: str) -> str:
    if dtype == "bool":
        return f"torch.randint(0, 2, {tuple(shape)}, dtype=torch.bool)"
    if dtype == "int64":
        return f"torch.randint(-3, 4, {tuple(shape)})"
    return f"torch.randn({tuple(shape)}, dtype=torch.{dtype})"


def _laid_out(argument: Argument) -> tuple[Sequence[int], str]:
    """The shape to make, and how it becomes the argument's shape in the argument's layout."""
    shape = argument.shape
    if argument.layout == "transposed" and len(shape) >= 2:
        return (*shape[:-2], shape[-1], shape[-2]), ".mT"
    if argument.layout == "window" and shape:
        return (*shape[:-1], 2 * shape[-1] + 1), "[..., 1::2]"
    if argument.layout == "expanded" and shape:
        return (1, *shape[1:]), f".expand({', '.join(map(str, shape))})"
    if argument.layout == "channels last" and len(shape) == 4:
        return shape, ".to(memory_format=torch.channels_last)"
    return shape, ""


def _alias(kind: str, of: int, values: dict[str, Any]) -> str:
    earlier = f"a{of}"
    value: torch.Tensor = values[earlier]
    base = f"b{of}" if f"b{of}" in values else earlier
    if kind == "rows" and value.dim():
        return f"{earlier}[1:]"
    if kind == "transpose" and value.dim() > 1:
        return f"{earlier}.mT"
    if kind == "overlap" and values[base].is_contiguous() and values[base].dim():
        return f"{base}.view(-1)[1:]"
    if kind == "real" and value.is_complex():
        return f"torch.view_as_real({earlier})"
    if kind == "detached":
        return f"{earlier}.detach()"
    return earlier if kind == "same" else f"{earlier}.view_as({earlier})"


class _Body:
    """The lines of the function, and the tensors that it names."""

    def __init__(self, arguments: dict[str, Any], scalars: dict[str, Any], program: Program) -> None:
        self.arguments, self.scalars, self.keeps_errors = list(arguments), list(scalars), program.keeps_errors
        self.names = list(arguments)
        self.values = {**arguments, **scalars}
        self.scope = {"torch": torch, **vars(functions)}
        self.lines: list[str] = []
        self.count = self.steps = 0
        for region in program.regions:
            modes = [CONTEXTS[mode] for mode in region.mode.split(", ") if mode]
            lines, go_on = self._region(region.steps, modes)
            if lines and modes:
                lines = [f"with {', '.join(modes)}:", *(f"    {line}" for line in lines)]
            self.lines += lines
            if not go_on:
                break

    def _region(self, steps: Sequence[Step], modes: Sequence[str]) -> tuple[list[str], bool]:
        lines: list[str] = []
        for step in steps:
            picker = Picker(self.names, self.values, self.scalars, self.arguments, step)
            try:
                line = OPERATORS[step.operator].write(picker)
            except NoOperand:
                continue
            line = line if isinstance(line, Line) else Line(line)
            targets = [f"v{self.count + place}" for place in range(line.results)]
            left = f"({', '.join(targets)},)" if line.is_tuple else "".join(targets)
            text = f"{left} = {line.text}" if targets else line.text
            try:
                fits = self._run(text, targets, modes)
            except Exception:
                if self.keeps_errors:
                    return [*lines, text], False
                continue
            if fits:
                lines.append(text)
                self.names += targets
                self.count += len(targets)
                self.steps += 1
        return lines, True

    def _run(self, text: str, targets: Sequence[str], modes: Sequence[str]) -> bool:
        """Run one line; False if it made something too large to keep."""
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(eval(mode, self.scope))
            exec(text, self.scope, self.values)
        return all(self.values[target].numel() <= LARGEST for target in targets)

"""Print the trips of values through our files in a first call, and the files that a hit enters.

The exit status is 1 if a limit is exceeded.

    python -m scripts.trips [--routes]

A trip follows one value: an argument tensor during `Compiler.look_up`, a grad rule during `Forward._apply`. A function
is on the trip if one of its parameters holds the value: itself, in a tuple, list or dict, or in a field of a dataclass
of ours, to a depth of three. For a tensor, the stand-in that the user's function receives and the proxies in the traces
count, too; for a rule, the line to which it is applied and the line's operands. Each function counts once, at its first
call with the value, in the order of these calls.

- A stay is an uninterrupted run of such functions in one file. A change of file separates two stays.
- A room is a file that is entered at least once. A return is a stay in a room that was entered before.
- A climb is a stay in a higher layer than the stay before. Layers are the contracts of import-linter.
- A call up is a function on the trip whose caller lies in a lower layer: not merely a return to the caller.

Another function is compiled before, so that imports and caches of the process do not count.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import switchgear as sg

#: Limits, which may only fall; raised for tensors with inner tensors, and for DTensors.
MOST_STAYS, MOST_CLIMBS = 91, 31
MOST_STAYS_OF_A_RULE, MOST_CLIMBS_OF_A_RULE = 17, 4
MOST_FILES_OF_A_HIT = 4

ROOT = Path(sg.__file__).parents[2]
_FOLDERS = ("core", "executors", "plugins")
_DEPTH = 3

rules = sg.Table("trips")


@rules.grad_rule(torch.sin)
def sin_grad(x: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the sine and its pullback."""
    return torch.sin(x), lambda grad: grad * torch.cos(x)


def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the result of three operators, the second with a grad rule of its own."""
    return torch.sin(x @ weight) * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A call of a function of ours, by one in the file `caller`."""

    file: str
    caller: str | None
    code: types.CodeType
    #: The ids of objects in the parameters.
    parameters: frozenset[int]
    #: The names of this function and of its direct and indirect callers.
    callers: frozenset[str]


@dataclasses.dataclass(slots=True)
class Recording:
    """The calls of functions of ours during a call."""

    #: The argument tensor, and its stand-in.
    argument: list[object]
    steps: list[Step] = dataclasses.field(default_factory=list)
    #: A grad rule, the line to which it is applied, and the line's operands.
    rule: list[object] = dataclasses.field(default_factory=list)
    #: References to all parameters, so that no id is reused.
    _alive: list[object] = dataclasses.field(default_factory=list)

    def run(self, call: Callable[[], object]) -> None:
        """Record a call. A profile function would be replaced during the capture, a trace function is not."""
        sys.settrace(self._note)
        try:
            call()
        finally:
            sys.settrace(None)

    def _note(self, frame: types.FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code is function.__code__:
            self.argument.append(frame.f_locals["x"])
        file = file_of(code)
        if file is None:
            return
        callers = [*callers_of(frame)]
        if code.co_qualname == "Forward._apply":
            rule, item = frame.f_locals["rule"], frame.f_locals["item"]
            self.rule = [rule, item, *item.args]
        is_variadic = [bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)]
        count = code.co_argcount + code.co_kwonlyargcount + sum(is_variadic)
        values = [frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals]
        ids = frozenset(id(part) for value in values for part in self._parts(value, _DEPTH))
        caller = next(filter(None, map(file_of, callers)), None)
        functions = frozenset(one.co_qualname for one in (code, *callers))
        self.steps.append(Step(file, caller, code, ids, functions))

    def _parts(self, value: Any, depth: int) -> Iterator[object]:
        self._alive.append(value)
        yield value
        kind = type(value)
        if not depth:
            return
        if isinstance(value, (tuple, list, dict)):
            for item in [*value.values()] if isinstance(value, dict) else [*value]:
                yield from self._parts(item, depth - 1)
        elif kind.__module__.startswith("switchgear") and dataclasses.is_dataclass(value):
            fields = (getattr(value, field.name, None) for field in dataclasses.fields(value))
            tensor = self.argument[0]
            yield from (one for field in fields for one in self._parts(field, depth - 1) if one is tensor)

    def trip(self, start: str, followed: list[object]) -> list[Step]:
        """Return the functions on the trip of a value, during the calls of the function named `start`."""
        targets, first = {id(value) for value in followed}, dict[types.CodeType, Step]()
        for step in self.steps:
            if start in step.callers and step.parameters & targets:
                first.setdefault(step.code, step)
        return [*first.values()]


def callers_of(frame: types.FrameType) -> Iterator[types.CodeType]:
    """Return the code of the callers, the nearest first."""
    back = frame.f_back
    while back is not None:
        yield back.f_code
        back = back.f_back


def file_of(code: types.CodeType) -> str | None:
    """Return the path of a file of ours from its package on, or None for other code."""
    path = Path(code.co_filename)
    folders = (ROOT / folder for folder in _FOLDERS)
    return next((str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder)), None)


def layers() -> dict[str, int]:
    """Return the number of each package's or room's layer in import-linter's contracts, the lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ordered = [contract for contract in contracts if contract["type"] == "layers"]
    inner = {name: contract["layers"] for contract in ordered for name in contract.get("containers", ())}
    outer = next((contract["layers"] for contract in ordered if "containers" not in contract), [*inner])
    names = [[f"{one}.{room}" for room in inner[one]] if one in inner else [one] for one in outer]
    flat = [*itertools.chain.from_iterable(names)]
    return {
        ".".join((*name.split(".")[:-1], room.strip())) if "." in name else room.strip(): len(flat) - number
        for number, name in enumerate(flat)
        for room in name.rpartition(".")[2].split("|")
    }


LAYERS = layers()


def layer(file: str) -> int:
    """Return the layer of a file; packages in no contract, which are executors, lie above all others."""
    parts = file.removesuffix(".py").split("/")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((LAYERS[name] for name in names if name in LAYERS), len(LAYERS))


def stays(steps: list[Step]) -> list[Step]:
    """Return the first function of each stay."""
    return [next(group) for _, group in itertools.groupby(steps, key=lambda step: step.file)]


def climbs(steps: list[Step]) -> int:
    """Return the number of stays in a higher layer than the stay before."""
    return sum(layer(now.file) > layer(before.file) for before, now in itertools.pairwise(stays(steps)))


def line(name: str, steps: list[Step]) -> str:
    """Return the figures of a trip."""
    count, rooms = len(stays(steps)), len({step.file for step in steps})
    up = sum(step.caller is not None and layer(step.file) > layer(step.caller) for step in steps)
    return (
        f"{name}: {count} stays, {rooms} rooms, {max(count - 1, 0)} changes of file, {climbs(steps)} climbs "
        f"({up} calls up), {count - rooms} returns, {len(steps)} functions"
    )


def recorded() -> tuple[list[Step], list[Step], list[str]]:
    """Return the trips of the argument and of the rule in a first call, and the files that a hit enters."""
    table: Any = sg.Executor("trips", table=rules)
    jit: Any = sg.jit
    x, weight = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    jit(lambda x: torch.cos(torch.sin(x)), executors=[table, "torch"])(weight).sum().backward()
    jitted = jit(function, executors=[table, "torch"])
    first = Recording([x])
    first.run(lambda: jitted(x, weight))
    name = sg.last_traces(jitted)[0].inputs[0].name
    proxies = [proxy for trace in sg.last_traces(jitted) for proxy in trace.inputs if proxy.name == name]
    jitted(x, weight)
    hit = Recording([x])
    hit.run(lambda: jitted(x, weight))
    argument = first.trip("Compiler.look_up", [*first.argument, *proxies])
    files = [*dict.fromkeys(step.file for step in hit.steps)]
    return argument, first.trip("Forward._apply", first.rule), files


def main(arguments: list[str]) -> int:
    """Print the trips; return 1 if a limit is exceeded."""
    argument, rule, files = recorded()
    print(line("argument tensor", argument))
    print(line("grad rule", rule))
    print(f"hit: {len(files)} files ({', '.join(files)})")
    if "--routes" in arguments:
        for name, steps in (("argument tensor", argument), ("grad rule", rule)):
            print(f"\n{name}, by stays (layer, file, first function)")
            for step in stays(steps):
                print(f"{layer(step.file):4} {step.file:50} {step.code.co_qualname}")
    pairs = (
        (len(stays(argument)), MOST_STAYS),
        (climbs(argument), MOST_CLIMBS),
        (len(stays(rule)), MOST_STAYS_OF_A_RULE),
        (climbs(rule), MOST_CLIMBS_OF_A_RULE),
        (len(files), MOST_FILES_OF_A_HIT),
    )
    exceeded = [f"{figure} is over the limit {limit}" for figure, limit in pairs if figure > limit]
    print("\n".join(exceeded))
    return bool(exceeded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Plugins made up for a test, really installed in a folder, and calls to ask executors about."""

from __future__ import annotations

import importlib
import textwrap
import threading
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import torch

import switchgear as sg
from switchgear_core.ir.naming import symbols_of
from switchgear_core.ir.symbol import Source

#: What a plugin's `table` may have: an implementation and a rule of `torch.sin`.
SIN = """
@table.implementation(torch.sin)
def fast_sin(x):
    return torch.sin(x)

@table.grad_rule(torch.sin)
def sin_rule(x):
    return torch.sin(x), lambda grad: grad * torch.cos(x)
"""
_PREAMBLE = "import torch\nimport switchgear as sg\n"


class Site:
    """A folder of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        group: str = "switchgear",
    ) -> EntryPoint:
        """Install a plugin whose module has this source; the entry point that names it."""
        distribution = distribution or f"switchgear-{name}"
        module = f"made_up_{distribution}_{name}".replace("-", "_")
        (self.path / f"{module}.py").write_text(_PREAMBLE + textwrap.dedent(source))
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        listed = info / "entry_points.txt"
        text = listed.read_text() if listed.exists() else f"[{group}]\n"
        listed.write_text(f"{text}{name} = {module}\n")
        importlib.invalidate_caches()
        return next(entry for entry in self.entry_points() if entry.value == module)

    def entry_points(self) -> list[EntryPoint]:
        """Those of every distribution here, as the loader finds them on the path."""
        return [entry for found in distributions(path=[str(self.path)]) for entry in found.entry_points]


def executor_plugin(name: str, body: str = "", *, options: str = "") -> str:
    """The source of a plugin with one executor, whose `table` the hooks install; `body` comes after."""
    return f"""
from switchgear import hookimpl

table = sg.Table({name!r})

@hookimpl
def switchgear_executors():
    return [sg.Executor({name!r}, {options})]

@hookimpl
def switchgear_register_implementations(registry):
    table.install_implementations(registry)

@hookimpl
def switchgear_register_grad_rules(registry):
    table.install_grad_rules(registry)
{textwrap.dedent(body)}"""


def rules_plugin(owner: str, body: str = "", *, priority: int = 0) -> str:
    """The source of a plugin without executors that brings a grad rule for `torch.sin`."""
    return f"""
switchgear_priority = {priority}
table = sg.Table({owner!r})

@table.grad_rule(torch.sin)
def rule_of_{owner.replace("-", "_")}(x):
    return torch.sin(x), lambda grad: grad * torch.cos(x)

@sg.hookimpl
def switchgear_register_grad_rules(registry):
    table.install_grad_rules(registry)
{textwrap.dedent(body)}"""


def call(target: Any, *, requires_grad: bool = True, parts: tuple[sg.BoundSymbol, ...] = ()) -> sg.BoundSymbol:
    """A call of a unary operator, from line 12 of the user's `model.py`."""
    x, y = (
        sg.TensorProxy(name, (2,), (1,), torch.float32, torch.device("cpu"), requires_grad=requires_grad)
        for name in ("x", "y")
    )
    (symbol,) = symbols_of(target)
    return sg.BoundSymbol(symbol, (x,), {}, y, parts, Source("/home/user/model.py", 12, "mlp"))


class Runs:
    """A number that capture does not look into, for it passes for an object of PyTorch's."""

    __module__ = "torch"

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return _runs, (self.value,)


def _runs(value: int) -> Runs:
    return Runs(value)


def _of_pytorch(text: str) -> Any:
    """A function whose code looks as if it were PyTorch's, which capture lets do what it likes."""
    space: dict[str, Any] = {}
    exec(compile(text, torch.__file__, "exec"), space)
    return space["wait"]


_WAIT = _of_pytorch("def wait(inside, go_on):\n    inside.release()\n    return go_on.acquire(timeout=30)\n")


class Meeting:
    """Where a function that is captured waits for another thread; capture looks into this as little."""

    __module__ = "torch"

    def __init__(self) -> None:
        self._inside, self._go_on, self._wait = threading.Semaphore(0), threading.Semaphore(0), _WAIT

    def wait(self) -> None:
        """In the function: say that it is there, and wait."""
        assert self._wait(self._inside, self._go_on)

    def begin(self) -> None:
        """Wait until the function is there."""
        assert self._inside.acquire(timeout=30)

    def end(self) -> None:
        """Let the function go on."""
        self._go_on.release()

    def give_up(self) -> None:
        """Have nobody wait for the function."""
        self._inside.release()

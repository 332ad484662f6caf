"""Methods that no code names: operators, conversions, what `with`, `for` and `f"{}"` call read globals as others do."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import switchgear as sg

FACTOR = 2


def _with(kind: Any) -> int:
    with kind as found:
        return int(found)


def _with_a_number(name: str) -> Callable[[Any], Any]:
    return lambda kind: getattr(operator, name)(kind, 3)


def _of_a_number(name: str) -> Callable[[Any], Any]:
    return lambda kind: getattr(operator, name)(3, kind)


UNARY = ("neg", "pos", "abs", "invert", "index")
BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
COMPARISONS = ("and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne")
USES: dict[str, Callable[[Any], Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in UNARY},
    **{f"__{name}__": _with_a_number(name) for name in (*BINARY, *COMPARISONS)},
    **{f"__r{name}__": _of_a_number(name) for name in ("sub", "truediv", "pow", "matmul")},
    "__call__": lambda kind: kind(),
    "__getitem__": lambda kind: kind[0],
    "__missing__": lambda kind: type("Dict", (dict,), {"__missing__": type(kind).__missing__})()[0],
    "__len__": len,
    "__int__": int,
    "__round__": round,
    "__format__": lambda kind: float(f"{kind}"),
    "__copy__": copy.copy,
    "__enter__": _with,
}


@pytest.mark.parametrize("name", USES)
def test_a_special_method_reads_a_global_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def method(*_: object) -> Any:
        return str(FACTOR) if name == "__format__" else FACTOR

    methods = {name.replace("___", "__"): method, "__exit__": lambda *_: None}
    kind = type("Kind", (), methods)()
    use, x = USES[name], torch.ones(2)
    jitted = sg.jit(lambda x: x * use(kind), executors=["torch"])
    assert torch.equal(jitted(x), 2 * x)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert torch.equal(jitted(x), 5 * x)
    assert sg.cache_info(jitted).entries == 2

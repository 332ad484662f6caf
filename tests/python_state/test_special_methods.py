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


USES: dict[str, Callable[[Any], Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in ("neg", "pos", "abs", "invert", "index")},
    **{
        f"__{name}__": lambda kind, name=name: getattr(operator, name)(kind, 3)
        for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")
    },
    **{
        f"__{name}__": lambda kind, name=name: getattr(operator, name)(kind, 3)
        for name in ("lshift", "rshift", "and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne")
    },
    **{
        f"__r{name}__": lambda kind, name=name: getattr(operator, name)(3, kind)
        for name in ("sub", "truediv", "pow", "matmul")
    },
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

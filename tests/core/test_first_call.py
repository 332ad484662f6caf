"""What the first call of a process imports, and what stands in for it: fakes of common operators, guards in Python."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear import torch_private as internals
from switchgear.jit import last_entry
from switchgear.nesting import map_tensors, tensors_in
from switchgear.patches import redirected
from switchgear.torch_private import guard_tree
from switchgear.torch_private.common_fakes import common_fake

FIRST_CALL = """
import sys, torch
import switchgear as sg
from torch import nn

{}
loaded = [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
assert not loaded, loaded
"""
PROGRAMS = {
    "a linear layer": "sg.jit(nn.Linear(4, 4), executors=['torch'], strict=True)(torch.ones(2, 4))",
    "a linear layer without gradients": """
with torch.no_grad():
    sg.jit(nn.Linear(4, 4), executors=['torch'], strict=True)(torch.ones(2, 4))""",
    "a training step of two layers": """
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
sg.jit(model, executors=['torch'], strict=True)(torch.ones(3, 4)).sum().backward()""",
    "pointwise operators and sums": """
sg.jit(lambda x, y: (x * y + 1).exp().sum(0) / 2, executors=['torch'], strict=True)(torch.ones(2, 3), torch.ones(3))""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_first_call_imports_neither_dynamo_nor_sympy(program: str) -> None:
    source = FIRST_CALL.format(PROGRAMS[program])
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "function", ["lambda x: torch.softmax(x, -1).cumsum(0)", "lambda x: x.sin() if torch._dynamo else x"]
)
def test_what_pytorch_imports_inside_is_no_doing_of_the_functions(function: str) -> None:
    """By the fake of an operator, or by an attribute of a module, in the middle of a capture."""
    source = """
import sys, torch
import switchgear as sg

x = torch.rand(2, 3)
f = sg.jit({}, executors=['torch'], strict=True)
assert torch.equal(f(x), ({})(x))
assert "torch._dynamo" in sys.modules
"""
    source = source.format(function, function)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def each_layout(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor, tensor.transpose(0, -1), tensor[..., ::2], tensor[..., :1]] if tensor.dim() else [tensor]


MATRICES = torch.rand(4, 6), torch.rand(6, 5), torch.rand(3, 4, 6), torch.rand(3, 6, 5)
aten = torch.ops.aten
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    *[(aten.mm.default, (left, MATRICES[1])) for left in (MATRICES[0], torch.rand(6, 4).t())],
    *[(aten.addmm.default, (added, *MATRICES[:2])) for added in (torch.rand(5), torch.rand(4, 5), torch.rand(4, 1))],
    (aten.bmm.default, MATRICES[2:]),
    (aten.baddbmm.default, (torch.rand(3, 4, 5), *MATRICES[2:])),
    *[(aten.sum.dim_IntList, (MATRICES[2], *rest)) for rest in (([1],), ([0, -1], True), (None,), ([],))],
    *[(aten.sum.dim_IntList, (torch.ones(shape, dtype=torch.bool), [0])) for shape in ((), (2,), (2, 3))],
]
POINTWISE = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor eq.Tensor gt.Scalar mul.Scalar pow.Tensor_Scalar maximum.default"
)
POINTWISE += " silu_backward.default tanh_backward.default threshold_backward.default bitwise_and.Tensor"
UNARY = "exp.default sin.default relu.default gelu.default sigmoid.default neg.default logical_not.default"


def overload(name: str) -> Any:
    packet, _, kind = name.partition(".")
    return getattr(getattr(aten, packet), kind)


def same_layouts(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether there is a fake of the call; if so, it is laid out as what the kernel returns."""
    mode = internals.new_fake_mode()
    try:
        result = func(*args)
    except RuntimeError:
        return False
    fakes = map_tensors(
        lambda one: internals.make_fake(
            mode, (one.shape, one.stride(), one.dtype, one.device, 0, one.is_conj(), one.is_neg())
        ),
        args,
    )
    fake = common_fake(mode, func, fakes, {})
    if fake is None:
        return False
    layouts = [
        [(one.shape, one.stride(), one.dtype, one.storage_offset()) for one in tensors_in(value)]
        for value in (fake, result)
    ]
    assert layouts[0] == layouts[1], (func, layouts)
    return True


def test_common_fakes_are_laid_out_as_what_kernels_return() -> None:
    seen: Counter[str] = Counter()
    tensors = [
        tensor
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
        for shape in ((2, 6, 4), (4, 4), (4,), ())
        for tensor in each_layout(torch.ones(shape, dtype=dtype))
    ]
    calls = list(CALLS)
    calls += [(overload(name), (one,)) for name in UNARY.split() for one in tensors]
    for name in POINTWISE.split():
        others = [2, 1.5] if "Scalar" in name else tensors[::3]
        rest = (1,) if name.startswith("threshold") else ()
        calls += [(overload(name), (one, other, *rest)) for one in tensors for other in others]
    for func, args in calls:
        seen[str(func)] += same_layouts(func, args)
    assert len(seen) == len({func for func, _ in calls})
    assert min(seen.values()) > 0
    assert seen["aten.add.Tensor"] > 100


@pytest.mark.parametrize("name", ["mm.default", "addmm.default", "add.Tensor", "sum.dim_IntList"])
def test_what_kernels_refuse_has_no_common_fake(name: str) -> None:
    mode = internals.new_fake_mode()
    with mode:
        fakes = {"mm": 2, "addmm": 3, "add": 2, "sum": 1}[name.partition(".")[0]]
        args = [torch.empty(2, 3) for _ in range(fakes)]
    args = [args[0], args[0].view(3, 2).view(6)] if name == "add.Tensor" else args
    rest = ([7],) if name.startswith("sum") else ()
    assert common_fake(mode, overload(name), (*args, *rest), {}) is None


class Owner:
    value = 1


GUARDS: dict[str, tuple[Callable[[Any], None], Any, Any]] = {
    "equals": (lambda node: node.add_equals_match_guard(1, ["0"], None), 1, True),
    "identity": (lambda node: node.add_id_match_guard(id(Owner), ["0"], None), Owner, object),
    "type": (lambda node: node.add_type_match_guard(id(int), ["0"], None), 3, 3.0),
    "length": (lambda node: node.add_length_check_guard(2, ["0"], None), [1, 2], [1]),
    "keys": (lambda node: node.add_mapping_keys_guard({"a": 0, "b": 0}, ["0"], None), {"a": 1, "b": 2}, {"b": 2}),
    "contains": (lambda node: node.add_dict_contains_guard(False, "a", ["0"], None), {}, {"a": 1}),
    "no attribute": (
        lambda node: node.add_no_hasattr_guard("other", ["0"], None),
        Owner(),
        type("Other", (), {"other": 1})(),
    ),
    "a test": (lambda node: node.add_lambda_guard(lambda value: value > 1, ["0"], None), 2, 1),
}


def imported_or_not(imported: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Have TorchDynamo's guards imported, or, for all that the tree sees, not: it sees what is returned."""
    module = import_module("torch._dynamo.guards")
    seen = {module.__name__: module} if imported else {}
    monkeypatch.setattr(guard_tree, "sys", types.SimpleNamespace(modules=seen))
    return seen


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("name", GUARDS)
def test_guards_are_alike_in_python_and_in_cpp(name: str, imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    add, met, missed = GUARDS[name]
    imported_or_not(imported, monkeypatch)
    root = internals.guard_root(100)
    node = internals.guard_child(root, "tuple", 0, (met,))
    add(internals.guard_child(node, "list", 0, met))
    assert internals.guard_check(root)(([met],))
    assert not internals.guard_check(root)(([missed],))
    assert [*root.check_verbose(([missed],)).verbose_code_parts][:1] == ["0"]
    assert not internals.guard_check(root)(([],))


@pytest.mark.parametrize("imported", [False, True])
def test_writes_to_dicts_are_seen(imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    imported_or_not(imported, monkeypatch)
    dicts = {"a": 1}, {"b": 2}
    not_written = internals.not_written(dicts)
    assert not_written()
    dicts[1]["b"] = 3
    assert not not_written()


def test_a_tree_in_python_is_made_anew_in_cpp_once_dynamo_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = torch.nn.Linear(2, 2)
    module.scale = 2
    monkeypatch.setattr(guard_tree, "_FEW", 0)
    jitted = sg.jit(lambda x: module(x) * module.scale, executors=["torch"])
    x = torch.ones(1, 2)
    modules = imported_or_not(False, monkeypatch)
    jitted(x)
    (guard,) = [guard for guard in last_entry(jitted).captured.guards if "state" in guard.scope]
    state = guard.scope["state"]
    assert isinstance(state.root, guard_tree._Tree)
    modules["torch._dynamo.guards"] = guard_tree
    for scale, misses in ((2, 1), (2, 1), (3, 2)):
        module.scale = scale
        assert torch.equal(jitted(x), module(x) * scale)
        assert isinstance(state.root, guard_tree.RootGuardManager)
        assert sg.cache_info(jitted).misses == misses


def test_imports_are_made_on_a_thread_where_nothing_is_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)

    def refuse(original: object, *args: object, **kwargs: object) -> None:
        raise AssertionError("redirected")

    with redirected(builtins, "print", refuse), internals.new_fake_mode():
        internals.import_aside("this")  # it prints
    assert "this" in sys.modules
    monkeypatch.delitem(sys.modules, "this")

"""What the first call of a process imports, and what stands in for it: fakes of common operators, guards in Python."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear_core import torch_private as internals
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import redirected
from switchgear_core.torch_private import guard_tree
from switchgear_core.torch_private.common_fakes import common_fake
from switchgear_runtime.last_call import last_entry

FIRST_CALL = """
import sys, torch
import switchgear as sg
from torch import nn

{}
loaded = [name for name in ("sympy", "scipy", "torch._dynamo", "torch._inductor") if name in sys.modules]
assert not loaded, loaded
"""
PROGRAMS = {
    "a linear layer": "sg.jit(nn.Linear(4, 4), {})(torch.ones(2, 4))",
    "a linear layer without gradients": """
with torch.no_grad():
    sg.jit(nn.Linear(4, 4), {})(torch.ones(2, 4))""",
    "a training step of two layers": """
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
sg.jit(model, {})(torch.ones(3, 4)).sum().backward()""",
    "a training step of a classifier": """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
nn.functional.cross_entropy(sg.jit(model, {})(torch.ones(3, 4)), torch.tensor([0, 1, 0])).backward()""",
    "a training step of convolutions": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        x = x + self.second(x)
        return self.last(x.mean((2, 3)) + x.flatten(2).amax(-1))

nn.functional.cross_entropy(sg.jit(Block(), {})(torch.rand(2, 3, 6, 6)), torch.tensor([0, 1])).backward()""",
    "a training step on tokens": """
model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Softmax(-1))
nn.functional.mse_loss(sg.jit(model, {})(torch.tensor([[1, 2, 1]])), torch.ones(1, 3, 4)).backward()""",
    "pointwise operators and sums": """
sg.jit(lambda x, y: (x * y + 1).exp().sum(0) / 2, {})(torch.ones(2, 3), torch.ones(3))""",
}


@pytest.mark.parametrize("options", ["strict=True, executors=['torch']", "strict=True, compile='background'"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_first_call_imports_nothing_that_takes_long(program: str, options: str, tmp_path: Path) -> None:
    source = FIRST_CALL.format(PROGRAMS[program].replace("{}", options))
    environment = {**os.environ, "SWITCHGEAR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_first_calls_in_several_threads_load_plugins_once() -> None:
    source = """
import sys, threading, warnings
import switchgear as sg
warnings.simplefilter("error")
before, failed = sys.stdout, []
threading.excepthook = failed.append
threads = [threading.Thread(target=sg.jit, args=(abs,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sys.stdout is before and not failed, failed
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_to_jit_asks_no_executor_whether_it_can_run_that_a_worker_asks(tmp_path: Path) -> None:
    source = "import switchgear as sg; sg.jit(abs, compile='background'); sg.jit(abs, executors=['torch'])"
    environment = {**os.environ, "SWITCHGEAR_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", source], check=True, env=environment)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("function", ["lambda x: x.cumprod(0).cumsum(0)", "lambda x: x.sin() if torch._dynamo else x"])
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
ONES = torch.rand(3, 4), torch.rand(3, 4), torch.tensor([1, 0, 3])
IMAGES, KERNEL = torch.rand(2, 4, 5, 6), torch.rand(6, 2, 3, 2)
CONVOLVED = [2, 1], [1, 0], [1, 2], False, [0, 0], 2
STATISTICS = torch.rand(4), torch.rand(4)
CALLS += [
    *[(getattr(aten, name).default, (ONES[0], -1, False)) for name in ("_softmax", "_log_softmax")],
    *[
        (getattr(aten, f"{name}_backward_data").default, (*ONES[:2], 1, torch.float32))
        for name in ("_softmax", "_log_softmax")
    ],
    *[
        (aten.nll_loss_forward.default, (ONES[0].t().contiguous().t(), ONES[2], torch.rand(4), way, -100))
        for way in (0, 1)
    ],
    (
        aten.nll_loss_backward.default,
        (torch.rand(3), ONES[0][:, :1].expand(3, 4), ONES[2], None, 0, -100, torch.rand(())),
    ),
    *[(aten.mse_loss.default, (*ONES[:2], way)) for way in (0, 1)],
    (aten.mse_loss_backward.default, (torch.rand(()), *ONES[:2], 1)),
    (aten.convolution.default, (IMAGES, KERNEL, torch.rand(6), *CONVOLVED)),
    *[
        (aten.convolution_backward.default, (torch.rand(2, 6, 3, 4), IMAGES, KERNEL, [6], *CONVOLVED, mask))
        for mask in ([True] * 3, [True, False, False], [False, True, False])
    ],
    (aten._native_batch_norm_legit_functional.default, (IMAGES, None, None, *STATISTICS, True, 0.1, 1e-5)),
    (
        aten.native_batch_norm_backward.default,
        (IMAGES, IMAGES, *STATISTICS[:1], *STATISTICS * 2, True, 1e-5, [True] * 3),
    ),
    (aten.native_layer_norm.default, (IMAGES, [5, 6], torch.rand(5, 6), None, 1e-5)),
    (
        aten.native_layer_norm_backward.default,
        (IMAGES, IMAGES, [6], *[torch.rand(2, 4, 5, 1)] * 2, torch.rand(6), None, [True, True, False]),
    ),
    (aten.embedding.default, (ONES[0].t(), ONES[2])),
    *[(aten.cat.default, ([ONES[0], torch.rand(3, 2)], dim)) for dim in (1, -1)],
    *[(aten.gather.default, (one, 1, ONES[2][None])) for one in (ONES[0], torch.rand(4, 3).t())],
    *[(aten.scatter.value, (one, 0, ONES[2][None] // 2, 1.0)) for one in (ONES[0], torch.rand(4, 3).t())],
    *[(aten.arange.start_step, bounds) for bounds in ((0, 5), (2, 9, 3), (9, 2, -3))],
    (aten.scalar_tensor.default, (2.0,)),
    *[(aten.to.dtype, (one, torch.int64)) for one in each_layout(ONES[0])],
    *[(aten.flatten.using_ints, (one,)) for one in each_layout(ONES[0])],
    *[(aten.where.ScalarOther, (one > 0.5, one, 0.0)) for one in each_layout(ONES[0])],
    *[(aten.where.self, (one > 0.5, torch.rand(()), one)) for one in each_layout(ONES[0])],
    *[
        (getattr(aten, name).default, (one,))
        for name in ("mean", "all", "amax", "zeros_like", "clone")
        for one in each_layout(ONES[0])
    ],
    *[(aten.amax.default, (MATRICES[2], dims, keep)) for dims in ([0], [-1, 0]) for keep in (False, True)],
]
POINTWISE = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor eq.Tensor gt.Scalar mul.Scalar pow.Tensor_Scalar maximum.default"
)
POINTWISE += " silu_backward.default tanh_backward.default threshold_backward.default bitwise_and.Tensor"
UNARY = "exp.default sin.default relu.default gelu.default sigmoid.default neg.default logical_not.default"


def overload(name: str) -> Any:
    packet, _, kind = name.partition(".")
    return getattr(getattr(aten, packet), kind)


def fakes_of(mode: Any, args: tuple[Any, ...]) -> Any:
    return map_tensors(
        lambda one: internals.make_fake(
            mode, (one.shape, one.stride(), one.dtype, one.device, 0, one.is_conj(), one.is_neg())
        ),
        args,
    )


def same_layouts(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether there is a fake of the call; if so, it is laid out as what the kernel returns."""
    mode = internals.new_fake_mode()
    try:
        result = func(*args)
    except RuntimeError:
        return False
    fake = common_fake(mode, func, fakes_of(mode, args), {})
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


def norms(dtype: torch.dtype, of_parameters: torch.dtype | None) -> list[tuple[str, tuple[Any, ...]]]:
    x = torch.rand(2, 6, 4).to(dtype)
    kind = of_parameters or dtype
    one, last = (None if of_parameters is None else torch.ones(count, dtype=kind) for count in (6, 4))
    batched = x, one, one, torch.zeros(6, dtype=kind), torch.ones(6, dtype=kind)
    groups = x, *[torch.ones(2, 2, dtype=kind)] * 2
    return [
        ("native_layer_norm.default", (x, [4], last, last, 1e-5)),
        ("native_group_norm.default", (x, one, one, 2, 6, 4, 2, 1e-5)),
        ("native_group_norm_backward.default", (x, *groups, one, 2, 6, 4, 2, [True, one is not None, False])),
        ("native_batch_norm.default", (*batched, True, 0.1, 1e-5)),
        ("native_batch_norm.default", (*batched, False, 0.1, 1e-5)),
        ("_native_batch_norm_legit.no_stats", (x, one, one, True, 0.1, 1e-5)),
        ("_native_batch_norm_legit_functional.default", (*batched, True, 0.1, 1e-5)),
        ("_native_batch_norm_legit_no_training.default", (*batched, 0.1, 1e-5)),
    ]


@pytest.mark.parametrize("of_parameters", [torch.float32, torch.bfloat16, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fakes_of_norms_have_the_dtypes_of_kernels(dtype: torch.dtype, of_parameters: torch.dtype | None) -> None:
    if dtype is not torch.bfloat16 and of_parameters is torch.bfloat16:
        of_parameters = dtype
    for name, args in norms(dtype, of_parameters):
        mode = internals.new_fake_mode()
        fakes = fakes_of(mode, args)
        with mode:
            found = overload(name)(*fakes)
        dtypes = [[getattr(one, "dtype", None) for one in results] for results in (found, overload(name)(*args))]
        assert dtypes[0] == dtypes[1], name


WRONG: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.mm.default, (torch.empty(2, 3),) * 2),
    (aten.addmm.default, (torch.empty(2, 3),) * 3),
    (aten.add.Tensor, (torch.empty(2, 3), torch.empty(6))),
    (aten.sum.dim_IntList, (torch.empty(2, 3), [7])),
    (aten.amax.default, (torch.empty(0, 3), [0])),
    (aten.mean.default, (ONES[2],)),
    (aten._softmax.default, (ONES[0], 2, False)),
    (aten._softmax.default, (ONES[2], 0, False)),
    (aten.nll_loss_forward.default, (ONES[0], ONES[2][:2], None, 1, -100)),
    (aten.nll_loss_forward.default, (*ONES[:2], None, 1, -100)),
    (aten.convolution.default, (IMAGES, KERNEL, torch.rand(5), *CONVOLVED)),
    (aten.convolution.default, (IMAGES.double(), KERNEL, None, *CONVOLVED)),
    (aten.convolution.default, (IMAGES[:, :, :, :1].contiguous(), KERNEL, None, *CONVOLVED)),
    (aten.native_layer_norm.default, (IMAGES, [4, 6], None, None, 1e-5)),
    (aten.cat.default, ([ONES[0], torch.rand(2, 3)], 0)),
    (aten.gather.default, (ONES[0], 0, ONES[2])),
]


@pytest.mark.parametrize(("func", "args"), WRONG, ids=lambda value: str(value) if callable(value) else "")
def test_what_kernels_refuse_has_no_common_fake(func: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        func(*args)
    mode = internals.new_fake_mode()
    assert common_fake(mode, func, fakes_of(mode, args), {}) is None


class Owner:
    value = 1


GUARDS: dict[str, tuple[Callable[[Any], None], Any, Any]] = {
    "equals": (lambda node: node.add_equals_match_guard(1, ["0"], None), 1, True),
    "identity": (lambda node: node.add_id_match_guard(id(Owner), ["0"], None), Owner, object),
    "type": (lambda node: node.add_type_match_guard(id(int), ["0"], None), 3, 3.0),
    "length": (lambda node: node.add_length_check_guard(2, ["0"], None), [1, 2], [1]),
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


@pytest.mark.skipif(internals.HAS_INLINE_VALUES, reason="from Python 3.13 on all guards are asked in Python")
def test_a_tree_in_python_is_made_anew_in_cpp_once_dynamo_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = torch.nn.Linear(2, 2)
    module.scale = 2
    monkeypatch.setattr(guard_tree, "_FEW", 0)
    jitted = sg.jit(lambda x: module(x) * module.scale, executors=["torch"])
    x = torch.ones(1, 2)
    modules = imported_or_not(False, monkeypatch)
    for _ in range(2):  # the first call may be the only one
        jitted(x)
    (guard,) = [guard for guard in last_entry(jitted).captured.guards if "state" in guard.scope]
    state = guard.scope["state"]
    assert isinstance(state._root, guard_tree._Tree)
    modules["torch._dynamo.guards"] = guard_tree
    for scale, misses in ((2, 1), (2, 1), (3, 2)):
        module.scale = scale
        assert torch.equal(jitted(x), module(x) * scale)
        assert isinstance(state._root, guard_tree.RootGuardManager)
        assert sg.cache_info(jitted).misses == misses


def test_imports_are_made_on_a_thread_where_nothing_is_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)

    def refuse(original: object, *args: object, **kwargs: object) -> None:
        raise AssertionError("redirected")

    with redirected(builtins, "print", refuse), internals.new_fake_mode():
        internals.import_aside("this")  # it prints
    assert "this" in sys.modules
    monkeypatch.delitem(sys.modules, "this")

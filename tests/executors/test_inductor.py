"""The Inductor executor: values and gradients within Inductor's own tolerance, and everything else as eager's."""

from __future__ import annotations

import copy
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import switchgear as sg
import switchgear_inductor
from switchgear import disk_cache
from switchgear.disk_cache import CACHE_VARIABLE
from switchgear_inductor import InductorExecutor, loading
from switchgear_inductor.executor import _internals, _is_surely_lowered
from tests.core.training import backward, forward, leaf, lines
from tests.oracle import step

pytestmark = pytest.mark.skipif(
    InductorExecutor().unavailable() is not None, reason="no C++ compiler here, which Inductor needs"
)


def jit(function: Any, **options: Any) -> Any:
    return sg.jit(function, executors=[InductorExecutor(**options), "torch"])


def regions(trace: sg.Trace) -> list[list[str]]:
    """The operators of each region of a trace."""
    return [[part.symbol.name for part in item.subsymbols] for item in lines(trace) if item.subsymbols]


def assert_near(found: Any, wanted: Any) -> None:
    """Within the tolerance of Inductor's own tests, strides and all else eager's."""
    torch.testing.assert_close(found, wanted, rtol=1.3e-6 * 10, atol=1e-5, check_stride=True, equal_nan=True)


def check(function: Callable[..., Any], *args: Tensor, fused: bool = True) -> Any:
    """The jitted function, called twice with eager's result, in inference and, if an input wants it, in training."""
    jitted = jit(function)
    if any(arg.requires_grad for arg in args):
        for _ in range(2):
            assert_near(step(jitted, *args), step(function, *args))
    else:
        for _ in range(2):
            assert_near(jitted(*args), function(*args))
    assert bool(regions(forward(jitted))) == fused
    return jitted


# Values and gradients.


def test_pointwise_chain() -> None:
    jitted = check(lambda a, b: (a.sin() * b + 1).relu() / 3, torch.randn(5, 7), torch.randn(7))
    assert len(regions(forward(jitted))) == 1


def test_mlp_trains() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    twin, double = copy.deepcopy(model), copy.deepcopy(model).double()
    x, target = torch.randn(6, 8), torch.tensor([0, 1, 2, 2, 1, 0])
    found: list[list[Tensor]] = []
    jitted = jit(model)
    for called, own, value in ((jitted, model, x), (twin, twin, x), (double, double, x.double())):
        loss = F.cross_entropy(called(value), target)
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in own.parameters() if parameter.grad is not None)])
    assert_near(found[0], found[1])
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-5, check_dtype=False)
    assert regions(forward(jitted))
    assert regions(backward(jitted))


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=60,
        n_positions=32,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
        max_position_embeddings=32,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gpt2, llama])
def test_language_model_trains(build: Callable[[], Any]) -> None:
    model = build().train()
    twin, double = copy.deepcopy(model), copy.deepcopy(model).double()
    ids = torch.randint(3, 60, (2, 12))
    jitted = jit(model)
    found: list[dict[str, Tensor]] = []
    for called, own in ((jitted, model), (twin, twin), (double, double)):
        loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in own.named_parameters() if parameter.grad is not None}
        found.append({"loss": loss.detach(), **gradients})
    assert len(found[0]) > 10
    assert_near(found[0], found[1])
    worst = [
        max((one[name].double() - found[2][name]).abs().max().item() for name in found[2])
        for one in (found[0], found[1])
    ]
    assert worst[0] < 3 * worst[1] + 1e-6, "further from float64 than eager is"
    kept = [item.symbol.name for item in lines(forward(jitted))]
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in kept
    assert sum(map(len, regions(forward(jitted)))) > 10


@pytest.mark.slow
def test_layers_that_repeat_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    internals = _internals()  # imported without what it warns of

    compiled: list[str] = []
    original = internals.compile_region

    def counted(region: Any, *args: Any) -> Any:
        compiled.append(region.name)
        return original(region, *args)

    monkeypatch.setattr(internals, "compile_region", counted)

    def layers(a: Tensor) -> Tensor:
        for _ in range(5):
            a = F.dropout(F.gelu(a) * 2 + 1, 0.0001)
        return a

    executor = InductorExecutor()
    jitted = sg.jit(layers, executors=[executor, "torch"])
    jitted(torch.randn(3, 4))
    assert len(regions(forward(jitted))) > 4
    assert len(compiled) == 3  # the first, those between, and the last
    again = sg.jit(layers, executors=[executor, "torch"])
    again(torch.randn(3, 4))
    assert len(compiled) == 3
    again(torch.randn(3, 5))
    assert len(compiled) == 6


def test_what_nobody_needs_any_more_is_let_go() -> None:
    executor = InductorExecutor()
    jitted = sg.jit(lambda a: (a.sin() * 2).cos(), executors=[executor, "torch"])
    jitted(torch.randn(3))
    assert len(executor._alive) == 1
    del jitted
    import gc

    gc.collect()
    assert not executor._alive


@pytest.mark.slow
def test_convolution_and_batch_norm() -> None:
    def function(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = F.conv2d(x, w, padding=1)
        return F.relu(F.batch_norm(y, None, None, scale, shift, training=True) + x) * 2

    check(function, leaf(2, 3, 6, 6), leaf(3, 3, 3, 3), leaf(3), leaf(3))


@pytest.mark.slow
def test_embedding_and_loss() -> None:
    index = torch.tensor([[1, 2, 3], [3, 1, 0]])

    def function(weight: Tensor, head: Tensor) -> Tensor:
        hidden = F.layer_norm(F.embedding(index, weight), (8,))
        return F.cross_entropy((hidden @ head).flatten(0, 1).softmax(-1) * 3, index.flatten())

    check(function, leaf(5, 8), leaf(8, 5))


# Memory.


@pytest.mark.slow
def test_inputs_in_any_layout() -> None:
    wide = torch.randn(6, 8)
    for value in (
        wide.t(),
        wide[::2, 1::3],
        wide[:, :1].expand(6, 8),
        wide.flip(0),
        wide.as_strided((3, 3), (1, 2), 4),
    ):
        check(lambda a: (a.sin() + 1) * a.sum(0), value)


def test_what_is_joined_to_nothing() -> None:
    # as the first keys of a cache; the view is one of eager's strides alone
    def joined(x: Tensor) -> Tensor:
        keys = torch.cat([torch.tensor([]), torch.sin(x).view(2, 3, 4, 5).transpose(1, 2)], -2)
        return keys.transpose(-2, -1).view(8, 5, 3).exp()

    check(joined, torch.randn(2, 3, 20))
    check(joined, torch.randn(2, 3, 20, requires_grad=True))


def test_strides_of_outputs() -> None:
    image = torch.randn(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    for value in (image, last, image.permute(2, 0, 3, 1), torch.randn(3, 1, 4).transpose(0, 1), torch.randn(1, 1, 5)):
        check(lambda a: ((a.sin() + 1) * 2, F.gelu(a).neg()), value)
    check(lambda a: F.conv2d(a, torch.ones(3, 3, 1, 1)).relu() * 2 + a, last)
    check(lambda a, b: ((a + b).sin(), (b + a).cos(), a * b), last, image)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a.clone(), a.sin() * 2),
        lambda a: (a * 1, a + 0, a.sin()),
        lambda a: (torch.cat([a]), a.repeat(1, 1) * 1, a.sin()),
        lambda a: ((b := a.sin() * 2), b.clone(), b * 1),
        lambda a: (a.sin() * 2, a.sin() * 2),
        lambda a: (torch.where(torch.ones_like(a) > 0, a, a.sin()), a.pow(1)),
    ],
)
def test_results_share_no_memory(function: Callable[..., Any]) -> None:
    a = torch.randn(3, 4)
    results = check(function, a)(a)
    storages = [value.untyped_storage().data_ptr() for value in (a, *results)]
    assert len(set(storages)) == len(storages)
    for value in results:
        value.zero_()
    assert_near(function(a), jit(function)(a))


def test_views_of_results_are_views() -> None:
    def function(a: Tensor) -> tuple[Tensor, Tensor]:
        b = a.sin() * 2
        return b, b[1:].t()

    a = torch.randn(3, 4)
    b, view = check(function, a)(a)
    b.zero_()
    assert not view.any()


def test_inputs_are_not_written_to() -> None:
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    before = a.clone(), b.clone()
    check(lambda a, b: ((a + b).relu() * 2).exp() + a, a, b)
    assert_near((a, b), before)


def test_writes_reach_the_inputs() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2).add_(b)
        b[0] = a.sum()
        return a.sin() * b

    jitted = jit(function)
    found, wanted = (torch.ones(3), torch.arange(3.0)), (torch.ones(3), torch.arange(3.0))
    for _ in range(2):
        assert_near((jitted(*found), found), (function(*wanted), wanted))
    assert regions(forward(jitted))


@pytest.mark.slow
def test_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()).train()
    twin, x = copy.deepcopy(model), torch.randn(6, 4)
    jitted = jit(model)
    for _ in range(3):
        assert_near(jitted(x), twin(x))
    assert_near(dict(model.named_buffers()), dict(twin.named_buffers()))


# Values that are special.


@pytest.mark.slow
def test_mixed_dtypes() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor) -> Any:
        total = a + b
        return total * c, (total > 0) & (c != 0), c.to(torch.float64) + total, total.to(torch.bfloat16)

    check(function, torch.randn(4), torch.randn(4, dtype=torch.float64), torch.arange(4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, dtype=dtype)

    def function(a: Tensor) -> Tensor:
        return F.layer_norm(F.silu(a) * 2, (8,))

    wanted = function(x.double())
    found, eager = jit(function)(x), function(x)
    assert (found.dtype, found.stride()) == (eager.dtype, eager.stride())
    rounding = torch.finfo(dtype).eps * wanted.abs().max()
    assert (found.double() - wanted).abs().max() <= (eager.double() - wanted).abs().max() * 1.5 + rounding


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(16),
    "group": lambda: nn.GroupNorm(4, 16),
    "batch": lambda: nn.BatchNorm1d(16),
}


def gradients(model: nn.Module, called: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        out = called(x)
    return [out.detach(), *torch.autograd.grad(out.float().square().mean(), list(model.parameters()))]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("apart", [False, True])
def test_norms_under_autocast(norm: str, apart: bool) -> None:
    """Beside parameters of float32 the CPU's kernels keep statistics in float32, whoever runs the backward."""
    model, x = nn.Sequential(nn.Linear(8, 16), NORMS[norm](), nn.GELU(), nn.Linear(16, 4)), torch.randn(64, 8)
    avoid = {f"aten.native_{norm}_norm_backward.default": ["inductor"]} if apart else {}
    wanted = gradients(model, model, x)
    jitted = sg.jit(model, executors=[InductorExecutor(), "torch"], avoid=avoid)
    for found, eager in zip(gradients(model, jitted, x), wanted, strict=True):
        assert found.dtype == eager.dtype
        assert (found - eager).norm() <= eager.norm() * 0.01 + 1e-3
    assert regions(forward(jitted))


def test_a_region_of_other_dtypes_than_the_traces_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_internals(), "_NORMS", {})
    weight, x = torch.ones(16), torch.randn(4, 16).to(torch.bfloat16)
    jitted = jit(lambda x: torch.native_layer_norm(x * 3, [16], weight, None, 1e-5))
    with pytest.warns(sg.errors.PluginWarning, match=r"would return torch.bfloat16 where .* return torch.float32"):
        found = jitted(x)
    assert found[1].dtype == torch.float32


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, y: F.cross_entropy(x, y),
    "sum, weights": lambda x, y: F.cross_entropy(x, y, torch.arange(1.0, 8.0), reduction="sum"),
    "each": lambda x, y: F.cross_entropy(x, y, reduction="none").square().sum(),
    "ignored": lambda x, y: F.cross_entropy(x, y, ignore_index=2),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "16 bits": lambda x, y: F.cross_entropy(x, y),
}


@pytest.mark.parametrize(
    "loss",
    [pytest.param(loss, id=name, marks=[pytest.mark.slow] * (name != "ignored")) for name, loss in LOSSES.items()],
)
def test_cross_entropy_keeps_two_numbers_of_each_row(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    dtype, near = (torch.bfloat16, 1e-2) if loss is LOSSES["16 bits"] else (torch.float32, 4e-6)
    x, y = torch.randn(8192, 7, dtype=dtype, requires_grad=True), torch.arange(8192) % 7
    jitted = jit(loss)
    for _ in range(2):
        (value, (grad, _)), (wanted, (expected, _)) = step(jitted, x, y), step(loss, x, y)
        pairs: list[Any] = [(value, wanted), (grad, expected)]
        for one, other in pairs:
            assert one.dtype == other.dtype == dtype
            assert (one - other).abs().max() <= near * other.abs().max()
    assert "inductor" in {choice.owner for choice in sg.last_choices(jitted) if choice.kind == "gradient"}
    if loss is LOSSES["ignored"]:
        assert max(one.bytes for one in sg.last_saved(jitted) if not one.alive) <= 8192 * 4


def test_a_small_result_of_log_softmax_is_saved() -> None:
    jitted = jit(LOSSES["ignored"])
    jitted(torch.randn(64, 7, requires_grad=True), torch.arange(64) % 7)
    (choice,) = [one for one in sg.last_choices(jitted) if one.kind == "gradient" and "_log_softmax" in one.symbol]
    assert choice.owner == "derived"
    assert any("a small result, which is saved" in text for _, text in choice.declined)


@pytest.mark.slow
def test_sizes_of_zero_and_one() -> None:
    for shape in ((0,), (2, 0, 3), (), (1, 1)):
        check(lambda a: ((a.sin() * 2).exp() + 1).sum(), torch.randn(shape))
        check(lambda a: (a.sin() * 2).exp() + 1, torch.randn(shape))


def test_integers_divided_by_zero_are_eagers_error() -> None:
    jitted = jit(lambda a, b: ((a // b) + 1) * 2)
    assert_near(jitted(torch.arange(4), torch.ones(4, dtype=torch.long)), (torch.arange(4) + 1) * 2)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        jitted(torch.arange(4), torch.zeros(4, dtype=torch.long))


@pytest.mark.slow
def test_infinities() -> None:
    values = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1e-40, 3e38])
    check(lambda a: (a.abs() + 1, a.relu() * 2, a.exp() - 1, a.maximum(-a) + 0, torch.softmax(a, 0)), values)


# What it leaves to others.


def test_random_numbers_are_eagers() -> None:
    def function(a: Tensor) -> Tensor:
        return F.dropout((a * 2).sin() + 1, 0.5) * 3 + torch.rand_like(a)

    jitted = jit(function)
    for seed in (1, 2):
        results = []
        for call in (jitted, function):
            torch.manual_seed(seed)
            results.append((step(call, leaf_of_ones()), torch.get_rng_state()))
        assert_near(results[0], results[1])
    assert regions(forward(jitted))


def leaf_of_ones() -> Tensor:
    return torch.ones(50, requires_grad=True)


def test_reasons() -> None:
    jitted = jit(lambda a: F.dropout(a.cumsum(0), 0.5))
    jitted(leaf(4))
    found = {
        (one.symbol, reason) for one in sg.last_choices(jitted) for who, reason in one.declined if who == "inductor"
    }
    jitted(torch.randn(4))
    found |= {(one.symbol, reason) for one in sg.last_choices(jitted) for _, reason in one.declined}
    assert found >= {
        ("aten.cumsum.default", "Inductor would call PyTorch's own kernel"),
        ("switchgear.draw_bernoulli", "it draws random numbers, and Inductor draws others than PyTorch"),
        ("torch.cumsum", "its operators are claimed one by one"),
    }


@pytest.mark.slow
def test_libraries_alone_are_no_region() -> None:
    check(lambda a, b: (a @ b) @ b, torch.randn(3, 3), torch.randn(3, 3), fused=False)


# When Inductor fails.


def test_region_that_inductor_fails_on(monkeypatch: pytest.MonkeyPatch) -> None:
    internals = _internals()  # imported without what it warns of

    tried: list[str] = []

    def fail(region: Any, *args: Any) -> Any:
        tried.append(region.name)
        raise RuntimeError("CppCompileError\nmuch more")

    monkeypatch.setattr(internals, "compile_region", fail)
    executor = InductorExecutor()

    def function(a: Tensor) -> Tensor:
        return (a.sin() * 2).exp()

    a = torch.randn(3)
    jitted = sg.jit(function, executors=[executor, "torch"])
    with pytest.warns(sg.errors.PluginWarning) as caught:
        found = jitted(a)
    assert torch.equal(found, function(a))
    (warning,) = caught
    for part in ("inductor", "aten.sin.default, aten.mul.Tensor, aten.exp.default", "RuntimeError: CppCompileError"):
        assert part in str(warning.message)
    assert "much more" not in str(warning.message)
    again = sg.jit(function, executors=[executor, "torch"])
    assert torch.equal(again(a), function(a))
    assert torch.equal(jitted(a), function(a))
    assert len(tried) == 1
    assert not regions(forward(again))
    assert "inductor: Inductor fails on its region: RuntimeError: CppCompileError" in str(sg.explain(again).operators())


def test_unavailable_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _internals()  # which keeps the variable as it was
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = "no C++ compiler: no-such-compiler is not on the path; install one, or name it in the variable CXX"
    assert InductorExecutor().unavailable() == reason
    with pytest.warns(sg.errors.PluginWarning, match="no C\\+\\+ compiler"):
        jitted = jit(lambda a: (a.sin() * 2).exp())
    jitted(torch.randn(3))
    assert not regions(forward(jitted))


@pytest.fixture
def emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor finds nothing on disk but what it keeps from now on."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    torch._inductor.utils.clear_caches()
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        yield
    torch._inductor.utils.clear_caches()


@pytest.mark.usefixtures("emptied")
def test_options_reach_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    internals = _internals()  # imported without what it warns of

    seen: list[int] = []
    original = torch._inductor.compile_fx.compile_fx_inner

    def compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
        seen.append(torch._inductor.config.cpp.simdlen or 0)
        return original(*args, **kwargs)

    monkeypatch.setattr(internals, "compile_fx_inner", compile_fx_inner)
    x = torch.randn(20)
    assert_near(jit(lambda a: a.exp().sin() * 0.3, **{"cpp.simdlen": 1})(x), x.exp().sin() * 0.3)
    assert seen == [1]


@pytest.mark.usefixtures("emptied")
def test_what_is_on_disk_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[Any] = []
    internals = _internals()
    original = internals.make_fx

    def make_fx(function: Any, **options: Any) -> Any:
        traced.append(function)
        return original(function, **options)

    monkeypatch.setattr(internals, "make_fx", make_fx)

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (a.t() * 2).sin() @ b, (b + 1).exp().expand(2, 3, 3).clone()

    def call(count: int, *args: Tensor, **options: Any) -> None:
        jitted = jit(function, **options)
        for _ in range(2):
            assert_near(jitted(*args), function(*args))
        assert len(traced) == count

    a, b = torch.randn(3, 3), torch.randn(3, 3)
    call(1, a, b)
    call(1, b, a)
    call(2, a.double(), b.double())
    call(3, a.t(), b)
    call(4, a, b, **{"cpp.simdlen": 1})
    call(4, a, b)
    call(4, a, b, **{"cpp.simdlen": 1})
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        call(5, a, b)
    finally:
        torch.set_num_threads(threads)
    with torch._inductor.config.patch(force_disable_caches=True):
        call(6, a, b)
        call(7, a, b)


@pytest.mark.usefixtures("emptied")
def test_what_inductor_keeps_no_more_is_compiled_again(tmp_path: Path) -> None:
    a = torch.randn(3)
    assert_near(jit(lambda a: (a.sin() * 2).exp())(a), (a.sin() * 2).exp())
    (library,) = [one for one in disk_cache.everything() if one.suffix == ".file"]
    library.unlink()
    assert_near(jit(lambda a: (a.sin() * 2).exp())(a), (a.sin() * 2).exp())
    assert library.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("emptied")
def test_what_needs_inductor_is_found_by_files_that_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_EXTERN", frozenset())
    compile_all, seen = InductorExecutor.compile_all, list[sg.Trace]()

    def noting(executor: InductorExecutor, regions: list[sg.Trace]) -> Any:
        seen.extend(regions)
        return compile_all(executor, regions)

    monkeypatch.setattr(InductorExecutor, "compile_all", noting)
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    expected = jit(lambda a, b: ((a @ b).sin() * 2).exp())(a, b)
    (region,) = seen
    files = {one: one.read_bytes() for one in disk_cache.everything() if one.is_file()}
    kinds = [one for one in files if one.suffix == ".file" or b'"files"' in files[one]]
    assert len(kinds) >= 4  # a record, Inductor's, code in Python and a library

    def built(*args: Any) -> None:
        raise AssertionError("something is built")

    monkeypatch.setattr("torch._inductor.cpp_builder.CppBuilder.build", built)

    def loaded() -> Any:
        for file, content in files.items():
            file.write_bytes(content)
        return as_in_another_process()

    def as_in_another_process() -> Any:
        disk_cache._workplace.cache_clear()
        torch._inductor.utils.clear_caches()
        return InductorExecutor().load(region)

    draw = random.Random(0)
    assert torch.equal(loaded()([a, b])[0], expected)
    for damaged in kinds:
        for number in range(100):
            for file, content in files.items():
                file.write_bytes(content)
            place = draw.randrange(len(files[damaged]))
            altered = bytes([files[damaged][place] ^ 1]) + files[damaged][place + 1 :] if number % 2 else b""
            damaged.write_bytes(files[damaged][:place] + altered)
            assert as_in_another_process() is None
            assert not damaged.exists()
    assert torch.equal(loaded()([a, b])[0], expected)


# Around it.


def test_importing_the_plugin_is_cheap() -> None:
    probe = "import sys, switchgear_inductor as s; s.InductorExecutor().unavailable(); "
    probe += "print([name for name in sys.modules if name.startswith('torch._inductor.c')])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_first_call_where_nothing_is_cached_does_not_import_inductor(tmp_path: Path) -> None:
    probe = """
import sys, torch
import switchgear as sg

x = torch.ones(3, 4, requires_grad=True)
f = sg.jit(lambda x: (torch.relu(x * 2) + 1).exp(), compile="background")
f(x).sum().backward()
assert "torch._inductor.lowering" not in sys.modules
sg.wait(f)
f(x).sum().backward()
assert "torch._inductor.lowering" not in sys.modules
assert "inductor" in str(sg.explain(f).operators())
"""
    folders = {CACHE_VARIABLE: str(tmp_path), "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    done = subprocess.run([sys.executable, "-c", probe], env=os.environ | folders, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_known_to_be_taken_without_asking_inductor_is() -> None:
    overloads = [getattr(packet, name) for packet in packets() for name in packet.overloads()]
    sure = [fn for fn in overloads if _is_surely_lowered(fn)]
    assert len(sure) > 80
    assert [fn for fn in sure if not _internals().is_lowered(fn)] == []


def packets() -> Iterator[Any]:
    aten = torch.ops.aten
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            yield getattr(aten, name.removeprefix("aten::").partition(".")[0])


def test_asked_after_torch() -> None:
    (executor,) = switchgear_inductor.switchgear_executors()
    assert executor.priority < -100


@pytest.mark.discovery
def test_many_small_operators_are_measured_to_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def scales(a: Tensor) -> Tensor:
        for _ in range(64):
            a = a * 1.01
        return a

    x = torch.randn(8, 8)
    for _ in range(2):
        jitted = sg.jit(scales, executors="auto")
        assert_near(jitted(x), scales(x))
        assert len(regions(forward(jitted))) == 1
        assert "64 x aten.mul.Tensor: execution by inductor (in inductor_" in str(sg.explain(jitted).operators())
    assert len([one for one in disk_cache.everything() if one.suffix == ".entry"]) >= 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_tangents_around_and_inside() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.sin() * 2 + x.cos()).exp() @ x

    def inside(x: Tensor, along: Tensor) -> Any:
        return torch.func.jvp(function, (x,), (along,))

    x, along = torch.randn(3, 3), torch.randn(3, 3)
    jitted = check(function, x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, along)
        found = [torch.autograd.forward_ad.unpack_dual(each(dual)) for each in (jitted, function)]
        assert_near(*found)
    check(inside, x, along)


def test_progress(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, "switchgear"):
        for shown, patience in ((True, 0.0), (False, 0.0), (True, 60.0)):
            with sg.executors.Progress(2, "inductor", is_shown=shown, patience=patience) as progress:
                assert [progress.after(item) for item in "ab"] == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == [
        "inductor: 1/2 regions, 0 s",
        "inductor: 2/2 regions, 0 s",
    ]
    assert not capsys.readouterr().err


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with sg.executors.Progress(2, "inductor", is_shown=True, patience=0.0) as progress:
        progress.after("a")
        progress.after("b")
    first, second = capsys.readouterr().err.removesuffix("\n").split("\r")[1:]
    assert first == "inductor [############............] 1/2 regions, 0 s"
    assert second == "inductor [########################] 2/2 regions, 0 s"


def test_both_kinds_of_16_bits_in_one_region() -> None:
    """Inductor warns that it does not vectorize it, of which nobody is told."""
    check(lambda a: ((a.to(torch.bfloat16) * 2).float() + (a.to(torch.float16) * 3).float()).sin(), torch.ones(5))

"""Who takes what, and why: the traces of a transformer's MLP, priorities, and what is declined."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_core.ir.trace import lines_of
from switchgear_cublas import CublasExecutor
from tests.core.training import backward, executor, forward, lines, operators, owners
from tests.cublas.layers import MLP, cublas, linear, own


def body(trace: sg.Trace) -> str:
    """The lines that compute, without comments, intermediates numbered as they appear."""
    lines = [line.strip() for line in lines_of(trace)]
    text = "\n".join(line.partition("  #")[0] for line in lines if not line.startswith(("#", "del ")))
    numbers: dict[str, int] = {}
    return re.sub(r"\bt\d+\b", lambda found: f"t{numbers.setdefault(found[0], len(numbers))}", text)


def trained(jitted: Any, *args: Tensor) -> Any:
    jitted(*args).sum().backward()
    return jitted


def test_trace_of_an_mlp() -> None:
    jitted = trained(cublas(MLP("gelu_tanh")), torch.randn(2, 3, 8, requires_grad=True))
    # PyTorch 2.15 takes linear apart with another view
    assert body(forward(jitted)).replace("torch.ops.aten._unsafe_view.default", "torch.Tensor.view") == (
        "t0, t1 = switchgear_cublas.operators.linear_gelu_aux(t_0, t_up_weight, t_up_bias, False)\n"
        "t2 = torch.Tensor.view(t0, [6, 16])\n"
        "t3 = torch.nn.functional.linear(t2, t_down_weight, t_down_bias)\n"
        "t4 = torch.Tensor.view(t3, [2, 3, 8])\n"
        "return (t4, t0, t_down_weight, t1, t_0, t_up_weight)"
    )
    assert body(backward(jitted)) == (
        "t0 = torch.Tensor.view(g_t8, [6, 8])\n"
        "t1 = torch.Tensor.view(t2, [6, 16])\n"
        "t3, t4 = switchgear_cublas.operators.matmul_bgrad(t0, t1)\n"
        "t5 = torch.Tensor.view(t4, [8])\n"
        "t6 = switchgear_cublas.operators.matmul_dgelu(t0, t_down_weight, t7)\n"
        "t8 = torch.reshape(t6, (-1, 16))\n"
        "t9 = torch.Tensor.view(t_0, [-1, 8])\n"
        "t10 = torch.mm(t8, t_up_weight)\n"
        "t11 = torch.Tensor.view(t10, (2, 3, 8))\n"
        "t12, t13 = switchgear_cublas.operators.matmul_bgrad(t8, t9)\n"
        "t14 = torch.Tensor.view(t13, -1)\n"
        "return (t11, t12, t14, t3, t5)"
    )


def test_every_line_of_the_fused_backward_knows_what_it_came_from() -> None:
    jitted = trained(cublas(MLP("gelu_tanh")), torch.randn(4, 8, requires_grad=True))
    (dgelu,) = [item for item in lines(backward(jitted)) if "dgelu" in item.symbol.name]
    assert {link.forward.symbol.name for link in dgelu.links} == {
        "torch.nn.functional.linear",
        "switchgear_cublas.linear_gelu.default",
    }
    assert {str(link.rule) for link in dgelu.links} == {"derived (aten.addmm)", "cublas (pullback)"}


def test_trace_of_an_mlp_in_inference() -> None:
    jitted = cublas(MLP("gelu_tanh").requires_grad_(False))
    jitted(torch.randn(2, 3, 8))
    assert body(forward(jitted)) == (
        "t0 = switchgear_cublas.operators.linear_gelu(t_0, t_up_weight, t_up_bias)\n"
        "t1 = torch.nn.functional.linear(t0, t_down_weight, t_down_bias)\n"
        "return (t1,)"
    )
    assert owners(jitted, "execution") == {
        "switchgear_cublas.linear_gelu.default": "cublas",
        "torch.nn.functional.linear": "cublas",
    }


def test_traces_run_as_they_are_printed() -> None:
    jitted = trained(cublas(MLP("gelu_tanh")), torch.randn(4, 8, requires_grad=True))
    for trace in (*sg.last_traces(jitted), *sg.last_backward_traces(jitted)):
        exec(trace.python(), dict(trace.constants))


# Priorities.


def test_without_a_list_nothing_changes() -> None:
    model = MLP("gelu_tanh")
    x = torch.randn(4, 8, requires_grad=True)
    listed, default = trained(sg.jit(model, executors=["torch"]), x), trained(sg.jit(model), x)
    assert sg.explain(default).operators().lines[0] == "executors: torch, cublas"
    for kind in (forward, backward):
        assert body(kind(default)) == body(kind(listed))
    assert set(owners(default, "execution").values()) == {"torch"}
    assert "cublas: torch, which comes before it, takes aten." in str(sg.explain(default).operators())


@pytest.mark.parametrize("order", [*itertools.permutations(["cublas", "mine", "torch"])])
def test_permutations(order: tuple[str, ...]) -> None:
    """Whoever is first takes the activation: as a part of a pattern, by itself, or by PyTorch."""
    mine = executor("mine", {torch.ops.aten.relu.default: torch.relu})
    jitted = sg.jit(linear("relu"), executors=[mine if name == "mine" else name for name in order])
    made = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
    torch.testing.assert_close(jitted(*made), linear("relu")(*made))
    taken = owners(jitted, "execution")
    pattern = owners(jitted, "pattern")["switchgear_cublas.linear_relu.default"]
    if order[0] == "cublas":
        assert (own(forward(jitted)), pattern) == (["linear_relu"], "cublas")
    else:
        assert (own(forward(jitted)), pattern) == ([], "decomposition")
        who = "torch" if order.index("torch") < order.index("mine") else "mine"
        assert taken["torch.nn.functional.relu"] == "decomposition"  # written in Python
        assert taken.get("aten.relu.default", taken.get("torch.relu")) == who
        product = "torch" if order.index("torch") < order.index("cublas") else "cublas"
        assert taken["torch.nn.functional.linear"] == product
    assert "cublas" in str(sg.explain(jitted).operators())


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def test_three_lists_give_three_traces() -> None:
    model, x = MLP("gelu_tanh"), torch.randn(4, 8)
    lists: list[list[Any]] = [
        ["cublas", "torch"],
        [executor("mine", {torch.ops.aten.gelu.default: gelu}), "torch"],
        ["torch"],
    ]
    jitted = [trained(sg.jit(model, executors=given), x) for given in lists]
    assert len({body(forward(one)) for one in jitted}) == 3
    assert len({str(sorted(owners(one, "execution").items())) for one in jitted}) == 3


# Declined, with the reason.

Case = tuple[Callable[..., Any], str]


def two_readers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    z = F.linear(x, w, b)
    return F.relu(z) + z


def returned(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    z = F.linear(x, w, b)
    return F.relu(z), z


def regions(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        z = F.linear(x, w, b)
    return F.relu(z) * x.sum()


def written(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    z = F.linear(x, w, b)
    y = F.relu(z)
    z.add_(1)
    return y * z


DECLINED: dict[str, Case] = {
    "erf": (linear("gelu_erf"), "GELU by erf is not that of the epilogue, which is approximate='tanh'"),
    "two readers": (two_readers, "is read elsewhere too"),
    "returned": (returned, "is returned, or saved"),
    "regions": (regions, "product and activation are in different regions (no_grad or checkpoint)"),
    "written": (written, "is read elsewhere too"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined(name: str) -> None:
    function, reason = DECLINED[name]
    made = [torch.randn(4, 3, requires_grad=True), torch.randn(5, 3), torch.randn(5)]
    jitted = cublas(function)
    torch.testing.assert_close(jitted(*made), function(*made))
    assert own(forward(jitted)) == []
    (choice,) = [choice for choice in sg.last_choices(jitted) if choice.kind == "pattern"]
    assert choice.owner == "decomposition"
    assert reason in dict(choice.declined)["cublas"]
    assert reason in str(sg.explain(jitted).operators())


def test_declined_gelu_by_erf_in_the_backward() -> None:
    jitted = trained(cublas(MLP("gelu_erf")), torch.randn(4, 8))
    assert own(backward(jitted)) == ["matmul_bgrad", "matmul_bgrad"]
    assert "aten.gelu_backward.default" in operators(backward(jitted))
    reasons = [dict(choice.declined) for choice in sg.last_choices(jitted) if choice.kind == "pattern"]
    assert sum("by erf" in reason.get("cublas", "") for reason in reasons) == 2


def test_activation_of_a_view_stays() -> None:
    jitted = cublas(lambda x, w: F.relu(torch.mm(x, w).view(2, -1)))
    made = torch.randn(4, 3), torch.randn(3, 5)
    torch.testing.assert_close(jitted(*made), F.relu(torch.mm(*made).view(2, -1)))
    assert own(forward(jitted)) == []


def test_bias_of_another_shape_stays() -> None:
    made = torch.randn(5, 5), torch.randn(5, 5), torch.randn(5, 1)
    jitted = cublas(lambda x, w, b: F.relu(torch.addmm(b, x, w)))
    torch.testing.assert_close(jitted(*made), F.relu(torch.addmm(made[2], *made[:2])))
    assert own(forward(jitted)) == []


@pytest.mark.parametrize("scale", [{"beta": 2}, {"alpha": 0.5}])
def test_scaled_product_stays(scale: dict[str, Any]) -> None:
    made = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    jitted = cublas(lambda b, x, w: F.relu(torch.addmm(b, x, w, **scale)))
    torch.testing.assert_close(jitted(*made), F.relu(torch.addmm(*made, **scale)))
    assert own(forward(jitted)) == []


def test_strict() -> None:
    jitted = trained(cublas(MLP("gelu_tanh"), strict=True), torch.randn(4, 8))
    assert own(forward(jitted)) == ["linear_gelu_aux"]


def test_an_executor_object_brings_the_passes_too() -> None:
    jitted = sg.jit(MLP("relu").requires_grad_(False), executors=[CublasExecutor(), "torch"])
    jitted(torch.randn(4, 8))
    assert own(forward(jitted)) == ["linear_relu"]


# Availability.


def test_report() -> None:
    (status,) = [status for status in sg.plugin_report() if status.name == "cublas"]
    assert (status.status, status.error, status.executors) == ("loaded", "", ("cublas",))
    if torch.cuda.is_available():
        assert status.limits == ""
    else:
        why = "no device is found" if torch.version.cuda else "this PyTorch is built without it"
        assert status.limits == f"available on its CPU reference path; CUDA absent: {why}"


def test_nvmath_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    reason = CublasExecutor(nvmath=True).unavailable()
    assert reason == "nvmath-python is not installed; install it, or leave nvmath=True out"
    with pytest.warns(sg.errors.PluginWarning, match="executor cublas is listed but skipped"):
        jitted = sg.jit(MLP("relu"), executors=[CublasExecutor(nvmath=True), "torch"])
    jitted(torch.randn(4, 8))
    assert f"skipped: cublas: unavailable: {reason}" in str(sg.explain(jitted).operators())

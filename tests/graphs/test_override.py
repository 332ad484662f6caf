"""`sg.override`: an edited program in place of the captured one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear_graphs import to_fx


class Model(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.count.add_(1)
        hidden = self.linear(x).sin()
        return {"loss": hidden.sum(), "hidden": hidden}


@pytest.fixture
def model() -> Model:
    return Model()


def gradient(function: Any, model: Model, x: Tensor) -> Tensor:
    model.zero_grad()
    function(x)["loss"].backward()
    assert model.linear.weight.grad is not None
    return model.linear.weight.grad.clone()


def edited(trace: sg.Trace, path: Path, old: str, new: str) -> sg.Trace:
    trace.save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return sg.load_trace(path)


def test_an_edited_program_runs_and_is_differentiated(model: Model, tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    f = sg.jit(model, executors=["torch"])
    expected = gradient(f, model, x)
    program = edited(sg.last_traces(f)[0], tmp_path / "f.py", "torch.sin(t2)", "torch.mul(t2, 2.0)")
    g = sg.override(f, program)
    model.count.zero_()
    result = g(x)
    assert torch.equal(result["hidden"], model.linear(x) * 2.0)
    assert model.count == 1
    assert torch.equal(gradient(g, model, x), (x.sum(0) * 2).expand(4, 3))
    assert torch.equal(gradient(f, model, x), expected)
    assert sg.cache_info(g).fallbacks == 0


def test_an_edited_constant_changes_the_result(model: Model, tmp_path: Path) -> None:
    f = sg.jit(model, executors=["torch"])
    f(torch.randn(2, 3))
    g = sg.override(f, edited(sg.last_traces(f)[0], tmp_path / "f.py", "t_count, 1)", "t_count, 5)"))
    model.count.zero_()
    g(torch.randn(2, 3))
    assert model.count == 5


def test_an_edited_joint_program_has_its_own_gradients(model: Model, tmp_path: Path) -> None:
    """For the loss alone, too, where the program expects a tangent for each output."""
    x = torch.randn(2, 3)
    f = sg.jit(model, executors=["torch"])
    expected = gradient(f, model, x)
    graphs = sg.joint(f, x)
    name = graphs.signature.gradients["linear.weight"]
    path = tmp_path / "joint.py"
    graphs.joint.save(path)
    head, _, tail = path.read_text().rpartition("    return (")
    results = tail.replace(f"{name},", "tripled,")
    path.write_text(f"{head}    tripled = torch.mul({name}, 3.0)\n    return ({results}")
    g = sg.override(f, sg.load_trace(path))
    assert torch.equal(gradient(g, model, x), expected * 3)
    gradients: list[Tensor] = []
    for function in (f, g):
        result = function(x)
        loss = result["loss"] + result["hidden"].square().sum()
        gradients += torch.autograd.grad(loss, model.linear.weight)
    assert torch.equal(gradients[1], gradients[0] * 3)


def test_a_graph_made_of_a_program_fits(model: Model) -> None:
    x = torch.randn(2, 3)
    f = sg.jit(model, executors=["torch"])
    expected = gradient(f, model, x)
    for program in (to_fx(sg.last_traces(f)[0]), sg.joint(f, x).graph_module()):
        assert torch.equal(gradient(sg.override(f, program), model, x), expected)


def test_a_function(tmp_path: Path) -> None:
    f = sg.jit(lambda x: x + 1, executors=["torch"])
    f(torch.zeros(3))
    g = sg.override(f, edited(sg.last_traces(f)[0], tmp_path / "f.py", "1)", "7)"))
    assert g(torch.zeros(3)).tolist() == [7, 7, 7]
    assert f(torch.zeros(3)).tolist() == [1, 1, 1]


def test_a_call_that_the_program_is_not_for_runs_in_eager(tmp_path: Path) -> None:
    f = sg.jit(lambda x: x + 1, executors=["torch"])
    f(torch.zeros(3))
    g = sg.override(f, edited(sg.last_traces(f)[0], tmp_path / "f.py", "1)", "7)"))
    with pytest.warns(sg.errors.FallbackWarning, match="override"):
        assert g(torch.zeros(4)).tolist() == [1, 1, 1, 1]


def test_other_edges_are_named(model: Model, tmp_path: Path) -> None:
    f = sg.jit(model, executors=["torch"])
    f(torch.randn(2, 3))
    trace = sg.last_traces(f)[0]
    names = [proxy.name for proxy in trace.outputs if proxy is not None]
    swapped = ", ".join([names[1], names[0], *names[2:]])
    program = edited(trace, tmp_path / "f.py", f"return ({', '.join(names)})", f"return ({swapped})")
    with pytest.raises(sg.errors.InvalidInput, match=r"does not fit Model: output 0 is .*\[2, 4\]"):
        sg.override(f, program)
    fewer = edited(trace, tmp_path / "g.py", f", {names[-1]})", ",)" if len(names) == 2 else ")")
    with pytest.raises(sg.errors.InvalidInput, match=f"returns {len(names) - 1} values"):
        sg.override(f, fewer)


def test_another_kind_of_trace_is_refused(model: Model) -> None:
    x = torch.randn(2, 3)
    f = sg.jit(model, executors=["torch"])
    with pytest.raises(sg.errors.InvalidInput, match="'forward' is no program to put in place"):
        sg.override(f, sg.joint(f, x).forward)
    with pytest.raises(TypeError, match="expected a jitted function"):
        sg.override(model, sg.joint(f, x).joint)
    with pytest.raises(sg.errors.InvalidInput, match="not a str"):
        sg.override(f, "joint.py")  # type: ignore[arg-type]

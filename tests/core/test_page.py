"""The page of an explanation: its data, what links a backward line, and paths that cannot be written."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from switchgear_tools.cli import main
from switchgear_tools.lifetimes import Lifetime, lifetimes, live_bytes, peak
from switchgear_tools.page import payload as payloads
from tests.libraries.tiny import gpt2

HOSTILE = "</script><img src=x onerror=alert(1)>"


def data_of(path: Path) -> Any:
    """The data of a page, as its script reads it."""
    packed = re.search(r'id="data">([A-Za-z0-9+/=]*)</script>', path.read_text())
    assert packed
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return y.sin().sum()


def trained(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A jitted model after a step, one operator a line."""
    f = sg.jit(model, executors=["torch"])
    result = f(*args, **kwargs)
    getattr(result, "loss", result).backward()
    return f


@pytest.mark.parametrize("kind", ["gpt2", "checkpointed"])
def test_each_backward_line_is_linked_or_says_why_not(kind: str, tmp_path: Path) -> None:
    if kind == "gpt2":
        ids = torch.zeros(1, 4, dtype=torch.long)
        f = trained(gpt2(), input_ids=ids, labels=ids)
    else:
        f = trained(Checkpointed(), torch.ones(2, 4))
    data = data_of(sg.explain(f).html(tmp_path / "trace.html"))
    forward, backward = data["graphs"][0]["programs"]
    unlinked = [row for row in backward["rows"] if not row.get("links")]
    assert all("a pass left it out" in data["texts"][row["unlinked"]] for row in unlinked)
    assert len(unlinked) < len(backward["rows"]) / 20
    assert all(link < len(forward["rows"]) for row in backward["rows"] for link in row.get("links", ()))


def test_the_operators_of_a_region_are_linked_through_it(tmp_path: Path) -> None:
    class Fusing(sg.FusionExecutor):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return None

        def compile(self, trace: sg.Trace) -> Any:
            return trace.function()

    f = sg.jit(lambda x: x.sin().cos().exp(), executors=[Fusing("fusing"), "torch"], compile="now")
    f(torch.ones(3, requires_grad=True)).sum().backward()
    data = data_of(sg.explain(f).html(tmp_path / "trace.html"))
    forward, backward = data["graphs"][0]["programs"]
    assert [row["parts"] for row in forward["rows"] if "parts" in row] == [3]
    region, *parts = backward["rows"]
    assert region["parts"] == len(parts) == sum(row["region"] == 0 for row in parts)
    assert all(row["links"] and 0 not in row["links"] for row in parts)


def test_names_with_markup_are_no_markup(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(2, 2))
    f = trained(nn.Sequential(model, Sum()), torch.ones(1, 2))
    path = sg.explain(f).html(tmp_path / "trace.html")
    assert "onerror=alert" not in path.read_text()
    assert any(HOSTILE in text for text in data_of(path)["texts"])


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def test_a_page_that_cannot_be_written_says_where_and_what_to_do(tmp_path: Path) -> None:
    explanation = sg.explain(lambda x: x.sin(), torch.ones(2))
    for path in (tmp_path / "absent" / "trace.html", tmp_path, Path("/proc/trace.html")):
        with pytest.raises(sg.errors.InvalidInput, match="cannot be written") as error:
            explanation.html(path)
        assert str(path) in str(error.value)
        assert "Give the path" in str(error.value)


def test_a_call_that_falls_back_has_a_page_that_says_why(tmp_path: Path) -> None:
    explanation = sg.explain(lambda x: x.sum().item(), torch.ones(2))
    data = data_of(explanation.html(tmp_path / "trace.html"))
    assert not data["graphs"]
    assert "not be compiled" in data["alerts"][0]


def test_a_program_of_very_many_operators_is_folded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "MOST", 20)
    monkeypatch.setattr(payloads, "MOST_WITH_STAGES", 10)
    monkeypatch.setattr(payloads, "FOLDED", 8)

    def chain(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x.sin()
        return x

    f = sg.jit(chain, executors=["torch"])
    f(torch.ones(3, requires_grad=True)).sum().backward()
    data = data_of(sg.explain(f).html(tmp_path / "trace.html"))
    forward, backward = data["graphs"][0]["programs"]
    assert "folded" in data["folded"]
    assert not forward["stages"]
    assert [row["folds"] for row in forward["rows"]] == [8] * 5
    assert all(row["links"] for row in backward["rows"])


def test_stages_say_what_each_pass_leaves(tmp_path: Path) -> None:
    f = sg.jit(lambda x: (x.sin(), x.cos() * 2)[0], executors=["torch"])
    f(torch.ones(3))
    data = data_of(sg.explain(f).html(tmp_path / "trace.html"))
    stages = data["graphs"][0]["programs"][0]["stages"]
    first, last = ([data["texts"][line] for line in stages[place]["lines"]] for place in (0, -1))
    assert any("cos" in line for line in first)
    assert not any("cos" in line for line in last)


def test_live_bytes_count_each_value_from_birth_to_last_use() -> None:
    assert live_bytes([Lifetime("a", 4, -1, 0), Lifetime("b", 8, 0, 2)], 2) == [4, 12, 8]
    f = sg.jit(lambda x: x.sin().cos().exp(), executors=["torch"])
    f(torch.ones(8))
    trace = sg.last_traces(f)[-2]
    held = {trace.inputs[0].name}
    assert [one.birth for one in lifetimes(trace, held)] == [0, 1, 2]
    assert peak(trace, held) == 2 * 32


def test_the_command_line_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("import torch\n\ndef f():\n    return torch.ones(2).sin()\n")
    assert main(["explain", "own.py:f", "--html"]) == 0
    assert "trace.html is written" in capsys.readouterr().err
    assert data_of(tmp_path / "trace.html")["name"] == "f"

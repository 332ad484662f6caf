"""`sg.profile` and `sg.ranges`: lines of a program in profilers, by the user's line and module."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

import switchgear as sg
from switchgear.errors import InvalidInput
from tests.core.test_page import data_of
from tests.falling_back import fallback_told

MODEL = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))


def twice(x: Tensor) -> Tensor:
    return x.sin().cos()


def test_lines_have_time_bytes_place_and_executor() -> None:
    x = torch.randn(3, 4)
    measured = sg.profile(sg.jit(MODEL, executors=["torch"]), x)
    assert measured.calls >= 3
    forward = [line for line in measured.lines if not line.is_backward]
    backward = [line for line in measured.lines if line.is_backward]
    linear = [line for line in forward if "linear" in line.label]
    assert {line.label.split()[1] for line in linear} == {"0", "2"}
    assert all(line.seconds > 0 and line.executor == "torch" and line.calls == 1 for line in linear)
    assert any(line.bytes == 3 * 4 * 4 for line in linear)
    assert any("gradient of" in line.label and "linear" in line.label for line in backward)
    assert sum(line.seconds for line in measured.lines) <= measured.seconds
    assert "test_profile.py" in str(measured)
    assert max(map(len, str(measured).splitlines())) <= 120
    assert len(str(measured).splitlines()) <= 40


def test_gradients_are_computed_and_dropped() -> None:
    sg.profile(MODEL, torch.randn(3, 4))
    assert all(parameter.grad is None for parameter in MODEL.parameters())


def test_calls_are_written_for_chrome(tmp_path: Path) -> None:
    measured = sg.profile(sg.jit(torch.nn.Sequential(nn.GELU()), executors=["torch"]), torch.randn(4))
    measured.chrome(tmp_path / "trace.json")
    names = {event.get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {line.label for line in measured.lines} <= names
    assert json.dumps(measured.as_dict())


def test_a_function_that_falls_back_is_told() -> None:
    def function(x: Tensor) -> Tensor:
        return x * torch.tensor(x.numpy().sum())

    with pytest.raises(InvalidInput, match="runs in eager"), fallback_told():
        sg.profile(function, torch.ones(3))


def test_the_pass_changes_no_bit_and_names_ranges() -> None:
    x = torch.randn(5, 4, requires_grad=True)
    jitted: Any = sg.jit(MODEL, executors=["torch"], passes=[sg.ranges], strict=True)
    expected = torch.autograd.grad(MODEL(x).sum(), x)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(jitted(x).sum(), x)[0], expected[0])
    with profile() as events:
        jitted(x).sum().backward()
    names = [event.name for event in events.events()]
    assert any("test_profile.py" in name and "gelu" in name for name in names)
    assert any("gradient of" in name for name in names)


def test_a_region_runs_in_a_range_of_its_own() -> None:
    class Region(sg.FusionExecutor):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            return None if bound_symbol.is_leaf else sg.Declined("leaves only")

        def compile(self, region: sg.Trace) -> Any:
            return region.function()

    measured = sg.profile(sg.jit(twice, executors=[Region("mine"), "torch"]), torch.randn(4))
    (line,) = measured.lines
    assert line.executor == "mine"
    assert line.label.startswith("2 operators, test_profile.py")


def test_ranges_of_the_user_stay_around_their_lines() -> None:
    @torch.profiler.record_function("outer")
    def stepped(x: Tensor) -> Tensor:
        with torch.profiler.record_function("inner"):
            y = x.exp()
        return y.sinh()

    x = torch.ones(3)
    x.requires_grad_()
    jitted = sg.jit(stepped, executors=["torch"], strict=True)
    for _ in range(2):
        with profile() as events:
            jitted(x).sum().backward()
    within = {
        event.name: [one.name for one in parents(event)] for event in events.events() if event.name.startswith("aten::")
    }
    assert [name for name in within["aten::exp"] if name in ("inner", "outer")] == ["inner", "outer"]
    assert [name for name in within["aten::sinh"] if name in ("inner", "outer")] == ["outer"]
    assert "outer" not in within["aten::cosh"], "the backward runs in no range, as in eager mode"


def parents(event: Any) -> Iterator[Any]:
    while (event := event.cpu_parent) is not None:
        yield event


class Buffered(sg.FusionExecutor):
    """Its regions need twice as much memory inside as they return."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Any:
        function = region.function()

        def run(*args: Tensor) -> Any:
            buffers = [torch.empty(300_000), torch.empty(200_000)]
            del buffers
            return function(*args)

        return run


@pytest.mark.parametrize("executors", [["torch"], [Buffered("mine"), "torch"]], ids=["torch", "mine"])
def test_the_page_of_a_profile_plots_the_peak_of_the_allocator(executors: list[Any], tmp_path: Path) -> None:
    x = torch.randn(64, 256)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(3)])
    measured = sg.profile(sg.jit(model, executors=executors, compile="now"), x)
    (graph,) = data_of(measured.html(tmp_path / "trace.html"))["graphs"]
    rows = [row for program in graph["programs"] for row in program["rows"] if "region" not in row]
    assert all(row["share"] > 0 for row in rows)

    jitted = sg.jit(model, executors=executors, compile="now")
    for _ in range(2):
        with profile(profile_memory=True) as events:
            torch.autograd.grad(jitted(x).sum(), [*model.parameters()])
    events.export_chrome_trace(str(tmp_path / "calls.json"))
    calls = json.loads((tmp_path / "calls.json").read_text())["traceEvents"]
    memory = sorted((one for one in calls if one.get("name") == "[memory]"), key=lambda one: one["ts"])
    peak = max(itertools.accumulate(one["args"]["Bytes"] for one in memory))
    assert max(plotted(graph)) == pytest.approx(peak, rel=0.05)


def plotted(graph: Any) -> list[int]:
    """The bytes at each line, as the page plots them."""
    forward, backward = graph["programs"]
    ends = {name: death for name, _, birth, death in backward["values"] if birth < 0}
    count = forward["lines"]
    lives = [(n, b, birth, ends[n] + count if n in ends else death) for n, b, birth, death in forward["values"]]
    lives += [(n, b, birth + count, death + count) for n, b, birth, death in backward["values"] if birth >= 0]
    live = [sum(b for _, b, birth, death in lives if birth <= t <= death) for t in range(count + backward["lines"])]
    for place, program in ((0, forward), (count, backward)):
        for row in program["rows"]:
            if "inside" in row:
                at = place + row["line"]
                live[at] += row["inside"] - sum(b for _, b, birth, _ in lives if birth == at)
    return live

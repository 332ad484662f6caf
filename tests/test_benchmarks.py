"""The benchmarks: every workload runs at tiny sizes, and what they compute is right on known data."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import budgets, contestants, long_trace, malloc, plot, throughput
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.measure import Samples, geometric_mean
from benchmarks.memory import measure
from benchmarks.workloads import WORKLOADS, Function, Mode, Task

SWITCHGEAR = "switchgear-torch"


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str) -> None:
    result = throughput.run(2, [name], ["eager", SWITCHGEAR], quick=True)
    (comparison,) = result.comparisons
    assert comparison.workload == name
    for item in comparison.measured:
        assert item.error is None
        assert item.samples is not None
        assert len(item.samples.seconds) == 2
        assert item.cold is not None
        assert item.cold > 0
        assert (item.held is not None) == (WORKLOADS[name].mode is Mode.TRAINING)
        if item.held is not None:
            assert 0 < item.held.saved <= item.held.peak
    assert comparison.measured[1].deviation == 0
    assert not comparison.to_best  # torch.compile was not asked
    assert math.isnan(result.ratio)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_is_the_same_each_time(name: str) -> None:
    one, other = (WORKLOADS[name].task(quick=True) for _ in range(2))
    results = [task.results(task.run(task.function)) for task in (one, other)]
    assert all(map(torch.equal, *results))
    learned = {Mode.TRAINING: len(one.learned), Mode.STEP: len(one.learned)}
    assert len(results[0]) == 1 + learned.get(WORKLOADS[name].mode, 0)  # every parameter got a gradient
    assert not {tensor.data_ptr() for tensor in one.learned} & {tensor.data_ptr() for tensor in other.learned}


def test_sizes_are_those_that_are_named() -> None:
    x, *_ = WORKLOADS["chain/inference"].task(quick=False).arguments
    assert x.numel() == 4 * 2**20
    for count in (4, 64, 400):
        assert len(WORKLOADS[f"parameters{count}/training"].task(quick=False).learned) == count


def plus(amount: float) -> Contestant:
    def compiled(task: Task) -> Function:
        return lambda *arguments: task.function(*arguments) + amount

    return Contestant(f"plus {amount:g}", compiled)


def broken(task: Task) -> Function:
    raise NotImplementedError("cannot\nand more")


def test_who_fails_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = (CONTESTANTS[0], plus(1.0), plus(0.0), Contestant("broken", broken))
    monkeypatch.setattr(throughput, "CONTESTANTS", entered)
    result = throughput.run(1, ["mlp/inference"], quick=True)
    eager, wrong, right, fails = result.comparisons[0].measured
    assert eager.error is None
    assert right.error is None
    assert wrong.error is not None
    assert wrong.error.startswith("WrongResult: off by ")
    assert wrong.samples is None
    assert fails.error == "NotImplementedError: cannot"
    assert str(result).count("FAILED: ") == 2


def test_exact_contestants_are_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    almost = plus(1e-6)
    exact = Contestant("exact", almost.compile, exact=True)
    monkeypatch.setattr(throughput, "CONTESTANTS", (CONTESTANTS[0], almost, exact))
    _, tolerated, refused = throughput.run(1, ["mlp/inference"], quick=True).comparisons[0].measured
    assert tolerated.error is None
    assert refused.error is not None


def test_deviation() -> None:
    x = torch.tensor([1.0, -4.0])
    assert throughput.deviation(x, x) == 0
    assert throughput.deviation(x + 1, x) == 0.25
    assert throughput.deviation(x.double(), x) == math.inf
    assert throughput.deviation(x * math.nan, x) == math.inf
    assert throughput.deviation(torch.ones(2), torch.zeros(2)) == math.inf


def test_who_cannot_run_is_named() -> None:
    _, absent = throughput.chosen_contestants(["eager", "switchgear-inductor", SWITCHGEAR])
    assert SWITCHGEAR not in absent
    assert "eager" not in absent
    unknown = contestants.configured("strange", executors=["nonesuch", "torch"])
    assert "nonesuch" in (unknown.missing() or "")
    assert contestants.configured("strange", nonesuch=1).missing() is not None


def test_on_request() -> None:
    default, _ = throughput.chosen_contestants([])
    assert "compile-max-autotune" not in [item.name for item in default]
    assert any(item.name == "compile-max-autotune" and item.on_request for item in CONTESTANTS)


def test_workloads_are_found_by_part_of_their_name() -> None:
    assert [item.name for item in throughput.chosen_workloads(["mlp/step", "gpt2"])] == [
        "mlp/step",
        "gpt2/training",
        "gpt2/inference",
    ]
    assert all(item.mode is Mode.INFERENCE for item in throughput.chosen_workloads(["inference"]))
    assert len(throughput.chosen_workloads([])) == len(WORKLOADS)


def test_ratios_are_of_one_round() -> None:
    """A machine that gets slower disturbs both alike."""
    slower = tuple(2.0**n for n in range(9))
    found = Samples("mine", tuple(3 * value for value in slower)).interval_to(Samples("theirs", slower))
    assert (found.value, found.low, found.high) == (3, 3, 3)


def test_interval() -> None:
    """By the binomial distribution it reaches from about the 41st to the 61st of 101 values."""
    values = tuple(float(n) for n in range(1, 102))
    found = Samples("mine", values).interval_to(Samples("theirs", (1.0,) * 101))
    assert found.value == 51
    assert abs(found.low - 41) <= 2
    assert abs(found.high - 61) <= 2


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2)
    assert math.isnan(geometric_mean([]))


def test_best_peer() -> None:
    samples = {
        name: Samples(name, (seconds,) * 3)
        for name, seconds in {"eager": 2.0, "compile": 1.0, "aot-eager": 0.5, "switchgear": 3.0}.items()
    }
    found = throughput.to_best_peer(samples)
    assert {name: ratio.value for name, ratio in found.items()} == {"switchgear": 3.0}
    samples["compile"] = Samples("compile", (4.0,) * 3)
    assert throughput.to_best_peer(samples)["switchgear"].value == 1.5


def test_held_bytes() -> None:
    x = torch.randn(1000, requires_grad=True)
    held = measure("", lambda: x.exp().sum())
    assert held.saved == 4000 + 4  # the result of exp, and the loss
    assert 8004 <= held.peak <= 8100  # and the gradient of x


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_memory_is_kept() -> None:
    program = (
        "import resource, torch\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(12): before = faults(); torch.ones(2**24)\n"
        "print(faults() - before)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in malloc.KEPT}
    stock, kept = (
        int(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout)
        for env in (environment, {**environment, **malloc.KEPT})
    )
    assert kept < 100 < stock


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "found.json"
    chosen = ["--workloads", "mlp/training", "--contestants", "eager", SWITCHGEAR]
    assert command.main(["throughput", "--quick", "--rounds", "3", "--json", str(written), *chosen]) == 0
    (comparison,) = json.loads(written.read_text())["throughput"]["comparisons"]
    assert [item["contestant"] for item in comparison["measured"]] == ["eager", SWITCHGEAR]
    assert [len(item["samples"]["seconds"]) for item in comparison["measured"]] == [3, 3]
    output = capsys.readouterr()
    assert "mlp/training, 1 calls a round" in output.out
    assert f"mlp/training: {SWITCHGEAR} compiles" in output.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workloads", "nonesuch"], "gpt2/training"),
        (["--contestants", "nonesuch"], SWITCHGEAR),
        (["--rounds", "0"], "positive"),
        (["--plot", "x.svg"], "pip install 'switchgear[plot]'"),
    ],
)
def test_command_refuses(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot, "AVAILABLE", False)
    with pytest.raises(SystemExit) as ended:
        command.main(["throughput", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_long_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_trace, "OPERATORS", (10, 20, 40))
    result = long_trace.run(1)
    assert 0 < result.samples[-1].median < long_trace.LIMIT
    samples = [Samples("", (seconds,)) for seconds in (10.0, 20.0, 60.0)]
    assert long_trace.Result(samples).growth == pytest.approx(0.5)
    assert long_trace.Result(samples).ratio == 1


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")
def test_plot(tmp_path: Path) -> None:
    result = throughput.run(2, ["mlp/inference", "chain"], ["eager", SWITCHGEAR, "torchscript"], quick=True)
    plot.write(result, tmp_path / "found.svg", "a title")
    drawn = (tmp_path / "found.svg").read_text()
    assert drawn.startswith("<?xml")
    assert "<svg" in drawn


def test_budgets_are_met_beside_checkpointed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "BUDGETS", (1.0, 0.3))
    result = budgets.run(1, workloads=["gpt2/training"], quick=True)
    rows = result.rows["gpt2/training"]
    assert [row.layers for row in rows] == [*range(1, len(rows) + 1)]
    assert result.met
    for row in rows:
        assert row.held["switchgear"].saved <= row.limit == row.held["checkpoint"].saved < row.held["eager"].saved
    assert result.parts["gpt2/training"][0.3] <= 0.3
    assert 0 <= result.ratio["gpt2/training"] < 100
    assert "1 layers checkpointed" in str(result)
    with pytest.raises(ValueError, match="no such workload: resnet; there are gpt2/training, llama/training"):
        budgets.run(1, workloads=["resnet"])

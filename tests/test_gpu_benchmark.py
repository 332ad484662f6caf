"""`python -m benchmarks gpu`: all of its way at tiny sizes, on the CPU; and on a GPU where there is one."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import __main__ as command
from benchmarks import gpu
from benchmarks.contestants import Contestant
from benchmarks.gpu_workloads import WORKLOADS, Place
from benchmarks.measure import Samples
from benchmarks.throughput import WrongResult
from benchmarks.workloads import Function, Mode, Task

CONTESTANTS = ["eager", "switchgear"]
TINY = Place(torch.device("cpu"), torch.bfloat16, quick=True)
ON_CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def by(contestant: str, change: float) -> Contestant:
    """One whose loss, and every gradient, is so many times eager's."""

    def compiled(task: Task) -> Function:
        return lambda *arguments: task.function(*arguments) * change

    return Contestant(contestant, compiled)


@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str, device: str) -> None:
    (comparison,) = gpu.run(2, [name], CONTESTANTS, device=device, quick=True).comparisons
    assert comparison.workload == name
    assert comparison.tokens > 0
    assert 0 < comparison.deviation < 0.1
    assert [item.contestant for item in comparison.measured] == CONTESTANTS
    for item in comparison.measured:
        assert item.error is None
        assert item.samples is not None
        assert item.host is not None
        assert len(item.samples.seconds) == len(item.host.seconds) == 2
        assert item.first is not None
        assert item.first > 0
        assert (item.peak is None) == (item.reserved is None) == (device == "cpu")
        if item.peak is not None and item.reserved is not None:
            assert item.peak > 0  # which can lie in a block that was reserved before
            assert item.reserved >= 0
    assert comparison.measured[0].deviation == comparison.deviation


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch.compile's trees of graphs
def test_cuda_graphs() -> None:
    """Captured, replayed in turn with another, and right."""
    (comparison,) = gpu.run(2, ["mlp"], ["eager", "compile-reduce-overhead"], quick=True).comparisons
    assert [item.error for item in comparison.measured] == [None, None]


@pytest.mark.gpu
def test_device_time() -> None:
    """What is queued counts in the time of a call, and not in the host's."""
    x = torch.randn(8192, 8192, device="cuda", requires_grad=True)
    place = Place(torch.device("cuda"), torch.float32, quick=True)
    lane = gpu.Lane(by("", 1), WORKLOADS["mlp"], place, Path())
    lane.task = Task(Mode.TRAINING, lambda: ((x @ x) @ x).sum(), (), (x,))
    lane.function = lane.task.function
    lane.seconds(3)
    assert lane.seconds(3) > 2 * lane.host_seconds()


def test_tasks_are_the_same_each_time() -> None:
    for build in WORKLOADS.values():
        one, other = (gpu.built(build, TINY)[0] for _ in range(2))
        results = [task.results(task.run(task.function)) for task in (one, other)]
        assert all(map(torch.equal, *results))
        assert len(results[0]) == 1 + len(one.learned)  # every parameter got a gradient
        assert {tensor.dtype for tensor in one.learned} == {torch.bfloat16}


def test_values_are_those_of_bf16_in_every_dtype() -> None:
    exact = Place(TINY.device, torch.float32, quick=True)
    for build in WORKLOADS.values():
        rounded, other = gpu.built(build, TINY)[0].learned, gpu.built(build, exact)[0].learned
        assert all(torch.equal(one.float(), two) for one, two in zip(rounded, other, strict=True))
        assert {tensor.dtype for tensor in other} == {torch.float32}


def test_wrong_results_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = (by("eager", 1), by("right", 1), by("wrong", 1.1), by("nan", math.nan))
    monkeypatch.setattr(gpu, "contestants_on", lambda device: entered)
    result = gpu.run(1, ["rms_norm"], device="cpu", quick=True)
    eager, right, wrong, nan = result.comparisons[0].measured
    assert eager.error is None
    assert right.error is None
    for item in (wrong, nan):
        assert item.samples is None
        assert (item.error or "").startswith("WrongResult: result 0 is off by ")
    assert str(result).count("FAILED: ") == 2


def test_one_wrong_gradient_is_enough() -> None:
    """A small one, which the norm of all would hide."""
    reference = gpu.Reference(WORKLOADS["llama"], TINY)
    task, _ = gpu.built(WORKLOADS["llama"], TINY)
    results = task.results(task.run(task.function))
    assert reference.check(results) == max(reference.eager)
    smallest = min(range(1, len(results)), key=lambda index: float(results[index].float().norm()))
    spoilt: list[Tensor] = [*results]
    spoilt[smallest] = 2 * spoilt[smallest]
    with pytest.raises(WrongResult, match=f"result {smallest} is off"):
        reference.check(spoilt)
    with pytest.raises(WrongResult, match="results, or of other shapes"):
        reference.check(results[:-1])


def test_who_cannot_run_is_named() -> None:
    taking, absent = gpu.chosen_contestants(["eager", "switchgear-nvfuser"], "cpu")
    assert [item.name for item in taking] == ["eager"]
    assert list(absent) == ["switchgear-nvfuser"]
    assert "cublas" in absent["switchgear-nvfuser"] or "nvfuser" in absent["switchgear-nvfuser"]
    result = gpu.Result([], absent, 1, "the CPU", quick=True)
    assert f"left out: switchgear-nvfuser: {absent['switchgear-nvfuser']}" in str(result)


def test_targets() -> None:
    def measured(name: str, seconds: float, peak: int) -> gpu.Measured:
        return gpu.Measured(name, samples=Samples(name, (seconds,)), peak=peak)

    found = [measured("eager", 2.0, 100), measured("compile", 1.5, 90)]
    found += [measured("switchgear", 4.0, 10), measured("switchgear-nvfuser", 1.4, 85)]
    comparison = gpu.Comparison("llama", 1, 1, 0.0, found, {})
    assert gpu.targets(comparison) == [
        "  llama: time of switchgear-nvfuser by that of compile: 0.933, at most 0.909091 wanted: NO",
        "  llama: time of switchgear-nvfuser by that of eager: 0.700, at most 0.769231 wanted: yes",
        "  llama: peak of switchgear-nvfuser by that of eager: 0.850, at most 0.8 wanted: NO",
    ]
    assert gpu.targets(gpu.Comparison("llama", 1, 1, 0.0, found[:2], {})) == []
    assert gpu.targets(gpu.Comparison("mlp", 1, 1, 0.0, found, {})) == []


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "found.json"
    chosen = ["--workloads", "rms_norm", "--contestants", *CONTESTANTS, "--json", str(written)]
    assert command.main(["gpu", "--device", "cpu", "--quick", *chosen]) == 0
    (comparison,) = json.loads(written.read_text())["gpu"]["comparisons"]
    assert [item["contestant"] for item in comparison["measured"]] == CONTESTANTS
    output = capsys.readouterr()
    assert "rms_norm, 8 tokens, 1 calls a round" in output.out
    assert "rms_norm: switchgear compiles" in output.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workloads", "resnet"], "no workload resnet of gpu; there are llama, gpt2,"),
        (["--contestants", "thunder"], "compile-reduce-overhead"),
        (["--device", "cpu"], "--device cpu goes with --quick"),
        ([], "PyTorch .* is built without CUDA; --device cpu --quick shows"),
    ],
)
def test_command_refuses(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(SystemExit) as ended:
        command.main(["gpu", *arguments])
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err)


def test_it_runs_only_where_it_is_named() -> None:
    assert "gpu" not in command.parsed([]).names
    assert set(command.parsed([]).names) == set(command.BENCHMARKS) - {*command.ON_REQUEST}

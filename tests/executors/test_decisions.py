"""Decisions: who ran what is noted in a file, and repeated by other processes to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear import disk_cache
from switchgear.errors import InvalidInput, OtherDecisions
from switchgear_background import decisions
from switchgear_runtime.last_call import compiler_of

ROOT = Path(__file__).parents[2]
#: 50 steps of training, from one seed, under the default executors; prints the parameters' bits.
TRAINING = """
import hashlib, sys, torch, switchgear as sg
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
jitted = sg.jit(model, decisions=sys.argv[1] if len(sys.argv) > 1 else None)
optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(50):
    loss = torch.sin(jitted(torch.randn(16, 32))).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
owners = [line.implementation.owner for line in sg.last_traces(jitted)[-1].bound_symbols if line.implementation]
print(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest(), *owners)
"""


class Doubling(sg.FusionExecutor):
    """Fuses sine and cosine, and says by one more that it was there."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        known = ("aten.sin.default", "aten.cos.default")
        return None if bound_symbol.symbol.name in known else sg.Declined("neither sine nor cosine")

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        function = region.function()
        return lambda *inputs: tuple(value + len(self.name) for value in function(*inputs))


def wave(x: Tensor) -> Tensor:
    return torch.cos(torch.sin(x))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.json"


def jit(file: Path, function: Callable[..., Any] = wave, names: tuple[str, ...] = ("a", "bb")) -> Callable[..., Any]:
    executors: list[sg.Executor | str] = [*map(Doubling, names), "torch"]
    jitted: Callable[..., Any] = sg.jit(function, executors=executors, decisions=file, dynamic=False)
    return jitted


def forget() -> None:
    """As in another process."""
    decisions._OPENED.clear()


def test_another_process_trains_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "decisions.json"
    variables = {**os.environ, "SWITCHGEAR_CACHE_DIR": str(tmp_path / "cache")}
    variables["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # they take longer than two regions

    def trained(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", TRAINING, *arguments]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.split()

    first = trained(str(file))
    # by other times than were measured, others would run the regions
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", variables["SWITCHGEAR_CACHE_DIR"])
    for file_of_times in [one for one in disk_cache.everything() if one.suffix == ".entry"]:
        content = json.loads(file_of_times.read_text().partition("\n")[2])
        if isinstance(content["value"], list) and all(isinstance(one, float) for one in content["value"]):
            disk_cache.store(content["key"], [1 / one for one in content["value"]])
    _, *owners = trained()
    assert owners != first[1:]
    assert trained(str(file)) == first


def test_a_region_goes_to_whom_the_file_says(file: Path) -> None:
    x = torch.randn(4)
    assert torch.equal(jit(file)(x), wave(x) + 1)
    content = json.loads(file.read_text())
    (program,) = content["programs"]
    program["regions"] = {region: ["bb", "", 0.0] for region in program["regions"]}
    assert [owner for _, owner in program["lines"]] == ["a"]
    program["lines"] = [[name.replace("a_", "bb_", 1), "bb"] for name, _ in program["lines"]]
    file.write_text(json.dumps(content))
    forget()
    assert torch.equal(jit(file)(x), wave(x) + 2)


def test_explain_names_the_file(file: Path) -> None:
    jitted = jit(file)
    jitted(torch.randn(4))
    assert sg.explain(jitted).as_dict()["notes"] == [f"decisions: noted in {file}"]
    forget()
    jitted = jit(file)
    jitted(torch.randn(4))
    assert sg.explain(jitted).as_dict()["notes"] == [f"decisions: repeated from {file}"]


def test_another_program_is_told_apart(file: Path) -> None:
    jit(file)(torch.randn(4))
    forget()
    with pytest.raises(OtherDecisions, match=r"differs: here it has .*torch\.tan.*, there .*torch\.cos"):
        jit(file, lambda x: torch.tan(torch.sin(x)))(torch.randn(4))
    with pytest.raises(OtherDecisions, match=r"\[5\]"):
        jit(file)(torch.randn(5))


def test_other_executors_are_named(file: Path) -> None:
    jit(file)(torch.randn(4))
    forget()
    with pytest.raises(OtherDecisions, match=r"the executors are a, torch .*, and were a, bb, torch"):
        jit(file, names=("a",))(torch.randn(4))


def test_another_machine_is_named(file: Path) -> None:
    jit(file)(torch.randn(4))
    content = json.loads(file.read_text())
    content["programs"][0]["surroundings"]["PyTorch"] = "2.0.0"
    file.write_text(json.dumps(content))
    forget()
    with pytest.raises(OtherDecisions, match=r"PyTorch is 2\.1.*, and was 2\.0\.0.*Delete the file"):
        jit(file)(torch.randn(4))


def test_other_lines_are_named(file: Path) -> None:
    jit(file)(torch.randn(4))
    content = json.loads(file.read_text())
    content["programs"][0]["lines"][-1][1] = "c 1.0"
    file.write_text(json.dumps(content))
    forget()
    with pytest.raises(OtherDecisions, match=r"is run by a, and .* was by c 1\.0"):
        jit(file)(torch.randn(4))


@pytest.mark.parametrize(
    ("change", "was"),
    [
        (lambda regions: {}, "there was no such region"),
        (lambda regions: {region: ["c", "", 0.0] for region in regions}, "it was run by c"),
    ],
)
def test_a_region_that_nobody_may_have_is_named(file: Path, change: Callable[[Any], Any], was: str) -> None:
    jit(file)(torch.randn(4))
    content = json.loads(file.read_text())
    (program,) = content["programs"]
    program["regions"] = change(program["regions"])
    file.write_text(json.dumps(content))
    forget()
    with pytest.raises(OtherDecisions, match=rf"a region of aten\.sin.*cos.* goes to nobody, and {was}"):
        jit(file)(torch.randn(4))


def test_within_a_process_what_was_decided_is_kept(file: Path) -> None:
    x = torch.randn(4)
    first, second = jit(file), jit(file)
    assert torch.equal(first(x), second(x))
    assert len(json.loads(file.read_text())["programs"]) == 1


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1, "programs": [{"program": 1}]}', "[]"])
def test_another_kind_of_file_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidInput, match="is no file of decisions"):
        jit(file)


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        jit(tmp_path / "taken" / "decisions.json")(torch.randn(4))


def test_bits_that_change_later_cannot_be_asked_for(file: Path) -> None:
    with pytest.raises(InvalidInput, match="decisions implies compile='now'"):
        sg.jit(wave, decisions=file, compile="background")


def test_bits_that_repeat_win_over_a_mode_that_the_call_does_not_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sg.defaults(compile="background"):
        assert compiler_of(sg.jit(wave, decisions=file)).selection.settings["compile"] == "now"
    monkeypatch.setenv("SWITCHGEAR_COMPILE", "background")
    assert compiler_of(sg.jit(decisions=file)(wave)).selection.settings["compile"] == "now"

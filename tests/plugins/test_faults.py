"""Faults of plugins, each in a package of its own beside a good one: what is said, and that nothing else breaks.

The quick form lays the packages out in a folder as pip would, and loads them into this process. `pytest -m slow
tests/plugins/test_faults.py` builds a wheel of each, installs it into a folder of its own, and asks a process that
finds them there among all that is installed; a few of those are not slow.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import switchgear as sg
from switchgear_core.registry.plugins import load
from tests.core.made_up import SIN, Site, executor_plugin, rules_plugin
from tests.plugins.faults import FAULTS, GOOD, PAGE, TORCH, function, laid_out, unharmed
from tests.under_test import part

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]


def assert_clear(kind: str, message: str) -> None:
    """It names plugin and version, and, where a call fails, what to do."""
    assert re.search(r"\bbad 0\.7\b", message), message
    if FAULTS[kind].told == "call":
        remedies = r"leave bad out of executors|'-bad'|passes=\['-run'\]|SWITCHGEAR_DISABLE=bad"
        assert re.search(remedies, message), message


@pytest.mark.parametrize("kind", FAULTS)
def test_fault(kind: str, tmp_path: Path) -> None:
    with laid_out(FAULTS[kind], tmp_path) as message:
        assert_clear(kind, message)
        assert not unharmed()


#: Not loaded, or loaded and put right: what is wrong is its import alone.
NOT_LOADED = [kind for kind, fault in FAULTS.items() if fault.told == "load" and "it " not in kind]


@pytest.mark.parametrize("kind", NOT_LOADED)
def test_listed_it_is_an_error(kind: str, tmp_path: Path) -> None:
    with laid_out(FAULTS[kind], tmp_path) as message:
        for strict in (False, True):
            with pytest.raises(
                sg.errors.UnknownExecutor, match="'bad' is not loaded: plugin bad has failed: "
            ) as raised:
                sg.jit(function, executors=["bad", "torch"], strict=strict)
            assert message.partition(": ")[2] in str(raised.value)


PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "switchgear-{name}"
version = "{version}"

[project.entry-points.switchgear]
{name} = "made_up_{name}"

[tool.hatch.build.targets.wheel]
only-include = ["made_up_{name}.py"]
"""
OFFLINE = ("--no-build-isolation", "--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q")


def project(parent: Path, name: str, version: str, source: str) -> Path:
    """The source of a package, as its author has it."""
    folder = parent / name
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, version=version))
    (folder / f"made_up_{name}.py").write_text(f"import torch\nimport switchgear as sg\n{source}")
    return folder


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if part(kind, 24) else []) for kind in FAULTS]
)
def test_built_and_installed(kind: str, tmp_path: Path) -> None:
    packages = [project(tmp_path, "bad", "0.7", FAULTS[kind].source), project(tmp_path, "good", "1.0", GOOD)]
    site = tmp_path / "site-packages"
    subprocess.run([sys.executable, "-m", "pip", "install", *OFFLINE, "--target", site, *packages], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SWITCHGEAR_"))}
    environment |= {"PYTHONPATH": str(site), "SWITCHGEAR_DISABLE": "contest,cublas,inductor,nvfuser"}
    command = [sys.executable, "-m", "tests.plugins.faults", "--installed", kind]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert_clear(kind, said["message"])
    assert not said["harm"]
    if kind in NOT_LOADED or (FAULTS[kind].told == "call" and not FAULTS[kind].auto):
        assert "Error: " in said["strictly"] or said["strictly"].startswith(("ExecutorFailed", "UnknownExecutor"))
    with laid_out(FAULTS[kind], tmp_path) as message:  # the quick form says the same
        assert words(said["message"]) == words(message)


def words(message: str) -> str:
    """A message without places."""
    return re.sub(r"made_up_\w*|\S*[/\\]\S*|0x\w+|:\d+", "", message)


def test_two_distributions_of_one_name(folder: Site) -> None:
    entries = [
        folder.add("bad", executor_plugin("bad"), distribution="one"),
        folder.add("bad", executor_plugin("bad"), distribution="two"),
        folder.add("good", executor_plugin("good", SIN)),
    ]
    with pytest.warns(sg.errors.PluginWarning, match=r"one .made_up.* and two .made_up.* all call their plugin bad"):
        assert [one.name for one in load(entries).executors] == ["good"]


def test_three_packages_of_rules_and_eagers_bits(folder: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `["torch"]`, GPT-2's loss and gradients are eager's bits, whatever rules are installed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    wrong = "".join(
        f"\n@table.grad_rule({target})\ndef rule{index}(*args, **kwargs):\n"
        f"    return {target}(*args, **kwargs), lambda *grads: [None] * 9\n"
        for index, target in enumerate(["torch.nn.functional.layer_norm", "torch.tanh", "torch.addmm"])
    )
    packages = [folder.add(name, rules_plugin(name, wrong)) for name in ("one", "two", "three")]
    plugins = load([TORCH, *packages])
    monkeypatch.setattr(importlib.import_module("switchgear.jitting"), "installed", lambda *listed: plugins)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)).eval()
    ids = torch.randint(64, (2, 8))
    found = []
    for called in (model, sg.jit(model, executors=["torch"])):
        model.zero_grad()
        loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(map(torch.equal, *found))
    assert "installed and not asked: one, three, two" in str(sg.explain(called))


def test_the_page_tells_of_each() -> None:
    text = PAGE.read_text()
    assert [kind for kind in FAULTS if f"\n### {kind[0].upper()}{kind[1:]}\n\n    " not in text] == []

"""What importing a plugin does to the process: it is put back, and said."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from switchgear.errors import PluginWarning
from switchgear_core.registry.plugins import Plugins, load
from tests.core.made_up import SIN, Site, executor_plugin

READ: dict[str, Callable[[], Any]] = {
    "the default dtype": torch.get_default_dtype,
    "the grad mode": torch.is_grad_enabled,
    "PyTorch's random stream": lambda: torch.get_rng_state().tolist(),
    "Python's random stream": random.getstate,
    "NumPy's random stream": lambda: repr(numpy.random.get_state()),
    "the number of threads": torch.get_num_threads,
    "the mode of deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "the filters of warnings": lambda: [*warnings.filters],
    "the environment": lambda: dict(os.environ),
}
CHANGES = {
    "the default dtype": "torch.set_default_dtype(torch.float64)",
    "the grad mode": "torch.set_grad_enabled(False)",
    "PyTorch's random stream": "torch.manual_seed(17)",
    "Python's random stream": "import random; random.seed(17)",
    "NumPy's random stream": "import numpy; numpy.random.seed(17)",
    "the number of threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "the mode of deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "the filters of warnings": "import warnings; warnings.simplefilter('error')",
    "the environment": "import os; os.environ['MADE_UP'] = '1'",
}
MINOR = ("the filters of warnings", "the environment")


def loaded(site: Site, source: str) -> Plugins:
    return load([site.add("mine", source), site.add("good", executor_plugin("good", SIN))])


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("ends", ["", "raise ValueError('boom')"])
def test_what_is_changed_is_put_back(site: Site, what: str, ends: str) -> None:
    before = READ[what]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside = READ[what]()
        plugins = loaded(site, f"{CHANGES[what]}\n{ends}\n{executor_plugin('mine')}")
        assert READ[what]() == inside
    assert READ[what]() == before
    status = next(one for one in plugins.report if one.name == "mine")
    assert status.status == ("failed" if ends else "loaded")
    assert f"its import changed {what}, which was put back" in status.notes
    named = [str(one.message) for one in caught if "changed" in str(one.message)]
    assert named == (
        [] if what in MINOR else [f"plugin mine 1.0 changed {what} when it was imported; that was put back"]
    )
    assert [one.name for one in plugins.executors] == (["good"] if ends else ["good", "mine"])


def test_what_is_printed_is_captured(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    plugins = loaded(site, "print('hello')\n" + executor_plugin("mine"))
    assert capsys.readouterr().out == ""
    assert plugins.report[1].notes == ("its import printed: hello",)


def test_a_slow_import_is_noted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchgear_core.registry.isolation._SLOW", 0.01)
    plugins = loaded(site, "import time; time.sleep(0.02)\n" + executor_plugin("mine"))
    assert any(note.startswith("its import took 0.0 s") for note in plugins.report[1].notes)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "it brings nothing; its module has functions by these names.*switchgear_executors"),
        ("switchgear_contract = 2", "it is written for contract 2, and this Switchgear has 1"),
        (
            executor_plugin("mine", "table.implementation(torch.nn.SiLU)(torch.sin)"),
            "<class 'torch.nn.modules.activation.SiLU'> names no operator: pass a PyTorch function",
        ),
        (executor_plugin("mine", "@table.implementation\ndef gelu(x): pass"), "<function gelu .* names no operator"),
        (executor_plugin("mine", "table.implementation('aten::nothing')(torch.sin)"), "no operator is called 'aten::n"),
    ],
)
def test_plugins_that_are_refused(site: Site, source: str, message: str) -> None:
    with pytest.warns(PluginWarning, match=f"plugin mine 1.0 is not used .failed.: RegistrationError: {message}"):
        plugins = loaded(site, source)
    assert [one.name for one in plugins.executors] == ["good"]
    assert "Traceback" in plugins.report[1].traceback
    assert not plugins.report[0].traceback


def test_this_contract(site: Site) -> None:
    assert loaded(site, "switchgear_contract = 1\n" + executor_plugin("mine")).report[1].status == "loaded"


def test_pytorchs_own_spelling_of_an_operator(site: Site) -> None:
    spelled = 'table.implementation("aten::sin")(torch.sin)\ntable.implementation("aten::cos.default")(torch.cos)'
    registry = loaded(site, executor_plugin("mine", spelled)).registry
    assert set(registry.implementations_of("mine")) == {
        "aten.sin.default",
        "aten.sin.out",
        "aten.cos.default",
    } | {f"aten.sin.{name}" for name in torch.ops.aten.sin.overloads()}


def test_importing_brings_neither_triton_nor_a_solver_nor_sympy(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("")
    program = "import sys, switchgear; print({'triton', 'highspy', 'sympy'} & {*sys.modules})"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True, timeout=120)
    assert done.stdout == "set()\n", done.stderr

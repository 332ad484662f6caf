"""Every private name of PyTorch that the core uses is listed, is there, and can be missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
import warnings

import pytest
import torch

import switchgear as sg
from scripts import core_size
from switchgear_core.torch_private import names as private_names
from switchgear_core.torch_private.names import PRIVATE_NAMES, missing_names, value_of
from switchgear_core.torch_private.operator_database import DATABASE, operator_database
from switchgear_tools import cli, doctor

#: A path in a string; not the beginning of one, nor the name of an operator, which ends like this_.
PATH = re.compile(r"torch\._[\w.]*[a-zA-Z0-9]")
#: Modules named in strings: one is imported with symbolic sizes, one is compared with where a class is from.
MODULES = {
    "torch._dynamo.config",
    "torch._dynamo.eval_frame",
    "torch._dynamo.trace_rules",
    "torch._guards",
    "torch._library.autograd",
}


def uses(tree: ast.Module) -> set[str]:
    """The paths below `torch` that a module's source names, by imports or by attributes."""
    homes: dict[str, str] = {}
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            homes |= {item.asname or "torch": item.name if item.asname else "torch" for item in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            homes |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
            named |= {f"{node.module}.{item.name}" for item in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
            named.add(node.value)
    for node in ast.walk(tree):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and homes.get(node.id, "").startswith("torch"):
            named.add(".".join([homes[node.id], *reversed(names)]))
    return named


def is_private(path: str) -> bool:
    parts = path.split(".")
    return any(part.startswith("_") and not part.endswith("__") for part in parts) and ".ops." not in path


def test_every_private_name_in_the_core_is_listed() -> None:
    used = set()
    for file in core_size.files_of(*core_size.PACKAGES):
        if file.name != "names.py":
            used |= {path for path in uses(ast.parse(file.read_text())) if is_private(path)}
    # modules on the way to a name, and what is read off a name that is listed
    known = [
        path
        for path in used
        if any(name.startswith(path + ".") or path.startswith(name) for name in (*PRIVATE_NAMES, DATABASE))
    ]
    assert sorted(used.difference(known, MODULES)) == []


def test_private_names_stand_in_one_folder() -> None:
    files = [file for file in core_size.files_of(*core_size.PACKAGES) if file.parent.name != "torch_private"]
    used = {file: {path for path in uses(ast.parse(file.read_text())) if is_private(path)} for file in files}
    # by what is the name of a module, classes and modes are told apart that nobody reads from PyTorch
    told = {"torch._library.autograd", "torch._ops", "torch._subclasses"}
    told |= {f"torch.Tensor.{name}" for name in ("_base", "_is_view", "_version")}  # PyTorch's documents tell of these
    assert {file.name: names - told for file, names in used.items() if names - told} == {}


def test_without_the_operator_database_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operator_database()
    monkeypatch.setitem(sys.modules, DATABASE, None)
    monkeypatch.delattr(DATABASE)
    assert operator_database() == []


@pytest.mark.parametrize("path", PRIVATE_NAMES)
def test_is_there(path: str) -> None:
    assert value_of(path) is not None


#: With each name removed in turn: the package is imported anew, says what is missing, and trains GPT-2 in eager.
WITHOUT = """
import sys, warnings, torch
import torch.utils.checkpoint
from transformers import GPT2Config, GPT2LMHeadModel
from switchgear_core.torch_private.names import PRIVATE_NAMES, value_of

model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)).eval()
tokens = torch.arange(6).reshape(1, 6)

def train(called):
    model.zero_grad()
    called(input_ids=tokens, labels=tokens).loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]

loaded, failures = dict(sys.modules), []
for path in [*PRIVATE_NAMES][int(sys.argv[1])::4]:
    home, _, name = path.rpartition(".")
    holder, value = value_of(home), value_of(path)
    own = name in vars(holder)
    try:
        delattr(holder, name)
    except (AttributeError, TypeError):
        print("stays", path)  # of a class that is written in C
        continue
    for module in [one for one in sys.modules if one.startswith("switchgear")]:
        del sys.modules[module]
    try:
        import switchgear as sg
        from switchgear_core.torch_private.names import missing_names
        if path not in missing_names():
            failures.append(f"{path}: not missed")
        try:
            wanted = train(model)
        except Exception:
            print("eager", path)  # PyTorch cannot do without it
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = train(sg.jit(model, executors=["torch"]))
        if not all(map(torch.equal, found, wanted)):
            failures.append(f"{path}: other values")
        if not any(path in one.message.reason for one in caught if one.category is sg.errors.FallbackWarning):
            failures.append(f"{path}: not said")
    except Exception as error:
        failures.append(f"{path}: {type(error).__name__}: {error}")
    finally:
        setattr(holder, name, value)
assert not failures, "\\n".join(failures)
"""


@pytest.mark.parametrize("quarter", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_each_may_be_missing(quarter: int) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(quarter)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) < len(PRIVATE_NAMES) / 8, done.stdout


def test_doctor_finds_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.process_time()
    assert cli.main(["doctor"]) == 0
    assert time.process_time() - begun < 5
    assert "OK: " in capsys.readouterr().out


def test_doctor_names_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_functionalize_replace")
    assert [*missing_names()] == ["torch._functionalize_replace"]
    assert cli.main(["doctor"]) == 1
    assert "missing: torch._functionalize_replace, which is for functionalization" in capsys.readouterr().out


def test_doctor_names_what_does_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(torch, "_to_functional_tensor", refuses)
    (fault,) = doctor.diagnosis()
    assert fault.startswith("off: gradients of a jitted function: ")
    assert "RuntimeError: no more" in fault


def test_newer_than_tested_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    private_names.warn_if_untested.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.warns(sg.errors.VersionWarning, match=r"PyTorch 2\.99\.0\+cpu is newer than .* \(2\.11 to 2\.15\)"):
        sg.jit(torch.sin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sg.jit(torch.sin)
    private_names.warn_if_untested.cache_clear()

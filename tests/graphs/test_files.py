"""Traces in files: what is saved is loaded, and a file is trusted only as far as it holds calls of operators."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear_core.errors import InvalidInput
from switchgear_graphs.parsing import parsed

SCALE = torch.tensor([1.0, 2.0, 3.0, 4.0])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.linear(x))
        with torch.no_grad():
            scale = hidden.abs().amax()
        parts = (self.norm(hidden) / scale).chunk(2, dim=-1)
        products = (parts[0] * parts[1]).clamp(-2.0, float("inf"))
        total: Tensor = (products + SCALE[:2].sum() * 2.5e-3).sum()
        return total


def code(trace: sg.Trace) -> list[str]:
    """The lines of a trace without comments and `del`."""
    lines = [line.partition("#")[0].rstrip() for line in trace.python(link=False).splitlines()]
    return [line for line in lines if line.strip() and not line.strip().startswith("del ")]


@pytest.fixture
def captured() -> sg.Trace:
    f = sg.jit(Model(), executors=["torch"])
    f(torch.randn(2, 3)).backward()
    return sg.last_traces(f)[0]


@pytest.fixture
def edit(captured: sg.Trace, tmp_path: Path) -> Callable[[str, str], Path]:
    """A saved trace in which some text is replaced."""
    path = tmp_path / "model.py"
    captured.save(path)

    def replace(old: str, new: str) -> Path:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return path

    return replace


def test_every_stage_of_operators_is_loaded_as_it_was(tmp_path: Path) -> None:
    model, x = Model(), torch.randn(2, 3)
    f = sg.jit(model, executors=["torch"])
    f(x).backward()
    graphs = sg.joint(f, x)
    assert graphs.backward is not None
    traces = [*sg.last_traces(f), *sg.last_backward_traces(f), graphs.joint, graphs.forward, graphs.backward]
    for index, trace in enumerate(traces):
        trace.save(tmp_path / f"{index}.py")
        again = sg.load_trace(tmp_path / f"{index}.py")
        assert code(again) == code(trace)
        assert again.inputs == trace.inputs
        assert again.tensors.keys() >= {*trace.tensors} & {p.name for item in trace.bound_symbols for p in item.inputs}


def test_what_requires_grad_is_kept(captured: sg.Trace, tmp_path: Path) -> None:
    captured.save(tmp_path / "model.py")
    again = sg.load_trace(tmp_path / "model.py")
    flags = [[p.requires_grad for item in trace.bound_symbols for p in item.outputs] for trace in (captured, again)]
    assert flags[0] == flags[1]
    assert {True, False} == {*flags[0]}


def test_lines_refer_to_the_file(captured: sg.Trace, tmp_path: Path) -> None:
    captured.save(tmp_path / "model.py")
    lines = (tmp_path / "model.py").read_text().splitlines()
    for item in sg.load_trace(tmp_path / "model.py").bound_symbols:
        assert item.source is not None
        assert item.source.file.endswith("model.py")
        assert item.outputs[0].name in lines[item.source.line - 1]


def test_a_saved_trace_runs_where_the_model_is_unknown(tmp_path: Path) -> None:
    model, x = Model(), torch.randn(2, 3)
    graphs = sg.joint(sg.jit(model, executors=["torch"]), x)
    graphs.joint.save(tmp_path / "joint.py")
    values = {name: model.get_parameter(path).detach() for path, name in graphs.signature.parameters.items()}
    values |= {graphs.signature.inputs["x"]: x, graphs.signature.tangents["result"]: torch.tensor(1.0)}
    values |= dict.fromkeys(graphs.signature.constants.values(), SCALE)
    inputs = [values[proxy.name] for proxy in graphs.joint.inputs]
    torch.save(inputs, tmp_path / "inputs.pt")
    script = (
        "import torch, switchgear as sg\n"
        "torch.set_num_threads(1)\n"
        "trace = sg.load_trace('joint.py')\n"
        "torch.save(trace.function()(*torch.load('inputs.pt')), 'results.pt')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model(x).backward()
    results = dict(zip([p and p.name for p in graphs.joint.outputs], torch.load(tmp_path / "results.pt"), strict=True))
    for path, name in graphs.signature.gradients.items():
        gradient = model.get_parameter(path).grad
        assert gradient is not None
        assert torch.equal(results[name], gradient)


def test_an_edited_number_is_read(edit: Callable[[str, str], Path], captured: sg.Trace) -> None:
    trace = sg.load_trace(edit("0.0025", "0.5"))
    values = [torch.ones(proxy.shape) for proxy in captured.inputs]
    (before,), (after,) = captured.function()(*values), trace.function()(*values)
    torch.testing.assert_close(after - before, torch.tensor((0.5 - 0.0025) * 2 * 4))


BROKEN = {
    "no Python": ("torch.nn.functional.gelu(", "torch.nn.functional.gelu((", r"model.py:\d+: .*it is no Python"),
    "an undefined name": ("gelu(t", "gelu(undefined_t", r"model.py:\d+: undefined_t\d+ is not defined above"),
    "a wrong argument": ("amax(t", "amax(3, t", r"model.py:\d+: torch.amax: "),
    "a wrong shape": (
        "t_linear_weight, t_linear_bias)  #",
        "t_linear_weight, t_linear_weight)  #",
        r"model.py:\d+: torch.nn.functional.linear: ",
    ),
    "a shell command": ("torch.nn.functional.gelu", "os.system", r"model.py:\d+: os.system is no operator"),
    "an import": ("import torch\n", "import torch\nimport os\n", r"model.py:2: import os"),
    "a call outside": ("import torch\n", "import torch\nprint(1)\n", r"model.py:2: a trace is one function"),
    "a class": ("import torch\n", "import torch\nclass A: pass\n", r"model.py:2: a trace is one function"),
    "a file of pickles": ("torch.nn.functional.gelu", "torch.load", r"model.py:\d+: torch.load is no operator"),
    "a mapped file": (
        "torch.nn.functional.gelu",
        "torch.ops.aten.from_file.default",
        r"model.py:\d+: torch.ops.aten.from_file.default is no operator",
    ),
    "a decorator": ("def computation", "@print\ndef computation", r"model.py:\d+: the parameters of a trace"),
    "a default": (
        "def computation(t_0,",
        "def computation(*, t_0=print(),",
        r"model.py:\d+: the parameters of a trace",
    ),
    "other parameters": ("def computation(t_0,", "def computation(t_1,", "the parameters are not those of model.pt"),
    "a loop": ("    return", "    for t in t_0: pass\n    return", r"model.py:\d+: a For statement is no call"),
    "an expression": ("0.0025", "__import__('os').getpid()", r"model.py:\d+: "),
    "an attribute of a tensor": ("gelu(t1)", "gelu(t1.grad_fn)", r"model.py:\d+: "),
    "a lambda": ("gelu(t1)", "gelu(lambda: 0)", r"model.py:\d+: "),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_names_its_line(kind: str, edit: Callable[[str, str], Path]) -> None:
    old, new, message = BROKEN[kind]
    with pytest.raises(InvalidInput, match=message):
        sg.load_trace(edit(old, new))


#: Names below `torch` that are no operators of tensors: called with texts, several of them run code, or write files.
HOSTILE = [
    *("torch.load", "torch.save", "torch.hub.load", "torch.jit.load", "torch.compile", "torch.from_file"),
    *("torch.serialization.load", "torch.utils.cpp_extension.load", "torch.ops.load_library"),
    *("torch.classes.load_library", "torch.Tensor.__reduce_ex__", "torch.Tensor.__setstate__"),
    *("torch.Tensor.register_hook", "torch.Tensor.__class__", "torch.set_default_dtype", "torch.manual_seed"),
    *("torch.ops.aten.save.default", "torch.os.system", "torch.overrides.os.system", "torch.sys.exit"),
    *("switchgear_core.ir.trace.compile_trace", "switchgear.jit", "builtins.exec", "exec", "eval", "open"),
]


@pytest.mark.parametrize("path", HOSTILE)
def test_no_function_but_operators_is_called(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"^a.py:2: .* is no operator that PyTorch knows, and is not called"):
        parsed(f"def computation(x):\n    t = {path}('file', x)\n    return (t,)\n", "a.py")


PIECES = (
    *("None", "-1", "0", "(", "t1", "t_0", "'x'", "[1, 2]", "{}", "torch.float64", "lambda: 0", "*t1", "...", "1e400"),
    *("float('inf')", "slice(0, 1)", "dim=0", "out=t1", "\n", "    ", ")", ",", "=", "t1.data", "10**9", "torch", "_"),
    *("torch.ops", "del t1", "'é'", "\\", "\x00", "#", "return", "t1, t2 = "),
)


def randomly_edited(text: str, random: Random) -> str:
    place = random.randrange(len(text))
    match random.randrange(4):
        case 0:
            return text[:place] + text[place + random.randrange(1, 6) :]
        case 1:
            return text[:place] + random.choice(PIECES) + text[place:]
        case 2:
            lines = text.split("\n")
            one, other = random.randrange(len(lines)), random.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            return "\n".join(lines)
    matches = [*re.finditer(r"t\d+|\d+|torch\.[\w.]+", text)]
    match_ = random.choice(matches)
    new = random.choice([*(item.group() for item in matches), *PIECES])
    return text[: match_.start()] + new + text[match_.end() :]


def outcome(function: Callable[..., Any], inputs: list[Tensor]) -> Any:
    """The results of a program, or the type of its error."""
    try:
        with torch.no_grad():
            return [None if result is None else result.nan_to_num() for result in function(*map(torch.clone, inputs))]
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(4))
def test_random_edits_are_refused_or_do_what_the_text_says(seed: int, captured: sg.Trace, tmp_path: Path) -> None:
    random, path, loaded = Random(seed), tmp_path / "model.py", 0
    unnamed = 0
    captured.save(path)
    original = path.read_text()
    inputs = [torch.randn(proxy.shape) for proxy in captured.inputs]
    for _ in range(40):
        text = original
        for _ in range(random.choice([1, 1, 2, 3])):
            text = randomly_edited(text, random)
        path.write_text(text)
        try:
            trace = sg.load_trace(path)
        except InvalidInput as error:
            unnamed += "model.p" not in str(error)
            continue
        loaded += 1
        scope: dict[str, Any] = {"torch": torch}
        exec(text, scope)
        results, expected = outcome(trace.function(), inputs), outcome(scope[trace.name], inputs)
        if isinstance(results, list) and isinstance(expected, list):
            assert all(
                one is other is None or torch.equal(one, other) for one, other in zip(results, expected, strict=True)
            )
        else:
            assert results == expected, text
    assert loaded
    assert not unnamed


@pytest.mark.parametrize("fault", ["missing", "short", "other", "no tensor", "old", "layout", "pickle"])
def test_an_altered_file_of_constants_is_named(
    fault: str, captured: sg.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.py"
    captured.save(path)
    file = path.with_suffix(".pt")
    data: Any = torch.load(file)
    if fault == "missing":
        file.unlink()
    elif fault == "short":
        file.write_bytes(file.read_bytes()[:100])
    elif fault == "pickle":
        torch.save(Hostile(), file)
    else:
        changes: dict[str, Any] = {
            "other": {"inputs": data["inputs"][1:]},
            "no tensor": {"constants": {"t9": "text"}},
            "old": {"format": 0},
            "layout": {"inputs": [[*data["inputs"][0][:1], [-1], *data["inputs"][0][2:]], *data["inputs"][1:]]},
        }
        torch.save({**data, **changes[fault]}, file)
    with pytest.raises(InvalidInput, match=r"model\.pt"):
        sg.load_trace(path)
    assert capsys.readouterr().out == ""


class Hostile:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_a_program_with_code_of_the_user_is_not_saved(tmp_path: Path) -> None:
    f = sg.jit(
        lambda x: Doubled.apply(x).sum(),  # type: ignore[no-untyped-call]
        executors=["torch"],
    )
    f(torch.ones(3, requires_grad=True))
    with pytest.raises(sg.errors.Unsupported, match="save a stage of operators alone"):
        sg.last_traces(f)[0].save(tmp_path / "f.py")
    assert not [*tmp_path.iterdir()]


def test_another_ending_is_refused(captured: sg.Trace, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"does not end in \.py"):
        captured.save(tmp_path / "model.txt")
    with pytest.raises(InvalidInput, match="cannot be read"):
        sg.load_trace(tmp_path / "nowhere.py")


def test_without_the_distribution_a_sentence_names_it(tmp_path: Path) -> None:
    core = Path(sg.__file__).parents[1]
    script = (
        "import switchgear as sg\n"
        "try: sg.joint\n"
        "except AttributeError as error: print(error)\n"
        "try: sg.Trace('computation', (), (), ()).save('a.py')\n"
        "except sg.errors.InvalidInput as error: print(error)\n"
    )
    packages = [path for path in sys.path if path.endswith("-packages")]
    # -S: the editable install of the repository would bring the other packages
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(core), *packages])}
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    subjects = "sg.joint needs", "traces are saved and pickled by"
    sentences = [f"{subject} switchgear_graphs: pip install switchgear" for subject in subjects]
    assert done.stdout.splitlines() == sentences, done.stderr

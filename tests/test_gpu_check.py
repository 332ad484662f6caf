"""`scripts/gpu_check.py`: what is packed, what is unpacked, and what a run reports; on stand-ins, and without a GPU."""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from scripts import gpu_check as script
from scripts.make_nvfuser_env import NVFUSER, ROOT

FILES = {
    "nvfuser_direct/__init__.py": b"python",
    "nvfuser_direct/_C_DIRECT.so": b"bindings" * 1000,
    "nvfuser_common/include/nvfuser/fusion.h": b"header",
    "nvfuser_common/share/cmake/config.cmake": b"cmake",
    "nvfuser_common/lib/libnvfuser_codegen.so": b"compiler" * 1000,
    "nvfuser_x.libs/libnvrtc-a49e67e8.so.13.0.88": b"a copy",
    "nvfuser_x.libs/libcupti-e2f9ed86.so.2025.3.1": b"a copy",
    "nvfuser_x.libs/libzstd-76b78bac.so.1.4.4": b"none of torch's",
    "nvfuser_x.dist-info/METADATA": b"Name: nvfuser",
    "tools/memory.py": b"packed by mistake",
}
LINKS = {"nvfuser_x.libs/libnvrtc-a49e67e8.so.13.0.88": "libnvrtc.so.13"} | {
    "nvfuser_x.libs/libcupti-e2f9ed86.so.2025.3.1": "libcupti.so.13"
}
USED = {name for name in FILES if not name.startswith(script.UNUSED) and name not in LINKS}


def fake_download(folder: Path) -> None:
    with zipfile.ZipFile(folder / "nvfuser_x-1-py3-none-any.whl", "w") as wheel:
        for name, contents in FILES.items():
            wheel.writestr(name, contents)
    (folder / "small-1-py3-none-any.whl").write_bytes(b"a wheel")


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(script, "download", fake_download)
    assert script.main(["pack", str(tmp_path / "pack")]) == 0
    return tmp_path / "pack"


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "torch's"
    folder.mkdir()
    for name in LINKS.values():
        (folder / name).write_bytes(b"PyTorch's own")
    monkeypatch.setattr(script, "torch_libraries", lambda: folder)
    return folder


def test_what_is_packed(packed: Path) -> None:
    assert {path.name for path in packed.iterdir()} == {"small-1-py3-none-any.whl", script.BUNDLE, script.MANIFEST}
    with tarfile.open(packed / script.BUNDLE) as bundle:
        assert set(bundle.getnames()) == USED | {script.LINKS}
    assert set(json.loads((packed / script.MANIFEST).read_text())) == {"small-1-py3-none-any.whl", script.BUNDLE}


def test_packing_again(packed: Path) -> None:
    before = (packed / script.MANIFEST).read_text()
    (packed / "old-1-py3-none-any.whl").touch()
    assert script.main(["pack", str(packed)]) == 0
    assert (packed / script.MANIFEST).read_text() == before


def test_more_than_may_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "download", fake_download)
    monkeypatch.setattr(script, "LIMIT", 100)
    assert script.main(["pack", str(tmp_path)]) == 1
    assert "more than may travel" in capsys.readouterr().err
    assert not (tmp_path / script.MANIFEST).exists()


def test_wheels_are_pinned() -> None:
    assert all(name.count("==") == 1 for name in (NVFUSER, *script.WHEELS))


def test_progress(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "STRIDE", 4000)
    fake_download(tmp_path)
    script.trim(tmp_path / "nvfuser_x-1-py3-none-any.whl", tmp_path / "bundle")
    assert capsys.readouterr().err.count("compressed") == 2  # each library, read at once, is two strides


def test_unpacking(packed: Path, libraries: Path, tmp_path: Path) -> None:
    for _ in range(2):  # what lies there already is replaced
        assert script.main(["unpack", str(packed), str(tmp_path / "site")]) == 0
    for name in USED:
        assert (tmp_path / "site" / name).read_bytes() == FILES[name]
    for name, library in LINKS.items():
        assert (tmp_path / "site" / name).resolve() == libraries / library
    assert not (tmp_path / "site" / "tools").exists()


def test_a_library_is_missing(
    packed: Path, libraries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (libraries / "libcupti.so.13").unlink()
    assert script.main(["unpack", str(packed), str(tmp_path / "site")]) == 1
    assert "libcupti.so.13 is missing: nvFuser needs torch==2.11.0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["small-1-py3-none-any.whl", script.BUNDLE])
def test_a_damaged_pack(packed: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with (packed / name).open("ab") as file:
        file.write(b"x")
    assert script.main(["unpack", str(packed), str(tmp_path / "site")]) == 1
    assert f"{name} is missing or damaged" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_no_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["run", str(tmp_path), str(tmp_path / "report")]) == 1
    assert "holds no manifest.json" in capsys.readouterr().err


def test_dry_run(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report"
    arguments = ["run", str(packed), str(report), "--dry-run", "--benchmark-args", "--rounds 3"]
    assert script.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == list(script.STEPS)
    assert [line.split()[0] for line in lines if "(needed)" in line] == ["machine", "wheels", "switchgear"]
    tests, benchmark = lines[-2:]
    assert f"-m pytest -m gpu -p no:cacheprovider --junitxml {report}/tests.xml" in tests
    assert benchmark.endswith(f"-m benchmarks gpu --json {report}/benchmark.json --rounds 3")
    assert not report.exists()


def test_unknown_step(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["run", str(packed), str(tmp_path), "--steps", "tests", "nonesuch"]) == 1
    assert "no step nonesuch; there are machine," in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_run_without_a_device(packed: Path, tmp_path: Path) -> None:
    assert script.main(["run", str(packed), str(tmp_path / "report"), "--steps", "machine", "plugins"]) == 1
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert [(step["name"], step["status"]) for step in report["steps"]] == [
        ("machine", "failed"),
        ("plugins", "not run"),
    ]
    assert "finds no CUDA device here" in (tmp_path / "report/report.txt").read_text()
    assert "finds no CUDA device here" in (tmp_path / "report/log.txt").read_text()


def as_python(monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Each step named runs a program of Python's; the others do nothing."""

    def steps(options: argparse.Namespace) -> list[script.Step]:
        commands = {name: programs.get(name, "") for name in script.STEPS}
        names = {"REPORT": str(options.report)}
        return [
            script.Step(name, [sys.executable, "-c", f"{names=}\n{text}"], script.STEPS[name])
            for name, text in commands.items()
        ]

    monkeypatch.setattr(script, "steps", steps)


def suite(passed: int, failed: int, skipped: int) -> str:
    counts = f'tests="{passed + failed + skipped}" failures="{failed}" errors="0" skipped="{skipped}"'
    return f"open(names['REPORT'] + '/tests.xml', 'w').write('<testsuites><testsuite {counts}/></testsuites>')"


def test_a_run(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(
        monkeypatch,
        machine='print(\'{"device": "a GPU"}\')',
        nvfuser="raise SystemExit('does not load')",
        tests=suite(5, 0, 1),
        benchmark="open(names['REPORT'] + '/benchmark.json', 'w').write('{\"gpu\": 1}'); print('a table')",
    )
    assert script.main(["run", str(packed), str(tmp_path / "report")]) == 1  # a step failed; those after it were run
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["machine"] == {"device": "a GPU"}
    assert report["tests"] == {"passed": 5, "failed": 0, "skipped": 1}
    assert report["benchmark"] == {"gpu": 1}
    assert [step["name"] for step in report["steps"] if step["status"] != "passed"] == ["nvfuser"]
    text = (tmp_path / "report/report.txt").read_text()
    assert "gpu tests: 5 passed, 0 failed, 1 skipped" in text
    assert "does not load" in text
    assert text.endswith("a table\n")


def test_skipped_tests_are_no_success(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(monkeypatch, tests=suite(0, 0, 7))
    assert script.main(["run", str(packed), str(tmp_path / "report")]) == 1
    assert "no test ran: all were skipped" in (tmp_path / "report/report.txt").read_text()


def test_a_run_that_succeeds(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_python(monkeypatch, tests=suite(7, 0, 0))
    assert script.main(["run", str(packed), str(tmp_path / "report")]) == 0


def test_steps_see_the_checkout_and_what_was_unpacked(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_BIND_NOW", "1")
    see = "import os; print(os.environ['PYTHONPATH'], os.environ.get('LD_BIND_NOW'), os.getcwd(), sep='\\n')"
    as_python(monkeypatch, machine=see, tests=suite(1, 0, 0))
    assert script.main(["run", str(packed), str(tmp_path / "report"), "--site", str(tmp_path / "site")]) == 0
    said = json.loads((tmp_path / "report/report.json").read_text())["steps"][0]["said"]
    assert said == [f"{ROOT}/core:{ROOT}/executors:{ROOT}/plugins:{tmp_path}/site", "None", str(ROOT)]

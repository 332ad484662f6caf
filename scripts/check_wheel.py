"""Build all distributions, install the wheels into a clean environment, and require a clean plugin report.

`--wheels FOLDER` keeps the distributions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from scripts import core_size

ROOT = Path(__file__).resolve().parent.parent
#: Projects by the folders of the repository, the core first.
PROJECTS = ("core", ".", *sorted(f"plugins/{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml")))
#: Folders of the repository in each wheel, by their place in the wheel.
CONTENT = {
    "switchgear_core": {
        **{name: f"core/{name}" for name in (*core_size.PACKAGES, core_size.TOOLS)},
        "switchgear_torch": "executors/switchgear_torch",
        "switchgear_tools/testing/example": "plugins/switchgear-example",
    },
    "switchgear": {
        path.parent.name: path.parent.relative_to(ROOT).as_posix()
        for path in (*ROOT.glob("executors/*/__init__.py"), *ROOT.glob("plugins/*/__init__.py"))
        if path.parent.name != "switchgear_torch"
    },
}

# Code that asks the installed package; the exit status of its command line must agree.
PROBE = """
import switchgear
report = switchgear.plugin_report()
for plugin in report:
    print(f"  {plugin.name} {plugin.version}: {plugin.status} {plugin.error or ''}".rstrip())
bad = [plugin.name for plugin in report if plugin.status not in ("loaded", "unavailable")]
loaded = [plugin.name for plugin in report if plugin.status == "loaded"]
raise SystemExit(f"not clean: {bad}" if bad else 0 if "torch" in loaded else "the torch executor is not loaded")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return 0 if no fault shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="torch", help="requirement that is installed first")
    parser.add_argument("--torch-index", default="", help="index to try for it before pip's own")
    parser.add_argument("--wheels", type=Path, default=None, help="folder that keeps the distributions")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="switchgear-wheel-") as name:
        folder = Path(name)
        wheels = folder / "dist" if options.wheels is None else options.wheels.resolve()
        build(wheels)
        faults = [fault for part in CONTENT for fault in compare(wheels, part)]
        for fault in faults:
            print(f"wheel: {fault}", file=sys.stderr)
        if faults:
            return 1
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *wheels.iterdir()], check=True)
        python = install(wheels, folder / "env", options.torch, options.torch_index)
        return report(python, folder)


def build(wheels: Path) -> None:
    """Build each project's source distribution into a folder, and the wheel from the source distribution."""
    for project in PROJECTS:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(wheels), str(ROOT / project)]
        environment = os.environ | {"SWITCHGEAR_RELEASE": "1"}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(f"{project} cannot be built:\n{process.stdout}{process.stderr}")
        print(f"built {project}", flush=True)


def compare(wheels: Path, part: str) -> list[str]:
    """Return the files that a wheel lacks compared with its folders, and the files that belong to none."""
    (wheel,) = wheels.glob(f"{part}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for place, folder in CONTENT[part].items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing = [f"{name} is missing in {part}" for name in sorted(expected - names)]
    return missing + [f"{name} does not belong in {part}" for name in sorted(names - expected)]


def install(wheels: Path, env: Path, torch: str, index: str) -> Path:
    """Return the Python of a new environment that holds only the wheels of a folder and their requirements."""
    venv.create(env, with_pip=True)
    python = env / "bin" / "python"
    try:
        pip(python, "install", torch, *(["--retries", "1", "--index-url", index] if index else []))
    except subprocess.CalledProcessError:
        if not index:
            raise
        pip(python, "install", torch)
    pip(python, "install", "highspy>=1.10,<1.16", "pluggy>=1.7")
    pip(python, "install", "--no-index", "--find-links", str(wheels), "switchgear", "switchgear-lean-rules")
    return python


def report(python: Path, folder: Path) -> int:
    """Print the plugin report of the environment; return 0 if the report is clean."""
    print("plugins:", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "SWITCHGEAR_DISABLE"}
    for command in (["-c", PROBE], ["-m", "switchgear", "plugins"]):
        line = [
            str(python),
            "-I",
            "-W",
            "ignore:Failed to initialize NumPy",
            *command,
        ]  # torch's own warning; NumPy is optional
        status = subprocess.run(line, cwd=folder, env=environment, check=False).returncode
        if status:
            print(f"the plugin report is not clean: {' '.join(command[:2])} ended with {status}", file=sys.stderr)
            return 1
    return 0


def pip(python: Path, *arguments: str) -> None:
    """Run pip in the environment of `python`."""
    command = [str(python), "-m", "pip", arguments[0], "-qq", "--disable-pip-version-check", *arguments[1:]]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())

"""Build the wheel, install it into a clean environment, and require a clean plugin report there."""

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

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("core", "executors")

# Asks the installed package itself; the command line beside it must agree by its exit status.
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
    """Run the check; 0 when everything is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="torch", help="requirement that is installed first")
    parser.add_argument("--torch-index", default="", help="index to try for it before pip's own")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="switchgear-wheel-") as folder:
        wheel = build(Path(folder))
        faults = compare(wheel)
        for fault in faults:
            print(f"wheel: {fault}", file=sys.stderr)
        if faults:
            return 1
        python = install(wheel, Path(folder) / "env", options.torch, options.torch_index)
        return report(python, Path(folder))


def build(folder: Path) -> Path:
    """The wheel of this checkout, built into `folder`."""
    pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    print(f"built {wheel.name}")
    return wheel


def compare(wheel: Path) -> list[str]:
    """What the wheel lacks of the source roots, and what it has beside them."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    example = ROOT / "plugins" / "switchgear-example"
    wanted = {
        f"switchgear/testing/example/{path.relative_to(example).as_posix()}"
        for path in example.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {
        path.relative_to(ROOT / root).as_posix()
        for root in SOURCE_ROOTS
        for path in (ROOT / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (path.suffix == ".py" or path.parent != ROOT / root)
    }
    missing = [f"{name} is missing" for name in sorted(wanted - found)]
    return missing + [f"{name} does not belong in it" for name in sorted(found - wanted)]


def install(wheel: Path, env: Path, torch: str, index: str) -> Path:
    """The Python of a new environment that holds the wheel and what it requires, and nothing else."""
    venv.create(env, with_pip=True)
    python = env / "bin" / "python"
    try:
        pip(python, "install", torch, *(["--retries", "1", "--index-url", index] if index else []))
    except subprocess.CalledProcessError:
        if not index:
            raise
        pip(python, "install", torch)
    pip(python, "install", str(wheel))
    return python


def report(python: Path, folder: Path) -> int:
    """Print the plugin report of the environment; 0 when it is clean."""
    print("plugins:", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "SWITCHGEAR_DISABLE"}
    for command in (["-c", PROBE], ["-m", "switchgear", "plugins"]):
        line = [
            str(python),
            "-I",
            "-W",
            "ignore:Failed to initialize NumPy",
            *command,
        ]  # torch's own; NumPy is optional
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

"""Make an environment in which nvFuser translates: Python 3.12, PyTorch with CUDA, nvFuser, Switchgear and its tests.

Translation needs neither a GPU nor a driver; only running translated programs needs both. The script downloads
2.7 GB, and the environment takes 5 GB. An environment that is up to date, for this checkout and these versions, is
left unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: nvFuser's wheels are for Python 3.10 and 3.12, and Switchgear needs 3.11.
PYTHON = "3.12"
#: The default build on Linux is for CUDA 13.0, as nvFuser requires.
TORCH = "torch==2.11.0"
#: The requirement in `hatch_build.py`; nvFuser below is built for torch 2.10. nvFuser's own requirements are not
#: installed, because the list names no torch and brings a second CUDA runtime.
HIGHSPY = "highspy>=1.10,<1.16"
NVFUSER = "nvfuser-cu130-torch210==0.2.36.dev20260301"

#: A script that reports whether nvFuser translates in the environment of its Python.
PROBE = ROOT / "scripts" / "probe_nvfuser.py"


class CannotMake(Exception):
    """Error: a part of the environment is missing; the text names the part."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment; print the reason and return 1 if a part is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the environment is, or is to be")
    parser.add_argument("--python", help=f"a Python {PYTHON} (default: this one, one on the path, or one of pyenv's)")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        is_new = make(options.folder, options.python)
    except CannotMake as error:
        print(f"no environment with nvFuser: {error}", file=sys.stderr)
        return 1
    print(
        f"{options.folder} {'is made' if is_new else 'is up to date'}, {time.monotonic() - start:.0f} s",
        file=sys.stderr,
    )
    return 0


def make(folder: Path, python: str | None) -> bool:
    """Make the environment unless it is up to date; return whether there was work to do."""
    stamp, contents = folder / ".installed", fingerprint()
    if stamp.is_file() and stamp.read_text() == contents and runs(folder / "bin" / "python"):
        return False
    if not runs(folder / "bin" / "python"):
        interpreter = find_python(python)
        say(f"an empty environment of {interpreter}")
        run([interpreter, "-m", "venv", "--clear", str(folder)], f"the venv module of Python {PYTHON}")
    for what, packages in installations().items():
        say(what)
        run([*pip(folder), *packages], what)
    say("does nvFuser load?")
    run([str(folder / "bin" / "python"), str(PROBE)], "a working nvFuser")
    stamp.write_text(contents)  # last, so that an interrupted installation is resumed
    return True


def installations() -> dict[str, list[str]]:
    """Return the arguments of each `pip install`, in order, by description."""
    return {
        f"{TORCH} and what the tests need": [TORCH, *requirements()],
        NVFUSER: ["--no-deps", "--pre", NVFUSER],
        "Switchgear": ["--no-deps", "--editable", str(ROOT / "core"), "--editable", str(ROOT)],
    }


def requirements() -> list[str]:
    """Return the requirements of Switchgear and its tests, without torch."""
    core = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    required = [*core["dependencies"], HIGHSPY, *groups["test"]]
    return [item for item in required if re.match(r"[\w.-]+", item).group() != "torch"]  # type: ignore[union-attr]


def fingerprint() -> str:
    """Return a text that changes with the checkout's place, the requirements, the entry points and both versions."""
    projects = (ROOT / "core" / "pyproject.toml", ROOT / "pyproject.toml")
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in projects])).hexdigest()
    return f"{ROOT}\n{TORCH}\n{NVFUSER}\n{digest}\n"


def find_python(named: str | None) -> str:
    """Return a Python of the right version that starts."""
    tried = []
    for candidate in candidates() if named is None else [named]:
        answer = None if shutil.which(candidate) is None else version(candidate)
        if answer == PYTHON:
            return candidate
        tried.append(f"{candidate} {'was not found' if answer is None else f'says {answer!r}'}")
    raise CannotMake(f"Python {PYTHON} is missing: {'; '.join(tried)}. Name one by --python")


def candidates() -> Iterator[str]:
    """Yield this Python, the path's, and pyenv's installed ones: pyenv's command runs only the active version."""
    yield sys.executable
    yield f"python{PYTHON}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{PYTHON}.*/bin/python{PYTHON}")))


def version(python: str) -> str:
    """Return major and minor version, or the output in place of a version."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return (process.stdout or process.stderr).strip().partition("\n")[0]


def pip(folder: Path) -> list[str]:
    """Return the install command; pip shows progress only on a terminal."""
    quiet = [] if sys.stderr.isatty() else ["-qq"]
    # most modules are never imported, so compiling all would waste time
    options = ["--disable-pip-version-check", "--no-compile", *quiet]
    return [str(folder / "bin" / "python"), "-m", "pip", "install", *options]


def runs(python: Path) -> bool:
    """Check whether an environment's Python starts and has pip: a moved environment has none."""
    if not python.exists():
        return False
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], what: str) -> None:
    """Run a step; raise `CannotMake` with the last line of its errors if the step fails."""
    process = subprocess.run(command, stderr=subprocess.PIPE if "-qq" in command else None, text=True, check=False)
    if process.returncode:
        reason = (process.stderr or "").strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise CannotMake(f"{what} is missing: {reason[0]}")


def say(what: str) -> None:
    """Print progress."""
    print(f"nvFuser environment: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

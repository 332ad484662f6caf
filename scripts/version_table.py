"""Print the table of versions: passed, failed and skipped tests by PyTorch and Python.

    python scripts/version_table.py .venv/bin/python .venv-newest/bin/python -- -n 2 tests/core

Each interpreter belongs to an environment with a PyTorch, Switchgear and the test dependencies. Arguments after `--`
go to pytest. The exit status is 1 if a test failed in any environment.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = ("PyTorch", "Python", "passed", "failed", "errors", "skipped", "xfailed", "minutes")
_VERSIONS = "import platform, torch; print(torch.__version__, platform.python_version())"


def counts(output: str) -> dict[str, int]:
    """Return the counts in pytest's last line; empty if there is no such line."""
    last = next((line for line in reversed(output.splitlines()) if re.search(r"\bin [\d.]+s\b", line)), "")
    numbers = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", last.split(" in ")[0])}
    if "error" in numbers:
        numbers["errors"] = numbers.pop("error")
    return numbers


def row(python: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Run the tests in one environment; return a row of the table."""
    versions = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout.split()
    begun = time.monotonic()
    process = subprocess.run([python, "-m", "pytest", "-q", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    results = counts(process.stdout)
    if not results or process.returncode not in (0, 1):
        print(process.stdout, file=sys.stderr)
        results = {"errors": 1}
    for line in process.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"{versions[0]}: {line}", file=sys.stderr)
    numbers = [str(results.get(name, 0)) for name in COLUMNS[2:-1]]
    return (*versions, *numbers, f"{(time.monotonic() - begun) / 60:.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each row of the table when its tests end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    failed = False
    for python in parser.parse_args(words[:cut]).pythons:
        cells = row(python, words[cut + 1 :])
        print("| " + " | ".join(cells) + " |", flush=True)
        failed |= cells[3:5] != ("0", "0")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

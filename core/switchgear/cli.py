"""The command line: `switchgear`, or `python -m switchgear`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from switchgear.errors import SwitchgearError
from switchgear.inspect.bisecting import bisect, described, load_check
from switchgear.inspect.doctor import BEHAVIOURS, diagnosis
from switchgear.inspect.operators import operator_rows
from switchgear.testing.checks import plugin_checks
from switchgear.testing.template import new_plugin
from switchgear.torch_private.names import PRIVATE_NAMES, surroundings
from switchgear.who.plugins import PluginStatus, installed, plugin_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if something is wrong, or nothing is found."""
    parser = argparse.ArgumentParser(
        prog="switchgear", description="Switchgear: an executor framework for PyTorch."
    )
    parser.add_argument("--version", action="version", version=version("switchgear"))
    commands = parser.add_subparsers(dest="command", required=True)
    plugins = commands.add_parser(
        "plugins", help="what is installed, whether it loaded, and if not, why"
    )
    plugins.add_argument("-v", "--verbose", action="store_true", help="with notes and tracebacks")
    plugins.add_argument("--json", action="store_true", help="everything, for programs")
    operators = commands.add_parser(
        "operators", help="who implements and who differentiates which operator"
    )
    operators.add_argument("name", nargs="?", default="", help="operators with this in their name")
    operators.add_argument("--executor", metavar="NAME", help="of this executor or package alone")
    operators.add_argument("--json", action="store_true", help="the same, for programs")
    new = commands.add_parser(
        "new", help="write the package of a new plugin, which runs, into this folder"
    )
    new.add_argument("name", help="what users are to list; the package is switchgear-NAME")
    testing = commands.add_parser(
        "test", help="check what an installed plugin registers beside PyTorch"
    )
    testing.add_argument("name", help="as `switchgear plugins` shows it")
    testing.add_argument("pytest", nargs="*", metavar="-- OPTIONS", help="options of pytest")
    commands.add_parser("doctor", help="what is off between Switchgear and this PyTorch")
    bisecting = commands.add_parser(
        "bisect", help="find the one fused region that makes a check fail"
    )
    bisecting.add_argument(
        "check", metavar="SCRIPT:FUNCTION", help="takes the fuel for sg.jit, and raises if wrong"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "doctor":
        return _doctor()
    if chosen.command == "operators":
        return _operators(chosen.name, chosen.executor, as_json=chosen.json)
    if chosen.command == "bisect":
        return _bisect(chosen.check)
    if chosen.command == "new":
        return _new(chosen.name)
    if chosen.command == "test":
        return _test(chosen.name, chosen.pytest)
    return _plugins(verbose=chosen.verbose, as_json=chosen.json)


def _plugins(*, verbose: bool, as_json: bool) -> int:
    report = plugin_report()
    if as_json:
        print(json.dumps([asdict(status) for status in report], indent=2))
    elif not report:
        print("no plugin is installed")
    else:
        _columns([_columns_of(status) for status in report])
        for status in report if verbose else ():
            for text in (*status.notes, status.traceback):
                if text:
                    print(f"\n{status.name}: {text.rstrip()}")
    return int(any(status.status in ("failed", "conflict") for status in report))


def _columns_of(status: PluginStatus) -> tuple[str, ...]:
    count = len(status.notes)
    notes = f"{count} notes on its import (-v)" if count else ""
    reason = "; ".join(filter(None, (status.error, status.limits, notes)))
    executors = f"executors: {', '.join(status.executors)}" if status.executors else ""
    return status.name, status.distribution, status.version, status.status, executors, reason


def _operators(name: str, owner: str | None, *, as_json: bool) -> int:
    rows = [
        row
        for row in operator_rows(installed())
        if name in row.operator
        and (owner is None or owner in (*row.implemented_by, *row.differentiated_by))
    ]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        _columns(
            [
                ("operator", "implemented by", "differentiated by"),
                *(
                    (row.operator, ", ".join(row.implemented_by), ", ".join(row.differentiated_by))
                    for row in rows
                ),
            ]
        )
    else:
        print("no plugin registers such an operator", file=sys.stderr)
    return int(not rows)


def _new(name: str) -> int:
    try:
        folder = new_plugin(name, Path.cwd())
    except SwitchgearError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{folder.name} is an executor that runs. Next:")
    print(
        f"  pip install --editable {folder.name}\n  switchgear test {name}\n  {folder.name}/README.md"
    )
    return 0


def _test(name: str, options: Sequence[str]) -> int:
    if find_spec("pytest") is None:
        print("switchgear test needs pytest: pip install 'switchgear[testing]'", file=sys.stderr)
        return 1
    try:
        checks = [*plugin_checks(name)]
    except SwitchgearError as error:
        print(error, file=sys.stderr)
        return 1
    if not checks:
        print(
            f"{name} registers no implementation and no grad rule: nothing to test", file=sys.stderr
        )
        return 1
    asked = f"-p switchgear.testing.pytest_plugin -p no:cacheprovider --switchgear-plugin {name}"
    command = ["-m", "pytest", *asked.split(), "--pyargs", "switchgear.testing.suite", *options]
    return subprocess.run([sys.executable, *command], check=False).returncode


def _columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells: Iterable[str] = (
            cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width
        )
        print("  ".join(cells).rstrip())


def _doctor() -> int:
    print(surroundings())
    faults = diagnosis()
    print(
        "\n".join(faults)
        or f"nothing is off: {len(PRIVATE_NAMES)} private names, {len(BEHAVIOURS)} behaviours"
    )
    return int(bool(faults))


def _bisect(place: str) -> int:
    try:
        print(described(bisect(load_check(place))))
    except (SwitchgearError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0

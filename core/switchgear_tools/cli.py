"""The command line: `switchgear`, or `python -m switchgear`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from switchgear.errors import InvalidInput, SwitchgearError
from switchgear.options import Defaults, defaults, executors_in
from switchgear.testing.checks import plugin_checks
from switchgear.testing.template import new_plugin
from switchgear.torch_private.names import PRIVATE_NAMES, surroundings
from switchgear.who.plugin import PluginStatus
from switchgear.who.plugins import installed, plugin_report
from switchgear.who.trying import crashes, tried_report
from switchgear_tools.bisecting import bisect, described
from switchgear_tools.caching import cache_use, clear_cache, export_cache, import_cache
from switchgear_tools.columns import show
from switchgear_tools.doctor import BEHAVIOURS, diagnosis
from switchgear_tools.explain import explain_before
from switchgear_tools.loading import loaded
from switchgear_tools.operators import operator_rows
from switchgear_tools.summary import PARTS

_STATUS = """exit status: 0 if all is well; 1 if something is wrong or is not there: a plugin
that failed, a call that would not be compiled, a check that fails; 2 if the command line
makes no sense"""
_TRUST = "code in FILE will run as you, so trust everyone who could write to it"
_EXPLAINED = """FUNCTION is captured on fakes of its inputs; nothing runs or is compiled. The output says
which executor would run which operator, what would be saved, what would fall back, and
why. A jitted function is explained with its options; for others, SWITCHGEAR_EXECUTORS,
SWITCHGEAR_MEMORY and SWITCHGEAR_FALLBACK set them. Exit status 1 if the call would not be
compiled.

  switchgear explain my_package.models:loss --inputs example_inputs
  switchgear explain train.py:step --inputs data.py:batch --executors torch"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    chosen = command_line().parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
    except SwitchgearError as error:
        print(error, file=sys.stderr)
        return 1
    return status


def command_line() -> argparse.ArgumentParser:
    """What it may say."""
    parser = argparse.ArgumentParser(
        prog="switchgear",
        description="Switchgear: an executor framework for PyTorch.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version("switchgear"))
    commands = parser.add_subparsers(dest="command", required=True)

    def command(run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        own = commands.add_parser(
            run.__name__.lstrip("_"),
            help=help,
            description=help,
            epilog=_EXPLAINED if run is _explain else _STATUS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(run=run)
        return own

    plugins = command(_plugins, "what is installed, whether it loaded, and if not, why")
    plugins.add_argument("-v", "--verbose", action="store_true", help="with notes and tracebacks")
    plugins.add_argument("--json", action="store_true", help="everything, for programs")
    operators = command(
        _operators, "who implements, differentiates and skips which operator, and who would win"
    )
    operators.add_argument("name", nargs="?", default="", help="operators with this in their name")
    operators.add_argument("--executor", metavar="NAME", help="of this executor or package alone")
    operators.add_argument("--json", action="store_true", help="the same, for programs")
    explain = command(
        _explain, "show which executor would run each operator of a call, without running it"
    )
    explain.add_argument(
        "function", metavar="MODULE:FUNCTION", help="or SCRIPT.py:FUNCTION; an nn.Module, too"
    )
    explain.add_argument(
        "--inputs",
        metavar="[MODULE:]FUNCTION",
        help="makes the arguments: a tuple of them, a dict of keyword arguments, or the only one",
    )
    explain.add_argument(
        "--executors", metavar="NAMES", help="as in a list, such as first,torch or ...,-first"
    )
    explain.add_argument(
        "--details", choices=PARTS, metavar="PART", help=f"show all of one part: {', '.join(PARTS)}"
    )
    explain.add_argument("--json", action="store_true", help="everything, for programs")
    new = command(_new, "write the package of a new plugin, which runs, into this folder")
    new.add_argument("name", help="what users are to list; the package is switchgear-NAME")
    test = command(_test, "check what an installed plugin registers beside PyTorch")
    test.add_argument("name", help="as `switchgear plugins` shows it")
    test.add_argument(
        "pytest", nargs="*", default=[], metavar="-- OPTIONS", help="options of pytest"
    )
    command(_doctor, "check that Switchgear works with this PyTorch")
    bisecting = command(_bisect, "find the one fused region that makes a check fail")
    bisecting.add_argument(
        "check", metavar="SCRIPT.py:FUNCTION", help="takes the fuel for sg.jit, and raises if wrong"
    )
    cache = command(
        _cache, "the cache on disk: what was compiled and measured, for other processes"
    )
    cache.add_argument(
        "action",
        choices=["info", "export", "import", "clear"],
        help="show how much there is; put all of it into FILE; take in all of FILE, from a machine of the same kind; "
        "delete it",
    )
    cache.add_argument("file", nargs="?", type=Path, metavar="FILE", help="of export and import")
    cache.add_argument("--trust", action="store_true", help=f"of import: {_TRUST}")
    return parser


def _plugins(chosen: argparse.Namespace) -> int:
    report = tried_report()
    if chosen.json:
        print(json.dumps([asdict(status) for status in report], indent=2))
    elif not report:
        print("no plugin is installed")
    else:
        show(
            ("plugin", "distribution", "version", "status", "executors", "remarks"),
            [_columns_of(status) for status in report],
        )
        for status in report if chosen.verbose else ():
            for text in (*status.notes, status.traceback):
                if text:
                    print(f"\n{status.name}: {text.rstrip()}")
    return int(any(status.status in ("failed", "conflict") for status in report))


def _columns_of(status: PluginStatus) -> tuple[str, ...]:
    count = len(status.notes)
    notes = f"{count} notes on its import (-v)" if count else ""
    reason = "; ".join(filter(None, (status.error, status.limits, notes)))
    executors = ", ".join(status.executors)
    return status.name, status.distribution, status.version, status.status, executors, reason


def _operators(chosen: argparse.Namespace) -> int:
    rows = [
        row
        for row in operator_rows(installed())
        if chosen.name in row.operator
        and (
            chosen.executor is None
            or chosen.executor in (*row.implemented_by, *row.differentiated_by)
        )
    ]
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows and chosen.name:
        print("\n".join(map(str, rows)))
    elif rows:
        show(
            ("operator", "implemented by", "differentiated by"),
            [
                (row.operator, ", ".join(row.implemented_by), ", ".join(row.differentiated_by))
                for row in rows
            ],
        )
    else:
        print(
            "no plugin registers such an operator; executors that decide call by call: switchgear explain",
            file=sys.stderr,
        )
    return int(not rows)


def _explain(chosen: argparse.Namespace) -> int:
    function = loaded(chosen.function)
    arguments: Any = ()
    if chosen.inputs:
        module = chosen.function.rpartition(":")[0]
        arguments = loaded(chosen.inputs if ":" in chosen.inputs else f"{module}:{chosen.inputs}")()
    else:
        try:
            signature(getattr(function, "forward", function)).bind()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{chosen.function}: {error}; give --inputs") from error
    if not isinstance(arguments, (tuple, dict)):
        arguments = (arguments,)
    own: Defaults = {"executors": executors_in(chosen.executors)} if chosen.executors else {}
    with defaults(**own):
        args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
        explanation = explain_before(function, *args, **kwargs)
    if chosen.json:
        print(json.dumps(explanation.as_dict(), indent=2))
    elif chosen.details:
        print(getattr(explanation, chosen.details)())
    else:
        print(explanation.text(detail="--details={}"))
    return int(bool(explanation.facts.fallback))


def _new(chosen: argparse.Namespace) -> int:
    taken = {name for one in plugin_report() for name in (one.name, *one.executors)}
    folder = new_plugin(chosen.name, Path.cwd(), taken)
    print(f"{folder.name} is an executor that runs. Next:")
    print(
        f"  pip install --editable {folder.name}\n  switchgear test {chosen.name}\n  {folder.name}/README.md"
    )
    return 0


def _test(chosen: argparse.Namespace) -> int:
    name = chosen.name
    if find_spec("pytest") is None:
        print("switchgear test needs pytest: pip install 'switchgear[testing]'", file=sys.stderr)
        return 1
    if not [*plugin_checks(name)]:
        print(
            f"{name} registers no implementation and no grad rule: nothing to test", file=sys.stderr
        )
        return 1
    asked = f"-p switchgear.testing.pytest_plugin -p no:cacheprovider --switchgear-plugin {name}"
    command = [
        "-m",
        "pytest",
        *asked.split(),
        "--pyargs",
        "switchgear.testing.suite",
        *chosen.pytest,
    ]
    return subprocess.run([sys.executable, *command], check=False).returncode


def _doctor(chosen: argparse.Namespace) -> int:
    print(surroundings())
    crashed = [f"plugin {entry.name} ({entry.value}): {why}" for entry, why in crashes().items()]
    faults = [*crashed, *diagnosis()]
    print(
        "\n".join(faults)
        or f"OK: {len(PRIVATE_NAMES)} private names and {len(BEHAVIOURS)} behaviours of PyTorch checked"
    )
    return int(bool(faults))


def _bisect(chosen: argparse.Namespace) -> int:
    print(described(bisect(loaded(chosen.check))))
    return 0


def _cache(chosen: argparse.Namespace) -> int:
    action, file = chosen.action, chosen.file
    if (file is None) == (action in ("export", "import")):
        print(
            f"switchgear cache {action} takes {'a' if file is None else 'no'} FILE", file=sys.stderr
        )
        return 2
    if chosen.trust and action != "import":
        print(f"switchgear cache {action} takes no --trust", file=sys.stderr)
        return 2
    if action == "import" and not chosen.trust:
        print(f"nothing is imported without --trust: {_TRUST}", file=sys.stderr)
        return 1
    if action == "export":
        print(f"{export_cache(file)} entries in {file}")
    elif action == "import":
        print(f"{import_cache(file)} entries taken in")
    else:
        use = cache_use() if action == "info" else clear_cache()
        if use is None:
            return 1
        deleted = "" if action == "info" else " deleted"
        print(f"{use.folder}: {use.files} files{deleted}, {use.bytes / 1e6:.1f} MB")
    return 0

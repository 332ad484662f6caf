"""The commands of the command line; `cli.py` parses it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, astuple, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from switchgear.options import Defaults, defaults
from switchgear_core.errors import InvalidInput, SwitchgearError, did_you_mean
from switchgear_core.registry import order
from switchgear_core.registry.own_options import executors_in
from switchgear_core.registry.parts import plugin_report
from switchgear_core.registry.plugin import PluginStatus
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.trying import crashes, tried_report
from switchgear_core.torch_private.names import PRIVATE_NAMES, surroundings
from switchgear_tools import TRUST
from switchgear_tools.bisecting import bisect, described
from switchgear_tools.caching import cache_use, clear_cache, export_cache, import_cache
from switchgear_tools.columns import table
from switchgear_tools.doctor import diagnosis
from switchgear_tools.explain import explain_before, missing_arguments
from switchgear_tools.loading import loaded, of_the_user
from switchgear_tools.operators import Registration, registrations
from switchgear_tools.testing.checks import plugin_checks
from switchgear_tools.testing.template import new_plugin

#: The number of the schema of `--json`; `explain` has its own schema.
SCHEMA = 2


def run(args: argparse.Namespace) -> int:
    """Run the parsed command; return the exit status."""
    try:
        return COMMANDS[args.command](args)
    except SwitchgearError as error:
        print(f"switchgear {args.command}: {error}", file=sys.stderr)
        return 1


def _say(args: argparse.Namespace, text: str, **facts: object) -> None:
    """Print a text, or its facts as JSON."""
    print(json.dumps({"schema": SCHEMA, **facts}, indent=2, default=str) if args.json else text)


def _plugins(args: argparse.Namespace) -> int:
    report = tried_report()
    if args.json:
        _say(args, "", plugins=[asdict(status) for status in report])
    elif not report:
        print("no plugin is installed")
    else:
        header = ("plugin", "distribution", "version", "status", "executors", "remarks")
        print(table(header, [*map(_columns_of, report)]))
        for status in report if args.verbose else ():
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


def _operators(args: argparse.Namespace) -> int:
    plugins = installed()
    if args.executor is not None:
        order.installed(plugins, args.executor)
    everything = registrations(plugins)
    rows = [
        row
        for row in everything
        if args.name in row.operator and args.executor in (None, row.owner)
    ]
    if args.json:
        _say(args, "", operators=[asdict(row) for row in rows])
    elif rows:
        print(table([field.name for field in fields(Registration)], [*map(astuple, rows)]))
    else:
        hint = did_you_mean(args.name, [row.operator for row in everything])
        subject, suffix = args.executor or "no plugin", f" with {args.name!r} in its name"
        raise InvalidInput(
            f"{subject} registers {'no' if args.executor else 'an'} operator{suffix if args.name else ''}{hint}; "
            "executors such as inductor and torch decide call by call: run switchgear explain"
        )
    return int(not rows)


def _explain(args: argparse.Namespace) -> int:
    function = loaded(args.function)
    arguments: Any = ()
    if args.inputs:
        module = args.function.rpartition(":")[0]
        place = args.inputs if ":" in args.inputs else f"{module}:{args.inputs}"
        make = loaded(place)
        with of_the_user(place):
            arguments = make()
    else:
        if missing := missing_arguments(function):
            raise InvalidInput(
                f"{args.function}: {missing}; give --inputs, the name of a function that makes the arguments"
            )
    if not isinstance(arguments, (tuple, dict)):
        arguments = (arguments,)
    options: Defaults = {"executors": executors_in(args.executors)} if args.executors else {}
    with defaults(**options):
        inputs, keywords = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
        explanation = explain_before(function, *inputs, **keywords)
    if args.html is not None:
        place = explanation.html(args.html)
        print(f"{place} is written; open it in a browser", file=sys.stderr)
    if args.json:
        print(json.dumps(explanation.as_dict(), indent=2))
    elif args.details:
        print(getattr(explanation, args.details)())
    else:
        print(explanation.text(detail="--details={}"))
    return int(bool(explanation.facts.fallback))


def _new(args: argparse.Namespace) -> int:
    names_in_use = {name for report in plugin_report() for name in (report.name, *report.executors)}
    folder = new_plugin(args.name, Path.cwd(), names_in_use)
    steps = [
        f"pip install --editable {folder.name}",
        f"switchgear test {args.name}",
        f"{folder.name}/README.md",
    ]
    text = "\n  ".join([f"{folder.name} is an executor that runs. Next:", *steps])
    _say(args, text, folder=folder, next=steps)
    return 0


def _test(args: argparse.Namespace) -> int:
    name = args.name
    if find_spec("pytest") is None:
        raise InvalidInput("it needs pytest: pip install 'switchgear[testing]'")
    if not [*plugin_checks(name)]:
        raise InvalidInput(f"{name} registers no implementation and no grad rule: nothing to test")
    options = f"-p switchgear -p no:cacheprovider --switchgear-plugin {name}"
    command = [
        "-m",
        "pytest",
        *options.split(),
        "--pyargs",
        "switchgear_tools.testing.suite",
        *args.pytest,
    ]
    # the output is JSON, so pytest prints to stderr
    out = sys.stderr.fileno() if args.json else None
    status = subprocess.run([sys.executable, *command], check=False, stdout=out).returncode
    if args.json:
        _say(args, "", plugin=name, passed=not status)
    return status


def _doctor(args: argparse.Namespace) -> int:
    crashed = [f"plugin {entry.name} ({entry.value}): {why}" for entry, why in crashes().items()]
    faults = [*crashed, *diagnosis()]
    checked = f"{len(PRIVATE_NAMES)} private names of PyTorch, and gradients"
    text = "\n".join([surroundings(), *(faults or [f"OK: {checked} checked"])])
    _say(args, text, surroundings=surroundings(), faults=faults)
    return int(bool(faults))


def _bisect(args: argparse.Namespace) -> int:
    region = bisect(loaded(args.check))
    operators = [part.symbol.name for part in region.subsymbols]
    _say(args, described(region), region=region.symbol.name, operators=operators)
    return 0


def _cache(args: argparse.Namespace) -> int:
    action, file = args.action, args.file
    if (file is None) == (action in ("export", "import")):
        needs = "a FILE" if file is None else "no FILE"
        usage = f"switchgear cache {action}{' FILE' if file is None else ''}"
        print(f"switchgear cache {action} takes {needs}; write {usage}", file=sys.stderr)
        return 2
    if args.trust and action != "import":
        print(f"switchgear cache {action} takes no --trust; leave it out", file=sys.stderr)
        return 2
    if action == "import" and not args.trust:
        raise InvalidInput(f"nothing is imported without --trust: {TRUST}")
    if action == "export":
        count = export_cache(file)
        _say(args, f"{count} entries in {file}", file=file, entries=count)
    elif action == "import":
        count = import_cache(file)
        _say(args, f"{count} entries added", file=file, entries=count)
    else:
        use = cache_use() if action == "info" else clear_cache()
        if use is None:
            return 1
        deleted = "" if action == "info" else " deleted"
        text = f"{use.folder}: {use.files} files{deleted}, {use.bytes / 1e6:.1f} MB"
        _say(args, text, folder=use.folder, files=use.files, bytes=use.bytes)
    return 0


COMMANDS = {
    "plugins": _plugins,
    "operators": _operators,
    "explain": _explain,
    "new": _new,
    "test": _test,
    "doctor": _doctor,
    "bisect": _bisect,
    "cache": _cache,
}

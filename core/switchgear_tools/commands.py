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


def run(chosen: argparse.Namespace) -> int:
    """Run the parsed command; return the exit status."""
    try:
        return COMMANDS[chosen.command](chosen)
    except SwitchgearError as error:
        print(f"switchgear {chosen.command}: {error}", file=sys.stderr)
        return 1


def _say(chosen: argparse.Namespace, text: str, **facts: object) -> None:
    """Print a text, or its facts as JSON."""
    print(json.dumps({"schema": SCHEMA, **facts}, indent=2, default=str) if chosen.json else text)


def _plugins(chosen: argparse.Namespace) -> int:
    report = tried_report()
    if chosen.json:
        _say(chosen, "", plugins=[asdict(status) for status in report])
    elif not report:
        print("no plugin is installed")
    else:
        header = ("plugin", "distribution", "version", "status", "executors", "remarks")
        print(table(header, [*map(_columns_of, report)]))
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
    plugins = installed()
    if chosen.executor is not None:
        order.installed(plugins, chosen.executor)
    everything = registrations(plugins)
    rows = [
        row
        for row in everything
        if chosen.name in row.operator and chosen.executor in (None, row.owner)
    ]
    if chosen.json:
        _say(chosen, "", operators=[asdict(row) for row in rows])
    elif rows:
        print(table([field.name for field in fields(Registration)], [*map(astuple, rows)]))
    else:
        hint = did_you_mean(chosen.name, [row.operator for row in everything])
        subject, which = chosen.executor or "no plugin", f"with {chosen.name!r} in its name"
        raise InvalidInput(
            f"{subject} registers {'no' if chosen.executor else 'an'} operator {which if chosen.name else ''}{hint}; "
            "executors such as inductor and torch decide call by call: run switchgear explain"
        )
    return int(not rows)


def _explain(chosen: argparse.Namespace) -> int:
    function = loaded(chosen.function)
    arguments: Any = ()
    if chosen.inputs:
        module = chosen.function.rpartition(":")[0]
        place = chosen.inputs if ":" in chosen.inputs else f"{module}:{chosen.inputs}"
        make = loaded(place)
        with of_the_user(place):
            arguments = make()
    else:
        if missing := missing_arguments(function):
            raise InvalidInput(
                f"{chosen.function}: {missing}; give --inputs, the name of a function that makes the arguments"
            )
    if not isinstance(arguments, (tuple, dict)):
        arguments = (arguments,)
    options: Defaults = {"executors": executors_in(chosen.executors)} if chosen.executors else {}
    with defaults(**options):
        args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
        explanation = explain_before(function, *args, **kwargs)
    if chosen.html is not None:
        place = explanation.html(chosen.html)
        print(f"{place} is written; open it in a browser", file=sys.stderr)
    if chosen.json:
        print(json.dumps(explanation.as_dict(), indent=2))
    elif chosen.details:
        print(getattr(explanation, chosen.details)())
    else:
        print(explanation.text(detail="--details={}"))
    return int(bool(explanation.facts.fallback))


def _new(chosen: argparse.Namespace) -> int:
    names_in_use = {name for report in plugin_report() for name in (report.name, *report.executors)}
    folder = new_plugin(chosen.name, Path.cwd(), names_in_use)
    steps = [
        f"pip install --editable {folder.name}",
        f"switchgear test {chosen.name}",
        f"{folder.name}/README.md",
    ]
    text = "\n  ".join([f"{folder.name} is an executor that runs. Next:", *steps])
    _say(chosen, text, folder=folder, next=steps)
    return 0


def _test(chosen: argparse.Namespace) -> int:
    name = chosen.name
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
        *chosen.pytest,
    ]
    # the output is JSON, so pytest prints to stderr
    out = sys.stderr.fileno() if chosen.json else None
    status = subprocess.run([sys.executable, *command], check=False, stdout=out).returncode
    if chosen.json:
        _say(chosen, "", plugin=name, passed=not status)
    return status


def _doctor(chosen: argparse.Namespace) -> int:
    crashed = [f"plugin {entry.name} ({entry.value}): {why}" for entry, why in crashes().items()]
    faults = [*crashed, *diagnosis()]
    checked = f"{len(PRIVATE_NAMES)} private names of PyTorch, and gradients"
    text = "\n".join([surroundings(), *(faults or [f"OK: {checked} checked"])])
    _say(chosen, text, surroundings=surroundings(), faults=faults)
    return int(bool(faults))


def _bisect(chosen: argparse.Namespace) -> int:
    region = bisect(loaded(chosen.check))
    operators = [part.symbol.name for part in region.subsymbols]
    _say(chosen, described(region), region=region.symbol.name, operators=operators)
    return 0


def _cache(chosen: argparse.Namespace) -> int:
    action, file = chosen.action, chosen.file
    if (file is None) == (action in ("export", "import")):
        needs = "a FILE" if file is None else "no FILE"
        usage = f"switchgear cache {action}{' FILE' if file is None else ''}"
        print(f"switchgear cache {action} takes {needs}; write {usage}", file=sys.stderr)
        return 2
    if chosen.trust and action != "import":
        print(f"switchgear cache {action} takes no --trust; leave it out", file=sys.stderr)
        return 2
    if action == "import" and not chosen.trust:
        raise InvalidInput(f"nothing is imported without --trust: {TRUST}")
    if action == "export":
        count = export_cache(file)
        _say(chosen, f"{count} entries in {file}", file=file, entries=count)
    elif action == "import":
        count = import_cache(file)
        _say(chosen, f"{count} entries added", file=file, entries=count)
    else:
        use = cache_use() if action == "info" else clear_cache()
        if use is None:
            return 1
        deleted = "" if action == "info" else " deleted"
        text = f"{use.folder}: {use.files} files{deleted}, {use.bytes / 1e6:.1f} MB"
        _say(chosen, text, folder=use.folder, files=use.files, bytes=use.bytes)
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

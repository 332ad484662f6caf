"""Trying: each plugin is imported in a separate process, so that a crash or a hang does not end this process."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint

from switchgear_core.registry.hookspecs import PROJECT
from switchgear_core.registry.parts import plugin_report
from switchgear_core.registry.plugin import PluginStatus
from switchgear_core.registry.plugins import load, loaded_once

#: Seconds allowed for a plugin, including the import of PyTorch.
PATIENCE = 120.0


def crashes() -> dict[EntryPoint, str]:
    """Return how plugins crashed or hung in their import, or when asked whether they can run here.

    Such plugins are no longer imported in the current process.
    """
    entries = loaded_once().untried
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = zip(entries, pool.map(_outcome, entries), strict=True)
        reasons = {entry: outcome for entry, outcome in outcomes if outcome}
    loaded_once().rule_out(reasons)
    return reasons


def tried_report() -> tuple[PluginStatus, ...]:
    """Return `plugin_report`, in which plugins that crash or hang have failed."""
    crashes()
    return plugin_report()


def _outcome(entry: EntryPoint) -> str:
    command = [
        sys.executable,
        "-P",
        "-m",
        "switchgear_core.registry.trying",
        entry.name,
        entry.value,
    ]
    places = os.pathsep.join(place or os.getcwd() for place in map(str, sys.path))
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": places, "PYTHONFAULTHANDLER": "1"},
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"importing it, or asking whether it can run here, took more than {PATIENCE:.0f} s"
    if not run.returncode:
        return ""
    how = f"by signal {-run.returncode}" if run.returncode < 0 else f"with status {run.returncode}"
    lines = run.stderr.decode(errors="replace").split("\n")
    where = next((line.strip() for line in lines if line.startswith("  File ")), "")
    place = f", in {where}" if where else ""
    return f"importing it, or asking whether it can run here, ended the process {how}{place}"


def main(arguments: Sequence[str]) -> None:
    """Load a plugin and exit at once, whatever it has started."""
    name, value = arguments
    warnings.simplefilter("ignore")
    _ = load([EntryPoint(name, value, PROJECT)]).report
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

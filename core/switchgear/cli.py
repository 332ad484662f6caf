"""The command line: `python -m switchgear`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .plugins import plugin_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if a plugin failed or conflicts with another."""
    parser = argparse.ArgumentParser(prog="switchgear", description="Switchgear: an executor framework for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plugins", help="what is installed, whether it loaded, and if not, why")
    parser.parse_args(arguments)
    report = plugin_report()
    for status in report:
        executors = f" (executors: {', '.join(status.executors)})" if status.executors else ""
        error = f": {status.error}" if status.error else ""
        print(f"{status.name} {status.distribution} {status.version} {status.status}{executors}{error}")
    if not report:
        print("no plugin is installed")
    return int(any(status.status in ("failed", "conflict") for status in report))

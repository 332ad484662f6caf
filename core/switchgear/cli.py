"""The command line: `python -m switchgear`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from switchgear.errors import SwitchgearError
from switchgear.inspect.bisecting import bisect, described, load_check
from switchgear.inspect.doctor import BEHAVIOURS, diagnosis
from switchgear.torch_private.names import PRIVATE_NAMES, surroundings
from switchgear.who.plugins import plugin_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 if something is wrong, or there is nothing to bisect."""
    parser = argparse.ArgumentParser(
        prog="switchgear", description="Switchgear: an executor framework for PyTorch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plugins", help="what is installed, whether it loaded, and if not, why")
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
    return _plugins() if chosen.command == "plugins" else _bisect(chosen.check)


def _plugins() -> int:
    report = plugin_report()
    for status in report:
        executors = f" (executors: {', '.join(status.executors)})" if status.executors else ""
        reason = (
            ": " + "; ".join(filter(None, (status.error, status.limits)))
            if status.error or status.limits
            else ""
        )
        print(
            f"{status.name} {status.distribution} {status.version} {status.status}{executors}{reason}"
        )
    if not report:
        print("no plugin is installed")
    return int(any(status.status in ("failed", "conflict") for status in report))


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

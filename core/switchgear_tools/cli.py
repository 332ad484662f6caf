"""The command line: `switchgear`, or `python -m switchgear`.

This file only parses. PyTorch is imported with `commands.py`, once a command runs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from switchgear_tools import PARTS, TRUST

_STATUS = """exit status:
  0  it is done, and all is well
  1  a fault: a plugin that failed, a check that fails, a call that falls back, nothing there
  2  the command line is wrong"""
_EXPLAINED = """FUNCTION is captured on fakes of its inputs; nothing runs or is compiled. The output says which
executor would run which operator, what would be saved, what would fall back, and why. A
jitted function is explained with its options; for others, SWITCHGEAR_EXECUTORS,
SWITCHGEAR_MEMORY and SWITCHGEAR_FALLBACK set them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = command_line()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = importlib.import_module("switchgear_tools.commands").run(args)
        sys.stdout.flush()
    except (
        BrokenPipeError
    ):  # such as the pipe to `head`; without this, the interpreter would fail to flush at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the option or command that was meant, and name the help to read."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with 2."""
        wrong, choices = "", list[str]()
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            wrong, choices = choice[1], re.findall(r"[\w-]+", choice[2])
            message = f"{wrong!r} is not one of {', '.join(choices)}"
        elif option := re.search(r"unrecognized arguments: (\S+)", message):
            wrong, choices = option[1], _OPTIONS
        close = difflib.get_close_matches(wrong, choices, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        self.exit(2, f"{self.prog}: {message}{hint}\nRead {self.prog} --help.\n")


#: The options of all commands: candidates for the correction of a misspelt option.
_OPTIONS = [
    "--details",
    "--executor",
    "--executors",
    "--html",
    "--inputs",
    "--json",
    "--trust",
    "--verbose",
]


def command_line() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="switchgear",
        description="Look into plugins, calls and the cache of Switchgear, an executor framework for PyTorch.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("switchgear-core")
    parser.add_argument("--version", action="version", version=version, help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, help: str, *examples: str, about: str = "") -> argparse.ArgumentParser:
        listing = "\n".join([f"  switchgear {example}" for example in examples])
        subparser = commands.add_parser(
            name,
            help=help[0].lower() + help[1:],
            description=f"{help}.\n\n{about}".strip(),
            epilog=f"examples:\n{listing}\n\n{_STATUS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.add_argument(
            "--json", action="store_true", help="print JSON, with the number of its schema"
        )
        return subparser

    plugins = command(
        "plugins", "List installed plugins, and why one is not loaded", "plugins", "plugins -v"
    )
    plugins.add_argument("-v", "--verbose", action="store_true", help="add notes and tracebacks")
    operators = command(
        "operators",
        "List operators, and the plugins that implement and differentiate them",
        "operators",
        "operators gelu",
        "operators --executor cublas",
    )
    operators.add_argument("name", nargs="?", default="", help="operators with this in their name")
    operators.add_argument("--executor", metavar="NAME", help="of this executor or package alone")
    explain = command(
        "explain",
        "Show which executor would run each operator of a call, without running it",
        "explain my_package.models:loss --inputs example_inputs",
        "explain train.py:step --inputs data.py:batch --executors torch",
        "explain train.py:step --inputs data.py:batch --html",
        about=_EXPLAINED,
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
    explain.add_argument(
        "--html",
        nargs="?",
        const="trace.html",
        metavar="PATH",
        help="write a page for a browser, by default %(const)s",
    )
    new = command(
        "new", "Write the package of a new plugin, which runs, into this folder", "new mine"
    )
    new.add_argument("name", help="the name that users list; the package is switchgear-NAME")
    test = command(
        "test", "Check an installed plugin against PyTorch", "test mine", "test mine -- -x -k silu"
    )
    test.add_argument("name", help="as `switchgear plugins` shows it")
    test.add_argument(
        "pytest", nargs="*", default=[], metavar="-- OPTIONS", help="options of pytest"
    )
    command("doctor", "Check that Switchgear works with this PyTorch", "doctor")
    bisect = command(
        "bisect", "Find the one fused region that makes a check fail", "bisect check.py:check"
    )
    bisect.add_argument(
        "check", metavar="SCRIPT.py:FUNCTION", help="takes the fuel for sg.jit, and raises if wrong"
    )
    cache = command(
        "cache",
        "Show, move or delete the cache on disk: compiled code and measured times",
        "cache info",
        "cache export cache.zip",
        "cache import cache.zip --trust",
        "cache clear",
    )
    cache.add_argument(
        "action",
        choices=["info", "export", "import", "clear"],
        help="info: its size. export: put all of it into FILE. import: add the content of FILE, from a machine of the "
        "same kind. clear: delete it",
    )
    cache.add_argument("file", nargs="?", type=Path, metavar="FILE", help="of export and import")
    cache.add_argument("--trust", action="store_true", help=f"of import: {TRUST}")
    return parser

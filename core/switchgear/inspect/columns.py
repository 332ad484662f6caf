"""Tables in a terminal: by rich where it is installed and the output is a terminal, else plain text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns, empty columns left out; plain text has no header where that is empty."""
    used = [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    header = [header[place] for place in used]
    rows = [[row[place] for place in used] for row in rows]
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _show_rich(header, rows)
        return
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _show_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - optional
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*header, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)

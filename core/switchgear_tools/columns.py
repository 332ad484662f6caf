"""Tables: by rich, folded to the width, where rich is installed and the output is a terminal; plain text elsewhere.

rich leaves out colours where `NO_COLOR` is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

_COLOURS = {
    "loaded": "green",
    "unavailable": "yellow",
    "disabled": "yellow",
    "conflict": "red",
    "failed": "red",
}


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a header and rows of cells in columns; columns whose rows are all empty are left out."""
    used = [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    header = [header[place] for place in used]
    rows = [[row[place] for place in used] for row in rows]
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _show_rich(header, rows)
        return
    print(aligned([header, *rows], str.ljust))


def aligned(rows: Sequence[Sequence[str]], justify: Callable[[str, int], str]) -> str:
    """Return rows of cells in columns, as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(justify, row, widths)).rstrip() for row in rows)


def _show_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box, console, table, text  # noqa: PLC0415 - it need not be installed

    columns = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="")
    for name in header:
        columns.add_column(name, overflow="fold")
    for row in rows:
        columns.add_row(*[text.Text(cell, style=_COLOURS.get(cell, "")) for cell in row])
    console.Console().print(columns)

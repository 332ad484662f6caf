"""Tables in a terminal: by rich where it is installed and the output is a terminal, else plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns, empty columns left out; plain text has no header where that is empty."""
    used = [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    header = [header[place] for place in used]
    rows = [[row[place] for place in used] for row in rows]
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _show_rich(header, rows)
        return
    print(aligned([header, *rows], str.ljust))


def aligned(rows: Sequence[Sequence[str]], justify: Callable[[str, int], str]) -> str:
    """Rows of cells in columns, as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(justify, row, widths)).rstrip() for row in rows)


def _show_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box, console, table, text  # noqa: PLC0415 - it need not be installed

    columns = table.Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        columns.add_row(*map(text.Text, row))
    console.Console().print(columns)

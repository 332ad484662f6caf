"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return rows of cells in columns, those at the places `numbers` justified right; empty columns are left out."""
    places = [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    lines = [[row[place] for place in places] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def justified(cell: str, place: int, width: int) -> str:
        return cell.rjust(width) if place in numbers else cell.ljust(width)

    return "\n".join("  ".join(map(justified, line, places, widths)).rstrip() for line in lines)

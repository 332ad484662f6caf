"""The display of objects: code folded at 120 columns, lists item by item, and either as text in a notebook."""

from __future__ import annotations

import html
import io
import os
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, SupportsIndex, TypeVar, overload

from switchgear_core.source_text import printable, with_comment

WIDTH = 120
#: The limits on the display of an object.
LINES, CHARACTERS = 60, 5_000
_INDENT = "    "
#: The width of a warning.
_COLUMNS = 100
#: A group of text, ended by two spaces.
_GROUP = r"\S.*?(?:  +|$)"

_Item = TypeVar("_Item", covariant=True)


class Shown:
    """An object that shows its `repr` in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return as_html(repr(self))


class Listing(Shown, tuple[_Item, ...]):
    """A tuple that shows its items below each other; a long tuple shows the first items."""

    __slots__ = ()

    def rows(self) -> Iterator[str]:
        """Yield the text of each item."""
        yield from map(str, self)

    def __repr__(self) -> str:
        return limited([line for row in self.rows() for line in wrapped(row)]) or "()"

    @overload
    def __getitem__(self, place: SupportsIndex) -> _Item: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        item: Any = tuple.__getitem__(self, place)
        return type(self)(item) if isinstance(place, slice) else item


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return a number and its noun."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def fits(lines: Sequence[str]) -> bool:
    """Check whether an object may show so many lines, and another line with the number of omitted lines."""
    return len(lines) <= LINES and sum(map(len, lines)) + len(lines) <= CHARACTERS - WIDTH


def limited(lines: Sequence[str]) -> str:
    """Return the first lines, as many as an object may show, and the number of omitted lines."""
    text = lines[:LINES]
    while not fits(text):
        text = text[:-1]
    more = [f"... {len(lines) - len(text):,} more lines"] * (len(lines) > len(text))
    return "\n".join([*text, *more])


def as_html(text: str) -> str:
    """Return text for a notebook: escaped, in the page's own colours, comments paler."""
    escaped = html.escape(text, quote=False)
    paler = r'\1<span style="opacity:.65">\2</span>'
    body = re.sub(r"(^ *|  )(# .*)$", paler, escaped, flags=re.MULTILINE)
    return f'<pre style="overflow-x:auto;line-height:1.35">{body}</pre>'


def shortened(text: str, width: int = WIDTH) -> str:
    """Return text, cut to a width."""
    return text if len(text) <= width else f"{text[: width - 4]} ..."


def warning_text(text: str, more: str = "") -> str:
    """Wrap a message to three lines without folders; a message that is too long loses its middle, not the remedy.

    Args:
        text: the message.
        more: a last line, if there is room.
    """
    text = text.replace(f"{os.getcwd()}{os.sep}", "")
    text = re.sub(r"\S+/(site|dist)-packages/", "", text)
    text = re.sub(r"(?<![^\s(])/\S*/(?=[^/\s]+:\d+)", "", text)
    lines = textwrap.wrap(text, _COLUMNS)
    if len(lines) > 3:
        half = 3 * _COLUMNS // 2 - 15
        text = f"{text[:half].rpartition(' ')[0]} ... {text[-half:].partition(' ')[2]}"
        lines = textwrap.wrap(text, _COLUMNS)
    return "\n".join([*lines, *[more] * bool(more)][:3])


def folded(code: str, comment: str) -> list[str]:
    """Return a line of code and its comment, as several lines where wider than 120 columns.

    The comment continues below the code, and is split at pairs of spaces.
    """
    line = with_comment(code, comment)
    if len(line) <= WIDTH:
        return [line]
    if not code.strip():
        return [f"{code}# {part}" for part in wrapped(comment, WIDTH - len(code) - 2)]
    indent, inside = code[: len(code) - len(code.lstrip())], 2 * _INDENT
    first, *others = _statement(code.strip(), WIDTH - len(inside))
    lines = [indent + first]
    lines += [(indent if line.startswith("del ") else inside) + line for line in others]
    groups = re.findall(_GROUP, printable(comment))
    for beside in range(len(groups), 0, -1):
        line = with_comment(lines[-1], "".join(groups[:beside]).rstrip())
        if len(line) <= WIDTH:
            lines[-1:], groups = [line], groups[beside:]
            break
    return [*lines, *(folded(indent + _INDENT, "".join(groups)) if groups else [])]


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return text in lines of a width, split at pairs of spaces where possible."""
    text = printable(text)
    if len(text) <= width:
        return [text]
    margin = " " * min(len(text) - len(text.lstrip()), width // 2)
    width -= len(margin) + len(_INDENT)
    pieces: list[str] = []
    for group in re.findall(_GROUP, text):
        if len(group.rstrip()) <= width:
            pieces.append(group)
            continue
        parts = textwrap.wrap(group, width, break_on_hyphens=False)
        pieces += [*[f"{part} " for part in parts[:-1]], f"{parts[-1]}  "]
    first, *others = _filled(pieces, width) or [""]
    return [margin + first, *[f"{margin}{_INDENT}{line}" for line in others]]


def _statement(code: str, width: int) -> Iterator[str]:
    """Yield a statement in lines that end after commas."""
    commas, outer = _commas(code)
    if len(code) <= width or not (commas or outer):
        yield code
    elif outer and code.startswith("del "):
        names = [f"{name}, " for name in code.removeprefix("del ").split(", ")]
        yield from [f"del {line.rstrip(',')}" for line in _filled(names, width - 4)]
    elif outer:  # the targets of an assignment
        targets, _, value = code.partition(" = ")
        yield from _statement(f"({targets}) = {value}", width)
    else:
        starts = [0, *commas]
        pieces = [code[start:end] for start, end in zip(starts, [*commas, None], strict=True)]
        yield from _filled(pieces, width)


def _commas(code: str) -> tuple[list[int], bool]:
    """Return the places after commas in brackets, and whether there are commas outside of brackets."""
    places, outer, depth = [], False, 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == "," and depth:
                places.append(token.end[1])
            outer |= token.string == "," and not depth
    return places, outer


def _filled(pieces: Iterable[str], width: int) -> list[str]:
    """Return pieces of text in lines, each filled up to the width."""
    lines: list[str] = []
    for piece in pieces:
        if not lines or len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append(piece.lstrip())
        else:
            lines[-1] += piece
    return [line.rstrip() for line in lines]

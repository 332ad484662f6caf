"""Names and comments in generated Python: text of users ends no line, and stands for no foreign name."""

from __future__ import annotations

import re
from keyword import iskeyword


def plain(text: str) -> str:
    """Return text without the methods that a subclass of `str` may bring, such as `__format__` and `__repr__`."""
    return str.__str__(text)


def is_name(text: str) -> bool:
    """Check whether text can be a name or attribute in source, and means the same name there.

    Python normalises names that are not ASCII: `x.ﬁ` reads the attribute `fi`.
    """
    text = plain(text)
    return text.isascii() and text.isidentifier() and not iskeyword(text) and text != "__debug__"


def as_name(text: str) -> str:
    """Return a name that reads like the text."""
    name = re.sub(r"\W", "_", plain(text), flags=re.ASCII)
    return name if is_name(name) else f"_{name}"


def attribute(owner: str, name: str) -> str:
    """Return an expression for an attribute of any name, given the expression of its owner."""
    name = plain(name)
    return f"{owner}.{name}" if is_name(name) else f"getattr({owner}, {name!r})"


def printable(text: str) -> str:
    """Return text with unprintable characters, such as the end of a line, escaped."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else ascii(c)[1:-1] for c in text])


def with_comment(code: str, comment: str) -> str:
    """Return a line of code and its comment.

    Every comment in generated source is written here.
    """
    return f"{code}{'  ' if code.strip() else ''}# {printable(comment)}" if comment else code

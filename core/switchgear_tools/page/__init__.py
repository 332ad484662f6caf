"""The page: an explanation as an HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from switchgear_core.errors import InvalidInput
from switchgear_tools.facts import Facts
from switchgear_tools.page.payload import Measured, payload_of


def write_page(
    facts: Facts, summary: str, path: str | os.PathLike[str], measured: Measured | None = None
) -> Path:
    """Write the page, and return its path. Raises `InvalidInput` if the file cannot be written."""
    text = page(payload_of(facts, summary, measured))
    place = Path(path)
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"the page cannot be written to {str(place)!r}: {error.strerror}. Give the path of a file in a folder "
            "that exists and that you may write to, such as .html('/tmp/trace.html')"
        ) from error
    return place


def page(data: dict[str, Any]) -> str:
    """Return the HTML. The data is compressed and in base64, so no user's text is markup or code."""
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    parts = {
        "page.css": _source("page.css"),
        "page.js": _source("page.js"),
        "data": base64.b64encode(packed).decode(),
    }
    text = _source("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

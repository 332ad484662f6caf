"""The page on the architecture: short, its examples run, and what it names is there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
CORE = ROOT / "core"
TEXT = PAGE.read_text()
#: The folders that its paths start from.
PLACES = (
    *(ROOT, ROOT / "plugins", CORE, CORE / "switchgear_core"),
    *(CORE / "switchgear_frontend", CORE / "switchgear_runtime"),
)


def test_it_is_short() -> None:
    assert len(TEXT.split()) <= 900


def test_its_examples_run() -> None:
    text = re.sub(r"^```.*$", "", TEXT, flags=re.MULTILINE)  # a fence would be taken for output
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert results.attempted > 5
    assert not results.failed


def test_what_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    names = re.findall(r"`([a-z_/]+(?:\.py|/))`", TEXT)
    assert len(links) > 4
    assert len(names) > 15
    assert not [link for link in links if not (PAGE.parent / link).exists()]
    assert not [name for name in names if not any((place / name).exists() for place in PLACES)]


def test_every_folder_is_named() -> None:
    folders = {path.name for place in PLACES[2:4] for path in place.iterdir() if path.is_dir()} - {"__pycache__"}
    assert not [folder for folder in folders if f"{folder}/`" not in TEXT]

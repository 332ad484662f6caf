"""The notebook of the docs: its cells run, and print what it shows, but for numbers and places."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).parent.parent / "docs/tour.ipynb"


def shown(cell: Any) -> str:
    """The text that a cell of the notebook shows."""
    texts = [out.get("text") or out["data"]["text/plain"] for out in cell["outputs"]]
    return "".join("".join(text) for text in texts)


def plain(text: str) -> str:
    """A text without numbers, places, line breaks, and the executors that happen to be installed."""
    text = re.sub(r"installed and not asked: .*", "", text)
    return " ".join(re.sub(r"\S*\.py:\d+|<cell>:\d+|(import )?(__main__|tour)\.?|[\d.,]+", "", text).split())


def run(source: str, scope: dict[str, Any]) -> str:
    """What a cell prints, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
            print("" if value is None else repr(value))
    return printed.getvalue()


def test_the_cells_print_what_the_notebook_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell for cell in json.loads(TOUR.read_text())["cells"] if cell["cell_type"] == "code"]
    module = types.ModuleType("tour")
    monkeypatch.setitem(sys.modules, "tour", module)
    for cell in cells:
        found, expected = plain(run("".join(cell["source"]), vars(module))), plain(shown(cell))
        if "profile" not in "".join(cell["source"]):  # which line takes longest is not the same in every run
            assert found == expected

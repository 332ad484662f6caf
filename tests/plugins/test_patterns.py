"""The patterns of the guide, of the executors here and of the plugins: each is short, and uses public names alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import switchgear

ROOT = Path(__file__).parents[2]
#: Code lines of the function of a pass, and of all of its module that it uses.
MOST = 39


def sources() -> Iterator[tuple[str, str]]:
    """Modules with passes that look for patterns, and the block of the guide."""
    blocks = (ROOT / "docs" / "pattern.md").read_text().split("```python\n")[1:]
    yield from (("guide", block.split("```")[0]) for block in blocks if "PassPlacement" in block and "def " in block)
    for path in (ROOT / "executors" / "switchgear_cublas" / "patterns.py", *ROOT.glob("plugins/*/src/*/pattern*.py")):
        yield path.relative_to(ROOT).parts[1], path.read_text()


def patterns() -> Iterator[tuple[str, str, str]]:
    for owner, source in sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sg.passes.PassPlacement":
                yield owner, ast.unparse(node.args[2]), source


def names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def defined_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return set().union(*map(names_in, statement.targets))
    return names_in(statement.target) if isinstance(statement, ast.AnnAssign) else set()


def used_by(name: str, source: str) -> list[ast.stmt]:
    """The statements of a module that define a name and all that it uses."""
    statements = ast.parse(source).body
    wanted, used = {name}, dict[int, ast.stmt]()
    while wanted:
        name = wanted.pop()
        for statement in statements:
            if name in defined_by(statement) and statement.lineno not in used:
                used[statement.lineno] = statement
                wanted |= names_in(statement)
    return [*used.values()]


def code_lines(statement: ast.stmt) -> int:
    """As they are written, less docstrings, comments and empty lines: those that `ast` prints stand on one."""
    lines = {
        line
        for node in ast.walk(statement)
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword) and not is_docstring(node, statement)
        for line in (node.lineno, node.end_lineno)
    }
    return len(lines)


def is_docstring(node: ast.AST, statement: ast.stmt) -> bool:
    documented = [one for one in ast.walk(statement) if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    docstrings = [one.body[0] for one in documented if ast.get_docstring(one) is not None]
    return any(node is one or node is getattr(one, "value", None) for one in docstrings)


PATTERNS = [pytest.param(name, source, id=f"{owner}: {name}") for owner, name, source in patterns()]


@pytest.mark.parametrize(("name", "source"), PATTERNS)
def test_a_pattern_is_short(name: str, source: str) -> None:
    used = used_by(name, source)
    lines = sum(map(code_lines, used))
    print(f"{name}: {lines} lines")
    assert 5 < lines <= MOST


@pytest.mark.parametrize(("name", "source"), PATTERNS)
def test_a_pattern_uses_public_names(name: str, source: str) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sg"
    }
    assert used <= {*switchgear.__all__}
    imported = [node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if str(module).startswith("switchgear.")]


def test_the_patterns_are_there() -> None:
    owners = {str(case.id).partition(":")[0] for case in PATTERNS}
    assert owners >= {"guide", "switchgear_cublas", "switchgear-chunked-loss", "switchgear-lean-rules"}

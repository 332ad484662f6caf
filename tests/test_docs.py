"""The pages of the guide: every block runs, every public name is in the reference."""

from __future__ import annotations

import doctest
import itertools
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import switchgear as sg
from switchgear import capture, executors, parts, passes, testing
from switchgear_core.registry.parts import installed_parts

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text()
PAGES = re.findall(r"^ +- .*: ([\w-]+\.md)$", SITE, re.MULTILINE)
#: A fence, its language and its block.
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [block for other, block in FENCE.findall((DOCS / page).read_text()) if other == language]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_blocks_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And print the block of text that follows, if there is one."""
    scope: dict[str, Any] = {"__name__": "guide"}
    fences = [*FENCE.findall((DOCS / page).read_text()), ("", "")]
    for (language, block), (following, expected) in itertools.pairwise(fences):
        if language == "python":
            exec(compile(block, page, "exec"), scope)
            printed = capsys.readouterr().out
            if following == "text":
                assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "pycon")])
def test_examples_run(page: str) -> None:
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks(page, "pycon")), {}, page, str(DOCS / page), 0)
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert results.attempted > 3
    assert not results.failed


def test_every_page_is_listed() -> None:
    left_out = re.findall(r"^  ([\w-]+\.md)$", SITE, re.MULTILINE)
    assert sorted([*PAGES, *left_out]) == sorted(path.name for path in DOCS.glob("*.md"))


def test_every_kind_of_block_is_known() -> None:
    assert {kind for page in PAGES for kind, _ in FENCE.findall((DOCS / page).read_text())} == {
        "python",
        "pycon",
        "sh",
        "text",
        "toml",
    }


def test_the_reference_has_every_public_name() -> None:
    shown = set(re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(), re.MULTILINE))
    # folders and files are called so, too
    shown = {
        {"switchgear.jitting.jit": "switchgear.jit", "switchgear.functional.grad": "switchgear.grad"}.get(n, n)
        for n in shown
    }
    inside = (capture, executors, parts, passes, testing)
    names = {f"{module.__name__}.{name}" for module in (sg, *inside) for name in module.__all__}
    results = {name for name in shown if name.startswith(("switchgear_tools.", "switchgear_graphs."))}
    assert shown - {"switchgear_core.registry.hookspecs"} - results == names - {module.__name__ for module in inside}
    assert all(pkgutil.resolve_name(name) for name in results)


def test_every_variable_is_on_its_page() -> None:
    page = (DOCS / "environment.md").read_text()
    sources = "".join(
        path.read_text() for folder in ("core", "executors", "plugins") for path in (ROOT / folder).rglob("*.py")
    )
    read = set(re.findall(r'"(SWITCHGEAR_[A-Z_]+)"', sources))
    assert {option.variable for option in installed_parts().options.values()} - {""} <= read
    assert {name for name in read if f"`{name}" not in page} == set()

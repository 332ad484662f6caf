"""The check of the project's English finds its faults, and the listed files have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import prose


def test_the_listed_files_have_no_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Results are equal to the bit.", "bit-identical"),
        ("The backward makes it again.\n\nIt is made again.", "recompute"),
        ("one " * 26, "a sentence of 26 words"),
        ("| a | " + "two " * 26 + "|", "a sentence of 26 words"),
        ("What runs is what was compiled.", "2 times 'what' in 6 words"),
    ],
)
def test_faults_are_found(tmp_path: Path, text: str, fault: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert fault in "\n".join(prose.faults(page))


def test_code_and_links_are_left_out_docstrings_and_comments_are_not(tmp_path: Path) -> None:
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(
        f"```\nto the bit\n```\n\n    to the bit\n\n`to the bit` [a page](to-the-bit.md)\n\n{'short. ' * 40}"
    )
    module.write_text('def _inner():\n    """Equal to the bit."""\n    x = "to the bit"  # equal to\n    # the bit\n')
    assert prose.faults(page) == []
    assert [fault.split(":")[1] for fault in prose.faults(module)] == ["2", "4"]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("found = 1", 1),
        ("matches = 1", 0),
        ("def f(*, _given):\n    self.made, x = 1, self.found", 2),
        ("try:\n    pass\nexcept E as asked:\n    f(told=1)", 1),
        ("left = 1", 1),
        ("left, right = 1, 2", 0),
    ],
)
def test_names_of_values_are_nouns(tmp_path: Path, code: str, count: int) -> None:
    module = tmp_path / "module.py"
    module.write_text(code)
    assert len(prose.names(module)) == count


def test_messages_of_modules_are_checked(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def f(x):\n    raise Unsupported(f"{x} is equal to the bit", splits=False)\n')
    assert len(prose.faults(module, prose.messages(module))) == 2, "once as raised, once as called"

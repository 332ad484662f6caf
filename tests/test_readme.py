"""What the README shows is what the repository holds, and it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
FIRST_PLUGIN = ROOT / "examples" / "first_plugin.py"


def test_first_plugin_is_the_one_shown() -> None:
    shown = re.search(r"## A first plugin\n.*?```python\n(.*?)```", README, re.DOTALL)
    assert shown
    assert shown.group(1) == FIRST_PLUGIN.read_text()
    assert len(shown.group(1).splitlines()) < 40


def test_first_plugin_runs() -> None:
    done = subprocess.run([sys.executable, str(FIRST_PLUGIN)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "first" in done.stdout


def test_the_first_screen_shows_what_runs() -> None:
    screen, _, _ = README.partition("\n## Two commands")
    assert len(screen.splitlines()) <= 45
    (code,) = re.findall(r"```python\n(.*?)```", screen, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", screen, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    printed, shown = (
        [line for line in text.splitlines() if not line.startswith("installed")] for text in (done.stdout, output)
    )
    assert printed == shown


def test_changes_are_told_in_a_page_of_short_sentences() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert len(changelog.splitlines()) <= 80
    fragments = [path for path in (ROOT / "docs" / "changes").glob("*.md") if path.name != "README.md"]
    told = [line[2:] for line in changelog.splitlines() if line.startswith("- ")]
    told += [path.read_text().strip() for path in fragments]
    assert not [one for one in told if len(one.split()) > 15]
    assert not [path.name for path in fragments if not re.fullmatch(r"\+[\w-]+\.(added|changed|fixed)\.md", path.name)]


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets

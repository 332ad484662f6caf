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


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets

"""What the tests of the core share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.made_up import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder on the path to install plugins in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name in [name for name in sys.modules if name.startswith("made_up_")]:
        del sys.modules[name]

"""The plugin `cublas` beside `torch`, whether or not the distribution that is installed lists it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest
import torch

from switchgear_core.registry import plugins

GROUP = "switchgear"
ENTRY_POINTS = [EntryPoint("cublas", "switchgear_cublas", GROUP), EntryPoint("torch", "switchgear_torch", GROUP)]


@pytest.fixture(autouse=True)
def installed_plugins(isolated_plugins: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: ENTRY_POINTS)
    plugins.loaded_once.cache_clear()
    yield
    plugins.loaded_once.cache_clear()


@pytest.fixture
def tf32_policy() -> Iterator[None]:
    """The test may change `torch.backends.cuda.matmul.allow_tf32`."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before

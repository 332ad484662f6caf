"""What every test shares: an isolated registry, seeds, markers, and the executors to run over."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
from collections.abc import Iterator

import pytest
import torch

from switchgear import plugins

#: The executors that ship with the project and give eager's results to the bit; `executors` runs a test over each.
EXECUTORS = ("torch",)


def pytest_configure(config: pytest.Config) -> None:
    # Tests run in parallel processes; and results that depend on how a sum is split among threads are not bit-equal.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        "gpu": None if torch.cuda.is_available() else "no CUDA device here",
        "nvfuser": None if importlib.util.find_spec("nvfuser_direct") else "nvFuser is not installed",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def shipped(*, group: str) -> list[importlib.metadata.EntryPoint]:
    """Their entry points; no stranger's."""
    return [found for found in importlib.metadata.entry_points(group=group) if found.name in EXECUTORS]


def pytest_collection_finish() -> None:
    # what looked for plugins while it was imported saw all that is installed
    plugins.installed.cache_clear()


@pytest.fixture(autouse=True)
def isolated_plugins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test depends on what else is installed, or switched off, where it runs; `discovery` asks for just that."""
    if request.node.get_closest_marker("discovery"):
        plugins.installed.cache_clear()
        yield
        plugins.installed.cache_clear()
    else:
        monkeypatch.delenv(plugins.DISABLE_VARIABLE, raising=False)
        monkeypatch.setattr(plugins, "entry_points", shipped)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test begins at the same point of every random stream."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(params=EXECUTORS)
def executors(request: pytest.FixtureRequest) -> list[str]:
    """The `executors` argument of `sg.jit`: each shipped executor in turn, the torch executor behind it."""
    return [request.param] if request.param == "torch" else [request.param, "torch"]

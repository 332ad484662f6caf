"""Parts of every test: an isolated registry, seeds, markers, and the executors to run over."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear_background.modes import COMPILE_VARIABLE
from switchgear_core.regions.choose import Contestants
from switchgear_core.registry import parts, plugins
from switchgear_core.registry.hookspecs import DISTRIBUTIONS, PARTS
from switchgear_core.registry.plugin import DISABLE_VARIABLE
from tests import under_test
from tests.under_test import fraction, is_slow, part

#: Shipped executors whose results are bit-identical to eager's; `executors` runs a test over each.
EXECUTORS = ("torch",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--executors",
        type=under_test.names,
        default=("torch",),
        help="executors of the suites that compare with eager, such as inductor,torch",
    )
    parser.addoption(
        "--without", type=under_test.names, default=(), metavar="PART,...", help="parts that take no part in any call"
    )
    parser.addoption("--device", default="cpu", help="where the databases and the survey of models run, such as cuda")
    parser.addoption("--part", type=fraction, default=(0, 1), metavar="K/N", help="only part K, from 0, of N tests")


def pytest_configure(config: pytest.Config) -> None:
    under_test.EXECUTORS[:] = config.getoption("executors")
    under_test.run_on(config.getoption("device"))
    under_test.WITHOUT[:] = config.getoption("without")
    # Tests run in parallel processes; and results that depend on how a sum is split among threads are not bit-equal.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker("slow")
    k, parts = config.getoption("part")
    items[:] = [item for item in items if part(item.nodeid, parts) == k]
    if under_test.EXECUTORS != ["torch"]:
        items[:] = [item for item in items if item.get_closest_marker("beside_eager")]
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
    entries = importlib.metadata.entry_points(group=group)
    if group == PARTS:
        own = [entry for entry in entries if entry.dist is not None and entry.dist.name in DISTRIBUTIONS]
        return [entry for entry in own if entry.name not in under_test.WITHOUT]
    return [entry for entry in entries if entry.name in {*EXECUTORS, *under_test.EXECUTORS}]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    properties = (dict(report.user_properties) for report in terminalreporter.getreports(""))
    counts = [count for found in properties if isinstance(count := found.get("fused"), int)]
    if counts:
        fused = sum(map(bool, counts))
        terminalreporter.write_line(f"{fused} of {len(counts)} tests fused regions: {sum(counts)} regions")


def pytest_collection_finish() -> None:
    # modules that looked for plugins at import have seen all installed ones
    plugins.loaded_once.cache_clear()


@pytest.fixture(autouse=True)
def isolated_plugins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide other installed plugins and their variables; tests marked `discovery` see them."""
    if request.node.get_closest_marker("discovery"):
        plugins.loaded_once.cache_clear()
        yield
        plugins.loaded_once.cache_clear()
    else:
        monkeypatch.delenv(DISABLE_VARIABLE, raising=False)
        monkeypatch.setattr(plugins, "entry_points", shipped)
        monkeypatch.setattr(parts, "entry_points", shipped)
        yield


@pytest.fixture(autouse=True)
def nothing_split() -> Iterator[None]:
    """Run refused functions in eager, which takes no time: most tests are about the refusal and its reason."""
    with sg.defaults(fallback="eager"):
        yield


@pytest.fixture(autouse=True)
def compiled_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused regions are looked at after one call; `tests/executors/test_background.py` has the tests of the default."""
    monkeypatch.setenv(COMPILE_VARIABLE, "now")


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counts the regions that a test fuses, where executors that fuse are under test: without any it proves nothing."""
    if under_test.EXECUTORS == ["torch"]:
        yield
        return
    compile_regions = Contestants.compile
    count = 0

    def counting(context: Contestants, entrants: Any) -> Any:
        nonlocal count
        compiled = compile_regions(context, entrants)
        count += len(compiled)
        return compiled

    monkeypatch.setattr(Contestants, "compile", counting)
    yield
    request.node.user_properties.append(("fused", count))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test begins at the same point of every random stream."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(params=EXECUTORS)
def executors(request: pytest.FixtureRequest) -> list[str]:
    """The `executors` argument of `sg.jit`: each shipped executor in turn, the torch executor behind it."""
    return [request.param] if request.param == "torch" else [request.param, "torch"]

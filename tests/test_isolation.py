"""What the root conftest promises to every test."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points

import pytest
import torch

import switchgear as sg
from switchgear_core.registry import plugins
from switchgear_core.registry.plugin import DISABLE_VARIABLE

STRANGER = EntryPoint("stranger", "a_module_that_nobody_wrote", "switchgear")


@pytest.fixture
def with_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a plugin that does not load were installed. Set up after the autouse fixtures, whatever those left."""
    real = list(entry_points(group="switchgear"))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: [*real, STRANGER])


@pytest.mark.usefixtures("with_a_stranger")
def test_only_shipped_executors_are_discovered() -> None:
    assert [status.name for status in plugins.installed().report] == ["torch"]
    assert {status.status for status in sg.plugin_report()} == {"loaded"}


@pytest.mark.discovery
def test_discovery_sees_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: [*entry_points(group=group), STRANGER])
    with pytest.warns(sg.errors.PluginWarning, match="stranger"):
        report = sg.plugin_report()
    assert ("stranger", "failed") in [(status.name, status.status) for status in report]


def test_discovery_leaves_nothing_behind() -> None:
    assert [status.name for status in plugins.installed().report] == ["torch"]


def test_nothing_is_switched_off() -> None:
    assert DISABLE_VARIABLE not in os.environ


@pytest.mark.parametrize("repetition", range(2))
def test_seeded(repetition: int) -> None:
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_executors(executors: list[str]) -> None:
    jitted = sg.jit(torch.sin, executors=executors)
    assert torch.equal(jitted(torch.ones(3)), torch.ones(3).sin())
    assert executors[-1] == "torch"

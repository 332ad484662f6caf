"""Discovery: what is loaded, what is refused, and what remains of a plugin that failed."""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint

import pytest
import torch

import switchgear as sg
from conftest import shipped
from switchgear.errors import PluginWarning, RegistrationError
from switchgear_core.registry import parts, plugins, trying
from switchgear_core.registry.plugin import PluginStatus
from switchgear_core.registry.plugins import Discovery, Plugins, load
from switchgear_tools.cli import main
from tests.core.made_up import SIN, Site, call, executor_plugin, rules_plugin


def load_with_one_warning(entries: Iterable[EntryPoint], match: str) -> Plugins:
    with pytest.warns(PluginWarning, match=match) as caught:
        loaded = load(entries)
    assert len(caught) == 1
    return loaded


def status_of(loaded: Plugins, name: str) -> PluginStatus:
    (found,) = [status for status in loaded.report if status.name == name]
    return found


def names(loaded: Plugins) -> list[str]:
    return [executor.name for executor in loaded.executors]


def test_nothing_installed() -> None:
    loaded = load([])
    assert (loaded.executors, loaded.plugins, loaded.report) == ((), (), ())


def test_loaded_plugin(site: Site) -> None:
    body = (
        SIN
        + """
@hookimpl
def switchgear_passes():
    return [sg.passes.PassPlacement("same", "before_grad", lambda trace, context: trace)]

@hookimpl
def switchgear_is_constant_for_vjp(bound_symbol):
    return True if bound_symbol.symbol.name == "torch.sign" else None
"""
    )
    loaded = load([site.add("mine", executor_plugin("mine", body), version="2.3")])
    assert loaded.report == (PluginStatus("mine", "switchgear-mine", "2.3", "loaded", "", ("mine",)),)
    assert names(loaded) == ["mine"]
    entry, rule = loaded.registry.implementation("mine", "torch.sin"), loaded.registry.grad_rule("mine", "torch.sin")
    assert entry is not None
    assert rule is not None
    (plugin,) = loaded.plugins
    assert [placement.name for placement in plugin.passes] == ["same"]
    assert plugin.skip_rule is not None
    assert plugin.skip_rule.fn(call(torch.sign)) is True
    assert plugin.skip_rule.fn(call(torch.sin)) is None
    assert loaded.plugin_of["mine"] is plugin


def test_executor_that_carries_its_table_needs_no_further_hook(site: Site) -> None:
    source = f"""
table = sg.Table("mine")
{SIN}
@sg.hookimpl
def switchgear_executors():
    return [sg.Executor("mine", table=table)]
"""
    loaded = load([site.add("mine", source)])
    assert loaded.registry.implementation("mine", "torch.sin") is not None
    assert loaded.registry.grad_rule("mine", "torch.sin") is not None


def test_registry_is_frozen_after_loading(site: Site) -> None:
    loaded = load([site.add("mine", executor_plugin("mine", SIN))])
    table = sg.Table("mine")
    table.implementation(torch.cos)(torch.cos)
    with pytest.raises(RegistrationError, match="in use"):
        table.install_implementations(loaded.registry)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    raise ValueError('boom')",
            "ValueError: boom.*switchgear_exec",
        ),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    return 'cpu'",
            "returned 'cpu'; it returns a sequence of Exec",
        ),
        ("@sg.hookimpl\ndef switchgear_executors():\n    return sg.Executor('a')", "it returns a sequence of Executor"),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    return ['cpu']",
            "'cpu' in its sequence, which is no Executor",
        ),
        ("@sg.hookimpl\ndef switchgear_passes():\n    return [print]", "which is no PassPlacement"),
        ("@sg.hookimpl\ndef switchgear_executor():\n    return []", "is no hook; did you mean 'switchgear_executors'"),
        ("def switchgear_pases():\n    return []", "is no hook; did you mean 'switchgear_passes'"),
        ("@sg.hookimpl\ndef bring_everything():\n    return []", "is no hook; the hooks are switchgear_executors, "),
        ("def switchgear_executors():\n    return []", "not marked as a hook; decorate it with @switchgear.hookimpl"),
        ("@sg.hookimpl\ndef switchgear_executors(gpu):\n    return []", "Argument.s. .'gpu'."),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    return [sg.Executor('a'), sg.Executor('a')]",
            "two executors of one name",
        ),
        (
            "@sg.hookimpl\ndef switchgear_passes():\n    return [sg.passes.PassPlacement('p', 'last', print)]",
            "placed at 'last'; the stages are before_grad",
        ),
        (
            "@sg.hookimpl\ndef switchgear_savings(settings):\n    return None",
            "broken implements switchgear_savings, asked in the entry-point group 'switchgear.parts' alone",
        ),
        ("switchgear_priority = 'high'", "priority 'high' is no number"),
        (
            "@sg.hookimpl\ndef switchgear_executors():\n    return [sg.Executor('a', priority='high')]",
            "priority 'high' is no number",
        ),
        (
            "@sg.hookimpl\ndef switchgear_register_implementations(registry):\n"
            "    table = sg.Table('broken')\n    table.implementation(torch.sin)(torch.sin)\n"
            "    table.install_implementations(registry)",
            "it implements for broken, but brings no executor",
        ),
        (
            "@sg.hookimpl\ndef switchgear_register_grad_rules(registry):\n"
            "    for owner in ('broken', 'switchgear-broken'):\n        table = sg.Table(owner)\n"
            "        table.grad_rule(torch.sin)(torch.sin)\n        table.install_grad_rules(registry)",
            "its rules have several owners: broken, switchgear-broken",
        ),
    ],
)
def test_broken_plugin_is_one_warning_and_the_others_load(site: Site, source: str, error: str) -> None:
    entries = [
        site.add("a", executor_plugin("a")),
        site.add("broken", source),
        site.add("z", executor_plugin("z")),
    ]
    loaded = load_with_one_warning(entries, f"plugin broken 1.0 is not used .failed.: (?s:.*{error})")
    assert names(loaded) == ["a", "z"]
    assert status_of(loaded, "broken").status == "failed"
    assert status_of(loaded, "broken").executors == ()


def test_plugin_that_fails_midway_leaves_nothing(site: Site) -> None:
    body = (
        SIN
        + """
@hookimpl(specname="switchgear_passes")
def passes():
    raise RuntimeError("after everything was registered")
"""
    )
    loaded = load_with_one_warning([site.add("mine", executor_plugin("mine", body))], "after everything was registered")
    assert not loaded.executors
    assert not loaded.plugins
    assert not loaded.registry.implementation_owners
    assert not loaded.registry.grad_rule_owners


def test_duplicate_registration_in_a_plugin_fails_it(site: Site) -> None:
    body = (
        SIN
        + """
other = sg.Table("mine")
other.implementation(torch.sin)(torch.sin)

@hookimpl(specname="switchgear_register_grad_rules")
def more(registry):
    other.install_implementations(registry)
"""
    )
    load_with_one_warning([site.add("mine", executor_plugin("mine", body))], r"fast_sin \(made_up.*:\d+\) and .*sin")


def test_disabled_is_refused_before_import(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_DISABLE", "other, mine")
    entry = site.add("mine", executor_plugin("mine"))
    with pytest.warns(PluginWarning, match=r"SWITCHGEAR_DISABLE names other, .*\(there are: .*kept, .*mine.*\)"):
        loaded = load([entry, site.add("kept", executor_plugin("kept"))])
    assert names(loaded) == ["kept"]
    assert status_of(loaded, "mine").status == "disabled"
    assert "SWITCHGEAR_DISABLE" in status_of(loaded, "mine").error
    assert entry.value not in sys.modules


@pytest.mark.discovery
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["python_state", "inductor"])
def test_a_part_and_a_plugin_are_disabled_without_a_warning(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SWITCHGEAR_DISABLE", name)
    parts._loaded_once.cache_clear()
    loaded = {part.name for part in parts.installed_parts().all} | {one.name for one in plugins.installed().plugins}
    parts._loaded_once.cache_clear()
    assert name not in loaded
    assert loaded


def test_two_distributions_with_one_entry_point_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [site.add("mine", executor_plugin("mine"), distribution=name) for name in ("one", "two")]
    with pytest.warns(PluginWarning, match=r"one \(made_up_one_mine\) and two \(made_up_two_mine\)"):
        loaded = load([*entries, site.add("kept", executor_plugin("kept"))])
    assert names(loaded) == ["kept"]
    assert [status.status for status in loaded.report if status.name == "mine"] == ["conflict", "conflict"]
    assert not {entry.value for entry in entries} & set(sys.modules)
    monkeypatch.setenv("SWITCHGEAR_DISABLE", "mine")
    assert {status.status for status in load(entries).report} == {"disabled"}


def test_two_plugins_with_an_executor_of_one_name(site: Site) -> None:
    entries = [site.add(name, executor_plugin("gpu", SIN)) for name in ("one", "two")]
    with pytest.warns(PluginWarning, match=r"plugin one \(switchgear-one\) and plugin two \(.*\) all bring gpu"):
        loaded = load([*entries, site.add("kept", executor_plugin("kept"))])
    assert names(loaded) == ["kept"]
    assert status_of(loaded, "one").status == status_of(loaded, "two").status == "conflict"
    assert not loaded.registry.implementation_owners


def test_a_name_of_switchgears_own_is_no_strangers(site: Site) -> None:
    own = shipped(group="switchgear")
    evil = site.add("evil", executor_plugin("torch", SIN))
    twin = site.add("torch", executor_plugin("torch", SIN), distribution="switchgear-twin")
    with pytest.warns(PluginWarning) as caught:
        loaded = load([*own, evil, twin])
    reasons = ("it brings 'torch', a name that is Switchgear's own", "'torch' is a name of Switchgear's own")
    assert [str(one.message) for one in caught] == [
        f"plugin {name} 1.0 is not used (conflict): {reason}; its author has to choose another"
        for name, reason in zip(("evil", "torch"), reasons, strict=True)
    ]
    assert [plugin.distribution for plugin in loaded.plugins] == ["switchgear-core"]
    assert twin.value not in sys.modules


@pytest.mark.parametrize("listed", [None, ["two", "one"]])
def test_the_name_of_a_plugin_is_no_others(site: Site, listed: object) -> None:
    entries = [site.add("one", executor_plugin("two")), site.add("two", executor_plugin("two"))]
    with pytest.warns(PluginWarning, match="plugin one 1.0 is not used .*'two', a name that is plugin two 1.0's"):
        loaded = Discovery(entries).plugins(listed)
    assert [plugin.name for plugin in loaded.plugins] == ["two"]


@pytest.mark.parametrize(
    ("listed", "tables", "imported"),
    [
        (["mine"], [], ["mine"]),
        (["mine"], ["rules"], ["mine", "rules"]),
        (["second"], [], ["hidden", "mine", "rules"]),
        (["mine", ...], [], ["hidden", "mine", "rules"]),
        ("auto", [], ["hidden", "mine", "rules"]),
        (None, [], ["hidden", "mine", "rules"]),
        ([sg.Executor("mine")], [], ["mine"]),
        ([sg.Executor("other", table=sg.Table("other"))], [], []),
    ],
)
def test_those_that_a_list_names_are_imported(
    site: Site, caplog: pytest.LogCaptureFixture, listed: object, tables: list[str], imported: list[str]
) -> None:
    entries = [
        site.add("hidden", executor_plugin("second")),
        site.add("mine", executor_plugin("mine")),
        site.add("rules", rules_plugin("rules")),
    ]
    with caplog.at_level("INFO", "switchgear.plugins"):
        found = Discovery(entries).plugins(listed, tables)
    assert [entry.name for entry in entries if entry.value in sys.modules] == imported
    assert [message.split()[2] for message in caplog.messages] == imported
    assert [*found.others] == [name for name in ("hidden", "mine", "rules") if name not in imported]


@pytest.mark.discovery
def test_a_plugin_that_a_list_does_not_name_may_crash_or_hang(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("crashing", "import os\nos._exit(7)")
    entries = [*shipped(group="switchgear"), *site.entry_points()]
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: entries)
    jitted = sg.jit(torch.sin, executors=["torch"])
    assert jitted(torch.zeros(2)).sum() == 0
    assert "installed and not asked: crashing" in str(sg.explain(jitted))


def test_table_of_another_plugin(site: Site) -> None:
    source = """
theirs = sg.Table("other")
theirs.implementation(torch.sin)(torch.sin)

@hookimpl(specname="switchgear_register_implementations")
def install(registry):
    theirs.install_implementations(registry)
"""
    entries = [
        site.add(
            "thief", executor_plugin("thief").replace("@hookimpl\ndef switchgear_register_imp", "def imp") + source
        ),
        site.add("other", executor_plugin("other")),
    ]
    loaded = load_with_one_warning(
        entries, "under 'other', which belongs to plugin other; plugin thief registers under"
    )
    assert names(loaded) == ["other"]
    assert loaded.registry.implementation("other", "torch.sin") is None


def test_table_of_nobody(site: Site) -> None:
    load_with_one_warning([site.add("mine", rules_plugin("typo"))], "under 'typo', which belongs to nobody")


def test_package_of_rules_owns_them_by_its_name_or_its_distribution(site: Site) -> None:
    loaded = load([site.add("mine", rules_plugin("mine")), site.add("more", rules_plugin("switchgear-more"))])
    assert loaded.registry.grad_rule_owners == {"mine", "switchgear-more"}
    assert [package.name for package in loaded.rule_packages] == ["mine", "more"]


@pytest.mark.parametrize(
    ("action", "reason"),
    [("return 'no device'", "no device"), ("raise OSError('no driver')", "raised OSError: no driver")],
)
def test_unavailable_executors_are_reported(site: Site, action: str, reason: str) -> None:
    source = f"""
class Gpu(sg.Executor):
    def unavailable(self):
        {action}

@sg.hookimpl
def switchgear_executors():
    return [Gpu("mine")]
"""
    loaded = load([site.add("mine", source)])
    assert loaded.report[0].status == "unavailable"
    assert reason in loaded.report[0].error
    assert loaded.report[0].executors == ("mine",)


@pytest.mark.parametrize(
    ("action", "limits"),
    [("return 'no device'", "no device"), ("raise OSError('boom')", "raised OSError: boom"), ("return None", "")],
)
def test_what_does_not_work_here_is_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: str, limits: str
) -> None:
    source = f"""
class Limited(sg.Executor):
    def limited(self):
        {action}

@sg.hookimpl
def switchgear_executors():
    return [Limited("mine")]
"""
    loaded = load([site.add("mine", source)])
    assert (loaded.report[0].status, loaded.report[0].error) == ("loaded", "")
    assert limits in loaded.report[0].limits
    assert bool(loaded.report[0].limits) == bool(limits)
    monkeypatch.setattr("switchgear_tools.commands.tried_report", lambda: loaded.report)
    assert main(["plugins"]) == 0
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words == ["mine", "switchgear-mine", "1.0", "loaded", "mine", *loaded.report[0].limits.split()]


def test_total_order_is_priority_then_name(site: Site) -> None:
    declared = {"b": "", "a": "", "last": "priority=-100", "first": "priority=5"}
    entries = [site.add(name, executor_plugin(name, options=options)) for name, options in declared.items()]
    assert names(load(entries)) == ["first", "a", "b", "last"]


def test_order_of_installation_and_import_never_matters(site: Site) -> None:
    entries = [
        site.add("a", executor_plugin("a", SIN)),
        site.add("b", executor_plugin("b", SIN)),
        site.add("rules", rules_plugin("rules")),
        site.add("first", executor_plugin("first", SIN, options="priority=1")),
    ]
    seen = set()
    for permuted in itertools.permutations(entries):
        for entry in entries:
            sys.modules.pop(entry.value, None)
        loaded = load(permuted)
        seen.add((tuple(names(loaded)), tuple(plugin.name for plugin in loaded.plugins), loaded.report))
    assert len(seen) == 1


@pytest.mark.discovery
def test_installed_is_discovered_once_and_cached(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("mine", executor_plugin("mine"))
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: site.entry_points())
    assert plugins.installed() is plugins.installed()
    assert sg.plugin_report() == (*plugins.installed().report, *parts.installed_parts().report)
    assert names(plugins.installed()) == ["mine"]


@pytest.mark.discovery
def test_a_crash_or_hang_of_an_import_is_a_row_of_the_report(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crashing = site.add("crashing", "import ctypes\nctypes.string_at(0)  # here")
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: [crashing])
    with pytest.warns(PluginWarning, match="plugin crashing 1.0 is not used"):
        assert main(["plugins", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["plugins"]}
    row = rows["crashing"]
    assert row["status"] == "failed"
    assert re.search(rf"ended the process by signal {int(signal.SIGSEGV)}, in File .*ctypes", row["error"])

    hanging = site.add("hanging", "import time\ntime.sleep(1000)")
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: [hanging])
    monkeypatch.setattr(trying, "PATIENCE", 0.1)
    plugins.loaded_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        assert main(["doctor"]) == 1
    assert f"plugin hanging ({hanging.value}): importing it, or asking" in capsys.readouterr().out

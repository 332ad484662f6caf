"""Each wrong use has a message that says what happened, where, and what to do; and doing that works."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchgear_core import errors
from switchgear_core.registry import plugins
from switchgear_core.registry.plugins import load
from switchgear_tools.cli import main
from tests.core import wrong_uses
from tests.core.made_up import Site
from tests.core.wrong_uses import COMMANDS, ENVIRONMENT, ONE, OPTIONS, PLUGINS, PREAMBLE, USES, Wrong


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "cache"))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    plugins.loaded_once.cache_clear()


def test_there_are_eighty_and_more() -> None:
    assert len([*OPTIONS, *USES, *ENVIRONMENT, *PLUGINS, *COMMANDS]) >= 120


@pytest.mark.parametrize("use", [*OPTIONS, *USES], ids=lambda use: use.name)
def test_a_wrong_use_of_the_package(use: Wrong, tmp_path: Path) -> None:
    check(use, PREAMBLE + ONE, tmp_path)


@pytest.mark.parametrize("use", ENVIRONMENT, ids=lambda use: use.name)
def test_a_wrong_variable_of_the_environment(use: Wrong, tmp_path: Path) -> None:
    check(use, PREAMBLE, tmp_path)


def check(use: Wrong, preamble: str, folder: Path) -> None:
    """Run the code, whose message has all parts and names the line marked HERE, and the corrected code, silently."""
    file = folder / "user.py"
    text = preamble + use.code + "\n"
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "# HERE" in one)
    message, places = told(text, file, use.error)
    missing = [part for part in use.says if part not in message]
    assert not missing, f"{missing} not in: {message}"
    assert (str(file), line) in places or re.search(rf"user\.py:{line}\b", message), (places, message)
    assert len(message) < 1200
    os.environ.clear()
    plugins.loaded_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(preamble + use.right, folder / "corrected.py")


def run(text: str, file: Path) -> None:
    """Run code as that of a file."""
    file.write_text(text)
    exec(compile(text, str(file), "exec"), {"__name__": file.stem})


def told(text: str, file: Path, kind: str) -> tuple[str, list[tuple[str, int]]]:
    """The message of the error or warning of that kind, and the places in files that come with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors.warn_once.cache_clear()
        if not kind.endswith("Warning"):
            with pytest.raises(Exception) as raised:  # noqa: PT011 - its name is compared
                run(text, file)
            assert raised.typename == kind, raised.value
            frames = traceback.extract_tb(raised.tb)
            return " ".join(str(raised.value).split()), [(one.filename, one.lineno or 0) for one in frames]
        run(text, file)
    (warning,) = [one for one in caught if one.category.__name__ == kind]
    return " ".join(str(warning.message).split()), [(warning.filename, warning.lineno)]


@pytest.mark.parametrize(("name", "wrong", "says", "right"), PLUGINS, ids=[one[0] for one in PLUGINS])
def test_a_wrong_plugin(name: str, wrong: str, says: tuple[str, ...], right: str, site: Site) -> None:
    with pytest.warns(errors.PluginWarning) as caught:
        load([site.add("bad", wrong)])
    message = str(caught[0].message)
    for part in ("plugin bad 1.0 is not used", *says):
        assert part in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (plugin,) = load([site.add("bad", right, distribution="corrected")]).plugins
    assert plugin.executors[0].name == "bad"


@pytest.mark.parametrize(("wrong", "status", "says", "right"), COMMANDS, ids=[one[0] for one in COMMANDS])
def test_a_wrong_command_line(
    wrong: str, status: int, says: tuple[str, ...], right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.py").write_text(wrong_uses.MODEL)
    assert command(wrong) == status
    message = capsys.readouterr().err
    for part in says:
        assert part in message
    assert "Traceback" not in message
    assert command(right) == 0


def command(line: str) -> Any:
    """The exit status of a command line."""
    try:
        return main(line.split())
    except SystemExit as ended:
        return ended.code


def test_a_refusal_in_a_library_names_its_line_and_the_users(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "somelib.py"
    library.parent.mkdir()
    library.write_text("def scaled(x):\n    return x * x.sum().item()\n")
    code = f"""
import sys
sys.path.insert(0, {str(library.parent)!r})
import somelib

def user(x):
    return somelib.scaled(x)  # HERE

sg.jit(user, executors=["torch"])(x)
"""
    text = PREAMBLE + code
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "# HERE" in one)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(text, tmp_path / "user.py")
    (message,) = [str(one.message) for one in caught if one.category is errors.FallbackWarning]
    told = " ".join(message.split())
    assert "somelib.py:2" in told
    assert f"user.py:{line}" in told
    assert "library code" in told

"""What functions import where they run: modules loaded already, loaded by the call, and what finds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `lately` of some modules, which is not loaded, and is forgotten afterwards."""
    parts = {"__init__.py": "RATE = 2.0\n", "config.py": "from lately import RATE\nSCALE = 3.0\nBIAS = [1.0]\n"}
    folder = tmp_path / "lately"
    folder.mkdir()
    for name, text in parts.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "lately"]:
        del sys.modules[name]


def of_the_package(x: Tensor) -> Any:
    import lately  # type: ignore[import-not-found]

    return x * lately.RATE


def a_name(x: Tensor) -> Any:
    from lately.config import SCALE  # type: ignore[import-not-found]

    return x * SCALE


def a_name_by_another(x: Tensor) -> Any:
    from lately.config import SCALE as factor

    return (lambda: x * factor)()


def a_module(x: Tensor) -> Any:
    from lately import config

    return x * config.SCALE


def a_module_by_its_path(x: Tensor) -> Any:
    import lately.config

    return x * lately.config.SCALE


def a_list(x: Tensor) -> Any:
    import lately.config as config

    return x * config.BIAS[0]


def inside_of_another(x: Tensor) -> Any:
    def inner() -> Any:
        from lately.config import SCALE

        return SCALE

    return x * inner()


FUNCTIONS = [of_the_package, a_name, a_name_by_another, a_module, a_module_by_its_path, a_list, inside_of_another]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("is_loaded", [False, True], ids=["loaded by the call", "loaded before"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_imported_is_guarded(function: Callable[[Tensor], Tensor], is_loaded: bool) -> None:
    if is_loaded:
        __import__("lately.config")
    jitted = sg.jit(function, executors=["torch"], strict=True)
    x = torch.ones(2)
    assert torch.equal(jitted(x), function(x))
    assert torch.equal(jitted(x), function(x))
    assert sg.cache_info(jitted).hits == 1
    __import__("lately.config")
    sys.modules["lately"].RATE = 5.0  # type: ignore[attr-defined]
    sys.modules["lately.config"].SCALE = 7.0  # type: ignore[attr-defined]
    sys.modules["lately.config"].BIAS[0] = 9.0
    assert torch.equal(jitted(x), function(x))


def test_what_is_not_there() -> None:
    def optional(x: Tensor) -> Any:
        try:
            import no_such_module  # type: ignore[import-not-found]
        except ImportError:
            return x + 1
        return x * no_such_module.SCALE

    jitted = sg.jit(optional, executors=["torch"], strict=True)
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))


class Finder:
    """As editable installs have one."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        assert name not in FOUND


FOUND = {"mine": "/nowhere"}


@pytest.mark.usefixtures("package")
def test_code_that_finds_modules_is_not_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    jitted = sg.jit(a_name, executors=["torch"], strict=True)
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 3.0))

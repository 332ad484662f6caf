"""What a command line names: a function of a module or of a script."""

from __future__ import annotations

import importlib
import operator
import os
import runpy
import sys
from collections.abc import Callable

from switchgear.errors import SwitchgearError


def loaded(place: str) -> Callable[..., object]:
    """The callable that `module:name` or `script.py:name` names; modules are looked for in this folder first."""
    home, colon, name = place.rpartition(":")
    if not colon:
        raise SwitchgearError(
            f"{place!r} names no function; write module:function or script.py:function"
        )
    try:
        if home.endswith(".py"):
            namespace = runpy.run_path(home)
            value = namespace[name]
        else:
            sys.path.insert(0, os.getcwd())
            value = operator.attrgetter(name)(importlib.import_module(home))
    except (KeyError, AttributeError) as error:
        raise SwitchgearError(f"{home} has no {name}") from error
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise SwitchgearError(f"{place} cannot be loaded: {error}") from error
    if not callable(value):
        raise SwitchgearError(f"{place} is a {type(value).__name__}, and cannot be called")
    return value  # type: ignore[no-any-return]

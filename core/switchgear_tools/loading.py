"""Functions of modules and scripts that a command line names."""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator

from switchgear_core.errors import InvalidInput, SwitchgearError, did_you_mean
from switchgear_core.record.user_code import raising_line
from switchgear_runtime.tracebacks import FULL_VARIABLE


@contextlib.contextmanager
def of_the_user(place: str) -> Iterator[None]:
    """Turn an error of the user's code into one line; SWITCHGEAR_FULL_TRACEBACK=1 shows the traceback."""
    try:
        yield
    except SwitchgearError:
        raise
    except Exception as error:
        if os.environ.get(FULL_VARIABLE) == "1":
            raise
        where = raising_line(error)
        raise InvalidInput(
            f"{place} raised {type(error).__name__}: {error}{where and f', in {where}'}; SWITCHGEAR_FULL_TRACEBACK=1 "
            "shows the traceback"
        ) from error


def loaded(place: str) -> Callable[..., object]:
    """Return the callable that `module:name` or `script.py:name` names; the current folder is searched first.

    Raises:
        InvalidInput: the callable is missing or cannot be called, or the module or script raises.
    """
    origin, colon, name = place.rpartition(":")
    if not colon:
        raise InvalidInput(
            f"{place!r} names no function; write module:function or script.py:function"
        )
    if origin.endswith(".py"):
        if not os.path.exists(origin):
            folder = os.path.dirname(origin)
            scripts = [os.path.join(folder, entry) for entry in os.listdir(folder or ".")]
            raise InvalidInput(f"there is no file {origin}{did_you_mean(origin, scripts)}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(origin)))
        with of_the_user(origin):
            namespace = runpy.run_path(origin)
    else:
        sys.path.insert(0, os.getcwd())
        with of_the_user(origin):
            namespace = vars(importlib.import_module(origin))
    try:
        value = operator.attrgetter(name)(types.SimpleNamespace(**namespace))
    except AttributeError as error:
        names = [
            key
            for key, value in namespace.items()
            if not (key.startswith("_") or isinstance(value, types.ModuleType))
        ]
        raise InvalidInput(f"{origin} has no {name}{did_you_mean(name, names)}") from error
    if not callable(value):
        raise InvalidInput(
            f"{place} is of type {type(value).__name__}, and cannot be called; name a function"
        )
    return value  # type: ignore[no-any-return]

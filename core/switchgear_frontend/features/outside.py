"""Logs: a function that logs falls back, and a guard detects a changed level of a logger."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from switchgear_core import own
from switchgear_core.patches import caller, redirected
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import active_recorder
from switchgear_frontend.known_calls import refuse


class Outside(Handler):
    """Handler of loggers."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Redirect the methods of loggers."""
        with (
            redirected(logging.Logger, "_log", _log),
            redirected(logging.Logger, "isEnabledFor", _is_enabled),
        ):
            yield


def _is_enabled(original: Callable[..., bool], logger: logging.Logger, level: int) -> bool:
    """Guard `logger.isEnabledFor(level)`, so that a changed level recompiles."""
    enabled = original(logger, level)
    if logger.name.startswith("torch."):  # symbolic sizes ask tens of thousands of times
        return enabled
    recorder = active_recorder()
    if recorder is not None and _is_users(caller(2, "logging")):
        name = f"logger{id(logger)}"
        condition = f"{name}.isEnabledFor({int(level)}) is {bool(enabled)}"
        if all(guard.condition != condition for guard in recorder.guards):
            why = f"the level of the logger {logger.name}"
            recorder.guards.append(Guard(condition, why, {name: logger}))
    return enabled


def _log(
    original: Callable[..., object], logger: object, level: int, *args: object, **kwargs: object
) -> object:
    frame = sys._getframe(3)
    names = frame.f_code.co_name, frame.f_back.f_code.co_name if frame.f_back else ""
    if _is_users(caller(2, "logging")) and not any(name.endswith("_once") for name in names):
        refuse("logs")
    return original(logger, level, *args, **kwargs)


_OTHERS = own.PACKAGES | {"torch"} | sys.stdlib_module_names - {"__main__"}


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in _OTHERS

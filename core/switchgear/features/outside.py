"""What a function does outside of Python's objects: a trace would not do it again, so it falls back.

The usual doors are watched while a function is captured: print, logging, warnings that are always shown, files, clocks.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import os
import pathlib
import random
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.guards import Guard
from switchgear.capture.handler import Handler
from switchgear.capture.recorder import active_recorder
from switchgear.errors import Unsupported
from switchgear.patches import caller, redirected

_FILES = ("stat", "lstat", "getcwd", "listdir", "scandir")
_CHANGES_OF_FILES = (
    *("write", "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "truncate", "symlink"),
    *("link", "chmod", "utime", "sendfile"),
)
_PROCESSES = ("system", "fork", "posix_spawn", "execv", "execve", "kill")
_CLOCKS = (
    *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"),
    *("process_time", "process_time_ns", "thread_time", "thread_time_ns", "sleep"),
)
#: What is watched: what has it, its name, and what a function does that calls it.
_DOORS: tuple[tuple[Any, str, str], ...] = (
    (builtins, "print", "prints"),
    (builtins, "open", "opens a file"),
    *((holder, "open", "opens a file") for holder in (pathlib.Path, os)),
    (builtins, "input", "asks for input"),
    (threading.Thread, "start", "starts a thread"),
    *((os, name, "asks the file system") for name in _FILES),
    *((os, name, "writes to a file or the file system") for name in _CHANGES_OF_FILES),
    *((os, name, "starts or ends a process") for name in _PROCESSES if hasattr(os, name)),
    (subprocess.Popen, "__init__", "starts or ends a process"),
    *((socket.socket, name, "uses a socket") for name in ("send", "sendall", "sendto", "recv")),
    (torch, "save", "saves a file"),
    (torch, "load", "loads a file"),
    *((os, name, "sets a variable of the environment") for name in ("putenv", "unsetenv")),
    (os, "urandom", "asks for random bytes"),
    (random, "_urandom", "asks for random bytes"),
    (torch, "is_inference_mode_enabled", "asks whether inference mode is on"),
    (torch, "is_anomaly_enabled", "asks whether anomalies are looked for"),
    *((time, name, f"calls time.{name}()") for name in _CLOCKS),
)
#: What is called by code of these is no doing of the user's.
_NOT_USERS = sys.stdlib_module_names - {"__main__"} | {"torch", "switchgear"}
#: What users call, that calls what is watched.
_PASSED = (
    *("pathlib", "logging", "os", "posixpath", "genericpath", "_collections_abc"),
    *("threading", "concurrent", "multiprocessing", "tqdm"),
    *("uuid", "secrets", "tempfile", "random", "shutil", "subprocess", "socket", "ssl", "http"),
)


class Outside(Handler):
    """Prints, logs, warns, opens files, asks what time it is."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Watch the doors."""
        with contextlib.ExitStack() as stack:
            for owner, name, what in _DOORS:
                stack.enter_context(redirected(owner, name, _refusing(what)))
            for stream in _streams():
                write = functools.partial(_write, stream.write)
                stack.enter_context(redirected(stream, "write", write))
            stack.enter_context(redirected(logging.Logger, "_log", _log))
            stack.enter_context(redirected(logging.Logger, "isEnabledFor", _is_enabled))
            stack.enter_context(redirected(warnings, "warn", _warn))
            stack.enter_context(redirected(internals.JiteratorFunction, "__call__", _launch))
            yield


def _refusing(what: str) -> Callable[..., object]:
    def refuse(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        # the caller of what `redirected` puts in the place of the original
        if _is_users(caller(2, *_PASSED)):
            _refuse(what)
        return original(*args, **kwargs)

    return refuse


def _streams() -> Iterator[Any]:
    """Standard output and error, and what these write bytes to."""
    for stream in {id(one): one for one in (sys.stdout, sys.stderr)}.values():
        for one in (stream, getattr(stream, "buffer", None)):
            if hasattr(one, "__dict__"):
                yield one


def _write(write: Callable[..., object], _: object, *args: object) -> object:
    # not past others: what is logged or shown as a warning is up to these
    if _is_users(caller(2)):
        _refuse("writes to standard output or error")
    return write(*args)


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in _NOT_USERS


def _refuse(what: str) -> None:
    recorder = active_recorder()
    if recorder is not None and not recorder.tape.is_paused:
        raise Unsupported(
            f"the function {what}, in {recorder.here()}, which the first call alone would do; do it outside of the "
            "function"
        )


def _launch(original: Callable[..., object], *args: object, **kwargs: object) -> object:
    _refuse("runs a kernel of torch.cuda.jiterator")
    return original(*args, **kwargs)


def _is_enabled(original: Callable[..., bool], logger: logging.Logger, level: int) -> bool:
    """What is not logged now is to be, once the logger has another level."""
    enabled = original(logger, level)
    if logger.name.startswith("torch."):  # asked ten thousands of times by symbolic sizes
        return enabled
    recorder = active_recorder()
    if recorder is not None and _is_users(caller(2, *_PASSED)):
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
    if _is_users(caller(2, *_PASSED)) and not any(name.endswith("_once") for name in names):
        _refuse("logs")
    return original(logger, level, *args, **kwargs)


def _warn(
    original: Callable[..., object],
    message: object,
    category: type[Warning] | None = None,
    stacklevel: int = 1,
    *args: object,
    **kwargs: object,
) -> object:
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    actions = [entry[0] for entry in warnings.filters if issubclass(kind, entry[2])]
    if actions[:1] == ["always"] and _is_users(caller(2, *_PASSED)):
        _refuse("warns")
    # past this function and what `redirected` puts in the place of the original
    return original(message, category, stacklevel + 2, *args, **kwargs)

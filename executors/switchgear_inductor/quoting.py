"""Paths with spaces and quotes in the command lines of Inductor's builds.

PyTorch joins strings into a command line and splits the line again by a shell's rules. Only paths of include
directories are quoted, from 2.14 on also paths of libraries. Under a path with a space the compiler is told to read
files that do not exist. Under a path with a quote the command has no end ("No closing quotation").
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch._inductor.cpp_builder import CppBuilder


@contextlib.contextmanager
def quoted_paths() -> Iterator[None]:
    """Quote the paths in command lines of Inductor's builds, on every thread: it has compiler threads of its own."""
    if sys.platform == "win32":  # Windows joins and splits commands by other rules
        yield
        return
    original: Any = CppBuilder.__init__
    CppBuilder.__init__ = _quoting(original)  # type: ignore[method-assign]
    try:
        yield
    finally:
        CppBuilder.__init__ = original  # type: ignore[method-assign]


def _quoting(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, name: str, sources: str | list[str], BuildOption: Any, *rest: Any, **keywords: Any) -> None:
        original(self, name, sources, BuildOption, *rest, **keywords)
        paths = [sources] if isinstance(sources, str) else sources
        self._sources_args = _quoted(self._sources_args, paths)
        self._output = _quoted(self._output, [self._target_file])
        self._include_dirs_args = "".join(_options("-I", BuildOption.get_include_dirs()))
        self._libraries_dirs_args = "".join(_options("-L", BuildOption.get_libraries_dirs()))
        if BuildOption.precompiled_header:
            self._include_dirs_args = (
                f"-include {shlex.quote(BuildOption.precompiled_header)} " + self._include_dirs_args
            )

    return __init__


def _options(flag: str, paths: list[str]) -> list[str]:
    return [f"{flag}{shlex.quote(str(path))} " for path in paths]


def _quoted(arguments: str, paths: list[str]) -> str:
    for path in paths:
        arguments = arguments.replace(path, shlex.quote(path))
    return arguments

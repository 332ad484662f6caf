"""Inductor's environment: a compiler whose output Python can load, and a folder to build in."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import switchgear as sg

#: Prerequisites of a region's code: the headers of Python and C++, threads, a loadable library.
_PROBE = """
#include <Python.h>
#include <cmath>
#ifdef _OPENMP
#include <omp.h>
#endif
extern "C" double switchgear_probe(double x) { return std::sqrt(x); }
"""
_DEFAULT_COMPILER = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
#: Seconds: the first compilation on a busy machine takes 1; a hanging compiler counts as failed.
_PATIENCE = 60
#: Bytes, more than a disk keeps for names alone.
_ROOM = 1 << 16


def fault() -> str | None:
    """Return the reason why nothing can be compiled here, or None; tried once per environment."""
    return _fault(os.environ.get("CXX") or _DEFAULT_COMPILER, os.environ.get("PATH", ""))


@functools.cache
def _fault(compiler: str, path: str) -> str | None:
    command = shutil.which(compiler, path=path)
    if command is None:
        return f"no C++ compiler: {compiler} is not on the path; install one, or name it in the variable CXX"
    try:
        folder = sg.disk_cache.workplace()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _ROOM)
    except OSError as error:
        return (
            f"no folder for compiled code can be written to ({_words(error)}); "
            f"name one in the variable {sg.disk_cache.CACHE_VARIABLE} or TMPDIR"
        )
    return None if sys.platform == "win32" else _fault_of_compiler(command, folder)


def _fault_of_compiler(command: str, folder: Path) -> str | None:
    """Return the reason why a compiler builds no loadable library; a success is noted on disk, until it changes."""
    state = Path(command).resolve().stat()
    identity = (command, state.st_mtime_ns, state.st_size, sys.version, sysconfig.get_path("include"), _PROBE)
    note = f"inductor compiler {identity!r}"
    if sg.disk_cache.load(note):
        return None
    try:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            failure = _failure(command, Path(place))
            if failure is None:
                sg.disk_cache.store(note, True)
    except OSError as error:
        return f"the C++ compiler cannot be tried in {folder}: {_words(error)}"
    return failure and f"the C++ compiler {command} fails: {failure}; name another in the variable CXX"


def _failure(command: str, place: Path) -> str | None:
    source, library, output = place / "probe.cpp", place / "probe.so", place / "output"
    source.write_text(_PROBE)
    flags = ["-shared", "-fPIC", "-std=c++17", f"-I{sysconfig.get_path('include')}"]
    # macOS: the linker must accept Python's symbols later; Inductor finds OpenMP there itself
    flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-fopenmp"]
    call = [command, *flags, str(source), "-o", str(library)]
    try:
        with output.open("wb") as file:  # no pipe: any child of the compiler would hold it open
            process = subprocess.run(call, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        return _words(error)
    if process.returncode:
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "error" in line] or lines
        return errors[0] if errors else f"it ended with status {process.returncode}"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"its libraries cannot be loaded ({_words(error)})"
    return None


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

"""The functions and types in C known to capture. Code that uses others is refused, and runs in eager.

Python code is inspected, and PyTorch's own functions come in through the doors. A known function depends on its
arguments alone, or reads and writes Python objects whose content capture guards and compares.
"""

from __future__ import annotations

import bdb
import builtins
import dis
import functools
import importlib._bootstrap
import inspect
import logging
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import dlpack

from switchgear_core import own
from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.guards import HEAP
from switchgear_core.record.recorder import active_recorder
from switchgear_core.record.user_code import is_installed, is_of_pytorch, is_standard

#: Modules whose functions and methods of types depend on their arguments alone.
_PURE = frozenset(
    {
        *("builtins", "math", "cmath", "operator", "_operator", "itertools", "functools"),
        *("_functools", "collections", "_collections", "types", "typing", "_typing", "abc", "_abc"),
        *("re", "_sre", "string", "_string", "weakref", "_weakref", "_struct", "_bisect", "_heapq"),
        *("_statistics", "enum", "ast", "_ast", "unicodedata", "binascii", "zlib", "_json", "_csv"),
        *("decimal", "_decimal", "datetime", "zoneinfo", "_zoneinfo", "_contextvars", "_codecs"),
        *("errno", "_opcode", "_random", "annotationlib", "_hashlib", "_md5", "_sha1", "_sha2"),
        *("_sha256", "_sha512", "_sha3", "_blake2", "_tokenize", "_stat", "_pickle", "_uuid"),
        *("torch", "numpy", *own.PACKAGES, "sympy", "gmpy2", "flint"),
    }
)
_FILES = ("stat", "lstat", "getcwd", "listdir", "scandir")
_WRITES = (
    *("write", "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "truncate", "symlink"),
    *("link", "chmod", "utime", "sendfile"),
)
_PROCESSES = ("system", "fork", "posix_spawn", "execv", "execve", "kill")
_CLOCKS = ("now", "utcnow", "today")
_WARNS, _DEBUGS = "warns", "starts a debugger"
#: Verb phrases for other functions, by names of modules, of functions, and of methods.
_DOES: Mapping[str, str] = {
    "builtins.print": "prints",
    "builtins.input": "asks for input",
    "builtins.__import__": "imports a module by its name",
    "builtins.breakpoint": _DEBUGS,
    "builtins.type.__subclasses__": "asks which classes inherit from one",
    **{
        f"datetime.{kind}.{name}": "asks what time it is"
        for kind in ("datetime", "date")
        for name in _CLOCKS
    },
    "_random.Random.seed": "seeds a random stream",
    "sys.settrace": "sets a trace",
    "sys.setprofile": "sets a profile function",
    "sys._getframe": "reads frames by sys._getframe",
    "time": "asks what time it is",
    "_io": "uses a file or a stream",
    "_io.open": "opens a file",
    "posix.open": "opens a file",
    "nt.open": "opens a file",
    "numpy.fromfile": "opens a file",
    **{f"posix.{name}": "asks the file system" for name in _FILES},
    **{f"posix.{name}": "writes to a file or the file system" for name in _WRITES},
    **{f"posix.{name}": "starts or ends a process" for name in _PROCESSES},
    **{f"posix.{name}": "sets a variable of the environment" for name in ("putenv", "unsetenv")},
    "posix.urandom": "asks for random bytes",
    "_posixsubprocess": "starts or ends a process",
    "_thread": "uses a lock or a thread",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
    "_socket": "uses a socket",
    "_warnings.warn": _WARNS,
    f"torch._C.{vars(dlpack)['to_dlpack'].__name__}": "reads the memory of a tensor",
    "torch.is_inference_mode_enabled": "asks whether inference mode is on",
    "torch.is_anomaly_enabled": "asks whether anomalies are looked for",
}
#: Verb phrases for functions in Python that no trace would repeat, by their code.
_DOES_IN_PYTHON = {
    id(bdb.Bdb.__init__.__code__): _DEBUGS,
    id(torch.save.__code__): "saves a file",
    id(torch.load.__code__): "loads a file",
    id(subprocess.Popen.__init__.__code__): "starts or ends a process",
    id(internals.JiteratorFunction.__call__.__code__): "runs a kernel of torch.cuda.jiterator",
    id(inspect.getattr_static.__code__): "reads attributes past what a guard tells",
}
#: Folders of PyTorch with communicating code; functional collectives and DTensors are exempt: a trace holds them.
_OF_PROCESSES = tuple(
    f"{os.path.dirname(torch.__file__)}/{name}/" for name in ("distributed", "nn/parallel")
)
_FUNCTIONAL = tuple(
    f"{_OF_PROCESSES[0]}{name}" for name in ("_functional_collectives.py", "tensor/")
)
#: The code for loading a module, until its return.
_LOADS = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
#: Modules whose calls by the standard library are its own business: the state of the interpreter, its locks.
_LOCKS = frozenset({"_thread"})
_OF_THE_LIBRARY = frozenset({"sys", "_thread", "_imp", "_signal", "gc", "marshal", "_locale"})
#: Functions of other modules that depend on nothing variable between calls.
_FIXED = frozenset(
    {
        *("sys.exc_info", "sys.intern", "sys.exit", "sys.getdefaultencoding", "sys.gettrace"),
        *("sys.getrecursionlimit", "posix.fspath", "posix.cpu_count"),
        *("posix._path_normpath", "posix._path_splitroot_ex"),
        "?._make_wrapper_subclass",  # of torch.Tensor, makes a tensor of a subclass
    }
)
#: Packages of classes with state in C or shared with other threads, although written in Python.
_SHARED = frozenset(
    {
        *("threading", "multiprocessing", "queue", "concurrent", "asyncio", "subprocess", "socket"),
        *("ssl", "selectors", "sqlite3", "ctypes", "tempfile", "shelve", "dbm"),
    }
)
_LOAD_GLOBAL, _PUSH_NULL, _CACHE = (
    dis.opmap.get(name, -1) for name in ("LOAD_GLOBAL", "PUSH_NULL", "CACHE")
)
#: Python 3.11 loads a called method by a separate operation, later versions set the lowest bit of the argument.
_LOAD_METHOD = dis.opmap.get("LOAD_METHOD", -1)
_ATTRIBUTES = {
    dis.opmap["LOAD_ATTR"]: int(_LOAD_METHOD < 0 or sys.version_info >= (3, 12)),
    _LOAD_METHOD: 0,
}
#: Modules whose classes look as if written in Python.
_BINDINGS = frozenset({"pybind11_builtins", "nanobind", "Boost.Python"})
#: Library files that act by their own rules: a log at its level, a warning shown once, an import.
_SHOW = (logging.__file__, warnings.__file__, _LOADS.co_filename)
#: The flag `HEAP` marks a class in Python; a class in C may have both flags.
_IMMUTABLE = 1 << 8


def is_written_in_python(kind: type) -> bool:
    """Check whether a class is written in Python, and may therefore be changed."""
    is_heap = kind.__flags__ & (HEAP | _IMMUTABLE) == HEAP
    return is_heap and _BINDINGS.isdisjoint([base.__module__ for base in kind.__mro__])


#: Modules whose types hold changing state in C: allowed if created inside the function, refused if reached.
_STATEFUL = frozenset(
    {
        *("_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2", "zlib"),
        *("_csv", "_codecs", "_pickle", "_random"),
    }
)


def is_known(kind: type) -> bool:
    """Check whether instances of a class hold nothing but Python objects, or constant data.

    `_SHARED` applies to objects of its packages themselves: a user's subclass is inspected otherwise.
    """
    is_shared = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    for base in kind.__mro__:
        package = str(base.__module__).partition(".")[0]
        if base.__module__ in _BINDINGS:  # the base of classes in other modules
            continue
        is_stateful = package in _STATEFUL or base.__module__.startswith("numpy.random.")
        is_safe = package in _PURE or is_written_in_python(base)
        if base is bytearray or is_stateful or not is_safe:
            return False
        if is_shared and package in _SHARED:
            return False
    return True


def refuse_call(frame: types.FrameType, function: Any) -> None:
    """Raise `Unsupported` if code outside PyTorch must not call a function in C."""
    file = frame.f_code.co_filename
    if not (reason := what_it_does(function)):
        return
    if reason == _WARNS and not _every_warning_is_shown():
        return
    if _is_passed(file) and (_is_its_own(function) or not _is_for_the_user(frame)):
        return
    # locks of a package are its own business
    if is_installed(file) and _is_its_own(function, _LOCKS):
        return
    refuse(reason)


def refuse_start(frame: types.FrameType) -> None:
    """Raise `Unsupported` if code must not run.

    The code must not pass on a forbidden function in C either, as in `map(print, x)`: such a call is not reported.
    """
    code, space = frame.f_code, frame.f_globals
    if reason := _DOES_IN_PYTHON.get(id(code)) or _communicates(frame):
        refuse(reason)
    if is_of_pytorch(code.co_filename) or _is_passed(code.co_filename):
        return
    for names in _values_in(code):
        value = space.get(names[0], vars(builtins).get(names[0]))
        for name in names[1:]:
            value = vars(value).get(name) if isinstance(value, types.ModuleType) else None
        if isinstance(value, types.BuiltinFunctionType) and (reason := what_it_does(value)):
            refuse(f"hands on {'.'.join(names)}, which {reason}")


def _communicates(frame: types.FrameType) -> str:
    """Return a verb phrase for code that involves other processes or devices in every call."""
    code, caller = frame.f_code, frame.f_back
    if not code.co_filename.startswith(_OF_PROCESSES) or code.co_filename.startswith(_FUNCTIONAL):
        return ""
    if code.co_name == "forward":
        wrapper = type(next(iter(frame.f_locals.values()))).__name__
        return f"calls a {wrapper} (make it a {wrapper}(sg.jit(module)) instead)"
    is_called = caller is not None and not is_of_pytorch(caller.f_code.co_filename)
    is_query = code.co_name.startswith(("get_", "is_", "WORLD"))
    return "communicates with other processes" if is_called and not is_query else ""


def refuse(reason: str) -> None:
    """Raise `Unsupported` with the given verb phrase, if a recorder is active."""
    recorder = active_recorder()
    if recorder is not None and not recorder.tape.is_paused and not _is_loading():
        raise Unsupported(
            f"the function {reason}, in {recorder.here()}, which the first call alone would do; do it outside of the "
            "function",
            splits=reason != _DEBUGS,  # the debugger would stop in code of TorchDynamo
        )


def _is_loading() -> bool:
    """Check whether a module is being loaded, whose code is not part of the function."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _LOADS:
        frame = frame.f_back
    return frame is not None


def what_it_does(function: Any) -> str:
    """Return a verb phrase for a function in C, empty if it depends on its arguments alone."""
    owner, name = function.__self__, function.__name__
    if not is_method(function):
        return _what(function.__module__ or getattr(owner, "__name__", "?"), name)
    is_of_class = isinstance(owner, type) and any(name in vars(base) for base in owner.__mro__)
    return _what_a_method_does(owner if is_of_class else type(owner), name)


def is_method(function: types.BuiltinFunctionType) -> bool:
    """Check whether a function in C is bound to an object or a class."""
    owner = function.__self__
    is_of_pybind = type(owner).__module__ == "pybind11_builtins"  # a record of the function
    return not (owner is None or is_of_pybind or isinstance(owner, types.ModuleType))


def _what_a_method_does(kind: type, name: str) -> str:
    base = next((base for base in kind.__mro__ if name in vars(base)), kind)
    if is_written_in_python(base):
        return ""
    return _what(base.__module__, f"{base.__qualname__}.{name}")


@functools.cache
def _what(module: str, name: str) -> str:
    for key in (f"{module}.{name}", module):
        if key in _DOES:
            return _DOES[key]
    if module.partition(".")[0] in _PURE or f"{module}.{name}" in _FIXED:
        return ""
    return f"calls {module}.{name}, which is written in C and not known to capture"


def _is_its_own(function: Any, modules: frozenset[str] = _OF_THE_LIBRARY) -> bool:
    owner, name = function.__self__, function.__name__
    is_of_module = owner is None or isinstance(owner, types.ModuleType)
    module = str(function.__module__ if is_of_module else type(owner).__module__)
    return module in modules and not name.startswith("start_")


def _is_passed(file: str) -> bool:
    """Check whether a file belongs to the standard library, to typing_extensions (called by its typing), or to tqdm
    (called by torch.fx.Interpreter of PyTorch 2.13).
    """
    path = file.replace("\\", "/")
    return is_standard(file) or "/tqdm/" in path or path.endswith("/typing_extensions.py")


def _is_for_the_user(frame: types.FrameType | None) -> bool:
    """Check whether the standard library runs for the user, not for PyTorch, a log, a warning or an import."""
    while frame is not None and _is_passed(file := frame.f_code.co_filename):
        if file in _SHOW:
            return False
        frame = frame.f_back
    return frame is not None and not is_of_pytorch(frame.f_code.co_filename)


def _every_warning_is_shown() -> bool:
    for kind in (UserWarning, DeprecationWarning, FutureWarning):
        actions = [entry[0] for entry in warnings.filters if issubclass(kind, entry[2])]
        if actions[:1] == ["always"]:
            return True
    return False


@functools.cache
def _values_in(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global variables, and their attributes, that code loads and does not call at once."""
    values, names, is_called, before = list[tuple[str, ...]](), list[str](), False, 0
    for operation, argument in operations(code):
        if operation in _ATTRIBUTES and names:
            low = _ATTRIBUTES[operation]
            names.append(code.co_names[argument >> low])
            is_called |= operation == _LOAD_METHOD or bool(low and argument & 1)
            continue
        if names and not is_called and operation != _PUSH_NULL:
            values.append((*names,))
        names = []
        if operation == _LOAD_GLOBAL:
            names = [code.co_names[argument >> 1]]
            is_called = bool(argument & 1) or before == _PUSH_NULL
        before = operation
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return (*dict.fromkeys(values), *(names for part in inner for names in _values_in(part)))


def operations(code: types.CodeType) -> Iterator[tuple[int, int]]:
    """Yield the operations of code with their arguments."""
    high = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument, high = high | low, 0
        if operation == dis.EXTENDED_ARG:
            high = argument << 8
        elif operation != _CACHE:
            yield operation, argument

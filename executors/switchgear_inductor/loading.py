"""Loading of compiled regions from disk, without importing Inductor, which takes seconds.

Next to a region's key lie Inductor's code, its libraries, and the condition on sizes. The code imports only a few names
of Inductor; stand-ins replace them. Other code is loaded by Inductor (`internals.found`).
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _config_module

import switchgear as sg

from .variants import Compiled

#: Prefixes of environment variables that Inductor and its compiler read.
_LISTENED = ("TORCH", "TRITON", "CXX", "CC", "CPLUS", "OMP", "CUDA_HOME", "PYTORCH")
#: PyTorch kernels that Inductor's code calls with `out=`, by their names there.
_EXTERN = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})
#: Names that the code imports, and calls only on request.
_UNUSED = r"\b(run_intermediate_hooks|maybe_profile|align)\("
#: Variables among these with mere locations, for code of `torch.compile`.
_PLACES = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})


def around(options: Mapping[str, Any], devices: Iterable[torch.device]) -> str:
    """Return a key of all conditions, other than a region on `devices`, that influence Inductor's code."""
    variables = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(_LISTENED) and name not in _PLACES
    )
    names = sorted({torch.cuda.get_device_name(device) for device in devices if device.type == "cuda"})
    versions = torch.__version__, torch.version.git_version, sys.version, _package_digest()
    machine = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), names
    modes = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    return repr((versions, machine, modes, sorted(options.items(), key=str), changes(), variables))


def is_off() -> bool:
    """Check whether the user has disabled Inductor's disk caches in the current process."""
    config = sys.modules.get("torch._inductor.config")
    return config is not None and (config.force_disable_caches or not config.fx_graph_cache)


def changes() -> str:
    """Return the user's changes of Inductor's options in the current process; empty if it is not imported."""
    config = sys.modules.get("torch._inductor.config")
    return "" if config is None else _changes(config, config.get_hash())


@functools.lru_cache(4)
def _changes(config: Any, hash: bytes) -> str:
    """Return the options that differ from their default and from their environment variable."""
    unset = _config_module._UNSET_SENTINEL
    entries = config._config
    changed: dict[str, Any] = {}
    for name, value in config.get_config_copy().items():
        entry = entries[name]
        preset = [setting for setting in (entry.env_value_force, entry.env_value_default) if setting is not unset]
        if value != (preset[0] if preset else entry.default) and entry.justknob is None:
            changed[name] = value
    return repr(sorted(changed.items())) if changed else ""


_LOWERED = "lowered"
#: Overloads by note; a worker may write a note at any time.
_LOWERED_BY: dict[str, frozenset[str]] = {}


def lowered() -> frozenset[str] | None:
    """Return the overloads with Inductor code, as noted by a process with Inductor; None if it must be asked."""
    if "torch._inductor.lowering" in sys.modules:
        return None
    note = _lowered_note()
    if note not in _LOWERED_BY and (names := sg.disk_cache.load(note)):
        _LOWERED_BY[note] = frozenset(names)
    return _LOWERED_BY.get(note)


def _lowered_note() -> str:
    return place(_LOWERED, repr((torch.__version__, torch.version.git_version, _package_digest())))


def keep_lowered(names: Sequence[str]) -> None:
    """Note these overloads for other processes."""
    if sg.disk_cache.load(_lowered_note()) is None:
        sg.disk_cache.store(_lowered_note(), names)


@functools.cache
def _package_digest() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join(sorted(file.read_bytes() for file in here.glob("*.py")))).hexdigest()


def place(key: str, around: str) -> str:
    """Return the key of a region's code on disk."""
    return f"inductor {around} {key}"


def records(place: str) -> list[dict[str, Any]]:
    """Return the records under a key, one for each compiled range of sizes."""
    return sg.disk_cache.load(place) or []


def keep(place: str, record: Mapping[str, Any]) -> None:
    """Add a record; in a read-only folder, nothing is kept."""
    others = [entry for entry in records(place) if entry.get("holds") != record.get("holds")]
    sg.disk_cache.store(place, [*others, record])


def recorded(
    call: Any, odd: Sequence[int], strides: str, holds: str | None, key: str, new_files: Iterable[Path]
) -> dict[str, Any]:
    """Return the record of Inductor's compiled code, and keep its files.

    Args:
        call: the compiled function; the record holds its code if that runs without Inductor.
        odd: the results with other strides than their proxies.
        strides: the proxies' strides, as Python.
        holds: the condition on sizes, as Python; None for any sizes.
        key: the name of Inductor's own record.
        written: the files of Inductor's own record.

    Raises:
        OSError: a file cannot be kept, or lies outside of the current process's folder.
    """
    record: dict[str, Any] = {"odd": [*odd], "strides": strides, "holds": holds, "key": key}

    def by_inductor() -> dict[str, Any]:
        """Return the record of a function that Inductor loads from its original file places."""
        files = {_relative(file): sg.disk_cache.store_file(file) for file in {*new_files, *homes}}
        return {**record, "files": files}

    scope: Mapping[str, Any] = getattr(getattr(call, "__func__", call), "__globals__", {})
    libraries: dict[str, str] = {}
    homes: list[Path] = []
    for name, value in scope.items():
        module = getattr(value, "__self__", None)
        if isinstance(value, types.BuiltinFunctionType) and isinstance(module, types.ModuleType) and name[:4] == "cpp_":
            homes.append(Path(str(module.__file__)))
            _relative(homes[-1])
            libraries[name] = sg.disk_cache.store_file(homes[-1])
    code = scope.get("__file__")
    if code is None or not str(code).endswith(".py"):
        return by_inductor()
    source = Path(code).read_text()
    if not _EXTERN.issuperset(re.findall(r"\bextern_kernels\.(\w+)", source)) or re.search(_UNUSED, source):
        return by_inductor()
    try:
        _run(source, libraries)
    except Exception:  # more names of Inductor than stand-ins
        return by_inductor()
    return {**record, "code": source, "libraries": libraries}


def _relative(file: Path) -> str:
    """Return a file's place in the current process's folder for Inductor. Raises `OSError` if it lies elsewhere."""
    folder = sg.disk_cache.workplace()
    if not file.is_relative_to(folder):
        raise OSError(f"{file} was not written by this process")
    return file.relative_to(folder).as_posix()


def laid_down(record: Mapping[str, Any]) -> bool:
    """Copy the files of a record to Inductor's folder; return whether all are there."""
    for name, digest in record["files"].items():
        source, target = sg.disk_cache.load_file(digest), sg.disk_cache.workplace() / name
        if source is None:
            return False
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return True


def loaded(record: Mapping[str, Any], names: Sequence[str]) -> Compiled | None:
    """Return the runnable code of a record, for numbers of these names; None if Inductor is needed, or code is gone."""
    if "code" not in record:
        return None
    run = _run(record["code"], record["libraries"])
    holds = None if record["holds"] is None else function(names, record["holds"])
    return Compiled(laid_out(run, record["odd"], function(names, record["strides"]), len(names)), holds)


def laid_out(
    run: Callable[..., Any], odd: Sequence[int], strides: Callable[..., Any], count: int
) -> Callable[[list[Any]], Any]:
    """Return a function with its `odd` results in their proxies' strides, in which Inductor does not write."""
    if not odd:
        # a separate object, because Inductor's caches keep theirs
        return functools.partial(run)

    def run_laid_out(args: list[Any]) -> list[torch.Tensor]:
        layouts = strides(*args[:count])
        results = list(run(args))
        for index in odd:
            value = results[index]
            results[index] = torch.empty_strided(
                value.shape, layouts[index], dtype=value.dtype, device=value.device
            ).copy_(value)
        return results

    return run_laid_out


def function(names: Sequence[str], expression: str) -> Callable[..., Any]:
    """Return an expression over numbers of the given names, possibly symbolic, as a function."""
    code = compile(f"lambda {', '.join(names)}: {expression}", "<sizes>", "eval")
    scope: dict[str, Any] = {"torch": torch}
    if any(name not in ("torch", *names) for name in _names(code)):
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP  # noqa: PLC0415 - it imports sympy

        scope |= SYMPY_INTERP
    result: Callable[..., Any] = eval(code, scope)
    return result


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _run(source: str, libraries: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function `call` of Inductor's code, with its libraries."""
    kernels = iter(libraries.items())

    class AsyncCompile:
        def cpp_pybinding(self, argtypes: Any, source: str, *rest: Any, **more: Any) -> Any:
            return _kernel(next(kernels)[1])

        def wait(self, scope: Any) -> None:
            pass

    stand_ins: dict[str, dict[str, Any]] = {
        "torch._inductor.hooks": {"run_intermediate_hooks": None},
        "torch._inductor.utils": {"maybe_profile": None},
        "torch._inductor.codegen.memory_planning": {"_align": None},
        "torch._inductor.async_compile": {"AsyncCompile": AsyncCompile},
        "torch._inductor.select_algorithm": {
            "extern_kernels": types.SimpleNamespace(**{name: getattr(torch, name) for name in _EXTERN})
        },
    }

    def imported(name: str, scope: Any = None, locals: Any = None, names: Any = (), level: int = 0) -> Any:
        if name.startswith("torch._inductor"):
            return types.SimpleNamespace(**{each: stand_ins[name][each] for each in names})
        return __import__(name, scope, locals, names, level)

    builtin_names = {**vars(builtins), "__import__": imported}
    scope: dict[str, Any] = {"__builtins__": builtin_names, "__name__": "switchgear_inductor_code"}
    exec(compile(source, "<inductor>", "exec"), scope)
    if any(scope.get(name) is None for name in libraries):
        raise ValueError("it does not call the libraries that are kept for it")
    run: Callable[..., Any] = scope["call"]
    return run


def _kernel(digest: str) -> Callable[..., Any]:
    """Return the Python function of a library built by Inductor. Raises `ValueError` if it is not kept."""
    path = sg.disk_cache.load_file(digest)
    if path is None:
        raise ValueError("a library is not kept any more")
    return _loaded_kernel(path)


@functools.cache
def _loaded_kernel(path: Path) -> Callable[..., Any]:
    # on loading, it reads the address of a function for tensor data from this variable
    address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(address)
    name = f"{path.stem}.kernel"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    loader.exec_module(module)
    kernel: Callable[..., Any] = module.kernel
    return kernel

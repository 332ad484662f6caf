"""Calls that may read the data of a tensor: of its methods and attributes, of NumPy's functions, and other ways."""

# PyTorch exports what is asked for here, and says so nowhere
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import array
import contextlib
import copy
import ctypes
import io
import json
import math
import multiprocessing.reduction
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.multiprocessing.reductions
from torch.utils import data, dlpack

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """`function` of a tensor; `make` makes two of other data, one after the other."""

    name: str
    function: Function
    make: Callable[[int], torch.Tensor]


def _floats(index: int) -> torch.Tensor:
    return torch.tensor([0.5, -1.0, 2.0, 0.25]) + index


def _matrix(index: int) -> torch.Tensor:
    return torch.tensor([[2.0, 0.5], [0.5, 3.0]]) + index


def _integers(index: int) -> torch.Tensor:
    return torch.tensor([1, 3, 0, 2]) + index


def _one(index: int) -> torch.Tensor:
    return torch.tensor(2.5 + index)


_MAKERS = (_floats, _matrix, _integers, _one)
#: By what the first argument is: the other arguments that each function is tried with.
_FORMS: tuple[Callable[[torch.Tensor], tuple[Any, ...]], ...] = (
    lambda x: (),
    lambda x: (x.clone(),),
    lambda x: (0,),
    lambda x: (1, 0),
    lambda x: (2,),
    lambda x: (x.clone(), x.clone()),
    lambda x: (0, torch.tensor([0, 1]), x.clone()),
    lambda x: (0, torch.tensor([0, 1])),
    lambda x: ("",),
    lambda x: (torch.float64,),
    lambda x: ({},),
    lambda x: (lambda value, *others: value,),
    lambda x: ([1, 1, 4],),
    lambda x: (x > 1, 0.5),
    lambda x: (x > 1, x.clone()),
    lambda x: (Sub,),
    lambda x: (None, x.numpy()),
    lambda x: (0, 1, 2.0),
)
#: What eager leaves to chance, or what ends or stops the process, or is the address of the object.
_LEFT_OUT = frozenset(
    {
        *("new_empty", "new_empty_strided", "empty_like", "resize_", "resize_as_", "resize_as_sparse_", "new"),
        *("__hash__", "__dir__", "__sizeof__", "__init_subclass__", "__subclasshook__", "__class__", "__dict__"),
        *("__weakref__", "__doc__", "__module__", "__new__", "__init__", "__setstate__", "geqrf", "histogramdd"),
    }
)

_ADDRESSES = frozenset({"data_ptr", "const_data_ptr", "mutable_data_ptr"})


def of_tensors() -> Iterator[tuple[str, list[Case]]]:
    """Each public name of `Tensor`, and calls of it: first those that eager takes."""
    for name in dir(torch.Tensor):
        if name in _LEFT_OUT or (name.startswith("_") and not name.endswith("__")):
            continue

        def attribute(x: torch.Tensor, name: str = name) -> Any:
            return getattr(x, name)

        cases = []
        if not callable(getattr(torch.Tensor, name)):
            cases = [Case(f"x.{name}", attribute, make) for make in _MAKERS]
        else:
            for place, form in enumerate(_FORMS):

                def call(x: torch.Tensor, name: str = name, form: Any = form) -> Any:
                    result = getattr(x, name)(*form(x))
                    return result != 0 if name in _ADDRESSES else result

                cases += [Case(f"x.{name} {place} {make.__name__}", call, make) for make in _MAKERS]
        yield name, cases


_NUMPY_FORMS: tuple[Callable[[torch.Tensor], tuple[Any, ...]], ...] = (
    lambda x: (x,),
    lambda x: (x, x),
    lambda x: (x, 1),
    lambda x: ([x, x],),
    lambda x: (1, x),
    lambda x: (x, 0, 2),
    lambda x: (x, [0, 1]),
    lambda x: (x, x, x),
    lambda x: (x > 1, x, 0),
    lambda x: (np.sum, 0, x),
    lambda x: (x, 1, 0),
    lambda x: (np.zeros(x.shape), x),
)
_NUMPY_LEFT_OUT = frozenset(
    {
        *("test", "show_config", "show_runtime", "info", "empty_like", "save", "savez", "savez_compressed", "savetxt"),
        *("load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap", "getbufsize", "setbufsize", "empty"),
        *("geterr", "seterr", "geterrcall", "seterrcall", "set_printoptions", "get_printoptions", "get_include"),
    }
)


def of_numpy() -> Iterator[tuple[str, list[Case]]]:
    """Each function of NumPy, and calls of it."""
    holders = (("np", np), ("np.linalg", np.linalg), ("np.fft", np.fft))
    for path, holder in holders:
        for name in dir(holder):
            function = getattr(holder, name)
            if name.startswith("_") or name in _NUMPY_LEFT_OUT or not callable(function):
                continue
            if isinstance(function, type) and not issubclass(function, np.generic):
                continue

            def call(x: torch.Tensor, function: Any = function, form: Any = None) -> Any:
                return function(*form(x))

            yield (
                f"{path}.{name}",
                [
                    Case(
                        f"{path}.{name} {place} {make.__name__}",
                        lambda x, call=call, form=form: call(x, form=form),
                        make,
                    )
                    for place, form in enumerate(_NUMPY_FORMS)
                    for make in _MAKERS
                ],
            )


class Sub(torch.Tensor):
    """A subclass."""


def _saved(x: torch.Tensor) -> Any:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return torch.load(buffer)


def _first_float(address: int) -> float:
    return float(ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0])


def _tried(call: Function) -> Function:
    def function(x: torch.Tensor) -> Any:
        try:
            return call(x)
        except Exception:
            return "it cannot be read"

    return function


def _suppressed(call: Function) -> Function:
    def function(x: torch.Tensor) -> Any:
        result = "it cannot be read"
        with contextlib.suppress(Exception):
            result = call(x)
        return result

    return function


def _in_thread(call: Function) -> Function:
    def function(x: torch.Tensor) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call, x).result()

    return function


def _in_plain_thread(x: torch.Tensor) -> Any:
    results: list[float] = []
    thread = threading.Thread(target=lambda: results.append(float(np.asarray(x)[0])))
    thread.start()
    thread.join()
    return results


class _Holder:
    """What has a tensor's array as its own."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.x)


_WAYS: dict[str, Function] = {
    "asarray, used": lambda x: x * float(np.asarray(x)[0]),
    "asarray, written to": lambda x: (np.asarray(x).__setitem__(0, 9.0), x * 1)[1],
    "array interface": lambda x: getattr(x, "__array_interface__", None),
    "ufunc of a list": lambda x: np.add.reduce([x, x]),
    "ufunc with out": lambda x: np.exp(np.ones(4, np.float32), out=np.asarray(x)),
    "a branch": lambda x: x * (2 if np.allclose(x, 0.5) else 3),
    "a position": lambda x: x[int(np.asarray(x).argmax())],
    "an array that holds it": lambda x: np.asarray(_Holder(x)).sum(),
    "an object array": lambda x: np.array([x, None], dtype=object)[0] * 2,
    "np.float64": lambda x: np.float64(x[0]),
    "__array__": lambda x: x.__array__(),
    "__array__ with dtype": lambda x: x.__array__(np.float64),
    "np.from_dlpack": lambda x: np.from_dlpack(x),
    "torch.from_dlpack": lambda x: torch.from_dlpack(x) * 2,
    "to_dlpack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x)) + x,
    "torch._C._to_dlpack": lambda x: torch._C._to_dlpack(x),
    "__dlpack__": lambda x: torch.from_dlpack(x.__dlpack__()),
    "data_ptr read by ctypes": lambda x: _first_float(x.data_ptr()),
    "storage's data_ptr": lambda x: _first_float(x.untyped_storage().data_ptr()),
    "typed storage": lambda x: x.storage()[0],
    "storage to list": lambda x: x.untyped_storage().tolist(),
    "storage copied": lambda x: copy.deepcopy(x.untyped_storage()).tolist(),
    "tensor of its storage": lambda x: torch.tensor([], dtype=x.dtype).set_(x.untyped_storage()) + 1,
    "shared memory": lambda x: x.share_memory_() * 2,
    "memoryview": lambda x: bytes(memoryview(x)),
    "memoryview of the array": lambda x: bytes(memoryview(x.numpy())),
    "frombuffer": lambda x: torch.frombuffer(x.numpy(), dtype=torch.float32) + 1,
    "from_numpy": lambda x: torch.from_numpy(x.numpy()) + 1,
    "numpy(force=True)": lambda x: x.numpy(force=True),
    "detach().cpu().numpy()": lambda x: x.detach().cpu().numpy(),
    "tolist": lambda x: x.tolist(),
    "list": lambda x: [float(one) for one in x],
    "array.array": lambda x: array.array("f", x),
    "struct": lambda x: struct.pack("f", x[0]),
    "json": lambda x: json.dumps(x.tolist()),
    "math": lambda x: math.sin(x.sum()),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0] * 4),
    "complex": lambda x: complex(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "index": lambda x: [1, 2, 3][x.argmin()],
    "range": lambda x: [*range(x.argmax())],
    "str": lambda x: str(x),
    "repr": lambda x: repr(x),
    "f-string": lambda x: f"{x}",
    "f-string of a number": lambda x: f"{x.sum():.2f}",
    "%": lambda x: "%s" % x,  # noqa: UP031
    "format": lambda x: f"{x[0]:>10}",
    "torch.equal": lambda x: torch.equal(x, x.clone()),
    "deepcopy": lambda x: copy.deepcopy(x) * 2,
    "deepcopy in a dict": lambda x: copy.deepcopy({"x": x})["x"] * 2,
    "copy": lambda x: copy.copy(x) * 2,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pickled, its length": lambda x: len(pickle.dumps([x])),
    "__reduce_ex__": lambda x: x.__reduce_ex__(2)[0],
    "torch.save": _saved,
    "ForkingPickler": lambda x: len(multiprocessing.reduction.ForkingPickler.dumps(x)) > 0,
    "reduce_tensor": lambda x: torch.multiprocessing.reductions.reduce_tensor(x)[0],
    "default_convert": lambda x: data.default_convert([np.asarray(x)])[0] + x,
    "default_collate": lambda x: data.default_collate([x, x]),
    "_make_subclass": lambda x: torch.Tensor._make_subclass(Sub, x).as_subclass(torch.Tensor) * 2,
    "as_subclass": lambda x: x.as_subclass(Sub).as_subclass(torch.Tensor) * 2,
    "subclass": lambda x: (Sub(x) * 2).as_subclass(torch.Tensor),
    "Parameter": lambda x: torch.nn.Parameter(x).detach() * 2,
    "torch.tensor": lambda x: torch.tensor(x) * 2,
    "torch.tensor of a list": lambda x: torch.tensor([x[0], x[1]]) * 2,
    "torch.as_tensor of arrays": lambda x: torch.as_tensor(np.clip(np.asarray(x), 0, 1)) + x,
    "Tensor of a list": lambda x: torch.Tensor([x[0], x[1]]) * 2,
    "asarray": lambda x: torch.asarray(x) * 2,
    "asarray of an array": lambda x: torch.asarray(np.asarray(x)) * 2,
    "new_tensor": lambda x: x.new_tensor(x.tolist()) * 2,
    "apply_": lambda x: x.clone().apply_(lambda value: value * 2),
    "map_": lambda x: x.clone().map_(x, lambda one, other: one + other),
    "caught: asarray": _tried(lambda x: x * float(np.asarray(x)[0])),
    "caught: array_equal": lambda x: np.array_equal(x, x),
    "caught: numpy": _tried(lambda x: x.numpy()),
    "caught: to_dlpack": _tried(lambda x: torch.from_dlpack(dlpack.to_dlpack(x)) * 2),
    "caught: _to_dlpack": _tried(lambda x: torch.from_dlpack(torch._C._to_dlpack(x)) * 2),
    "caught: repr": _tried(lambda x: repr(x)),
    "caught: pickle": _tried(lambda x: pickle.loads(pickle.dumps(x))),
    "caught: tolist": _tried(lambda x: x.tolist()),
    "suppressed: asarray": _suppressed(lambda x: x * float(np.asarray(x)[0])),
    "suppressed: data_ptr": _suppressed(lambda x: _first_float(x.data_ptr())),
    "hasattr": lambda x: hasattr(x, "__cuda_array_interface__"),
    "isinstance of a buffer": lambda x: isinstance(x, memoryview),
    "in a thread: asarray": _in_thread(lambda x: float(np.asarray(x)[0])),
    "in a thread: tolist": _in_thread(lambda x: x.tolist()),
    "in a thread: item": _in_thread(lambda x: x[0].item()),
    "in a thread: repr": _in_thread(lambda x: repr(x)),
    "in a thread, its error lost": _in_plain_thread,
    "of a result": lambda x: (x.sin() * 2).detach().numpy().sum(),
    "of a view": lambda x: np.asarray(x[1:]).sum(),
    "of a conjugate": lambda x: x.to(torch.complex64).conj().resolve_conj().numpy(),
    "of a constant": lambda x: x + torch.from_numpy(torch.ones(4).numpy() * 2),
    "of what is made inside": lambda x: x + float(np.asarray(torch.arange(4))[1]),
    "after a write": lambda x: np.asarray(x.clone().mul_(2)).sum(),
    "searchsorted of NumPy": lambda x: np.searchsorted(np.arange(4), x),
    "numpy.random": lambda x: np.random.default_rng(0).normal(x, 0.1),
    "operator of an array and a tensor": lambda x: np.ones(4, np.float32) * x,
    "operator of a tensor and an array": lambda x: x * np.ones(4, np.float32),
    "number of NumPy and a tensor": lambda x: np.float32(2) * x,
    "tensor in an index of an array": lambda x: np.arange(4)[x.argmax()],
    "array in an index": lambda x: x[np.array([0, 1])],
}


def of_other_ways() -> Iterator[tuple[str, list[Case]]]:
    """Ways by the standard library, dlpack, storages, threads, and code that catches what they raise."""
    for name, function in _WAYS.items():
        yield name, [Case(name, function, _floats)]

"""Stand-ins for tensors and calls allowed on them: stand-ins have no memory, and calls that read memory are refused.

PyTorch raises where C asks for the address of a stand-in (`torch_private.hide_memory`). This module turns such an error
into a refusal with the user's line. An unknown call that returns values other than tensors is refused, too.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import resolve_name

from switchgear_core.errors import Unsupported
from switchgear_core.record.call import Call

#: Calls that return numbers or text determined by the layout of a stand-in, or by an operator that capture answers.
_KNOWN_NAMES = """
    __array_priority__ __bool__ __complex__ __contains__ __dlpack_device__ __float__ __index__ __int__ __iter__ __len__
    __long__ __nonzero__ allclose dense_dim dim element_size equal get_device has_names is_coalesced is_complex is_conj
    is_contiguous is_cpu is_cuda is_distributed is_floating_point is_ipu is_leaf is_maia is_meta is_mkldnn is_mps
    is_mtia is_neg is_nested is_nonzero is_quantized is_same_size is_signed is_sparse is_sparse_csr is_vulkan is_xla
    is_xpu item itemsize name names nbytes ndim ndimension nelement numel requires_grad shape size sparse_dim stride
    sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum _sym_int tolist type volatile _parse_to
    _has_compatible_shallow_copy_type
"""
_KNOWN = frozenset(_KNOWN_NAMES.split())
_LAYOUT = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_VALUES = (torch.Tensor, type(None), type(NotImplemented), *_LAYOUT)
_FUNCTIONS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType),
    *(types.MethodWrapperType, types.WrapperDescriptorType),
)
#: Functions refused before they run: they warn, and only eager should show the warning.
_WARN = frozenset({"storage", "storage_type"})
#: Messages of PyTorch when code asks for the memory of a stand-in.
_MEMORY_MISSING = ("Cannot access data pointer of Tensor", "on an invalid python storage")
_OWN_FILES = str(Path(__file__).parent.parent)


def run(function: Callable[..., object], call: Call, here: Callable[[], str]) -> Any:
    """Return the result of a call on stand-ins, made through `function`.

    Raises `Unsupported`, with the user's line from `here`, if the call needs memory or is unknown.
    """
    kind = _kind(call.fn)
    if kind is _Kind.WARNS:
        raise _refusal(call.fn, here)
    try:
        result = function(*call.args, **call.kwargs)
    except RuntimeError as error:
        if not reads_memory(error):
            raise
        raise _refusal(call.fn, here) from error
    if isinstance(result, _VALUES) or kind is _Kind.KNOWN or _is_of_tensors(result):
        return result
    if asker().startswith(_OWN_FILES):
        return result
    raise _refusal(call.fn, here)


def reads_memory(error: Exception) -> bool:
    """Check whether PyTorch raised an error because code asked for the memory of a stand-in."""
    return any(text in str(error) for text in _MEMORY_MISSING)


def asker() -> str:
    """Return the file calling PyTorch; a file of Switchgear if capture itself asks."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return (frame.f_back or frame).f_code.co_filename


def _is_of_tensors(result: object) -> bool:
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        return all(map(_is_of_tensors, result))
    return isinstance(result, _VALUES)


class _Kind(enum.Enum):
    KNOWN, UNKNOWN, WARNS = range(3)


@functools.cache
def _kind(function: Any) -> _Kind:
    """Return `KNOWN` if results hold no data, or if the function is not PyTorch's, so that its own calls are seen."""
    module = getattr(function, "__module__", None) or "torch"
    if not isinstance(function, _FUNCTIONS) or module.partition(".")[0] != "torch":
        return _Kind.KNOWN
    if _name(function) in _WARN:
        return _Kind.WARNS
    return _Kind.KNOWN if _name(function) in _KNOWN else _Kind.UNKNOWN


def _name(function: Any) -> str:
    """Return the name of a function, or of the attribute that it reads."""
    if isinstance(function, types.MethodWrapperType):  # `__get__` of a descriptor or a property
        attribute: Any = function.__self__
        function = getattr(attribute, "fget", attribute)
    return str(getattr(function, "__name__", function))


def _refusal(function: Any, here: Callable[[], str]) -> Unsupported:
    name = resolve_name(function) or _name(function)
    return Unsupported(
        f"{name} asks for the data or the memory of a tensor, in {here()}, which has none while the function is "
        "captured; compute with torch, or move the call outside the jitted function",
        final=True,
    )

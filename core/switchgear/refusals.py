"""Torch-level calls that capture refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import resolve_name

from . import torch_internals as internals
from .errors import Unsupported

#: Torch-level functions that would be captured wrongly, and what to do instead.
_REFUSED = {
    "torch.autograd.grad": "differentiate outside the jitted function, or with sg.grad inside it",
    "torch.autograd.backward": "call backward() on what the jitted function returns",
    "torch.autograd.functional": "use sg.grad or sg.vjp",
    "torch.Tensor.backward": "call backward() on what the jitted function returns",
    "torch.Tensor.register_hook": "register the hook outside the jitted function, on its inputs or outputs",
    "torch.Tensor.register_post_accumulate_grad_hook": "register the hook outside the jitted function",
    "torch.Tensor.retain_grad": "call retain_grad() outside the jitted function",
    "torch.Tensor.detach_": "use detach()",
    "torch.Tensor.requires_grad_": "set requires_grad outside the jitted function",
    "torch.Tensor.numpy": "compute with torch, or move the NumPy part outside the jitted function",
    "torch.Tensor.set_": "assign a new tensor instead",
    "torch.Tensor.resize_": "make a new tensor instead",
    "torch.Tensor.data_ptr": "move the call outside the jitted function",
    "torch.Tensor.share_memory_": "move the call outside the jitted function",
}
#: Functions by name, and the kind of tensor that they make, which no trace holds.
_STRANGE = {
    **dict.fromkeys(("sparse_csr_tensor", "sparse_csc_tensor"), "sparse"),
    **dict.fromkeys(("to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc"), "sparse"),
    **dict.fromkeys(("sparse_bsr_tensor", "sparse_bsc_tensor", "sparse_compressed_tensor"), "sparse"),
    **dict.fromkeys(("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"), "quantised"),
    "to_mkldnn": "mkldnn",
    "as_subclass": "tensor subclass",
}
_REFUSED_NAMES = frozenset(name.rpartition(".")[2] for name in _REFUSED)


def refuse(func: Any, here: Callable[[], str]) -> None:
    """Raise `Unsupported`, naming the user's line that `here` tells, for a call that would be captured wrongly."""
    name = getattr(func, "__name__", "")
    if name == "__get__" and func.__self__ is torch.Tensor.grad:
        raise Unsupported(f"the function reads .grad of a tensor, in {here()}; pass the gradient as an argument")
    if name in _STRANGE:
        raise Unsupported(
            f"{name} inside a jitted function, in {here()}: it makes a {_STRANGE[name]} tensor; call it, and what uses "
            "its result, outside the jitted function"
        )
    if name in _REFUSED_NAMES:
        full = resolve_name(func) or f"{getattr(func, '__module__', '')}.{name}"
        if full in _REFUSED:
            raise Unsupported(f"{full} inside a jitted function, in {here()}; {_REFUSED[full]}")
    if internals.inside_functorch():
        raise Unsupported(f"a torch.func transform inside a jitted function, in {here()}; use sg.grad or sg.vjp")

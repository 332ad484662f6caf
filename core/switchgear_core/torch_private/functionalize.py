"""Functionalization: writes become values, and wrappers stand for the written tensors."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from switchgear_core.patches import Change
from switchgear_core.torch_private.names import private

is_wrapper: Callable[[torch.Tensor], bool] = private("torch._is_functional_tensor")


@functools.cache
def functionalize_keys() -> Any:
    """Return the dispatch key of functionalization, as a set."""
    return torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Return a context (it nests) in which in-place calls on wrappers dispatch as functional calls."""
    if torch._C._dispatch_tls_is_dispatch_key_included("Functionalize"):
        yield
        return
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def wrap(fake: torch.Tensor) -> torch.Tensor:
    """Return a functionalization wrapper around a fake tensor."""
    with torch.no_grad():
        return torch._to_functional_tensor(fake)


#: Function after which PyTorch raises where C asks for the tensor's address, which would be null.
hide_memory: Callable[[torch.Tensor], None] = private("torch._C._set_throw_on_mutable_data_ptr")


def unwrap(wrapper: torch.Tensor, *, synchronise: bool = True) -> torch.Tensor:
    """Return the fake tensor of a wrapper; with `synchronise`, after pending writes through its aliases."""
    if synchronise:
        torch._sync(wrapper)  # type: ignore[attr-defined,no-untyped-call]
    return torch._from_functional_tensor(wrapper)


def rebind(wrapper: torch.Tensor, fake: torch.Tensor, *, aliases: bool) -> None:
    """Make the wrapper stand for another fake tensor; with `aliases`, its aliases follow."""
    torch._functionalize_replace(wrapper, fake)
    if aliases:
        torch._functionalize_commit_update(wrapper)


def is_functionalization_error(error: Exception) -> bool:
    """Check whether PyTorch cannot turn a write into a functional call."""
    return any(text in str(error) for text in ("functionaliz", "frozen storage"))


def storage_replaced(wrapper: torch.Tensor) -> bool:
    """Check whether the wrapper's storage was replaced by `set_`."""
    return bool(torch._functionalize_was_storage_changed(wrapper))


def storage_resized(wrapper: torch.Tensor) -> bool:
    """Check whether the wrapper's storage was resized."""
    return bool(torch._functionalize_was_inductor_storage_resized(wrapper))


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that is equal for tensors with shared storage, while they live."""
    return int(tensor.untyped_storage()._cdata)


def storage_keys(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the `storage_key` of each tensor."""
    return [storage._cdata for storage in map(torch.Tensor.untyped_storage, tensors)]


def none_share_storage(tensors: Sequence[torch.Tensor]) -> bool:
    """Check whether all `storage_keys` differ, in a single call."""
    return not torch._C._any_output_is_alias_to_input_or_output((), {}, tuple(tensors))


def has_kernel(overload: Any, key: str) -> bool:
    """Check whether an operator has its own kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)


@contextlib.contextmanager
def exact_functionalization() -> Iterator[None]:
    """Replace inexact kernels of functionalization by kernels of this module.

    Batch norms write undeclared running statistics, so the overloads with a declaration are used. `masked_fill_` keeps
    strides, unlike its functional overload; formulas of PyTorch's gradients call `masked_fill_`.
    """
    if _EXACT:  # PyTorch 2.11 refuses a second registration
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    change = Change(_destroy, library)
    try:
        _EXACT.append(library)
        _register_exact(library)
        yield
    finally:
        change.undo()


#: The library of the replacement kernels, while registered.
_EXACT: list[torch.library.Library] = []


def _destroy(library: torch.library.Library) -> None:
    library._destroy()
    _EXACT.clear()


def _register_exact(library: torch.library.Library) -> None:
    library.impl("native_batch_norm", _declared_batch_norm, "Functionalize")
    library.impl(torch.ops.aten.cudnn_batch_norm.default, _declared_gpu_batch_norm, "Functionalize")
    for overload in ("Scalar", "Tensor"):
        library.impl(f"masked_fill_.{overload}", _masked_fill_, "Functionalize")


#: In-place operators of these functions on parts of rows, invisible outside: functional operators have other strides.
_WRITING = dict.fromkeys((torch.gru, torch.gru_cell), ("add_.Tensor", "mul_.Tensor", "sigmoid_"))


@contextlib.contextmanager
def writes_noticed(fn: object, restrided: Callable[[torch.Tensor, Any], None]) -> Iterator[None]:
    """Call `restrided` while `fn` runs, with each tensor whose strides a write changed, and its former strides."""
    if fn not in _WRITING:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    change = Change(library._destroy)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for name in _WRITING[fn]:
                kernel = _noticing(name, restrided)
                library.impl(name, kernel, "Functionalize", with_keyset=True)
        yield
    finally:
        change.undo()


def _noticing(name: str, restrided: Callable[[torch.Tensor, Any], None]) -> Callable[..., Any]:
    kernel = torch.library.get_kernel(f"aten::{name}", "Functionalize")

    def write(keys: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        stride = unwrap(self).stride() if is_wrapper(self) else None
        kernel.call_boxed(keys, self, *args, **kwargs)
        if stride is not None and unwrap(self).stride() != stride:
            restrided(self, stride)
        return self

    return write


def _declared_batch_norm(
    input: object,
    weight: object,
    bias: object,
    mean: object,
    var: object,
    training: bool,
    *rest: float,
) -> object:
    aten = torch.ops.aten
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, mean, var, *rest
        )
    if mean is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, *rest)
    return aten._native_batch_norm_legit.default(input, weight, bias, mean, var, training, *rest)


def _declared_gpu_batch_norm(*args: Any) -> object:
    aten = torch.ops.aten
    *tensors, training, momentum, epsilon = args
    if training and tensors[3] is not None:  # with statistics: the same kernel
        return aten._batch_norm_with_update.default(*tensors, momentum, epsilon)
    wrappers = [isinstance(arg, torch.Tensor) and is_wrapper(arg) for arg in args]
    plain = [unwrap(arg) if wrapper else arg for arg, wrapper in zip(args, wrappers, strict=True)]
    with torch._C._ExcludeDispatchKeyGuard(functionalize_keys()):
        results = torch.ops.aten.cudnn_batch_norm.default(*plain)
    return tuple(map(wrap, results)) if wrappers[0] else results


def _masked_fill_(self: torch.Tensor, mask: torch.Tensor, value: object) -> torch.Tensor:
    aten = torch.ops.aten
    if not is_wrapper(self):
        with torch._C._ExcludeDispatchKeyGuard(functionalize_keys()):
            aten.masked_fill_(self, mask, value)
        return self
    filled: torch.Tensor = aten.masked_fill(self, mask, value)
    if filled.shape != self.shape:
        raise RuntimeError(
            f"masked_fill_: a mask of shape {[*mask.shape]} for a tensor of shape {[*self.shape]}"
        )
    if filled.stride() != self.stride():
        kind = {"dtype": self.dtype, "device": self.device}
        filled = aten.copy(aten.empty_strided(self.shape, self.stride(), **kind), filled)
    torch._functionalize_replace(self, unwrap(filled))
    torch._functionalize_commit_update(self)
    torch._sync(self)  # type: ignore[attr-defined,no-untyped-call]
    return self


# PyTorch warns once about an existing kernel: if ignored in a capture, warnings already shown would appear again
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    with exact_functionalization():
        pass

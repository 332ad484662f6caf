"""Modes of dispatch, of autocast and of PyTorch's global state."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from switchgear.patches import redirected, together
from switchgear.torch_private.functionalize import functionalize_keys
from switchgear.torch_private.names import private

#: Entered, function modes and the functions of tensor subclasses are not called.
DisableTorchFunction: Callable[[], AbstractContextManager[None]] = private(
    "torch._C.DisableTorchFunction"
)

if TYPE_CHECKING:
    from torch._C._dynamo.guards import GlobalStateGuard as GlobalStateGuard
    from torch._C._dynamo.guards import TensorGuards as _TensorGuards
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes
else:
    DeviceContext = private("torch.utils._device.DeviceContext")
    GlobalStateGuard = private("torch._C._dynamo.guards.GlobalStateGuard")
    TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode")
    _TensorGuards = private("torch._C._dynamo.guards.TensorGuards")
    _disable_current_modes = private("torch.utils._python_dispatch._disable_current_modes")


class DispatchMode(TorchDispatchMode):
    """A mode with a handler that is called as it is: PyTorch would wrap it, and import TorchDynamo for that."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Neither autograd, functionalization nor a function mode sees what runs here."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(functionalize_keys()),
        torch.no_grad(),
    ):
        yield


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, if it is on, for a plain `no_grad`."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def real_dispatch() -> Iterator[None]:
    """Run the block on real tensors, outside of autograd and functionalization, whatever modes are active.

    For code of a feature or a grad rule that computes a constant while a function is captured.
    """
    with outside_autograd(), _disable_current_modes():
        yield


def dispatch_state() -> tuple[Any, Any]:
    """The thread's included and excluded dispatch keys, functionalization left out."""
    include = torch._C._dispatch_tls_local_include_set() - functionalize_keys()
    return include, torch._C._dispatch_tls_local_exclude_set()


@contextlib.contextmanager
def dispatch_from_top(state: tuple[Any, Any]) -> Iterator[None]:
    """Inside a dispatch mode's handler: dispatch with autograd on, as `dispatch_state` was."""
    with (
        torch._C._ForceDispatchKeyGuard(*state),
        torch.enable_grad(),
        torch._C.DisableTorchFunction(),
    ):
        yield


def function_modes_on() -> AbstractContextManager[None]:
    """Function modes see what runs here again, inside `torch._C.DisableTorchFunction()`."""
    return torch._C._EnableTorchFunction()


def compiling_flag(value: bool) -> AbstractContextManager[None]:
    """What `torch.compiler.is_compiling()` answers in this thread; libraries avoid data-dependent branches when it says
    True."""
    return redirected(torch.compiler, "is_compiling", lambda original: value)


autocast_off: Callable[[], AbstractContextManager[None]] = private("torch._C._DisableAutocast")
autocast_active: Callable[[], bool] = private("torch._C._is_any_autocast_enabled")


@contextlib.contextmanager
def autocast_cache_cleared() -> Iterator[None]:
    """Leave no cast in autocast's cache, which is the process's and else lives as long as the outermost region."""
    nested = autocast_nested()
    try:
        yield
    finally:
        if nested:
            torch.clear_autocast_cache()


_increment_autocast_nesting = torch.autocast_increment_nesting


def autocast_nested() -> bool:
    """Whether a region of autocast is around, maybe a disabled one: casts are remembered until the outermost ends."""
    return _autocast_depth() > 0


def _autocast_depth() -> int:
    _increment_autocast_nesting()
    return torch.autocast_decrement_nesting()


def autocast_state() -> tuple[object, ...]:
    """All that regions of autocast set, each device's in turn; hashable."""
    devices = torch._C._autocast_supported_devices()
    set_for = [
        (name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in devices
    ]
    return (_autocast_depth(), torch.is_autocast_cache_enabled(), *set_for)


def set_autocast_state(state: tuple[Any, ...]) -> None:
    """Put back what `autocast_state` gave, after regions that were not left."""
    depth, cached, *devices = state
    for name, enabled, dtype in devices:
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(cached)
    while _autocast_depth() > depth:
        torch.autocast_decrement_nesting()
    if not depth:
        torch.clear_autocast_cache()


def autocast_key() -> tuple[object, ...]:
    """What autocast does here, hashable; empty where it does nothing."""
    if not autocast_active():
        return ()
    devices = torch._C._autocast_supported_devices()
    dtypes = [
        (name, torch.get_autocast_dtype(name))
        for name in devices
        if torch.is_autocast_enabled(name)
    ]
    return (torch.is_autocast_cache_enabled(), *dtypes)


def tensor_guards(
    tensors: list[torch.Tensor],
    sizes: Any = None,
    strides: Any = None,
) -> Callable[..., bool]:
    """One C++ check that other tensors have the type, dispatch keys, dtype, device, sizes, strides of these.

    Where `sizes` and `strides` are given, a list for each tensor, these; None in them stands for any.
    """
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


#: Operators dispatch below autograd while this is active, and so cost less.
below_autograd: Callable[[], AbstractContextManager[None]] = private(
    "torch._C._AutoDispatchBelowAutograd"
)


set_grad_enabled: Callable[[bool], None] = private("torch._C._set_grad_enabled")
#: Copies tensors of the second list into those of the first; on the CPU in their order.
foreach_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = private(
    "torch._foreach_copy_"
)
functorch_active: Callable[[], bool] = private("torch._C._are_functorch_transforms_active")


#: Which backward of autograd's this is part of, for ever; -1 outside of any.
graph_task: Callable[[], int] = private("torch._C._current_graph_task_id")


def function_modes() -> list[Any]:
    """The active `__torch_function__` modes, outermost first; a default device is one of them."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def default_devices() -> list[torch.device]:
    """The active default devices, outermost first."""
    return [mode.device for mode in function_modes() if isinstance(mode, DeviceContext)]


def float32_precision() -> str:
    """What `torch.get_float32_matmul_precision` gives; nothing where it raises, for backends have precisions of their
    own (`torch.backends.cuda.matmul.allow_tf32 = False`)."""
    try:
        return _float32_precision()
    except RuntimeError:
        return ""


def set_float32_precision(precision: str) -> None:
    """Set it to what `float32_precision` gave."""
    if precision:
        torch.set_float32_matmul_precision(precision)


def global_default_device() -> torch.device | None:
    """What `torch.set_default_device` was called with."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


#: A function of `torch.cuda.jiterator`: called with fakes, its kernel reads and writes where there is no memory.
JiteratorFunction: type = private("torch.cuda.jiterator._JittedFunction")

#: How many `__torch_function__` modes are active.
function_mode_count: Callable[[], int] = private("torch._C._len_torch_function_stack")
_float32_precision: Callable[[], str] = private("torch._C._get_float32_matmul_precision")

_BACKENDS: Iterable[str] = private("torch.nn.attention._backend_names")
_GET_ATTENTION = [private(f"torch._C._get_{name}_sdp_enabled") for name in _BACKENDS]
_GET_ATTENTION += [private("torch._C._get_math_sdp_allow_fp16_bf16_reduction")]
_SET_ATTENTION = [private(f"torch._C._set_sdp_use_{name}") for name in _BACKENDS]
_SET_ATTENTION += [private("torch._C._set_math_sdp_allow_fp16_bf16_reduction")]
_get_attention_order: Callable[[], Sequence[int]] = private("torch._C._get_sdp_priority_order")
_RARE_WORDS = ("_sdp_", "_attention", "precision", "_tf32")
#: What the modes that few functions depend on are asked with, and set with.
_RARE = [
    (torch._C, name)
    for name in dir(torch._C)
    if name.startswith(("_get_", "_set_", "_can_use_"))
    and any(word in name for word in _RARE_WORDS)
]
_RARE += [(torch, "autocast_increment_nesting")]


def rare_modes() -> tuple[object, ...]:
    """The modes that few functions depend on: regions of autocast, precision, attention's backends; hashable."""
    return autocast_nested(), float32_precision(), *attention_backends()


def rare_modes_noticed(note: Callable[[], object]) -> AbstractContextManager[None]:
    """`note` is called when this thread asks for one of `rare_modes` or sets it, other than by this module."""

    def noticed(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        note()
        return original(*args, **kwargs)

    return together(redirected(holder, name, noticed) for holder, name in _RARE)


def attention_backends() -> tuple[Any, ...]:
    """What decides of which operators `scaled_dot_product_attention` consists, as `sdpa_kernel` sets it; hashable.

    The order of kernels comes first, and is None where it is PyTorch's own.
    """
    order = tuple(_get_attention_order())
    return (None if order == _own_attention_order() else order, *[get() for get in _GET_ATTENTION])


def set_attention_backends(state: tuple[Any, ...]) -> None:
    """Put back what `attention_backends` gave."""
    order, *values = state
    torch._C._set_sdp_priority_order(list(order or _own_attention_order()))
    for put, value in zip(_SET_ATTENTION, values, strict=True):
        put(value)


_FIRST_ORDER: tuple[int, ...] = tuple(getattr(torch._C, "_get_sdp_priority_order", tuple)())


def _own_attention_order() -> tuple[int, ...]:
    return _order_on_gpu() if torch.cuda.is_initialized() else _FIRST_ORDER


@functools.cache
def _order_on_gpu() -> tuple[int, ...]:
    """The order of kernels once PyTorch has chosen one on a GPU.

    2.11 to 2.15: the first choice on a Hopper GPU puts another kernel first for the whole process, as if it were set.
    """
    before = tuple(_get_attention_order())
    with real_dispatch():
        heads = torch.empty(1, 1, 8, 8, dtype=torch.half, device="cuda")
        torch._fused_sdp_choice(heads, heads, heads)
    found = tuple(_get_attention_order())
    return found if before == _FIRST_ORDER else _FIRST_ORDER


def _set_function_modes(modes: Sequence[Any]) -> None:
    while function_mode_count():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _dispatch_modes() -> list[Any]:
    """The active `__torch_dispatch__` modes, outermost first."""
    return [torch._C._get_dispatch_stack_at(i) for i in range(dispatch_mode_count())]


def _set_dispatch_modes(modes: Sequence[Any]) -> None:
    while dispatch_mode_count():
        torch._C._pop_torch_dispatch_stack(None)
    for mode in modes:
        torch._C._push_on_torch_dispatch_stack(mode)


def _dispatch_flags() -> dict[str, object]:
    """The variables in which PyTorch remembers that a dispatch mode is on."""
    return {key: value for key, value in _DISPATCH.items() if key.startswith("_is_in_")}


def _enter_dispatch_keys() -> Any:
    # exited, the guard restores all keys, also those that Python has no names for
    guard = torch._C._PreserveDispatchKeyGuard()
    guard.__enter__()
    return guard


def _exit_dispatch_keys(guard: Any) -> None:
    guard.__exit__(None, None, None)


_DISPATCH = vars(torch.utils._python_dispatch)
#: The states of a thread that an interrupt of a capture might leave: how to ask for each, and how to set it.
THREAD_STATES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (function_modes, _set_function_modes),
    (_dispatch_modes, _set_dispatch_modes),
    (_dispatch_flags, _DISPATCH.update),
    (private("torch._C._get_torch_function_state"), private("torch._C._set_torch_function_state")),
    (private("torch._C._only_lift_cpu_tensors"), private("torch._C._set_only_lift_cpu_tensors")),
    (
        private("torch._C._functorch.get_dynamic_layer_stack_depth"),
        private("torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth"),
    ),
    (_enter_dispatch_keys, _exit_dispatch_keys),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    ),
    (private("torch._C._is_multithreading_enabled"), torch.autograd.set_multithreading_enabled),
)


def dispatch_mode_count() -> int:
    """How many `__torch_dispatch__` modes are active."""
    return torch._C._len_torch_dispatch_stack()


def stream_key(generator: Any) -> int:
    """Equal for objects that stand for one generator, for as long as it lives."""
    return int(generator._cdata)

"""Modes of dispatch, of autocast and of PyTorch's global state."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _python_dispatch

from switchgear_core.patches import redirected, together
from switchgear_core.torch_private.functionalize import functionalize_keys
from switchgear_core.torch_private.names import private

#: Context without function modes, and without the functions of tensor subclasses.
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
    """A mode whose handler is called directly: PyTorch would wrap it, and import TorchDynamo for the wrapper."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Return a context that neither autograd, functionalization nor function modes see."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(functionalize_keys()),
        torch.no_grad(),
    ):
        yield


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Return a context with a plain `no_grad` instead of inference mode, if it is on."""
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
    """Return the thread's included and excluded dispatch keys, without functionalization."""
    include = torch._C._dispatch_tls_local_include_set() - functionalize_keys()
    return include, torch._C._dispatch_tls_local_exclude_set()


@contextlib.contextmanager
def dispatch_from_top(state: tuple[Any, Any]) -> Iterator[None]:
    """Return a context for a dispatch mode's handler: dispatch with autograd on, in a former `dispatch_state`."""
    with (
        torch._C._ForceDispatchKeyGuard(*state),
        torch.enable_grad(),
        torch._C.DisableTorchFunction(),
    ):
        yield


def function_modes_on() -> AbstractContextManager[None]:
    """Return a context in which function modes are active again, inside `torch._C.DisableTorchFunction()`."""
    return torch._C._EnableTorchFunction()


def compiling_flag(value: bool) -> AbstractContextManager[None]:
    """Set the answer of `torch.compiler.is_compiling()` in this thread; if True, libraries avoid branches on data."""
    return redirected(torch.compiler, "is_compiling", lambda original: value)


autocast_off: Callable[[], AbstractContextManager[None]] = private("torch._C._DisableAutocast")
autocast_active: Callable[[], bool] = private("torch._C._is_any_autocast_enabled")


@contextlib.contextmanager
def autocast_cache_cleared() -> Iterator[None]:
    """Clear autocast's cache at the end: it is process-wide and otherwise lives as long as the outermost region."""
    nested = autocast_nested()
    try:
        yield
    finally:
        if nested:
            torch.clear_autocast_cache()


_increment_autocast_nesting = torch.autocast_increment_nesting


def autocast_nested() -> bool:
    """Check whether a region of autocast is open, even a disabled one: casts are cached until the outermost ends."""
    return _autocast_depth() > 0


def _autocast_depth() -> int:
    _increment_autocast_nesting()
    return torch.autocast_decrement_nesting()


def autocast_state() -> tuple[object, ...]:
    """Return all settings of autocast regions, device by device; hashable."""
    devices = torch._C._autocast_supported_devices()
    set_for = [
        (name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in devices
    ]
    return (_autocast_depth(), torch.is_autocast_cache_enabled(), *set_for)


def set_autocast_state(state: tuple[Any, ...]) -> None:
    """Restore settings from `autocast_state`, after regions that were not exited."""
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
    """Return the effect of autocast here, hashable; empty if there is none."""
    if not autocast_active():
        return ()
    devices = torch._C._autocast_supported_devices()
    dtypes = [
        (name, torch.get_autocast_dtype(name))
        for name in devices
        if torch.is_autocast_enabled(name)
    ]
    return (torch.is_autocast_cache_enabled(), *dtypes)


def marked_dynamic(tensor: torch.Tensor) -> frozenset[int]:
    """Return the dimensions marked by `torch._dynamo.mark_dynamic`, as PyTorch does for cached lengths."""
    return frozenset(vars(tensor).get("_dynamo_dynamic_indices", ()))


def tensor_guards(
    tensors: list[torch.Tensor],
    sizes: Any = None,
    strides: Any = None,
) -> Callable[..., bool]:
    """Return one C++ check of type, dispatch keys, dtype, device, sizes and strides against these tensors.

    `sizes` and `strides`, a list for each tensor, replace theirs; None in a list stands for any value.
    """
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


set_grad_enabled: Callable[[bool], None] = private("torch._C._set_grad_enabled")
#: Function that copies tensors of the second list into those of the first; on the CPU in order.
foreach_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = private(
    "torch._foreach_copy_"
)
functorch_active: Callable[[], bool] = private("torch._C._are_functorch_transforms_active")


#: Id of the running backward of autograd, never reused; -1 outside a backward.
graph_task: Callable[[], int] = private("torch._C._current_graph_task_id")
_will_execute: Callable[[object], bool] = private("torch._C._will_engine_execute_node")


def needed_edges(ctx: Any, needs: Sequence[bool]) -> tuple[bool, ...]:
    """Return which inputs of a Function the running backward needs gradients for, at most those in `needs`.

    `autograd.grad` and `backward(inputs=...)` need few. A Function in Python is told so by this call alone.
    """
    edges = ctx.next_functions
    try:
        return tuple([n and _will_execute(edge[0]) for n, edge in zip(needs, edges, strict=True)])
    except RuntimeError:
        return _needed_leaves(edges, needs)


def _needed_leaves(edges: Sequence[tuple[object, int]], needs: Sequence[bool]) -> tuple[bool, ...]:
    # PyTorch 2.13 refuses to answer for a leaf that `autograd.grad` is called for, in 15 microseconds:
    # tests/core/test_torch_private.py, test_the_gradients_that_a_backward_needs
    results: list[bool] = []
    refusals = 0
    for need, (node, _) in zip(needs, edges, strict=True):
        try:
            is_known = refusals >= _REFUSALS and hasattr(node, "variable")
            results.append(need and (is_known or _will_execute(node)))
        except RuntimeError:
            refusals += 1
            results.append(True)
    return tuple(results)


#: The number of leaves asked about in vain; further leaves count as needed.
_REFUSALS = 2


def function_modes() -> list[Any]:
    """Return the active `__torch_function__` modes, outermost first, including a default device."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def default_devices() -> list[torch.device]:
    """Return the active default devices, outermost first."""
    return [mode.device for mode in function_modes() if isinstance(mode, DeviceContext)]


def float32_precision() -> str:
    """Return `torch.get_float32_matmul_precision()`, or an empty text where it raises: a backend has its own precision
    (`torch.backends.cuda.matmul.allow_tf32 = False`).
    """
    try:
        return _float32_precision()
    except RuntimeError:
        return ""


def set_float32_precision(precision: str) -> None:
    """Set the precision from `float32_precision`."""
    if precision:
        torch.set_float32_matmul_precision(precision)


def global_default_device() -> torch.device | None:
    """Return the argument of the last `torch.set_default_device`."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


#: A function of `torch.cuda.jiterator`: called with fakes, its kernel accesses memory that does not exist.
JiteratorFunction: type = private("torch.cuda.jiterator._JittedFunction")

#: Number of active `__torch_function__` modes.
function_mode_count: Callable[[], int] = private("torch._C._len_torch_function_stack")
_float32_precision: Callable[[], str] = private("torch._C._get_float32_matmul_precision")

_BACKENDS: Iterable[str] = private("torch.nn.attention._backend_names")
_GET_ATTENTION = [private(f"torch._C._get_{name}_sdp_enabled") for name in _BACKENDS]
_GET_ATTENTION += [private("torch._C._get_math_sdp_allow_fp16_bf16_reduction")]
_SET_ATTENTION = [private(f"torch._C._set_sdp_use_{name}") for name in _BACKENDS]
_SET_ATTENTION += [private("torch._C._set_math_sdp_allow_fp16_bf16_reduction")]
_get_attention_order: Callable[[], Sequence[int]] = private("torch._C._get_sdp_priority_order")
_RARE_WORDS = ("_sdp_", "_attention", "precision", "_tf32")
#: Getters and setters of the modes on which few functions depend.
_RARE = [
    (torch._C, name)
    for name in dir(torch._C)
    if name.startswith(("_get_", "_set_", "_can_use_"))
    and any(word in name for word in _RARE_WORDS)
]
_RARE += [(torch, "autocast_increment_nesting")]


def rare_modes() -> tuple[object, ...]:
    """Return modes on which few functions depend: autocast regions, precision, attention's backends; hashable."""
    return autocast_nested(), float32_precision(), *attention_backends()


def rare_modes_noticed(note: Callable[[], object]) -> AbstractContextManager[None]:
    """Return a context that calls `note` when other code of the current thread reads or sets a mode of `rare_modes`."""

    def noticed(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        note()
        return original(*args, **kwargs)

    return together(redirected(holder, name, noticed) for holder, name in _RARE)


def attention_backends() -> tuple[Any, ...]:
    """Return the settings of `sdpa_kernel`, which decide the operators of `scaled_dot_product_attention`; hashable.

    The order of kernels comes first, and is None for PyTorch's own order.
    """
    order = tuple(_get_attention_order())
    return (None if order == _own_attention_order() else order, *[get() for get in _GET_ATTENTION])


def set_attention_backends(state: tuple[Any, ...]) -> None:
    """Restore settings from `attention_backends`."""
    order, *values = state
    torch._C._set_sdp_priority_order(list(order or _own_attention_order()))
    for setter, value in zip(_SET_ATTENTION, values, strict=True):
        setter(value)


_FIRST_ORDER: tuple[int, ...] = tuple(getattr(torch._C, "_get_sdp_priority_order", tuple)())


def _own_attention_order() -> tuple[int, ...]:
    return _order_on_gpu() if torch.cuda.is_initialized() else _FIRST_ORDER


@functools.cache
def _order_on_gpu() -> tuple[int, ...]:
    """Return the order of kernels after PyTorch has chosen a kernel on a GPU.

    2.11 to 2.15: the first choice on a Hopper GPU puts another kernel first for the whole process, as if set by a user.
    """
    before = tuple(_get_attention_order())
    with real_dispatch():
        heads = torch.empty(1, 1, 8, 8, dtype=torch.half, device="cuda")
        torch._fused_sdp_choice(heads, heads, heads)
    order = tuple(_get_attention_order())
    return order if before == _FIRST_ORDER else _FIRST_ORDER


def _set_function_modes(modes: Sequence[Any]) -> None:
    while function_mode_count():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _dispatch_modes() -> list[Any]:
    """Return the active `__torch_dispatch__` modes, outermost first."""
    return [torch._C._get_dispatch_stack_at(i) for i in range(dispatch_mode_count())]


def _set_dispatch_modes(modes: Sequence[Any]) -> None:
    while dispatch_mode_count():
        torch._C._pop_torch_dispatch_stack(None)
    for mode in modes:
        torch._C._push_on_torch_dispatch_stack(mode)


def _dispatch_flags() -> dict[str, object]:
    """Return the variables in which PyTorch remembers active dispatch modes."""
    return {key: value for key, value in _DISPATCH.items() if key.startswith("_is_in_")}


def _enter_dispatch_keys() -> Any:
    # on exit, the guard restores all keys, including keys without a name in Python
    guard = torch._C._PreserveDispatchKeyGuard()
    guard.__enter__()
    return guard


def _exit_dispatch_keys(guard: Any) -> None:
    guard.__exit__(None, None, None)


_DISPATCH = vars(_python_dispatch)
#: The states of a thread that an interrupted capture might leave changed: getter and setter of each.
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
    """Return the number of active `__torch_dispatch__` modes."""
    return torch._C._len_torch_dispatch_stack()


def stream_key(generator: Any) -> int:
    """Return a key that is equal for objects of one generator, while it lives."""
    return int(generator._cdata)

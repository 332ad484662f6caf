"""The private names of PyTorch in use by the core, and the behaviour on a PyTorch without some of them.

The package can be imported without any of the names. If a name is missing, every call runs in eager and says why;
`python -m switchgear doctor` lists missing names. Names in TorchDynamo, whose import is slow, are checked by their
users.
"""

from __future__ import annotations

import functools
import importlib
import platform
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from switchgear_core.errors import Unsupported, VersionWarning

#: The oldest and the newest PyTorch on which the tests have passed.
OLDEST, NEWEST = (2, 11), (2, 15)
_TESTED = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))

#: Names by purpose.
_BY_USE = {
    "dispatch": """
        torch._C.DisableTorchFunction torch._C._EnableTorchFunction torch._C._ExcludeDispatchKeyGuard
        torch._C._ForceDispatchKeyGuard torch._C.DispatchKey.Functionalize
        torch._C.DispatchKeySet torch._C._dispatch_has_kernel_for_dispatch_key torch._C._dispatch_key_for_device
        torch._C._dispatch_key_set torch._C._dispatch_tls_is_dispatch_key_included
        torch._C._dispatch_tls_local_exclude_set torch._C._dispatch_tls_local_include_set
        torch._C._PreserveDispatchKeyGuard
        torch._C._len_torch_dispatch_stack torch._C._len_torch_function_stack torch._C._get_function_stack_at
        torch._C._get_dispatch_stack_at torch._C._get_torch_function_state torch._C._set_torch_function_state
        torch._C._pop_torch_dispatch_stack torch._C._push_on_torch_dispatch_stack
        torch._C._pop_torch_function_stack torch._C._push_on_torch_function_stack
        torch._C._only_lift_cpu_tensors torch._C._set_only_lift_cpu_tensors
        torch._dispatch.python.enable_python_dispatcher torch._ops.OpOverload torch._ops.OpOverloadPacket
        torch.utils._device.DeviceContext torch.utils._python_dispatch.TorchDispatchMode
        torch.utils._python_dispatch._disable_current_modes torch._library.custom_ops.CustomOpDef
    """,
    "fake tensors": """
        torch._subclasses.fake_tensor.DataDependentOutputException torch._subclasses.fake_tensor.FakeTensor
        torch._subclasses.fake_tensor.DynamicOutputShapeException torch._subclasses.fake_tensor.FakeTensorMode
        torch._subclasses.fake_tensor.UnsupportedOperatorException torch._conj torch._neg_view
        torch._subclasses.fake_tensor.in_kernel_invocation_manager torch._C._set_conj torch._C._set_neg
        torch._C._get_default_device torch._GLOBAL_DEVICE_CONTEXT torch._prims_common.suggest_memory_format
        torch._C._TorchDispatchModeKey.FAKE torch._subclasses.fake_tensor.run_fallback_kernel
        torch._meta_registrations.check_inplace_broadcast
    """,
    "functionalization": """
        torch._disable_functionalization torch._enable_functionalization torch._from_functional_tensor
        torch._functionalize_commit_update torch._functionalize_replace
        torch._functionalize_was_inductor_storage_resized torch._functionalize_was_storage_changed
        torch._C._set_throw_on_mutable_data_ptr
        torch._is_functional_tensor torch._mirror_autograd_meta_to torch._sync torch._to_functional_tensor
    """,
    "autograd": """
        torch._C._is_multithreading_enabled
        torch.Tensor._base torch.Tensor._is_view torch.Tensor._version torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
        torch._C._autograd._get_creation_meta torch._C._current_graph_task_id torch._C._set_grad_enabled
        torch._C._will_engine_execute_node
        torch.autograd.forward_ad._current_level torch.autograd.graph._engine_run_backward
        torch._C._autograd._top_saved_tensors_default_hooks torch._C._autograd._pop_saved_tensors_default_hooks
        torch._C._autograd._push_saved_tensors_default_hooks
    """,
    "guards": """
        torch._C._dynamo.guards.GlobalStateGuard torch._C._dynamo.guards.TensorGuards
        torch._C._dynamo.guards.RootGuardManager torch._C._dynamo.guards.dict_version
        torch._C._dynamo.guards.install_no_tensor_aliasing_guard
        torch._dynamo.guards.GuardManagerType
        torch._C._any_output_is_alias_to_input_or_output torch._C._get_float32_matmul_precision
        torch._C._get_sdp_priority_order torch._C._set_sdp_priority_order torch._fused_sdp_choice
        torch.nn.attention._backend_names
        torch._C._get_math_sdp_allow_fp16_bf16_reduction torch._C._set_math_sdp_allow_fp16_bf16_reduction
    """,
    "TorchDynamo": """
        torch._C._dynamo.eval_frame.set_code_exec_strategy torch._C._dynamo.eval_frame._FrameAction
        torch._C._dynamo.eval_frame._FrameExecStrategy torch._dynamo.optimize
        torch._dynamo.eval_frame.DynamoStance torch._dynamo.eval_frame._stance
        torch._dynamo.types.ConvertFrameReturn torch._dynamo.utils.counters torch._dynamo.utils.get_traced_code
        torch._dynamo.convert_frame.compile_lock torch._dynamo.trace_rules.FORCE_SKIP_FILES
        torch._dynamo.variables.torch.tracing_state_functions
    """,
    "autocast": """
        torch._C._DisableAutocast torch._C._autocast_supported_devices torch._C._is_any_autocast_enabled
    """,
    "torch.func": """
        torch._C._functorch.get_dynamic_layer_stack_depth
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth
        torch._C._are_functorch_transforms_active torch._C._functorch.is_functorch_wrapped_tensor
        torch._C._functorch.peek_interpreter_stack torch._functorch.eager_transforms._wrap_for_grad
        torch._functorch.eager_transforms._wrap_all_tensors_to_functional
        torch._functorch.eager_transforms.lazy_dynamo_disallow torch._functorch.vmap._add_batch_dim
        torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
    """,
    "checkpointing": """
        torch.utils.checkpoint._checkpoint_without_reentrant_generator
        torch.utils.checkpoint._CachingTorchDispatchMode torch.utils.checkpoint.SAC_IGNORED_OPS
    """,
    "structure": """
        torch.utils._pytree.SUPPORTED_NODES torch.utils._pytree.TreeSpec torch.utils._pytree.tree_flatten
        torch.utils._pytree.tree_unflatten
    """,
    "random numbers": "torch._C.Generator",
    "running": "torch._foreach_copy_",
    "kernels of torch.cuda.jiterator": "torch.cuda.jiterator._JittedFunction",
}

#: The purpose of each name, by its path.
PRIVATE_NAMES = {path: use for use, paths in _BY_USE.items() for path in paths.split()}


def value_of(path: str) -> Any:
    """Return the object at a path; raise `AttributeError` or `ImportError` if there is none."""
    value: Any = torch
    parts = path.split(".")
    for i, name in enumerate(parts[1:], 2):
        try:
            value = getattr(value, name)
        except AttributeError:
            value = importlib.import_module(".".join(parts[:i]))
    return value


def missing_names() -> dict[str, str]:
    """Return the private names missing in this PyTorch, with their purposes."""
    return {path: use for path, use in PRIVATE_NAMES.items() if not _exists(path)}


def in_dynamo(path: str) -> bool:
    """Check whether a name is in the package of TorchDynamo, which PyTorch does not import at start."""
    return path.startswith("torch._dynamo.")


def _exists(path: str) -> bool:
    try:
        value_of(path)
    except (AttributeError, ImportError):
        return False
    return True


class _Missing(type):
    """A substitute class for a missing name: usable as a base or an exception, and for nothing else."""

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise Unsupported(_lack({cls.__name__: PRIVATE_NAMES.get(cls.__name__, "capture")}))

    def __iter__(cls) -> Iterator[object]:
        return iter(())


def private(path: str) -> Any:
    """Return the object at a path of `PRIVATE_NAMES`, or a substitute that can be imported but not used."""
    return value_of(path) if _exists(path) else _Missing(path, (Exception,), {})


@functools.cache
def check_names(*, dynamo: bool = False) -> None:
    """Raise `Unsupported` if a private name is missing: capture would be wrong or impossible without it.

    `dynamo`: check the names in TorchDynamo instead of all others.
    """
    paths = [path for path in PRIVATE_NAMES if in_dynamo(path) is dynamo]
    missing = {path: PRIVATE_NAMES[path] for path in paths if not _exists(path)}
    if missing:
        raise Unsupported(_lack(missing), splits=False)


def _lack(missing: dict[str, str]) -> str:
    names = ", ".join(f"{path} ({use})" for path, use in missing.items())
    return f"PyTorch {torch.__version__} lacks names that capture needs: {names}; see `python -m switchgear doctor`"


@functools.cache
def warn_if_untested() -> None:
    """Warn once on a PyTorch newer than the tested versions."""
    if _version() > NEWEST:
        warnings.warn(
            f"PyTorch {torch.__version__} is newer than the versions Switchgear was tested on ({_TESTED}); "
            "`python -m switchgear doctor` lists the differences, and executors=['torch'] gives eager's own kernels",
            VersionWarning,
            stacklevel=3,
        )


def _version() -> tuple[int, int]:
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def surroundings() -> str:
    """Return the versions of PyTorch, tested and installed, and of Python."""
    return f"PyTorch {torch.__version__} (tested: {_TESTED}), Python {platform.python_version()}, {platform.system()}"

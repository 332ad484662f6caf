"""The operators by nvmath-python, for epilogues of cuBLASLt without an entry point in PyTorch.

cuBLASLt writes these results by columns, so the transposed product is computed. A plan is created once per kind of
operands, and kept; between calls it holds no operand.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

import switchgear as sg

from .operators import LINEAR_GELU_AUX, MATMUL_BGRAD, MATMUL_DGELU

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LIMIT = 512
_plans: OrderedDict[Any, Any] = OrderedDict()
#: A plan has state, and backwards run on other threads.
_lock = threading.Lock()


def unavailable() -> str | None:
    """Return why nvmath-python cannot be used here, or None."""
    if importlib.util.find_spec("nvmath") is None:
        return "nvmath-python is not installed; install it, or leave nvmath=True out"
    return None if torch.cuda.is_available() else "nvmath=True is for CUDA, and no device is found"


def declined(call: sg.BoundSymbol) -> str:
    """Return why nvmath cannot run a call, or an empty string."""
    first = call.inputs[0]
    if first.dtype not in _DTYPES:
        return f"nvmath has no such epilogue for {first.dtype}"
    if torch.are_deterministic_algorithms_enabled():
        return "nvmath does not know torch.use_deterministic_algorithms"
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for name in (f"allow_{kind}_reduced_precision_reduction", f"allow_{kind}_reduced_precision_reduction_split_k"):
            if first.dtype == dtype and not getattr(torch.backends.cuda.matmul, name):
                return f"nvmath does not know {name}=False"
    contracted = {LINEAR_GELU_AUX: first.shape[-1], MATMUL_DGELU: first.shape[-1], MATMUL_BGRAD: first.shape[0]}
    if contracted[call.symbol] == 1:
        return "the epilogue takes no product over a single element"
    if call.symbol != MATMUL_BGRAD and call.outputs[0].shape[-1] % 8:
        return f"{call.outputs[0].shape[-1]} features are no multiple of 8"
    return ""


def linear_gelu_aux(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """Run `operators.linear_gelu_aux` in one kernel."""
    features = weight.t() if transposed else weight
    rows = x.reshape(-1, x.shape[-1])
    epilogue, inputs = ("GELU_AUX", {}) if bias is None else ("GELU_AUX_BIAS", {"bias": bias.contiguous()})
    y, beside = _run(epilogue, features, rows.t(), inputs)
    shape = (*x.shape[:-1], features.shape[0])
    return y.t().reshape(shape), beside["gelu_aux"].t().reshape(shape)


def matmul_dgelu(grad: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """Run `operators.matmul_dgelu` in one kernel."""
    result, _ = _run("DGELU", weight.t(), grad.t(), {"gelu_aux": z.reshape(-1, z.shape[-1]).t()})
    return result.t().reshape(z.shape)


def matmul_bgrad(grad: Tensor, rows: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Run `operators.matmul_bgrad` in one kernel: the sum is over the second operand, or the first."""
    if transposed:
        result, beside = _run("BGRADA", grad.t(), rows, {})
    else:
        result, beside = _run("BGRADB", rows.t(), grad, {})
    (sums,) = beside.values()
    return result.t().contiguous(), sums.reshape(1, -1)


def _run(epilogue: str, a: Tensor, b: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `a @ b` with an epilogue: the result, and the additional outputs of the epilogue."""
    a, b = _dense(a), _dense(b)
    tf32 = a.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    key = (epilogue, tf32, a.dtype, a.device, *map(_kind, (a, b, *inputs.values())))
    stream = torch.cuda.current_stream(a.device)
    with _lock:
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = _planned(epilogue, a, b, inputs, tf32, stream)
            if len(_plans) > _LIMIT:
                _plans.popitem(last=False)[1].free()
        else:
            _plans.move_to_end(key)
            plan.reset_operands_unchecked(a=a, b=b, epilog_inputs=inputs or None, stream=stream)
        output = plan.execute(stream=stream)
        plan.release_operands()
    result, beside = output if isinstance(output, tuple) else (output, {})
    return result, beside


def _planned(epilogue: str, a: Tensor, b: Tensor, inputs: dict[str, Tensor], tf32: bool, stream: Any) -> Any:
    advanced = _nvmath()
    compute = advanced.MatmulComputeType
    options = {"compute_type": compute.COMPUTE_32F_FAST_TF32 if tf32 else compute.COMPUTE_32F}
    plan = advanced.Matmul(a, b, options=options, stream=stream)
    plan.plan(epilog=advanced.MatmulEpilog[epilogue], epilog_inputs=inputs or None, stream=stream)
    return plan


def _dense(matrix: Tensor) -> Tensor:
    """Return a matrix without gaps in rows or columns, as cuBLASLt requires."""
    down, along = matrix.stride()
    rows, columns = matrix.shape
    return matrix if (along == 1 and down >= columns) or (down == 1 and along >= rows) else matrix.contiguous()


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    """Return the properties on which a plan depends: layout, and alignment of the address."""
    address = tensor.data_ptr() % 256
    return tensor.shape, tensor.stride(), address & -address


@functools.cache
def _nvmath() -> Any:
    return importlib.import_module("nvmath.linalg.advanced")

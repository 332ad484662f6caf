"""Operators of PyTorch's database on pairs of pairs, with gradients where eager has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.torch_private.operator_database import operator_database
from tests.subclasses.classes import Pair, assert_alike

NAMES = [
    "abs",
    "add",
    "addmm",
    "argmax",
    "baddbmm",
    "bmm",
    "cat",
    "chunk",
    "clamp",
    "clone",
    "cos",
    "cumsum",
    "diagonal",
    "div",
    "dot",
    "einsum",
    "erf",
    "exp",
    "expand",
    "flip",
    "full_like",
    "gather",
    "index_select",
    "kron",
    "linalg.norm",
    "log",
    "logsumexp",
    "masked_fill",
    "matmul",
    "max",
    "mean",
    "min",
    "mm",
    "mul",
    "nan_to_num",
    "narrow",
    "neg",
    "nn.functional.avg_pool2d",
    "nn.functional.conv1d",
    "nn.functional.cross_entropy",
    "nn.functional.dropout",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.layer_norm",
    "nn.functional.linear",
    "nn.functional.pad",
    "nn.functional.relu",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.silu",
    "nn.functional.softplus",
    "nn.functional.unfold",
    "outer",
    "permute",
    "pow",
    "prod",
    "repeat",
    "reshape",
    "roll",
    "rsqrt",
    "select",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sort",
    "split",
    "squeeze",
    "stack",
    "std",
    "sum",
    "tan",
    "tanh",
    "tile",
    "topk",
    "trace",
    "tril",
    "unsqueeze",
    "var",
    "where",
]
#: Operators with samples that run in eager, and why.
IN_EAGER = {
    "nn.functional.dropout": "returns a tensor of a subclass that it gets from outside",
    "nn.functional.pad": "writes to one that does not",
    "repeat": "has another gradient",
    "matmul": "changes the sizes of a Pair in place",
}


def _wrapped(value: Any) -> Any:
    def wrap(tensor: Tensor) -> Any:
        if not tensor.is_floating_point():
            return tensor
        plain = tensor.detach()
        return Pair(Pair(plain, plain * 2), Pair(plain + 1, plain * 3)).requires_grad_(tensor.requires_grad)

    return map_tensors(wrap, value)


def _called(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """Return the result and the gradients, or the class of the error."""
    torch.manual_seed(0)
    try:
        result = function(args, kwargs)
        outputs = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
        if not outputs or not inputs:
            return [result]
        ones = [torch.ones_like(tensor) for tensor in outputs]
        return [result, *torch.autograd.grad(outputs, inputs, ones, allow_unused=True)]
    except (RuntimeError, TypeError) as error:
        return [type(error)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_operator(name: str) -> None:
    infos = [info for info in operator_database() if info.name == name]
    assert infos
    reasons = []
    for info in infos:
        samples = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
        for sample in itertools.islice(samples, 3):
            args, kwargs = _wrapped(((sample.input, *sample.args), sample.kwargs))

            def function(args: Any, kwargs: Any, op: Any = info.op) -> Any:
                return op(*args, **kwargs)

            jitted = sg.jit(function, executors=["torch"])
            expected = _called(function, args, kwargs)
            for _ in range(2):
                assert_alike(_called(jitted, args, kwargs), expected)
            if "1 compiled entry, 0 in eager" not in repr(jitted):
                reasons.append(str(sg.explain(jitted).fallbacks()))
    assert all(name in IN_EAGER and IN_EAGER[name] in reason for reason in reasons), reasons

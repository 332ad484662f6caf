"""Attention of nested tensors as one operator: PyTorch's function reads the lengths, which a trace does not have.

Its second result, without elements, has autograd's graph as an attribute, which the backward differentiates. If the
attribute is lost, as when a hook copies saved tensors, the backward runs the attention again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from switchgear_subclasses.torch_private import jagged as internals

#: The offsets and the cached lengths of the query, the key and the value, in this order.
Layouts = Sequence[Tensor | None]
_COUNT = 3


@torch.library.custom_op(
    "switchgear_subclasses::jagged_attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def jagged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layouts: Sequence[Tensor | None],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    needs_grad: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    """Compute the attention of nested tensors, of which each has the sizes [batch, ragged, heads, features].

    Args:
        query: the values of the query.
        key: the values of the key.
        value: the values of the value.
        layouts: the offsets and the cached lengths of the three.
        dropout_p: as of `scaled_dot_product_attention`.
        is_causal: as of `scaled_dot_product_attention`.
        scale: as of `scaled_dot_product_attention`.
        enable_gqa: as of `scaled_dot_product_attention`.
        needs_grad: whether each of the three needs a gradient.

    Returns:
        The values of the result, and a tensor for the backward.
    """
    result, leaves = _attended((query, key, value), layouts, (dropout_p, is_causal, scale, enable_gqa), needs_grad)
    graph = torch.empty(0)
    if any(needs_grad):
        graph.attended = result, leaves  # type: ignore[attr-defined]
    return result.detach(), graph


def _attended(
    tensors: Sequence[Tensor], layouts: Layouts, options: Sequence[Any], needs_grad: Sequence[bool]
) -> tuple[Tensor, list[Tensor]]:
    """Return the values of the result with their history, and its leaves."""
    dropout_p, is_causal, scale, enable_gqa = options
    with internals.with_autograd(any(needs_grad)):
        leaves = [tensor.detach().requires_grad_(needs) for tensor, needs in zip(tensors, needs_grad, strict=True)]
        query, key, value = (
            internals.viewed(leaf, *layouts[place * _COUNT :][:_COUNT]).transpose(1, 2)
            for place, leaf in enumerate(leaves)
        )
        result: Any = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return result.transpose(1, 2).values().contiguous(), leaves


@jagged_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return query.new_empty(*query.shape[:-1], value.shape[-1]), query.new_empty(0, dtype=torch.float32, device="cpu")


@torch.library.custom_op("switchgear_subclasses::jagged_attention_backward", mutates_args=())
def jagged_attention_backward(
    grad: Tensor,
    graph: Tensor,
    tensors: Sequence[Tensor],
    layouts: Sequence[Tensor | None],
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    needs_grad: Sequence[bool],
) -> list[Tensor]:
    """Compute the gradients of the values of those of query, key and value that need one.

    Args:
        grad: the gradient of the result's values.
        graph: the second result of the attention.
        tensors: the values of query, key and value.
        layouts: the offsets and the cached lengths of the three.
        dropout_p: as of `scaled_dot_product_attention`.
        is_causal: as of `scaled_dot_product_attention`.
        scale: as of `scaled_dot_product_attention`.
        enable_gqa: as of `scaled_dot_product_attention`.
        needs_grad: whether each of the three needs a gradient.

    Raises:
        RuntimeError: the graph is lost, and dropout would draw other numbers.
    """
    attended = getattr(graph, "attended", None)
    if attended is None and dropout_p:
        raise RuntimeError(
            "a hook has replaced a saved tensor of the attention of nested tensors with dropout, whose random numbers "
            "are lost; call the original function"
        )
    options = dropout_p, is_causal, scale, enable_gqa
    result, leaves = attended or _attended(tensors, layouts, options, needs_grad)
    with internals.with_autograd(True):
        needed = [leaf for leaf in leaves if leaf.requires_grad]
        return [part.contiguous() for part in torch.autograd.grad(result, needed, grad, retain_graph=True)]


@jagged_attention_backward.register_fake
def _(grad: Tensor, graph: Tensor, tensors: Sequence[Tensor], layouts: Layouts, *options: Any) -> list[Tensor]:
    needs_grad = options[-1]
    return [tensor.new_empty(tensor.shape) for tensor, needs in zip(tensors, needs_grad, strict=True) if needs]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, layouts, *ctx.options = inputs
    ctx.save_for_backward(output[1], query, key, value, *layouts)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: object) -> tuple[Any, ...]:
    graph, query, key, value, *layouts = ctx.saved_tensors
    needs_grad = ctx.options[-1]
    gradients = iter(jagged_attention_backward(grad, graph, [query, key, value], layouts, *ctx.options))
    parts = [next(gradients) if needs else None for needs in needs_grad]
    # to PyTorch a list with a None, for a length that is not cached, is one argument
    none = None if any(part is None for part in layouts) else [None] * len(layouts)
    return (*parts, none, *(None,) * len(ctx.options))


jagged_attention.register_autograd(_backward, setup_context=_keep)

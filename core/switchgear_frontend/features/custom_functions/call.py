"""Records of a call of an `autograd.Function`: the `ctx`, and the arguments and results that are not tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.autograd.function import FunctionCtx

from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.nesting import tensors_in

Function = type[torch.autograd.Function]


class Context(FunctionCtx):
    """The substitute for `ctx`, in the forward and in the backward."""

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[object, ...] = ()
    materialize_grads: bool = True
    to_save: tuple[Any, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()

    def attributes(self) -> dict[str, Any]:
        """Return the attributes set by the user's code."""
        return {name: value for name, value in vars(self).items() if name not in _OWN_ATTRIBUTES}

    @property
    def input_grad_buffers(self) -> tuple[None, ...]:
        """The buffers that a backward may add gradients to (PyTorch 2.15): none, so the backward returns its own."""
        return (None,) * len(self.needs_input_grad)

    def set_output_grad_dtype(self, *dtypes: torch.dtype | None) -> NoReturn:
        """Refuse grad outputs of another dtype than the results (PyTorch 2.14)."""
        raise Unsupported("ctx.set_output_grad_dtype() inside a jitted function; cast in backward")

    def maybe_clear_saved_tensors(self) -> None:
        """Do nothing: saved tensors are freed after their last use."""


_OWN_ATTRIBUTES = frozenset({*Context.__annotations__, "saved_for_forward"})


@dataclass(frozen=True, slots=True)
class Result:
    """Placeholder of a saved tensor: the result at this position among the results with a history."""

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class FunctionCall:
    """One call of a Function, without its tensors.

    Attributes:
        tensors: positions of the tensors among the `count` arguments.
        results: for each result the metadata of a tensor, and its position among results with a history, or None.
        attributes: attributes of `ctx`.
    """

    function: Function
    count: int
    tensors: tuple[int, ...]
    results: tuple[tuple[TensorProxy | None, int | None], ...]
    attributes: Mapping[str, Any] = field(repr=False)
    materialize: bool

    def __repr__(self) -> str:
        return f"a call of {name_of(self.function)}"

    def context(self, needs: Sequence[bool], saved: Sequence[object]) -> Context:
        """Return the `ctx` of the backward."""
        context, needed = Context(), dict(zip(self.tensors, needs, strict=True))
        vars(context).update(self.attributes)
        context.needs_input_grad = tuple(
            needed.get(position, False) for position in range(self.count)
        )
        context.saved_tensors = tuple(saved)
        return context


def has_setup_context(function: Function) -> bool:
    """Check whether a Function fills `ctx` in `setup_context` rather than in `forward`."""
    return function.setup_context is not torch.autograd.Function.setup_context


def name_of(function: Function) -> str:
    """Return the full name of a Function."""
    return f"{function.__module__}.{function.__qualname__}"


def holds_tensors(value: object) -> bool:
    """Check whether an argument contains a tensor."""
    return next(tensors_in(value), None) is not None

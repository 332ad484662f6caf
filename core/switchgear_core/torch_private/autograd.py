"""Autograd's nodes, views, saved tensors and the regions of `torch.utils.checkpoint`."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad

from switchgear_core.patches import Change, redirected
from switchgear_core.torch_private.fakes import OpOverload
from switchgear_core.torch_private.names import private


def is_one_of_several(view: torch.Tensor) -> bool:
    """Check whether a view was created together with others; autograd refuses such a view after a write to its base."""
    several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
    return view._is_view() and torch._C._autograd._get_creation_meta(view) == several


def view_again(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Apply the calls that made `view` from its base to another base."""
    return view._view_func_unsafe(base)  # type: ignore[no-any-return]


_run_backward: Callable[..., Sequence[torch.Tensor | None]] = private(
    "torch.autograd.graph._engine_run_backward"
)


def gradients(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    *,
    create_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """Return `torch.autograd.grad` for grad outputs of the right sizes, without its check of sizes by sympy."""
    ends = tuple(outputs), tuple(cotangents), create_graph, create_graph, tuple(inputs)
    return _run_backward(*ends, True, accumulate_grad=False)


def make_non_leaf(wrapper: torch.Tensor) -> None:
    """Give a wrapper requires_grad and a history, as for the result of an operator."""
    with torch.enable_grad():
        example = torch.zeros(1, requires_grad=True).clone()
    torch._mirror_autograd_meta_to(example, wrapper)  # type: ignore[attr-defined]


@contextlib.contextmanager
def saved_tensors_hooks_off() -> Iterator[None]:
    """Return a context without the active hooks for saved tensors: traced code saves nothing real."""
    autograd: Any = torch._C._autograd
    # each step runs in C as a whole, so an interrupt finds a pair of hooks in PyTorch's stack or in this one
    tops = iter(functools.partial(autograd._top_saved_tensors_default_hooks, True), None)
    pops = itertools.starmap(autograd._pop_saved_tensors_default_hooks, itertools.repeat(()))
    stack: list[Any] = [None]
    change = Change(_push_hooks, stack)
    try:
        stack.extend(map(operator.itemgetter(0), zip(tops, pops, strict=False)))
        yield
    finally:
        change.undo()


def _push_hooks(stack: list[Any]) -> None:
    push: Any = torch._C._autograd._push_saved_tensors_default_hooks
    if stack:
        collections.deque(itertools.starmap(push, iter(stack.pop, None)), maxlen=0)


#: The default `context_fn` of `torch.utils.checkpoint.checkpoint`.
NO_CONTEXT = torch.utils.checkpoint.noop_context_fn


def checkpoint_regions(
    region: Callable[[Callable[..., Any], Callable[[], Any]], AbstractContextManager[None]],
) -> AbstractContextManager[None]:
    """Return a context that runs regions of `torch.utils.checkpoint` in `region(fn, context_fn)`."""

    module, name = torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"
    # 2.14 keeps the old name for other callers, and calls a new one: regions went unseen, and were no regions
    is_new = hasattr(module, f"{name}_impl")

    def generator(original: Any, fn: Any, *rest: Any, **options: Any) -> Iterator[None]:
        with region(fn, options["context_fn"] if is_new else rest[1]):
            yield

    return redirected(module, f"{name}_impl" if is_new else name, cast(Any, generator))


def selective_policy(context_fn: Callable[[], Any]) -> Callable[..., bool] | None:
    """Return whether a selective policy saves a result, as a function of overload, arguments and result.

    None for the default `context_fn`, and NotImplemented for one without a policy.
    """
    if context_fn is NO_CONTEXT:
        return None
    module: Any = torch.utils.checkpoint
    forward, _ = context_fn()
    if not isinstance(forward, module._CachingTorchDispatchMode):
        return NotImplemented  # type: ignore[no-any-return]
    policy, saving = (
        forward.policy_fn,
        (True, module.CheckpointPolicy.MUST_SAVE, module.CheckpointPolicy.PREFER_SAVE),
    )

    def saves(
        overload: object, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> bool:
        if overload in module.SAC_IGNORED_OPS:
            return False
        context = module.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result
        return policy(context, overload, *args, **kwargs) in saving

    return saves


def fastest_entry(fn: Callable[..., object]) -> Callable[..., object]:
    """Return a function that does the same with one call less: for an overload, the target of its Python wrapper."""
    return fn._op if type(fn) is OpOverload else fn


def forward_mode_active() -> bool:
    """Check whether a level of forward-mode differentiation is active, so that tensors may carry tangents."""
    return forward_ad._current_level >= 0


def has_tangents(tensors: Iterable[torch.Tensor]) -> bool:
    """Check whether one of these tensors carries a tangent."""
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def node_apply(node: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return `node.apply` for use outside `torch.func` transforms, with arguments that no transform has wrapped."""
    return super(torch.autograd.Function, node).apply  # type: ignore[misc, no-any-return]


def is_python_node(node: object, excluded: type[torch.autograd.Function]) -> bool:
    """Check whether a node of autograd belongs to a Function other than `excluded`."""
    kind = torch.autograd.function.BackwardCFunction
    return isinstance(node, kind) and not isinstance(node, excluded._backward_cls)


def make_lean(node: type[torch.autograd.Function], *slots: str) -> None:
    """Give nodes slots instead of a dict, and let the engine call `node.backward` directly.

    Otherwise the engine calls a method that looks up the backward each time.
    """
    kind: Any = node._backward_cls
    node._backward_cls = type(kind.__name__, (kind,), {"__slots__": slots, "apply": node.backward})


def global_module_hooks() -> tuple[Any, ...]:
    """Return PyTorch's hooks on every module."""
    module: Any = torch.nn.modules.module
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return tuple([getattr(module, f"_global_{name}") for name in names])


def clear_saved_tensors(ctx: object) -> None:
    """Let a node drop its saved tensors now, unless the graph is retained."""
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)
    if clear is not None:
        clear()


def unwatch_saved_tensors(ctx: Any, indices: Iterable[int]) -> None:
    """Let a node return saved tensors even if they were written to after saving."""
    saved = ctx._raw_saved_tensors
    for index in indices:
        saved[index].register_hooks(lambda tensor: tensor, lambda tensor: tensor)

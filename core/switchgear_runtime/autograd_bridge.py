"""The bridge into PyTorch's autograd: a compiled forward and backward as a single node.

The most recent backward is tried first, by one check of the grad outputs in C++; `backwards` has the others. A saved
tensor that was overwritten since raises only in a backward that reads the tensor. Some saved tensors carry a second
derivative. The first such tensor is also an output of the node. Where a backward is differentiated, the others are tied
to the first. Under `create_graph=True` the backward runs as a jitted function of the saved tensors and the grad
outputs, so derivatives of any order work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.proxy import TensorProxy, hint_of
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.pipeline import Program
from switchgear_core.passes.programs import Training
from switchgear_core.record.sizes import Sizes
from switchgear_core.registry.selection import Selection
from switchgear_runtime.anomaly import is_asked_for, run_watched
from switchgear_runtime.backwards import Arriving, Backwards, Jit
from switchgear_runtime.execution import is_pytorch, lines_of, maybe_views, runner
from switchgear_runtime.one_operator import is_one_operator
from switchgear_runtime.separate_graphs import SeparateGraphs

_is_grad_enabled, _is_anomaly_enabled = torch.is_grad_enabled, torch.is_anomaly_enabled
_needed_edges = internals.needed_edges
#: Elements of all inputs that require grad: below, gradients take less time than asking which of them are needed.
_SMALL = 1 << 14


class Bridge:
    """The forward of an entry under autograd, and its backwards.

    `grad_enabled` and `autocast` tell the modes of the calls.
    """

    def __init__(
        self,
        training: Training,
        selection: Selection,
        rejit: Jit,
        *,
        grad_enabled: bool,
        autocast: bool,
        sizes: Sizes | None = None,
    ) -> None:
        self.sizes = sizes
        self.training = training
        self.grad_enabled = grad_enabled
        self.count = training.joint.count
        self.inner = tuple(self.count + index for index in training.inner)
        outputs = training.ends[: self.count]
        self.plain = tuple(
            i for i, p in enumerate(outputs) if p is not None and not p.requires_grad
        )
        self.sparse = any(p is not None and p.shape and not any(p.stride) for p in outputs)
        self.saves = bool(training.saved)
        differentiable = (proxy for proxy in training.prepared.inputs if proxy.requires_grad)
        #: Whether gradients cost less than to find out which of them a backward needs.
        self.is_small = (
            sum(math.prod(map(hint_of, proxy.shape)) for proxy in differentiable) < _SMALL
        )
        self._autocast = autocast
        self.views: tuple[int, ...] = ()
        self.take_forward(training.forward)
        #: Whether the first call tells the views among `views`: at one layout PyTorch's kernels always agree.
        self._settles = (
            sizes is None
            and training.forward.job is None
            and all(map(is_pytorch, lines_of(training.forward)))
        )
        #: Inputs that are passed detached; otherwise their hooks would be called with None.
        self.constant = _constant(training)
        self.backwards = Backwards(
            training, selection, rejit, sizes, sparse=self.sparse, constant=self.constant
        )
        #: Whether PyTorch's autograd sees the forward itself.
        self.by_autograd = (
            grad_enabled
            and not any((autocast, sizes, self.constant, self.views, self.inner))
            and is_one_operator(training, selection)
        )
        #: Whether any node has saved tensors without a version check.
        self.unwatched = False
        #: Whether any backward has been differentiated, so that gradients of inner values may arrive.
        self.differentiated = False

    @functools.cached_property
    def separate(self) -> SeparateGraphs:
        """The outputs that may have separate backwards."""
        return SeparateGraphs(self.training)

    def take_forward(self, program: Program) -> None:
        """Run this forward from now on; the saved tensors stay as with the previous forward."""
        training = self.training
        names = {proxy.name for proxy in training.prepared.inputs}
        ends = (*training.ends[: self.count], *training.saved)
        given_out = {*range(self.count), *self.inner[:1]}
        bases = storages(training.parts.forward.bound_symbols)
        homes = {
            i: bases.get(p.name, p.name) for i in sorted(given_out) if (p := ends[i]) is not None
        }
        first = {name: i for i, name in reversed(homes.items()) if name not in names}
        twins = frozenset(i for i, name in homes.items() if first.get(name, i) != i)
        views = {
            i
            for i in maybe_views(program)
            if i in given_out and (p := ends[i]) is not None and p.name not in names
        }
        # other threads may still run the previous forward: this order is right for both
        self._settles = False
        self.twins = twins
        self.views = tuple(sorted({*views, *twins, *self.views}))
        #: Whether the results of the forward are returned as they are, and the backward needs nothing saved.
        self.is_simple = not (self.views or self.saves or self.plain or self.sizes or self.inner)
        self.run_forward = runner(program, autocast=self._autocast)

    def connected(self) -> tuple[str, dict[str, object]]:
        """Return Python code that runs the trace on `inputs` under autograd, and the scope of the code."""
        if self.by_autograd:
            return "program(*inputs)", {"program": self.run_forward}
        apply: Callable[..., Any] = internals.node_apply(Switchgear)
        apply_transformed: Callable[..., Any] = Switchgear.apply
        if self.constant:
            apply, apply_transformed = map(self._cut_off, (apply, apply_transformed))
        scope = {
            "bridge": self,
            "apply": apply,
            "apply_transformed": apply_transformed,
            "functorch_active": internals.functorch_active,
        }
        program = "(apply_transformed if functorch_active() else apply)(bridge, *inputs)"
        if self.grad_enabled:
            return program, scope
        run: Callable[..., Any] = eval(f"lambda inputs: {program}", scope)
        return "connected(inputs)", {"connected": torch.enable_grad()(run)}

    def _cut_off(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def call(bridge: Bridge, *inputs: torch.Tensor) -> Any:
            return apply(
                bridge, *[t.detach() if i in self.constant else t for i, t in enumerate(inputs)]
            )

        return call

    def detach(self, results: tuple[Any, ...], inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Detach results that are views of inner tensors: autograd forbids writes to such outputs.

        A view of an input is a view in eager mode too. One tensor cannot be two outputs: autograd would keep only the
        last. A saved output stays the same tensor as the output: a second derivative finds its way through that tensor.
        """
        views = [index for index in self.views if index in self.twins or results[index]._is_view()]
        if self._settles and not internals.forward_mode_active():
            self._settles, self.views = False, tuple(views)
        if not views:
            return results
        keys = {internals.storage_key(tensor) for tensor in inputs}
        tensors = list(results)
        for index in views:
            view = results[index]
            if index in self.twins:
                tensors[index] = view.detach()
            elif internals.storage_key(view) not in keys:
                output = view.detach()
                tensors = [output if tensor is view else tensor for tensor in tensors]
        return tuple(tensors)


def _constant(training: Training) -> frozenset[int]:
    """Return inputs that require grad and get none, although others do, as in eager's backward."""
    gradients = training.joint.trace.outputs[training.joint.count :]
    if not any(gradient is not None for gradient in gradients):
        return frozenset()
    saved, inputs = {proxy.name for proxy in training.saved}, training.prepared.inputs
    constant = []
    for i, (proxy, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        if proxy.requires_grad and gradient is None:
            results = _made_of(proxy, training.prepared)
            # an input without differentiable results, such as a detached input, may be saved itself
            if results == {proxy.name} or saved.isdisjoint(results):
                constant.append(i)
    return frozenset(constant)


def _made_of(proxy: TensorProxy, trace: Trace) -> set[str]:
    """Return the names of a value, and of all values computed from it with a gradient path back."""
    names = {proxy.name}
    for item in trace.bound_symbols:
        if not names.isdisjoint(value.name for value in item.inputs):
            names.update(value.name for value in item.outputs if value.requires_grad)
    return names


def wakes_functions(training: Training, inputs: Sequence[torch.Tensor]) -> bool:
    """Check whether a backward of some outputs would reach an upstream `autograd.Function` that eager would not.

    All outputs belong to one node, and a Function reads undefined gradients as zeros.
    """
    outputs = training.ends[: training.joint.count]
    names = {proxy.name for proxy in outputs if proxy is not None and proxy.requires_grad}
    return any(
        internals.is_python_node(tensor.grad_fn, excluded=Switchgear)
        and not names <= _made_of(proxy, training.prepared)
        for proxy, tensor in zip(training.prepared.inputs, inputs, strict=True)
    )


def _strided(grad: torch.Tensor | None, output: TensorProxy | None) -> torch.Tensor | None:
    """Return a grad output in the layout that the backward takes; a sparse output may have a sparse grad output."""
    if grad is None or grad.layout is torch.strided:
        return grad
    # strides of zeros are PyTorch's sign of a sparse tensor
    if output is None or any(output.stride):
        raise Unsupported("a grad output is not a strided tensor")
    return grad.to_dense()


class Switchgear(torch.autograd.Function):
    """The node, which profilers and `grad_fn` show as `SwitchgearBackward`.

    Its outputs are the outputs of the trace, and the first saved tensor that carries a second derivative, if any.
    `_Inner` ties further such tensors to the first: outputs cost time in every call.
    """

    @staticmethod
    def forward(ctx: Any, bridge: Bridge, *inputs: torch.Tensor) -> Any:
        """Run the forward of an entry."""
        results = bridge.run_forward(*inputs)
        ctx.bridge = bridge
        ctx.set_materialize_grads(False)
        if bridge.is_simple:
            return results
        if bridge.views:
            results = bridge.detach(results, inputs)
        count = bridge.count
        outputs = results[:count]
        if bridge.saves:
            ctx.save_for_backward(*results[count:])
        if bridge.plain:
            ctx.mark_non_differentiable(*[outputs[i] for i in bridge.plain])
        if bridge.sizes is not None:
            ctx.sizes = bridge.sizes.measure(inputs)
        return (*outputs, results[bridge.inner[0]]) if bridge.inner else outputs

    @staticmethod
    @internals.opaque
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Run the backward for the given grad outputs."""
        bridge: Bridge = ctx.bridge
        last = bridge.backwards.last
        outer = grads[:-1] if bridge.inner else grads
        # the fast path, for calls that must cost little
        if (
            last is not None
            and last.is_simple
            and last.check(*outer)
            and ctx.needs_input_grad == last.needed
            and (bridge.is_small or all(_needed_edges(ctx, last.needed[1:])))
            and not (
                bridge.differentiated
                or bridge.unwatched
                or _is_grad_enabled()
                or internals.autocast_active()
                or _is_anomaly_enabled()
            )
        ):
            if not bridge.saves:
                return (None, *last.run([*outer]))
            try:
                saved = ctx.saved_tensors
            except RuntimeError:
                pass  # `_backward` finds the cause
            else:
                arguments = [*saved, *outer]
                del saved
                internals.clear_saved_tensors(ctx)
                return (None, *last.run(arguments))
        return (None, *_backward(ctx, grads))


def _backward(ctx: Any, grads: Arriving) -> Any:
    """Return the gradients for any combination of grad outputs."""
    bridge: Bridge = ctx.bridge
    needs = ctx.needs_input_grad[1:]
    if torch.is_grad_enabled() or not bridge.is_small:
        needs = _needed_edges(ctx, needs)
    if bridge.inner:
        late = getattr(ctx, "late", {}) if bridge.differentiated else {}
        late = late.pop(internals.graph_task(), {})
        grads += tuple([late.pop(index - bridge.count, None) for index in bridge.inner[1:]])
        if late:  # gradients of inputs
            return _with_late(_backward_of(ctx, grads, needs), bridge.backwards.places, late)
    return _backward_of(ctx, grads, needs)


def _with_late(
    results: Sequence[torch.Tensor | None],
    places: Mapping[int, int],
    late: Mapping[int, torch.Tensor],
) -> list[torch.Tensor | None]:
    """Return gradients of inputs, with those that came by way of inner values."""
    sums = list(results)
    for index, grad in late.items():
        place = places[index]
        sums[place] = grad if (other := sums[place]) is None else grad + other
    return sums


def _backward_of(ctx: Any, grads: Arriving, needs: tuple[bool, ...]) -> Any:
    bridge: Bridge = ctx.bridge
    if not any(grad is not None for grad in grads):
        return (None,) * len(needs)
    if bridge.sparse:
        grads = tuple([_strided(*pair) for pair in zip(grads, bridge.training.ends, strict=True)])
    arguments: list[Any] = [grad for grad in grads if grad is not None]
    sizes: tuple[int, ...] = () if bridge.sizes is None else ctx.sizes
    if bridge.saves:
        saved = _saved(ctx, grads, needs, sizes)
        arrived = _arrived(grads, bridge.count)
        if len(arrived) < bridge.count and not torch.is_grad_enabled():
            bridge.separate.keep(ctx, arrived, saved)
        arguments = [*saved, *arguments]
        del saved  # each tensor is freed once the backward has read it
        internals.clear_saved_tensors(ctx)
    if torch.is_grad_enabled():
        differentiable = bridge.backwards.differentiable_for(grads, needs, sizes)
        if bridge.inner:
            bridge.differentiated = True
            first, *others = [index - bridge.count for index in bridge.inner]
            others += [index for index in differentiable.viewed if arguments[index].requires_grad]
            if others:
                tie: Callable[..., Any] = _Inner.apply
                tied = tie(ctx, others, arguments[first], *[arguments[index] for index in others])
                for index, value in zip(others, tied, strict=True):
                    arguments[index] = value
        return differentiable.run(*arguments)
    last = bridge.backwards.backward_for(grads, needs, sizes)
    if last.takes_sizes:
        arguments[:0] = sizes
    if is_asked_for():
        return run_watched(last.program, bridge.training.parts.forward, (arguments,))
    return last.run(arguments)


class _Inner(torch.autograd.Function):
    """A history for inner values: their gradients go to the node of origin, whose backward runs afterwards."""

    @staticmethod
    def forward(
        ctx: Any, node: Any, indices: Sequence[int], first: torch.Tensor, *others: torch.Tensor
    ) -> Any:
        ctx.node, ctx.indices = node, indices
        ctx.set_materialize_grads(False)
        return tuple([other.detach() for other in others])

    @staticmethod
    @internals.opaque
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        late, task = ctx.node.__dict__.setdefault("late", {}), internals.graph_task()
        sums = late.setdefault(task, {})
        for index, grad in zip(ctx.indices, grads, strict=True):
            if grad is not None:
                sums[index] = sums[index] + grad if index in sums else grad
        return (None,) * (len(grads) + 3)


def _saved(
    ctx: Any, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """Return the saved tensors; as in eager mode, an overwritten tensor raises only where it is read."""
    bridge: Bridge = ctx.bridge
    unwatched: frozenset[int] = (
        getattr(ctx, "unwatched", frozenset()) if bridge.unwatched else frozenset()
    )
    if unwatched and not unwatched <= bridge.backwards.unread(grads, needs, sizes):
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been {_OVERWRITTEN} since; an earlier backward "
            "of this graph did not need it"
        )
    try:
        return ctx.saved_tensors  # type: ignore[no-any-return]
    except RuntimeError as error:
        if _TWICE in str(error) and not torch.is_grad_enabled():
            tensors = bridge.separate.saved_for(ctx, _arrived(grads, bridge.count))
            if tensors is not None:
                return tuple(tensors)
        unread = bridge.backwards.unread(grads, needs, sizes) if _OVERWRITTEN in str(error) else ()
        if not unread:
            raise
        internals.unwatch_saved_tensors(ctx, unread)
        ctx.unwatched, bridge.unwatched = unread, True
        return ctx.saved_tensors  # type: ignore[no-any-return]


internals.make_lean(Switchgear, "bridge")


def _arrived(grads: Arriving, count: int) -> list[int]:
    return [i for i, grad in enumerate(grads[:count]) if grad is not None]


_OVERWRITTEN, _TWICE = (
    "modified by an inplace operation",
    "backward through the graph a second time",
)

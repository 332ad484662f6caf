"""`grad`, `value_and_grad` and `vjp`: derivatives as functions, of any order by nesting.

Inside a capture, the function is captured separately and differentiated by the grad pass. Its joint trace is evaluated
there: an enclosing derivative differentiates the lines that the rules recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from switchgear.jitting import jit
from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput
from switchgear_core.grad.differentiate import differentiate
from switchgear_core.grad.hidden_writes import refuse_hidden_writes
from switchgear_core.grad.inner_gradients import inner_gradients
from switchgear_core.ir.dead_code import dead_code, live
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.programs import expected_grad
from switchgear_core.record.recorder import active_recorder
from switchgear_core.record.signature import Argument, tensor_of
from switchgear_core.record.structure import Structure, flatten
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.selection import Selection
from switchgear_frontend.session import Captured, capture
from switchgear_runtime.epilogue import finish
from switchgear_runtime.last_call import compiler_of

#: A function from flat grad outputs to the gradients of leaves, by their places.
_Pull: TypeAlias = Callable[[list[Any]], dict[int, torch.Tensor]]


def grad(
    function: Callable[..., object],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: object,
) -> Callable[..., Any]:
    """Return a function that computes the gradient of a scalar function.

    Args:
        function: a function that returns a floating-point scalar tensor; with `has_aux`, a pair `(value, aux)`.
        argnums: position of the argument to differentiate, or a sequence of positions.
        has_aux: whether `function` returns a second value, which is passed through.
        **options: options of `sg.jit`.

    Returns:
        A function of the same arguments that returns `gradients`, or `(gradients, aux)` with `has_aux`. These are one
        gradient for an int `argnums`, and a tuple for a sequence. Each is structured like its argument, with zeros
        where the value does not depend on it.

    Raises:
        InvalidInput: in a call, the result is not a scalar, or an argument has no floating-point tensor.
    """
    compute = value_and_grad(function, argnums, has_aux, **options)

    @functools.wraps(function)
    def gradients(*args: object, **kwargs: object) -> Any:
        value, gradient = compute(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return gradients


@internals.opaque
def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function that computes the value and the gradient of a scalar function.

    Args:
        function: as for `grad`.
        argnums: as for `grad`.
        has_aux: as for `grad`.
        **options: options of `sg.jit`.

    Returns:
        A function that returns `(value, gradients)`; with `has_aux`, `((value, aux), gradients)`.

    Raises:
        InvalidInput: as for `grad`.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def compute(*args: object, **kwargs: object) -> Any:
        positions = tuple(_position(number, args) for number in numbers)
        result, pullback = _linearised(function, args, kwargs, positions, selection)
        if has_aux and not (isinstance(result, tuple) and len(result) == 2):
            raise InvalidInput(
                f"has_aux=True needs a function that returns (value, aux), not a {type(result).__name__}; "
                "leave has_aux out for the value alone"
            )
        value = result[0] if has_aux else result
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            description, remedy = (
                f"a {type(value).__name__}",
                "return (value, aux)" if has_aux else "return one tensor",
            )
            if isinstance(value, torch.Tensor):
                description = f"one of shape {list(value.shape)} and {value.dtype}"
                remedy = "sum() it, or use sg.vjp"
            raise InvalidInput(
                f"sg.grad needs a function that returns a floating-point scalar tensor, not {description}; {remedy}"
            )
        gradients = pullback([torch.ones_like(value)])
        return result, (gradients[0] if isinstance(argnums, int) else gradients)

    jitted = jit(compute, **options)
    selection = compiler_of(jitted).selection
    return jitted


def _position(number: int, args: tuple[object, ...]) -> int:
    """Return an entry of `argnums` as a position; a negative entry counts from the end."""
    if not -len(args) <= number < len(args):
        raise InvalidInput(
            f"argnums asks for argument {number}, but the function was called with {len(args)} arguments by place; "
            "pass by place the one that is differentiated"
        )
    leaves = [leaf for leaf in flatten(args[number])[0] if isinstance(leaf, torch.Tensor)]
    if not leaves or not all(map(_is_inexact, leaves)):
        raise InvalidInput(
            f"argument {number} holds no tensors, or tensors of integers: it has no gradient; pass it as "
            ".float(), or name another argument in argnums"
        )
    return number % len(args)


@internals.opaque
def vjp(
    function: Callable[..., Any], *primals: Any, **options: Any
) -> tuple[Any, Callable[..., Any]]:
    """Compute a function and its vector-Jacobian product.

    Args:
        function: a function of tensors, or of structures of tensors.
        *primals: the arguments at which `function` is computed.
        **options: options of `sg.jit`.

    Returns:
        The result of `function`, and a pullback. The pullback takes grad outputs, structured like the result, and
        returns a tuple of one gradient for each primal.

    Raises:
        InvalidInput: in the pullback, the grad outputs are not as many as the results.
    """
    jitted = jit(function, **options)
    inside = active_recorder() is not None
    # outside, the result is constant to autograd
    with torch.set_grad_enabled(inside and torch.is_grad_enabled()):
        positions, selection = tuple(range(len(primals))), compiler_of(jitted).selection
        target = function if inside else jitted
        result, pull = _linearised(target, primals, {}, positions, selection)
    count = len(flatten(result, objects=True)[0])

    def pullback(cotangents: object) -> Any:
        values = flatten(cotangents, objects=True)[0]
        if len(values) != count:
            raise InvalidInput(
                f"`cotangents` has {len(values)} items for {count} results; give one for each"
            )
        return pull(values)

    return result, pullback


def _linearised(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    positions: tuple[int, ...],
    selection: Selection,
) -> tuple[Any, Callable[[list[Any]], tuple[Any, ...]]]:
    """Return the function's result, and its pullback from flat grad outputs to a gradient per wanted argument."""
    leaves, spec = flatten((args, kwargs))
    owners = [position for position, arg in enumerate(args) for _ in flatten(arg)[0]]
    indices = [
        index
        for index, owner in enumerate(owners)
        if owner in positions and _is_inexact(leaves[index])
    ]
    if active_recorder() is None:
        result, pull = _by_autograd(function, leaves, spec, indices)
    else:
        result, pull = _captured(function, leaves, spec, indices, selection)

    def pullback(cotangents: list[Any]) -> tuple[Any, ...]:
        grads = pull(cotangents)
        zeros = (torch.zeros_like(leaf) if _is_inexact(leaf) else None for leaf in leaves)
        grouped = spec.unflatten([grads.get(index, zero) for index, zero in enumerate(zeros)])[0]
        return tuple(grouped[position] for position in positions)

    return result, pullback


def _captured(
    function: Callable[..., object],
    leaves: list[Any],
    spec: Structure,
    indices: list[int],
    selection: Selection,
) -> tuple[Any, _Pull]:
    """Return the function's result, and its recorded pullback."""
    recorder = active_recorder()
    assert recorder is not None
    recorder.tracker.settle()
    with torch.enable_grad():
        captured = capture(
            function, leaves, spec, selection.handlers, differentiable=frozenset(indices)
        )
    with recorder.isolation:
        trace = dead_code(inner_gradients(captured.trace, selection)[0])
        expected = tuple(None if proxy is None else expected_grad(proxy) for proxy in trace.outputs)
        inputs = [tensor_of(source, leaves) for source in captured.sources]
        higher = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
        joint = differentiate(trace, selection, expected, higher_order=higher)
        refuse_hidden_writes(joint, trace, captured.hidden)
    values: dict[str, Any] = {
        proxy.name: tensor for proxy, tensor in zip(trace.inputs, inputs, strict=True)
    }
    values.update(joint.trace.tensors)
    final = [proxy for proxy in joint.trace.outputs[: joint.count] if proxy is not None]
    evaluate(live(joint.trace.bound_symbols, final), values)
    result = finish(captured.outputs, [values[proxy.name] for proxy in final], inputs)
    return result, lambda cotangents: _pull(captured, trace, selection, values, cotangents, higher)


def _by_autograd(
    function: Callable[..., Any], leaves: list[Any], spec: Structure, indices: list[int]
) -> tuple[Any, _Pull]:
    """Return the function's result, and its pullback, in eager mode: where capture refuses the function."""
    higher = torch.is_grad_enabled() and any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves
    )
    inputs = list(leaves)
    with torch.enable_grad():
        for index in indices:
            leaf = leaves[index]
            inputs[index] = (
                leaf.view_as(leaf)
                if higher and leaf.requires_grad
                else leaf.detach().requires_grad_()
            )
        args, kwargs = spec.unflatten(inputs)
        outputs, out_spec = flatten(function(*args, **kwargs), objects=True)

    def pull(cotangents: list[Any]) -> dict[int, torch.Tensor]:
        pairs = [
            pair
            for pair in zip(outputs, cotangents, strict=False)
            if isinstance(pair[0], torch.Tensor) and pair[0].requires_grad
        ]
        ends, starts = [end for end, _ in pairs], [start for _, start in pairs]
        options = {"retain_graph": True, "create_graph": higher, "materialize_grads": True}
        grads = torch.autograd.grad(ends, [inputs[index] for index in indices], starts, **options)
        return dict(zip(indices, grads, strict=True))

    values = (
        outputs
        if higher
        else [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs]
    )
    return out_spec.unflatten(values), pull


def _pull(
    captured: Captured,
    trace: Trace,
    selection: Selection,
    values: dict[str, Any],
    cotangents: list[Any],
    higher: bool,
) -> dict[int, torch.Tensor]:
    """Return the gradients of the arguments, by position among their leaves, for a grad output per returned leaf."""
    by_output: dict[int, torch.Tensor] = {}
    through: dict[int, torch.Tensor] = {}
    for item, cotangent in zip(captured.outputs.returned, cotangents, strict=False):
        if isinstance(cotangent, torch.Tensor) and item.kind != "value":
            _add(by_output if item.kind == "output" else through, item.place, cotangent)
    grad_outputs = tuple(
        metadata_proxy(f"g_{proxy.name}", by_output[index], False)
        if proxy is not None and index in by_output and proxy.requires_grad
        else None
        for index, proxy in enumerate(trace.outputs)
    )
    recorder = active_recorder()
    with contextlib.nullcontext() if recorder is None else recorder.isolation:
        joint = differentiate(trace, selection, grad_outputs, higher_order=higher)
    env = {**values, **joint.trace.tensors}
    env.update(
        (proxy.name, by_output[index])
        for index, proxy in enumerate(joint.grad_outputs)
        if proxy is not None
    )
    evaluate(
        [
            item
            for item in joint.trace.bound_symbols
            if any(p.name not in values for p in item.outputs)
        ],
        env,
    )
    gradients: dict[int, torch.Tensor] = {}
    for number, (source, grad) in enumerate(
        zip(captured.sources, joint.trace.outputs[joint.count :], strict=True)
    ):
        if isinstance(source, Argument) and trace.inputs[number].requires_grad:
            if grad is not None:
                _add(gradients, source.index, env[grad.name])
            if number in through:
                _add(gradients, source.index, through[number])
    return gradients


def _add(sums: dict[int, torch.Tensor], index: int, term: torch.Tensor) -> None:
    sums[index] = sums[index] + term if index in sums else term


def _is_inexact(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())

"""`grad`, `value_and_grad` and `vjp`: derivatives as functions, of any order by nesting.

Inside a capture the function is captured by itself, differentiated by the grad pass, and its joint trace is evaluated
there, so that an enclosing derivative differentiates what the rules recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .capture import Captured, capture
from .composites import bind_outputs
from .errors import InvalidInput
from .jit import jit
from .passes.dead_code import dead_code, live
from .passes.differentiate import differentiate
from .passes.pipeline import expected_grad
from .plugins import installed
from .recorder import active_recorder
from .runtime.epilogue import write_back
from .selection import Selection, select
from .signature import Argument, Closure, InputSource
from .structure import flatten
from .symbol import BoundSymbol, map_proxies
from .trace import Trace
from .tracking import metadata_proxy
from .writes import SET_VALUE


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """The gradient of a function that returns a floating-point scalar, with respect to the arguments at `argnums`.

    An int `argnums` gives one gradient, a sequence a tuple, each structured as its argument; zeros where the value
    does not depend on it. With `has_aux` the function returns `(value, aux)`, and the result is `(gradients, aux)`.
    `options` are those of `jit`.
    """
    compute = value_and_grad(function, argnums, has_aux, **options)

    @functools.wraps(function)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, found = compute(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradients


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any
) -> Callable[..., Any]:
    """Like `grad`, and returns `(value, gradients)`, or `((value, aux), gradients)` with `has_aux`."""
    asked = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    selection = _selection(options)

    def compute(*args: Any, **kwargs: Any) -> Any:
        positions = tuple(_position(number, args) for number in asked)
        linear = _linearised(function, args, kwargs, positions, selection)
        value = linear.result[0] if has_aux else linear.result
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            raise InvalidInput(
                f"sg.grad needs a function that returns a floating-point scalar tensor, not {_kind(value)}"
            )
        found = linear.pullback([torch.ones_like(value)])
        return linear.result, (found[0] if isinstance(argnums, int) else found)

    return jit(functools.wraps(function)(compute), **options)  # type: ignore[no-any-return]


def _position(number: int, args: tuple[Any, ...]) -> int:
    """An entry of `argnums` as a position; negative ones count from the end."""
    if not -len(args) <= number < len(args):
        raise InvalidInput(f"argnums asks for argument {number}, but the function was called with {len(args)}")
    leaves = [leaf for leaf in pytree.tree_leaves(args[number]) if isinstance(leaf, torch.Tensor)]
    if not leaves or not all(map(_is_inexact, leaves)):
        raise InvalidInput(f"argument {number} holds no tensors, or tensors of integers: it has no gradient")
    return number % len(args)


def vjp(function: Callable[..., Any], *primals: Any, **options: Any) -> tuple[Any, Callable[..., Any]]:
    """What `function` returns at `primals`, and the function from cotangents like it to a gradient per primal."""
    if active_recorder() is not None:
        linear = _linearised(function, primals, {}, tuple(range(len(primals))), _selection(options))
        return linear.result, lambda cotangents: linear.pullback(pytree.tree_leaves(cotangents))
    leaves = pytree.tree_map(_differentiable_leaf, primals)
    with torch.enable_grad():
        outputs = jit(function, **options)(*leaves)

    def pullback(cotangents: Any) -> Any:
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(pytree.tree_leaves(outputs), pytree.tree_leaves(cotangents), strict=True)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        flat, spec = flatten(leaves)
        wanted = [leaf for leaf in flat if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs], wanted, [c for _, c in pairs], retain_graph=True, materialize_grads=True
            )
        )
        grads = [next(found) if isinstance(leaf, torch.Tensor) and leaf.requires_grad else None for leaf in flat]
        return spec.unflatten(grads)

    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, outputs), pullback


def _differentiable_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
        return leaf.detach().requires_grad_()
    return leaf


def _selection(options: dict[str, Any]) -> Selection:
    tables = options.get("grad_rules") or ()
    return select(
        installed(),
        options.get("executors"),
        tuple(tables) if isinstance(tables, Sequence) else (tables,),
        bool(options.get("strict")),
    )


def _kind(value: Any) -> str:
    return (
        f"one of shape {list(value.shape)} and {value.dtype}"
        if isinstance(value, torch.Tensor)
        else type(value).__name__
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Linearised:
    """What a function returned, and its pullback from flat cotangents to a gradient per wanted argument."""

    result: Any
    pullback: Callable[[list[Any]], tuple[Any, ...]]


def _linearised(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: tuple[int, ...],
    selection: Selection,
) -> _Linearised:
    recorder = active_recorder()
    if recorder is not None:
        recorder.tracker.settle()
    leaves, spec = flatten((args, kwargs))
    owner = [index for index, arg in enumerate(args) for _ in pytree.tree_leaves(arg)]
    wanted = tuple(
        index
        for index, leaf in enumerate(leaves)
        if index < len(owner) and owner[index] in positions and isinstance(leaf, torch.Tensor) and _is_inexact(leaf)
    )
    with torch.enable_grad():
        captured = capture(function, leaves, spec, differentiable=frozenset(wanted))
    trace = dead_code(captured.trace)
    expected = tuple(None if proxy is None else expected_grad(proxy) for proxy in trace.outputs)
    higher = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in leaves if isinstance(tensor, torch.Tensor)
    )
    joint = differentiate(trace, selection, expected, higher_order=higher)
    inputs = [_input(source, leaves) for source in captured.sources]
    values: dict[str, Any] = {proxy.name: tensor for proxy, tensor in zip(trace.inputs, inputs, strict=True)}
    values.update(joint.trace.constants)
    final = [proxy for proxy in joint.trace.outputs[: joint.count] if proxy is not None]
    _evaluate(live(joint.trace.bound_symbols, final), values)
    outputs = [values[proxy.name] for proxy in final]
    for mutation in captured.mutations:
        write_back(inputs[mutation.input], outputs[mutation.output], mutation.tracked)
    flat = [
        item.value if item.kind == "value" else (inputs if item.kind == "input" else outputs)[item.index]
        for item in captured.returned
    ]

    def pullback(cotangents: list[Any]) -> tuple[Any, ...]:
        found = _pull(captured, trace, selection, values, cotangents, higher)
        grads = [found.get(index, _zeros(leaf)) for index, leaf in enumerate(leaves)]
        grouped = spec.unflatten(grads)[0]
        return tuple(grouped[position] for position in positions)

    return _Linearised(captured.spec.unflatten(flat), pullback)


def _pull(
    captured: Captured, trace: Trace, selection: Selection, values: dict[str, Any], cotangents: list[Any], higher: bool
) -> dict[int, torch.Tensor]:
    """The gradients of the arguments, by position among their leaves, for a cotangent per returned leaf."""
    given: dict[int, torch.Tensor] = {}
    through: dict[int, torch.Tensor] = {}
    for item, cotangent in zip(captured.returned, cotangents, strict=False):
        if isinstance(cotangent, torch.Tensor) and item.kind != "value":
            sums = given if item.kind == "output" else through
            sums[item.index] = sums[item.index] + cotangent if item.index in sums else cotangent
    grad_outputs = tuple(
        metadata_proxy(f"g_{proxy.name}", given[index], False)
        if proxy is not None and index in given and proxy.requires_grad
        else None
        for index, proxy in enumerate(trace.outputs)
    )
    joint = differentiate(trace, selection, grad_outputs, higher_order=higher)
    env = {**values, **joint.trace.constants}
    env.update((proxy.name, given[index]) for index, proxy in enumerate(joint.grad_outputs) if proxy is not None)
    _evaluate(tuple(item for item in joint.trace.bound_symbols if item.outputs[0].name not in values), env)
    found: dict[int, torch.Tensor] = {}
    for number, (source, grad) in enumerate(zip(captured.sources, joint.trace.outputs[joint.count :], strict=True)):
        if isinstance(source, Argument) and trace.inputs[number].requires_grad:
            parts = ([env[grad.name]] if grad is not None else []) + ([through[number]] if number in through else [])
            if parts:
                found[source.index] = sum(parts[1:], parts[0])
    return found


def _evaluate(bound_symbols: Sequence[BoundSymbol], values: dict[str, Any]) -> None:
    """Run bound symbols on tensors, under the recorder that is active; adds what they make to `values`."""
    for item in bound_symbols:
        args, kwargs = map_proxies(lambda proxy: values[proxy.name], (item.args, dict(item.kwargs)))
        with torch.set_grad_enabled(item.grad_enabled or bool(item.links)):
            if item.symbol == SET_VALUE:
                result = args[0].clone()
                result.data.copy_(args[1])
            else:
                result = item.symbol.fn(*args, **kwargs)
        bind_outputs(item.output, result, values)


def _input(source: InputSource, leaves: list[Any]) -> torch.Tensor:
    if isinstance(source, Argument):
        return leaves[source.index]  # type: ignore[no-any-return]
    if isinstance(source, Closure):
        return source.tensor
    raise InvalidInput("module state inside sg.grad")


def _zeros(leaf: Any) -> Any:
    return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) and _is_inexact(leaf) else None


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()

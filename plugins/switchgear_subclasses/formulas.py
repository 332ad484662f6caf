"""Gradients of operators on tensors of subclasses: whether they are those of the operators on inner tensors.

Eager differentiates the operator on the whole tensor, and the subclass runs the formula's operators. A trace
differentiates the operators on the inner tensors. Both run here on fake tensors, and the gradients are compared as
expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_subclasses import torch_private as internals
from switchgear_subclasses.shells import has_shell, inner_of, plain_parts, shell_of

#: Runs an operator by the handlers of the subclasses among its arguments.
Run = Callable[[Any, Any, Any], Any]


def gradients_agree(run: Run, func: Any, args: Any, kwargs: Any) -> bool:
    """Check whether the gradient of an operator is that of the operators on inner tensors.

    Args:
        run: runs an operator by the handlers of the subclasses.
        func: the operator.
        args: its arguments: stand-ins, and tensors of subclasses around stand-ins.
        kwargs: its keyword arguments.
    """
    numbers: dict[object, int] = {}
    eager, ours = _Expressions(run, numbers), _Expressions(run, numbers)
    with torch.enable_grad():
        outer = map_tensors(lambda tensor: eager.input(tensor, as_whole=True), (args, kwargs))
        with eager:
            copies = map_tensors(torch.clone, outer) if func._schema.is_mutable else outer
            results = func(*copies[0], **copies[1])
            expected = eager.gradients(results, [[tensor] for tensor in tensors_in(outer)])
        inner = map_tensors(lambda tensor: ours.input(tensor, as_whole=False), (args, kwargs))
        with ours, internals.function_modes_on(), _Functions(run):
            copies = (
                map_tensors(lambda tensor: rebuilt(tensor, torch.clone), inner) if func._schema.is_mutable else inner
            )
            results = run(func, *copies)
            parts = [[*own_parts(tensor)] for tensor in tensors_in(inner)]
            return expected == ours.gradients([*map(list, map(own_parts, tensors_in(results)))], parts)


_aten = torch.ops.aten
#: Operators with a `dim` that counts the dimensions of their first argument.
_OF_DIMS = frozenset({_aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default})
#: The layouts of tensors of a subclass and of their inner tensors, of which a formula may name either.
_LAYOUTS = (torch.strided, torch.jagged)


class _Functions(TorchFunctionMode):
    """Mode that runs operators on inner tensors of subclasses without autograd's view of the whole."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is internals.GET_VALUES:
            return args[0]._values
        is_inner = isinstance(func, internals.OpOverload) and any(map(has_shell, tensors_in((args, kwargs))))
        if not is_inner:
            return func(*args, **(kwargs or {}))
        with self:
            return self._run(func, args, kwargs or {})


def _next(values: Iterator[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    return next(values)


def rebuilt(tensor: Any, function: Callable[[Any], Any], shared: Callable[[Any], Any] = lambda part: part) -> Any:
    """Return a tensor with a function applied to its inner tensors; of a plain tensor, the function's result.

    Args:
        tensor: the tensor.
        function: the function.
        shared: the function for inner tensors that gradients share.
    """
    if not has_shell(tensor):
        return function(tensor)
    shell = shell_of(tensor)
    pairs = zip(shell.names, inner_of(tensor), strict=True)
    return shell.around([rebuilt(part, shared if name in shell.SHARED else function, shared) for name, part in pairs])


def own_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the inner tensors that are of no subclass and that gradients do not share."""
    if not has_shell(tensor):
        yield tensor
        return
    shell = shell_of(tensor)
    for name, part in zip(shell.names, inner_of(tensor), strict=True):
        if name not in shell.SHARED:
            yield from own_parts(part)


def _given(func: Any, args: Any, kwargs: Any) -> dict[str, object]:
    """Return the arguments of an operator by name, without those that are the defaults."""
    declared = func._schema.arguments
    by_name = dict(zip((argument.name for argument in declared), args, strict=False)) | kwargs
    if func in _OF_DIMS:
        by_name["dim"] %= args[0].dim()
    if by_name.get("layout") in _LAYOUTS:
        del by_name["layout"]
    if func is _aten._to_copy.default and by_name.get("device") == args[0].device:
        del by_name["device"]
    defaults = {item.name: item.default_value for item in declared if item.has_default_value()}
    return {name: value for name, value in by_name.items() if name not in defaults or value != defaults[name]}


@functools.cache
def _views(func: Any) -> bool:
    """Check whether the results of an operator are views of its first argument."""
    returns = func._schema.returns
    is_view = bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)
    return is_view or func is _aten._unsafe_view.default


def _is_reinterpreted(view: torch.Tensor) -> bool:
    """Check whether the elements of a view are others than those in memory."""
    return view.is_conj() or view.is_neg()


def _layout(tensor: torch.Tensor) -> str:
    """Return the place of a tensor in its memory as text, in which symbolic sizes stay symbolic."""
    sizes = [
        (size, 0 if type(size) is int and size == 1 else stride)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return f"{sizes} {tensor.storage_offset()}"


class _Expressions(internals.DispatchMode):
    """Mode that numbers each value by the operator and the arguments that make it; equal values have one number."""

    def __init__(self, run: Run, numbers: dict[object, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._numbers = run, numbers
        self._values: dict[int, tuple[torch.Tensor, int]] = {}
        #: The fakes of inner tensors that gradients share, by stand-in.
        self._shared: dict[int, torch.Tensor] = {}
        #: The tensors that others are views of, by these others.
        self._roots: dict[int, torch.Tensor] = {}
        self._inputs = self._draws = 0

    def input(self, tensor: torch.Tensor, *, as_whole: bool) -> torch.Tensor:
        """Return a fake for a stand-in, which requires grad as a whole or in its parts."""
        needs_grad = any(part.requires_grad for part in plain_parts(tensor))

        def fake(part: torch.Tensor) -> torch.Tensor:
            value = internals.unwrap(part).detach()
            self._inputs += 1
            self._note(value, ("input", self._inputs))
            return value.requires_grad_(part.requires_grad and not (as_whole and has_shell(tensor)))

        def shared(part: torch.Tensor) -> torch.Tensor:
            if id(part) not in self._shared:
                self._shared[id(part)] = internals.numbered(fake(part), part)
            return self._shared[id(part)]

        value: torch.Tensor = rebuilt(tensor, fake, shared)
        return value.requires_grad_(needs_grad) if as_whole else value

    def gradients(self, results: Any, inputs: list[list[torch.Tensor]]) -> list[list[object]]:
        """Return the numbers of the gradients' parts, for each input."""
        outputs, grads, count = [], [], 0
        for result in tensors_in(results):
            leaves = []
            for part in own_parts(result):
                count += 1
                leaves.append(torch.empty_like(part, requires_grad=False))
                self._note(leaves[-1], ("gradient", count))
            if result.requires_grad:
                outputs.append(result)
                grads.append(rebuilt(result, functools.partial(_next, iter(leaves))))
        needed = [tensor for group in inputs for tensor in group if tensor.requires_grad]
        computed: Iterator[torch.Tensor | None] = iter(())
        if outputs and needed:
            computed = iter(torch.autograd.grad(outputs, needed, grads, allow_unused=True))
        return [
            [
                number
                for tensor in group
                for number in self._numbers_of(tensor, next(computed, None) if tensor.requires_grad else None)
            ]
            for group in inputs
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(has_shell, tensors_in((args, kwargs)))):
            with self:
                return self._run(func, args, kwargs)
        result = func(*args, **kwargs)
        results = [*tensors_in(result)]
        if _views(func) and id(args[0]) in self._values and not any(map(_is_reinterpreted, results)):
            for tensor in results:
                self._note_view(tensor, self._roots.get(id(args[0]), args[0]))
            return result
        is_pointwise = torch.Tag.pointwise in func.tags
        key = [func, map_tensors(self._scalar if is_pointwise else self._number, _given(func, args, kwargs))]
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._draws += 1
            key.append(self._draws)
        if is_pointwise:
            key += map(_layout, results)
        for place, tensor in enumerate(results):
            self._note(tensor, (repr(key), place))
        return result

    def _note_view(self, tensor: torch.Tensor, root: torch.Tensor) -> None:
        """Number a view by its place in the memory of the tensor that it is of."""
        number = self._values[id(root)][1]
        if _layout(tensor) == _layout(root) and tensor.dtype == root.dtype:
            self._values[id(tensor)] = tensor, number
        else:
            self._note(tensor, ("view", number, tensor.dtype, _layout(tensor)))
        self._roots[id(tensor)] = root

    def _scalar(self, tensor: torch.Tensor) -> object:
        """Return the number of an argument of a pointwise operator, which broadcasts a single element."""
        root = self._roots.get(id(tensor), tensor)
        return self._number(tensor if root.dim() else root)

    def _note(self, tensor: torch.Tensor, key: object) -> None:
        self._values[id(tensor)] = tensor, self._numbers.setdefault(key, len(self._numbers))
        self._roots.pop(id(tensor), None)

    def _number(self, tensor: torch.Tensor) -> object:
        return f"value {self._values[id(tensor)][1]}" if id(tensor) in self._values else object()

    def _numbers_of(self, tensor: torch.Tensor, gradient: torch.Tensor | None) -> list[object]:
        parts = [*own_parts(tensor)]
        if gradient is None:
            return [None] * len(parts)
        if has_shell(gradient) != has_shell(tensor):
            return [object()]
        if has_shell(tensor) and not shell_of(tensor).is_alike(shell_of(gradient)):
            return [object()]
        return [self._number(part) for part in own_parts(gradient)]

"""The functional form of an operator that writes, and the lines that replace it in a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.proxy import TensorProxy, changed_proxy
from switchgear_core.ir.symbol import AFTER, BoundSymbol, Symbol, changed, map_proxies, proxies
from switchgear_core.ir.writes import WritingOperator, restride
from switchgear_core.nesting import map_tensors, tensors_in


def duplicate(value: torch.Tensor) -> torch.Tensor:
    """Return a copy with equal strides."""
    return restride(value, value.stride())


_DUPLICATE = Symbol("switchgear.duplicate", duplicate)


@dataclass(frozen=True)
class FunctionalOperator(WritingOperator):
    """An operator that writes, called on copies of its targets.

    Its results have None in the place of a target that it returns. Nested values are in the order of the schema.
    """

    overload: internals.OpOverload

    @property
    def is_counted(self) -> bool:
        """Whether PyTorch counts its writes, as for custom operators; a kernel's own calls in place may add to that."""
        return internals.has_kernel(self.overload, "ADInplaceOrView")

    def versions(self, item: BoundSymbol) -> int:
        """Return 1 if PyTorch runs the call and counts its writes; a plugin's implementation may count none."""
        implementation = item.implementation
        return int(self.is_counted and implementation is not None and implementation.fn is self)

    def __call__(self, *args: object, **kwargs: object) -> tuple[object, tuple[object, ...]]:
        """Return the results, and the new values of the targets."""
        values = map_tensors(duplicate, self.targets(args, kwargs))
        args, kwargs = self.on(args, kwargs, values)
        return own_results(self.overload(*args, **kwargs), values), values

    def _places(self) -> list[tuple[int, str]]:
        """Return the position and the name of each target."""
        arguments = enumerate(self.overload._schema.arguments)
        return [
            (at, one.name) for at, one in arguments if one.alias_info and one.alias_info.is_write
        ]

    def targets(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """Return the targets: tensors, lists of tensors, or None."""
        return tuple(
            [args[at] if at < len(args) else kwargs.get(name) for at, name in self._places()]
        )

    def on(
        self, args: Sequence[object], kwargs: Mapping[str, object], targets: Sequence[object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments with other targets."""
        pairs = [*zip(self._places(), targets, strict=True)]
        positions = {at: target for (at, _), target in pairs}
        keywords = {name: target for (_, name), target in pairs if name in kwargs}
        rest = tuple([positions.get(at, arg) for at, arg in enumerate(args)])
        return rest, {**kwargs, **keywords}

    def lines(
        self, item: BoundSymbol, in_place: Mapping[str, TensorProxy], fresh: Callable[[], str]
    ) -> list[BoundSymbol]:
        """Return the copies, the call of the operator itself, and lines that name the new values."""
        olds = iter(proxies(self.targets(item.args, item.kwargs)))
        copies: list[BoundSymbol] = []
        renames: list[BoundSymbol] = []

        def target_of(value: TensorProxy) -> TensorProxy:
            old, target = next(olds), in_place.get(value.name)
            if target is None:
                target = changed_proxy(value, name=fresh())
                copies.append(_line(item, _DUPLICATE, (old,), target))
            renames.append(_line(item, AFTER, (target, target), value))
            return target

        args, kwargs = self.on(item.args, item.kwargs, map_proxies(target_of, item.output[1]))
        symbol, implementation = Symbol(item.symbol.name, self.overload), item.implementation
        if implementation is not None and implementation.fn is self:
            implementation = Implementation(implementation.owner, self.overload)
        arguments = {"args": args, "kwargs": kwargs, "output": item.output[0]}
        return [
            *copies,
            changed(item, symbol=symbol, implementation=implementation, **arguments),
            *renames,
        ]


def own_results(result: object, values: object) -> Any:
    """Return an operator's results, with None for each of `values` among them."""
    ids = {id(tensor) for tensor in tensors_in(values)}
    return map_tensors(lambda tensor: None if id(tensor) in ids else tensor, result)


def _line(
    item: BoundSymbol, symbol: Symbol, args: tuple[TensorProxy, ...], output: TensorProxy
) -> BoundSymbol:
    """Return a line in the place of `item`; without implementation if it only names a value."""
    owner = item.implementation.owner if item.implementation else ""
    runs = Implementation(owner, symbol.fn) if symbol is not AFTER else None
    return changed(
        item,
        symbol=symbol,
        args=args,
        kwargs={},
        output=output,
        implementation=runs,
        choices=(),
        tags=frozenset(),
    )

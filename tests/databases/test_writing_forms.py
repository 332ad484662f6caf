"""In-place and `out` forms give the bits of the overloads that they are put in the place of, all over the database."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from switchgear_core.ir.aliasing import viewed_argument
from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol
from switchgear_core.record.values import metadata_proxy
from switchgear_torch.reuse_buffers import _ALLOCATING, _is_pointwise, written_to
from tests.databases.operators import operators

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
SAMPLES = 1
PARTS = 4


class _Calls(TorchDispatchMode):
    """Compares every call of an overload that a buffer may be reused for, as it is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.compared: set[str] = set()
        self.faults: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        trusted = func.namespace == "aten" and (_is_pointwise(func) or func.overloadpacket in _ALLOCATING)
        if not trusted or func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.clone(), (args, kwargs))
        result = func(*args, **kwargs)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(leaf.layout is not torch.strided for leaf in given):
            return result
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        call = self._bound(func, args, kwargs, result)
        if viewed_argument(call) is None:
            own = {leaf.untyped_storage().data_ptr() for leaf in given if leaf.numel()}
            shares = own & {leaf.untyped_storage().data_ptr() for leaf in made if leaf.numel()}
            if shares or len({leaf.untyped_storage().data_ptr() for leaf in made if leaf.numel()}) < len(
                [leaf for leaf in made if leaf.numel()]
            ):
                self.faults.add(f"{func}: a result is no memory of its own")
        if isinstance(result, torch.Tensor):
            self._compare(call, given, result)
        return result

    def _bound(self, func: Any, args: Any, kwargs: Any, result: Any) -> BoundSymbol:
        count = iter(range(100))

        def proxy(tensor: torch.Tensor) -> TensorProxy:
            return metadata_proxy(f"t{next(count)}", tensor, False)

        args, kwargs, output = pytree.tree_map_only(torch.Tensor, proxy, (args, kwargs, result))
        return BoundSymbol(Symbol(str(func), func), args, kwargs, output, implementation=Implementation("torch", func))

    def _compare(self, call: BoundSymbol, given: list[torch.Tensor], result: torch.Tensor) -> None:
        for target in call.inputs:
            form = written_to(call, target, call.output)
            if form is None:
                continue
            copies = {proxy.name: value.clone() for proxy, value in zip(call.inputs, given, strict=True)}
            args, kwargs = pytree.tree_map_only(TensorProxy, lambda p: copies[p.name], (form.args, dict(form.kwargs)))  # noqa: B023
            found = form.symbol.fn(*args, **kwargs)
            self.compared.add(str(form.symbol.fn))
            same = (found.shape, found.stride(), found.dtype) == (result.shape, result.stride(), result.dtype)
            if not same or found.data_ptr() != copies[target.name].data_ptr() or not _bit_equal(found, result):
                self.faults.add(f"{form.symbol.name} on {target.dtype}: other bits than {call.symbol.name}")


def _bit_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bits are the same, of what is a number."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    same_nans = torch.equal(one.isnan(), other.isnan())
    one, other = (tensor.contiguous().masked_fill(tensor.isnan(), 0) for tensor in (one, other))
    return same_nans and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def samples(part: int) -> Iterator[tuple[Any, Any]]:
    """Operators and their samples, every dtype of theirs among `DTYPES`."""
    for number, operator in enumerate(operators().values()):
        if number % PARTS != part:
            continue
        for dtype in DTYPES:
            if operator.supports_dtype(dtype, "cpu"):
                grad = operator.supports_autograd and dtype is torch.float32
                found = iter(operator.sample_inputs("cpu", dtype, requires_grad=grad))
                yield from ((operator, sample) for _, sample in zip(range(SAMPLES), found, strict=False))


@pytest.mark.parametrize("part", range(PARTS))
def test_writing_forms_are_bit_equal(part: int) -> None:
    calls = _Calls()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator, sample in samples(part):
            try:
                with calls:
                    result = operator(sample.input, *sample.args, **sample.kwargs)
                    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                    seen = [leaf for leaf in outputs if leaf.requires_grad]
                    if seen:
                        torch.autograd.grad(
                            seen, sample.input, [torch.ones_like(leaf) for leaf in seen], allow_unused=True
                        )
            except Exception:  # eager refuses some samples
                continue
    assert len(calls.compared) > 20
    assert not calls.faults, "\n".join(sorted(calls.faults))

"""Which function is called in an overload's place: one that comes to the same overload, with the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import switchgear as sg
from switchgear_core.record.values import metadata_proxy
from switchgear_torch import spelling as module
from switchgear_torch.internals import first_dispatched, make_meta
from switchgear_torch.spelling import spelling
from tests.core.against_eager import numbers

aten = torch.ops.aten
T = torch.Tensor

X, Y, ROW = numbers(3, 4), numbers(4, 3), numbers(4)
#: An overload, its arguments, and how it is called: None where each function comes to another overload.
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str | None]] = {
    "tensors": (aten.mul.Tensor, (X, X), {}, "torch.mul"),
    "a number as a tensor": (aten.add.Tensor, (X, 1), {}, "torch.add"),
    "keyword": (aten.add.Tensor, (X, X), {"alpha": 2}, "torch.add"),
    "a matrix product": (aten.mm.default, (X, Y), {}, "torch.mm"),
    "a list of numbers": (aten.sum.dim_IntList, (X, [0], True), {}, "torch.sum"),
    "a list of tensors": (aten.cat.default, ([X, X], 1), {}, "torch.cat"),
    "a method only": (aten.view.default, (X, [12]), {}, "torch.Tensor.view"),
    "of the functions for networks": (aten.gelu.default, (X,), {"approximate": "tanh"}, "torch.nn.functional.gelu"),
    "a scalar overload, of which the function makes another": (aten.mul.Scalar, (X, 2.0), {}, None),
    "no function at all": (aten.threshold_backward.default, (X, X, 0), {}, None),
    "a factory, which a default device changes": (aten.full.default, ([2], 1.0), {}, None),
}


def of(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    proxies = iter("abcdefgh")

    def proxy(value: Any) -> Any:
        return metadata_proxy(next(proxies), value, False) if isinstance(value, T) else value

    given, named = torch.utils._pytree.tree_map(proxy, (args, kwargs))
    return spelling(overload, tuple(given), named)


@pytest.mark.parametrize(("overload", "args", "kwargs", "path"), CALLS.values(), ids=CALLS)
def test_spelling(overload: Any, args: Any, kwargs: Any, path: str | None) -> None:
    for _ in range(2):  # the second time from memory
        assert of(overload, args, kwargs) == path


def test_equal_arguments_of_another_type_are_another_call() -> None:
    assert of(aten.pow.Tensor_Scalar, (X, 2), {}) == of(aten.pow.Tensor_Scalar, (X, 2.0), {}) == "torch.pow"
    assert of(aten.pow.Tensor_Tensor, (X, X), {}) == "torch.pow"
    assert of(aten.pow.Tensor_Tensor, (X, 2), {}) is None


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        self.calls.append((str(func), [tuple(leaf.shape) if isinstance(leaf, T) else leaf for leaf in flat]))
        return func(*args, **(kwargs or {}))


def network(x: T, w: T, row: T) -> T:
    hidden = torch.nn.functional.layer_norm(torch.relu(x @ w.t() / 2 + row), (4,)).softmax(-1)
    parts = torch.cat([hidden, hidden.flatten().view(3, 4)], 1).chunk(2, 1)
    return torch.where(
        parts[0] > 0.2, parts[1].transpose(0, 1).sum(0, keepdim=True).t() ** 2, hidden.max(1)[0][:, None]
    )


def test_the_text_dispatches_what_the_trace_says() -> None:
    # `linear` is dispatched as its parts
    jitted = sg.jit(network, executors=["torch"], passes=["-linears"])
    inputs = [numbers(3, 4, grad=True), numbers(4, 4, grad=True), numbers(4, grad=True)]
    jitted(*inputs).sum().backward()
    for trace in (sg.last_traces(jitted)[-1], sg.last_backward_traces(jitted)[-1]):
        namespace: dict[str, Any] = dict(trace.constants)
        exec(trace.python(), namespace)
        made = [torch.empty_strided(p.shape, p.stride, dtype=p.dtype).fill_(1) for p in trace.inputs]
        with torch.no_grad(), Dispatched() as seen:
            namespace[trace.name](*made)
        said = [item.symbol.name for item in trace.bound_symbols if item.symbol.name != "del"]
        assert [name for name, _ in seen.calls] == said
        assert len(said) > 10


def test_first_dispatched() -> None:
    x = make_meta(metadata_proxy("x", numbers(2, 3).t(), False), (3, 2), (1, 3))
    assert (x.shape, x.stride(), x.dtype, x.device.type) == ((3, 2), (1, 3), torch.float64, "meta")
    assert make_meta(metadata_proxy("z", torch.complex(numbers(2), numbers(2)).conj(), False), (2,), (1,)).is_conj()
    with torch.autocast("cpu", torch.bfloat16):
        assert first_dispatched(torch.add, (x, 1), {}) == (aten.add.Tensor, (x, 1), {})
    assert first_dispatched(torch.add, (x, "1"), {}) is None
    assert first_dispatched(torch.is_grad_enabled, (), {}) is None


def test_symbolic_sizes_are_as_in_the_call_at_hand() -> None:
    jitted = sg.jit(lambda x: x.view(x.shape[1], x.shape[0]).sum(0), executors=["torch"], dynamic=True)
    for rows in (3, 5):
        x = numbers(rows, 4)
        assert torch.equal(jitted(x), x.view(4, rows).sum(0))
    assert "torch.Tensor.view(" in sg.last_traces(jitted)[-1].python()


def test_paths_that_are_kept_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", {})
    monkeypatch.setattr(module, "_KEPT_LIMIT", 3)
    for overload, args, kwargs, path in CALLS.values():
        assert of(overload, args, kwargs) == path
        assert len(module._KEPT) <= 3

"""Forward-mode differentiation around what plugins implement: tangents are eager's, or there is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import switchgear as sg
from tests.core.training import Kernel, executor, operators
from tests.falling_back import falls_back

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")


class Lossy(sg.FusionExecutor):
    """Runs regions as compiled code does, in which tangents are lost, and says how often."""

    def __init__(self) -> None:
        super().__init__("lossy")
        self.calls = 0

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        function = region.function()

        def run(*args: Any) -> Any:
            self.calls += 1
            return function(*[arg.detach() if isinstance(arg, Tensor) else arg for arg in args])

        return run


def numbers(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def tangents(function: Callable[..., Any], *args: Tensor, along: Tensor) -> list[Tensor | None]:
    """Value and tangent of a function, its first argument moving along a direction."""
    with forward_ad.dual_level():
        return [*forward_ad.unpack_dual(function(forward_ad.make_dual(args[0], along), *args[1:]))]


def assert_same(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def chain(x: Tensor) -> Tensor:
    return (x.sin() * 2 + x.cos()).exp() @ x.t()


@pytest.mark.parametrize("captured_outside", [True, False])
def test_around_a_region(captured_outside: bool) -> None:
    lossy = Lossy()
    jitted = sg.jit(chain, executors=[lossy, "torch"])
    x, along = numbers(3, 3), numbers(3, 3)
    if captured_outside:
        jitted(x)
    before = lossy.calls
    for _ in range(2):
        assert_same(tangents(jitted, x, along=along), tangents(chain, x, along=along))
    assert lossy.calls == before
    assert torch.equal(jitted(x), chain(x))
    assert lossy.calls == before + 1


def test_around_a_region_that_is_compiled_for_any_size() -> None:
    class Symbolic(Lossy):
        symbolic_sizes = True

    def function(x: Tensor) -> Tensor:
        return x.sin().reshape(x.shape[1], x.shape[0]) * x.shape[0]

    jitted = sg.jit(function, executors=[Symbolic(), "torch"], dynamic=True)
    for rows in (3, 4):
        x, along = numbers(rows, 5), numbers(rows, 5)
        assert_same(tangents(jitted, x, along=along), tangents(function, x, along=along))
        assert torch.equal(jitted(x), function(x))


def test_around_a_region_beside_other_operators() -> None:
    class Partial(Lossy):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            ours = bound_symbol.is_leaf and "mm" not in bound_symbol.symbol.name
            return None if ours else sg.Declined("not this one")

    jitted = sg.jit(chain, executors=[Partial(), "torch"])
    x, along = numbers(3, 3), numbers(3, 3)
    assert_same(tangents(jitted, x, along=along), tangents(chain, x, along=along))
    assert "torch.matmul" in operators(sg.last_traces(jitted)[-1])


def test_around_a_backward_with_regions() -> None:
    lossy = Lossy()
    found = []
    for function in (sg.jit(chain, executors=[lossy, "torch"]), chain):
        torch.manual_seed(0)
        x, along = numbers(3, 3, grad=True), numbers(3, 3)
        with forward_ad.dual_level():
            (grad,) = torch.autograd.grad(function(x), x, forward_ad.make_dual(torch.ones_like(along), along))
            found.append([*forward_ad.unpack_dual(grad)])
    assert_same(*found)


def test_around_a_kernel_of_an_operator() -> None:
    kernel = Kernel(lambda x: torch.sin(x.detach()))
    jitted = sg.jit(chain, executors=[executor("mine", {torch.sin: kernel}), "torch"])
    x, along = numbers(3, 3), numbers(3, 3)
    assert_same(tangents(jitted, x, along=along), tangents(chain, x, along=along))
    assert kernel.calls == 0
    assert torch.equal(jitted(x), chain(x))
    assert kernel.calls == 1


def test_around_a_write_in_place() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.zeros(3, 3)
        out[1] = x
        return out * 2

    jitted = sg.jit(function, executors=["torch"])
    for x, along in ((numbers(3), numbers(3)), (numbers(3), numbers(3))):
        assert_same(tangents(jitted, x, along=along), tangents(function, x, along=along))
    assert sg.cache_info(jitted).fallbacks == 0


def test_inside() -> None:
    def function(x: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
        value, tangent = torch.func.jvp(chain, (x,), (along,))  # type: ignore[misc]
        return value * 2, tangent.exp()

    lossy = Lossy()
    jitted = sg.jit(function, executors=[lossy, "torch"])
    args = numbers(3, 3), numbers(3, 3)
    assert_same([*jitted(*args)], [*function(*args)])
    assert lossy.calls


def test_transform_around_is_refused() -> None:
    jitted = sg.jit(chain, executors=[Lossy(), "torch"])
    x, along = numbers(3, 3), numbers(3, 3)
    jitted(x)
    with falls_back("transform"):
        torch.func.jvp(jitted, (x,), (along,))


def test_around_a_call_with_gradients_falls_back() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x.sin() * w).exp()

    lossy = Lossy()
    jitted = sg.jit(function, executors=[lossy, "torch"])
    w = numbers(3, grad=True)
    with falls_back("forward-mode differentiation"):
        for _ in range(2):
            x, along = numbers(3), numbers(3)
            assert_same(tangents(jitted, x, w, along=along), tangents(function, x, w, along=along))
    assert lossy.calls == 0
    info = sg.cache_info(jitted)
    assert (info.calls, info.misses, info.hits, info.fallbacks) == (2, 1, 0, 2)
    jitted(x, w)
    assert lossy.calls == 1

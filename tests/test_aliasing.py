"""Outputs that alias inputs or each other, and inputs that alias: memory, views and gradients are exactly eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import SwitchgearError
from tests.aot_behaviours.observation import Inputs, Make, check, leaves, results, succeeds, values, windows
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


def jit(function: Function, **options: Any) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS, **options)
    return jitted


# --- outputs: every view, of an input and of a result, one or several, with the base or without it ---

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(-1),
    "view as itself": lambda x: x.view_as(x),
    "reshape": lambda x: x.reshape(2, -1),
    "flatten": lambda x: x.flatten(),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 1),
    "item": lambda x: x[1],
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[::2],
    "dimension": lambda x: x[None, ..., None],
    "select": lambda x: x.select(1, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "expand": lambda x: x[:, :1].expand(4, 4)[0],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "chain": lambda x: x.t()[1:].unsqueeze(1)[0],
    "contiguous": lambda x: x.contiguous(),
    "alias": lambda x: torch.ops.aten.alias.default(x),
    "to": lambda x: x.to(x.dtype),
}


def same(x: Tensor) -> Tensor:
    return x


@BOTH
@pytest.mark.parametrize("of", ["input", "result", "leaf"])
@pytest.mark.parametrize("name", VIEWS)
def test_view_that_is_returned(name: str, of: str, grad: bool) -> None:
    """Its memory, its base, its history; and the same after a write to it."""

    def function(x: Tensor) -> Tensor:
        return VIEWS[name](x * 3 if of == "result" else x)

    # in-place on the leaf's view is an error in eager, and must be here
    assert succeeds(check(function, (leaves if of == "leaf" else results)((4, 4), grad=grad)))


SEVERAL: dict[str, Callable[[Tensor], Any]] = {
    "base and view": lambda y: (y, y.t()),
    "view and base": lambda y: (y[1], y),
    "two views": lambda y: (y[1:], y[:2]),
    "three views and base": lambda y: [y.t(), y.view(-1), y, y[0]],
    "view of a view": lambda y: (v := y.view(2, 8), v[0]),
    "view of a view alone": lambda y: (y.view(2, 8)[0], y.view(2, 8)[:, 1]),
    "base twice": lambda y: (y, y),
    "view twice": lambda y: (v := y.t(), v),
    "nested": lambda y: {"base": y, "views": (y[0], [y[1]])},
    "disjoint": lambda y: (y[:2], y[2:]),
    "windows": lambda y: (y.view(-1)[:10], y.view(-1)[6:]),
    "detached": lambda y: (y.detach(), y),
    "detached alone": lambda y: y.detach(),
    "detached view": lambda y: (y.t().detach(), y[0]),
    "view of a detached": lambda y: (y.detach().t(), y[0]),
    "two detached": lambda y: (y.detach(), y.detach()[1]),
    "data": lambda y: (y.data, y),
    "data, and a write": lambda y: (d := y * 1, v := d.data, d.mul_(2), v, v[0])[1:],
    "view under no_grad": lambda y: (torch.no_grad()(y.t)(), y),
    "view and a product": lambda y: (y.t(), y @ y, y),
    "chunks": lambda y: y.chunk(2),
    "split and base": lambda y: (*y.split([1, 3], dim=1), y),
    "view of a chunk": lambda y: y.chunk(2)[1].t(),
    "unbound and a view": lambda y: (y.unbind(1)[2], y[1]),
}


@BOTH
@pytest.mark.parametrize("of", ["input", "result"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_outputs_of_one_memory(name: str, of: str, grad: bool) -> None:
    def function(x: Tensor) -> Any:
        return SEVERAL[name](x * 3 if of == "result" else x)

    assert succeeds(check(function, results((4, 4), grad=grad)))


@pytest.mark.parametrize("name", ["base and view", "three views and base", "detached", "disjoint", "view of a view"])
def test_outputs_of_what_was_written_to(name: str) -> None:
    """Views before and after a write, of an input and of a result."""

    def function(x: Tensor, y: Tensor) -> Any:
        before = x[:2]
        x.mul_(2)
        made = y * 3
        row = made[1]
        made.add_(x)
        return before, row, SEVERAL[name](x), SEVERAL[name](made)

    assert succeeds(check(function, results((4, 4), (4, 4)), results((4, 4), (4, 4), grad=False)))


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "two views": lambda y: y[..., -1].select(0, 1),
    "three views": lambda y: y[..., -1][..., -1][..., -1],
    "of a detached": lambda y: y.detach()[1].t()[1],
    "of what t_() made": lambda y: y.transpose_(0, -1).detach()[1][..., 1],
    "of one of several": lambda y: y.unbind(1)[1][..., 1],
}


@BOTH
@pytest.mark.parametrize("name", CHAINS)
def test_base_of_a_view_is_the_whole_result(name: str, grad: bool) -> None:
    """`_base` too, which nobody else holds, is what it is in eager: the first tensor of the chain of views."""

    def outcome(target: Function) -> tuple[Tensor, Tensor]:
        made = target(values(2, 3, 4, grad=grad))
        assert made._base is not None
        return made.detach(), made._base.detach()

    def function(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(name != "of what t_() made"):
            return CHAINS[name](x * 3)

    (found, base), (expected, of) = outcome(jit(function)), outcome(function)
    assert found.storage_offset() - base.storage_offset() == expected.storage_offset() - of.storage_offset()
    assert torch.equal(found, expected)
    assert torch.equal(base, of)
    assert (base.stride(), found.stride()) == (of.stride(), expected.stride())


KERNELS_THAT_END_IN_A_VIEW: dict[str, Callable[[Tensor], Tensor]] = {
    "select_scatter": lambda y: y.select_scatter(y[0], 0, -1),
    "slice_scatter": lambda y: y.slice_scatter(y[:1], 0, 1, 2),
    "as_strided_scatter": lambda y: y.as_strided_scatter(y[0], (4,), (1,), 4),
    "write to a view": lambda y: (y[0].mul_(2), y)[1],
}


@BOTH
@pytest.mark.parametrize("name", KERNELS_THAT_END_IN_A_VIEW)
@pytest.mark.parametrize("take", [lambda v: v, lambda v: v.t()])
def test_result_that_its_kernel_makes_as_a_view(take: Function, name: str, grad: bool) -> None:
    """Compiled results are views where eager's are."""

    def function(x: Tensor) -> Any:
        return take(KERNELS_THAT_END_IN_A_VIEW[name]((x * 3).abs()))

    def is_view(target: Function) -> bool:
        return target(values(4, 4, grad=grad))._is_view()  # type: ignore[no-any-return]

    assert succeeds(check(function, results((4, 4), grad=grad)))
    jitted = jit(function)
    for _ in range(3):  # the first call tells of the others which are views
        assert is_view(jitted) == is_view(function)


class Turned(torch.autograd.Function):
    """A view of its input, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.t() * 2


@BOTH
@pytest.mark.parametrize("of", ["input", "result"])
@pytest.mark.parametrize("take", [lambda v: v[1], lambda v: v.as_strided((2, 2), (2, 1)), lambda v: v.detach()])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_view_of_a_view_that_an_autograd_function_makes(take: Function, mode: Function, of: str, grad: bool) -> None:
    def function(x: Tensor) -> Any:
        made: Tensor = Turned.apply(x if of == "input" else x * 3)  # type: ignore[no-untyped-call]
        with mode():
            return made, take(made)

    assert succeeds(check(function, results((4, 4), grad=grad)))


class Sine(torch.autograd.Function):
    """Saves its result, through which a second derivative flows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        sin, cos = x.sin(), x.cos()
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    def backward(ctx: Any, by_sin: Tensor, by_cos: Tensor) -> Any:
        sin, cos = ctx.saved_tensors
        return by_sin * cos * 1.5 - by_cos * sin


def test_result_that_is_saved_and_returned_under_two_names() -> None:
    """A function's result, and a view of it in its own layout by another: one in memory, two to autograd."""

    def function(x: Tensor) -> Any:
        return Turned.apply(Sine.apply(x)[1])  # type: ignore[no-untyped-call]

    assert succeeds(check(function, leaves((1, 1))))


class Doubled(torch.autograd.Function):
    """Writes to its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 3


@BOTH
@pytest.mark.parametrize("of", ["input", "result"])
def test_views_of_what_an_autograd_function_wrote_to(of: str, grad: bool) -> None:
    """The result is the argument itself, under one name before and after."""

    def function(x: Tensor) -> Any:
        x = x if of == "input" else x * 3
        before = x[2:]
        made = Doubled.apply(x)  # type: ignore[no-untyped-call]
        return made, made[0], x[1], before

    assert succeeds(check(function, results((4, 4), grad=grad)))


@BOTH
def test_view_of_a_view_made_before_a_write(grad: bool) -> None:
    """Made after the write, it has the base of what it is a view of."""

    def function(x: Tensor) -> Any:
        view = x[1:].detach()
        x.mul_(2)
        return view[0], view

    assert succeeds(check(function, results((4, 4), grad=grad)))


def test_outputs_of_constants_and_state() -> None:
    """A view of a parameter, of a buffer, and the parameter itself: the module's own."""

    class Reading(nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(4, 4))
            self.register_buffer("state", values(4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.weight, self.weight.t(), self.state[1:], self.state, x @ self.weight

    assert succeeds(check(Reading(), leaves((4, 4), grad=False)))


THEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "first": lambda a, b: a.mul_(2),
    "second": lambda a, b: b.mul_(2),
    "both": lambda a, b: (a.mul_(2), b.add_(1), a.mul_(3)),
    "parts": lambda a, b: (a[0].mul_(2), b.view(-1)[1:3].zero_()),
    "no_grad": lambda a, b: torch.no_grad()(lambda: a.mul_(2))(),
    "detached": lambda a, b: b.detach().mul_(2),
    "by a tensor with history": lambda a, b: a.mul_(b.detach().clone().requires_grad_()),
    "in-place chain": lambda a, b: a.t_().mul_(2),
}


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("of", ["input", "result"])
@pytest.mark.parametrize("pair", [lambda y: (y.t(), y), lambda y: (y[:], y.view(4, 4)), lambda y: (y.detach(), y)])
def test_in_place_on_outputs_afterwards(pair: Function, of: str, then: str) -> None:
    """It acts on all that share the memory, the input among them, and is part of the gradient as in eager."""

    def function(x: Tensor) -> Any:
        return pair(x * 3 if of == "result" else x)

    def outcome(target: Function) -> list[Any]:
        leaf = values(4, 4, grad=True)
        x = leaf + 1
        a, b = target(x)
        THEN[then](a, b)
        seen = [tensor.detach().clone() for tensor in (a, b, x)]
        (sum((tensor * tensor.detach()).sum() for tensor in (a, b, x))).backward()  # type: ignore[union-attr]
        return [*seen, a._version, b._version, x._version, leaf.grad]

    jitted = jit(function)
    for _ in range(2):
        assert not list(differences(outcome(function), outcome(jitted), then))


# --- inputs that alias ---

PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "same tensor": (same, same),
    "base and view": (same, lambda base: base[:]),
    "base and row": (same, lambda base: base[1]),
    "x and x.t()": (same, lambda base: base.t()),
    "x.t() and x": (lambda base: base.t(), same),
    "two equal views": (lambda base: base.view(4, 4), lambda base: base.view(4, 4)),
    "overlapping windows": (lambda base: base[:3], lambda base: base[1:]),
    "flat windows": (lambda base: base.view(-1)[2:6], lambda base: base.view(-1)[4:8]),
    "disjoint slices": (lambda base: base[:2], lambda base: base[2:]),
    "interleaved": (lambda base: base[:, ::2], lambda base: base[:, 1::2]),
    "rows and columns": (lambda base: base[1], lambda base: base[:, 1]),
    "view of a view": (lambda base: base.view(2, 8), lambda base: base.view(2, 8)[1, ::2]),
    "diagonal and base": (lambda base: base.diagonal(), same),
    "detached": (same, lambda base: base.detach()),
    "expanded": (lambda base: base[0], lambda base: base[0].detach().expand(4, 4)),
}
BODIES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "neither": lambda x, y: (x * 2, y * y),
    "first": lambda x, y: (x.mul_(2), y * 3)[1:],
    "second": lambda x, y: (y.mul_(2), x * 3)[1:],
    "both": lambda x, y: (x.mul_(2), y.add_(1), x * 3, y * 5)[2:],
    "from the other": lambda x, y: (x.add_(y.sum()), y * 3)[1:],
    "and returned": lambda x, y: (x.mul_(2), y),
    "through a view": lambda x, y: (x[:1].mul_(2), y.unsqueeze(0))[1:],
    "no_grad": lambda x, y: (torch.no_grad()(lambda: x.mul_(2))(), y * 3)[1:],
}


@BOTH
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("pair", PAIRS)
def test_inputs_that_alias(pair: str, body: str, grad: bool) -> None:
    # different histories on one memory, one of them written to, may be refused: `test_refusals_change_nothing`
    refusable = "history of its own on the same memory" if grad and pair in ("detached", "expanded") else ""
    observed = check(BODIES[body], windows((4, 4), *PAIRS[pair], grad=grad), refusable=refusable)
    # eager does not write to an expanded tensor
    assert succeeds(observed) == (pair != "expanded" or body not in ("second", "both"))


@pytest.mark.parametrize("body", ["neither", "no_grad", "first"])
@pytest.mark.parametrize("pair", ["same tensor", "base and row", "x and x.t()", "overlapping windows"])
def test_leaves_that_alias(pair: str, body: str) -> None:
    """The base is a leaf that requires grad: a write that autograd sees is eager's error."""

    def make() -> Inputs:
        leaf = values(4, 4).clone().requires_grad_()
        return Inputs((leaf,), tuple(take(leaf) for take in PAIRS[pair]))

    assert succeeds(check(BODIES[body], make)) == (body != "first")


COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "real view": torch.view_as_real,
    "real part": lambda z: z.real,
    "imaginary part": lambda z: z.imag,
    "conjugate": lambda z: z.conj(),
    "imaginary part of the conjugate": lambda z: z.conj().imag,
}


@BOTH
@pytest.mark.parametrize("body", ["neither", "first", "second", "both"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_tensor_and_its_real_view(name: str, body: str, grad: bool) -> None:
    def function(z: Tensor, part: Tensor) -> Any:
        if body in ("first", "both"):
            z.mul_(2)
        if body in ("second", "both"):
            part.add_(1)
        return z * 3, part * 5

    def make() -> Inputs:
        leaf = torch.complex(values(4), values(4) - 2).requires_grad_(grad)
        base = leaf + 1
        return Inputs((leaf,), (base, COMPLEX[name](base)))

    # PyTorch's functionalization has no inverse for a write to the part of a view of another dtype
    refusable = "a part of a real view is written to" if body in ("second", "both") and "part" in name else ""
    assert succeeds(check(function, make, refusable=refusable))


# --- views that require grad of a tensor that does not ---


def made_to_require_grad(*others: Callable[[Tensor], Tensor]) -> Make:
    """An argument that `requires_grad_()` was called on as a view, and views of that."""

    def make() -> Inputs:
        leaf = values(3, 4).mT.requires_grad_()
        return Inputs((leaf,), (leaf, *(take(leaf) for take in others)))

    return make


def under_no_grad(make: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return make()


ALONE: dict[str, Callable[[Tensor], Any]] = {
    "view under no_grad": lambda x: (v := under_no_grad(x.diagonal), v * 2),
    "view of a view under no_grad": lambda x: (v := x.mT, w := under_no_grad(v.diagonal), w.sin(), v * 3),
    "views": lambda x: (x, x.mT, x.detach(), x[1] * 2),
    "write under no_grad": lambda x: (under_no_grad(lambda: x.mul_(2)), x * 2)[1],
    "write to the detached": lambda x: (x.detach().mul_(2), x * 2)[1],
    "view after a write": lambda x: (x.detach()[1].mul_(2), x.mT * 2, x[0])[1:],
    "write to a view from no_grad": lambda x: (under_no_grad(lambda: x.mT).mul_(2), x * 2)[1],
    "write": lambda x: x.mul_(2),
    "write to a view": lambda x: x.mT.mul_(2),
}


@pytest.mark.parametrize("name", ALONE)
def test_input_that_is_a_view_and_requires_grad_by_itself(name: str) -> None:
    """Its views under no_grad do not require grad, for its base does not; a leaf that is no view has another entry."""

    def ordinary() -> Inputs:
        leaf = values(3, 4).mT.clone().requires_grad_()
        return Inputs((leaf,), (leaf,))

    errors = [seen.error is not None for seen in check(ALONE[name], made_to_require_grad(), ordinary)]
    expected = [name in ("write", "write to a view"), name.startswith("write to a view") or name == "write"]
    assert errors == expected * 4


def test_view_of_a_view_that_requires_grad_by_itself() -> None:
    def pure(x: Tensor, y: Tensor) -> Any:
        v = under_no_grad(lambda: y[1])
        return x * y, v, v * 2

    def stale(x: Tensor, y: Tensor) -> Tensor:
        x.detach().mul_(2)
        return x * y

    def old_view(x: Tensor) -> Any:
        v = x.mT
        x.detach().mul_(2)
        return v * 2, x * 2

    assert succeeds(check(pure, made_to_require_grad(lambda leaf: leaf.view_as(leaf))))
    lost = "autograd loses the history of a view whose base does not require grad once it is written to"
    assert succeeds(check(stale, made_to_require_grad(lambda leaf: leaf.view_as(leaf)), refusable=lost))
    assert succeeds(check(old_view, made_to_require_grad(), refusable=lost))


def test_three_inputs_of_one_memory_and_two_of_another() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Any:
        a.mul_(2)
        d.add_(c.sum())
        return a * b.sum(), c * 3, e * 5

    def make(grad: bool) -> Make:
        def made() -> Inputs:
            one, other = values(4, 4, grad=grad), values(4, 4, grad=grad)
            x, y = one + 1, other + 1
            return Inputs((one, other), (x[0], x, x.t(), y[:3], y[1:]))

        return made

    assert succeeds(check(function, make(False)))
    assert succeeds(check(function, make(True)))


# --- module state that aliases an argument, or other state ---


class Holding(nn.Module):
    """Holds a buffer and a view of it, and writes to a buffer or to its argument."""

    held: Tensor
    row: Tensor

    def __init__(self, writes: str) -> None:
        super().__init__()
        self.writes = writes
        self.register_buffer("held", values(3, 3))
        self.register_buffer("row", self.held[1])
        self.weight = nn.Parameter(values(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            {"held": self.held, "row": self.row, "argument": x}[self.writes].mul_(2)
        return (x.sum() + self.held + self.row) @ self.weight


@pytest.mark.parametrize("writes", ["", "held", "row", "argument"])
def test_module_state_that_aliases_an_argument(writes: str) -> None:
    """The buffer, a view of it, its other view, a stranger, and the buffer again; buffers alias each other, too."""

    def outcome(wrap: Callable[[Function], Function]) -> list[Any]:
        module = Holding(writes)
        called, seen = wrap(module), []
        stranger = values(3, 3)
        for argument in (module.held, module.held.t(), module.row, stranger, module.held[1:], module.held):
            seen += [called(argument), argument.clone(), module.held.clone(), module.row.clone()]
        sum(made.sum() for made in seen[::4]).backward()
        return [*seen, module.weight.grad, module.held.untyped_storage()._cdata == module.row.untyped_storage()._cdata]

    assert not list(differences(outcome(lambda module: module), outcome(jit), writes))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_parameter_that_is_also_an_argument(requires_grad: bool) -> None:
    """Tied: one gradient for both uses; and written to under no_grad, seen through both."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(3, 3), requires_grad=requires_grad)
            self.again = nn.Parameter(self.weight.detach(), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(2)
            return x @ self.weight + self.again.detach()

    def outcome(wrap: Callable[[Function], Function]) -> list[Any]:
        module = Tied()
        called = wrap(module)
        seen = [called(argument) for argument in (module.weight, values(3, 3), module.weight, module.weight.t())]
        if requires_grad:
            # what was saved of the weight before has been written to since
            seen[-1].sum().backward()
        return [*(made.detach() for made in seen), module.weight.detach(), module.weight.grad]

    with fallbacks_recorded():
        assert not list(differences(outcome(lambda module: module), outcome(jit), "tied"))


def test_tied_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))  # type: ignore[no-any-return]

    tokens = torch.tensor([[1, 2, 4]])
    assert succeeds(check(Tied().double(), lambda: Inputs((), (tokens,))))


# --- the guard ---

PATTERNS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "apart": lambda: (values(4, 4), values(4, 4) + 1),
    "same": lambda: (x := values(4, 4), x),
    "alias": lambda: (x := values(4, 4), x[:]),
    "detached": lambda: (x := values(4, 4), x.detach()),
    "disjoint": lambda: ((x := values(8, 4))[:4], x[4:]),
    "overlap by one row": lambda: ((x := values(8, 4))[:4], x[3:7]),
    "overlap by three rows": lambda: ((x := values(8, 4))[:4], x[1:5]),
    "the other way round": lambda: ((x := values(8, 4))[3:7], x[:4]),
}


@pytest.mark.parametrize("body", ["first", "second", "both", "through a view", "and returned", "no_grad"])
def test_entry_is_used_for_its_own_pattern_of_aliasing_alone(body: str) -> None:
    """All share shape, strides and dtype. Every pattern comes after every other, both ways."""
    function = BODIES[body]
    jitted = jit(function, recompile_limit=100)
    order = [name for pair in itertools.permutations(PATTERNS, 2) for name in pair]
    for step, name in enumerate(order):
        one, other = PATTERNS[name](), PATTERNS[name]()
        with fallbacks_recorded():  # of what shares memory and no history
            expected, found = function(*one), jitted(*other)
        assert not list(differences((expected, one), (found, other), f"step {step}, {name}"))


def test_pure_function_does_not_recompile_for_aliasing() -> None:
    """One entry for every pattern of distinct tensors, gradients through aliases among them."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(0) + y[0]

    for same, limit in ((False, 1), (True, 2)):  # one tensor as two arguments is one input, and an entry of its own
        jitted = jit(function, recompile_limit=limit)
        for name, make in PATTERNS.items():
            if same or name != "same":
                assert torch.equal(jitted(*make()), function(*make()))


# --- what is refused ---


def test_view_that_cannot_be_is_eagers_error() -> None:
    def turned(x: Tensor) -> Tensor:
        return x.t().view(-1)

    for wrap in (lambda function: function, jit):
        with pytest.raises(RuntimeError, match=r"view"):
            wrap(turned)(values(2, 3))


@pytest.mark.parametrize("pair", ["detached", "expanded"])
@pytest.mark.parametrize("body", ["first", "second", "both"])
def test_refusals_change_nothing(pair: str, body: str) -> None:
    """Where histories differ on one memory: eager's result, or a typed error that names the way out and no write."""

    def make() -> tuple[Tensor, Tensor]:
        base = values(4, 4, grad=True) + 1
        first, second = (take(base) for take in PAIRS[pair])
        return first, second

    expected, given = make(), make()
    before = [tensor.detach().clone() for tensor in given]
    try:
        found = jit(BODIES[body], strict=True)(*given)
    except SwitchgearError as error:
        assert "clone" in str(error) or "new tensor" in str(error)  # noqa: PT017
        assert all(map(torch.equal, before, given))
    else:
        assert not list(differences((BODIES[body](*expected), expected), (found, given), "call"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: torch.as_tensor([1.0, 2.0])[0],
        lambda x: (torch.tensor([1.0, 2.0]).detach(), x * 2),
    ],
)
def test_constants_that_come_out_are_the_callers(function: Function) -> None:
    jitted, x = jit(function), values(2)
    for _ in range(3):
        expected, found = function(x), jitted(x)
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (expected, found)), strict=True):
            assert torch.equal(one, other)
            other.mul_(7)

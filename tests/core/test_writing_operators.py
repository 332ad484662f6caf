"""Custom operators that write to their arguments: captured, eager's to the bit, run in place where nothing can tell.

The operators write through `.data`, as kernels do by address: PyTorch counts one version for each call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import FallbackWarning, Unsupported
from switchgear_core.ir.symbol import with_parts
from tests.core.against_eager import numbers

#: Both shipped choices of executors: PyTorch's alone, and the default.
EXECUTORS = (["torch"], None)
_SPACE = "switchgear_test_writing"


@torch.library.custom_op(f"{_SPACE}::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    x.data.mul_(factor)


@torch.library.custom_op(f"{_SPACE}::add_sin", mutates_args=("x",))
def add_sin(x: Tensor, y: Tensor) -> Tensor:
    x.data.add_(y)
    return x.detach().sin()


@torch.library.custom_op(f"{_SPACE}::scale_all", mutates_args=("xs",))
def scale_all(xs: list[Tensor], factor: float) -> None:
    for position, x in enumerate(xs):
        x.data.mul_(factor + position)


@torch.library.custom_op(f"{_SPACE}::add_if", mutates_args=("x",))
def add_if(x: Tensor | None, y: Tensor) -> Tensor:
    if x is not None:
        x.data.add_(y)
    return y.detach() * 2


@torch.library.custom_op(f"{_SPACE}::exchange", mutates_args=("x", "y"))
def exchange(x: Tensor, y: Tensor) -> None:
    x.data.add_(y)
    y.data.mul_(3)


@torch.library.custom_op(f"{_SPACE}::square_out", mutates_args=("out",))
def square_out(out: Tensor, x: Tensor) -> None:
    out.data.copy_(x * x)


add_sin.register_fake(lambda x, y: torch.empty_like(x))
add_if.register_fake(lambda x, y: torch.empty_like(y))
ops = getattr(torch.ops, _SPACE)


def one_input(x: Tensor, y: Tensor) -> Tensor:
    scale_(x, 2.0)
    return x + y


def one_inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + y
    before = z.detach().clone()
    ops.scale_(z, 2.0)
    return z.cos() * 3, before


def result_and_write(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 1
    result = ops.add_sin.default(z, y)
    return result.detach() * 2, z.exp()


def listed(x: Tensor, y: Tensor) -> Tensor:
    z, w = x * 1, y * 2
    ops.scale_all([z, w], 2.0)
    return z * w


def optional(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 1
    return ops.add_if(z, y).detach(), z.sin()


def optional_none(x: Tensor, y: Tensor) -> Tensor:
    return ops.add_if(None, y.detach()) + x  # type: ignore[no-any-return]


def two_targets(x: Tensor, y: Tensor) -> Tensor:
    z, w = x * 1, y * 2
    ops.exchange(z, w)
    return z * w


def slice_of_input(x: Tensor, y: Tensor) -> Tensor:
    ops.scale_(x[1:3], 2.0)
    return x * y


def column_of_inner(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    ops.scale_(z[:, 1], 3.0)
    return z * z


def view_read_later(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = x + y
    view, other = z[1:], z[2:]
    ops.scale_(view, 3.0)
    return z * z, view.cos(), other.sin()


def base_with_views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + y
    view = z[0]
    ops.scale_(z, 3.0)
    return view * view, z.sin()


def disjoint_slices(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    ops.exchange(z[:2], z[2:])
    return z * z


def several(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    ops.scale_(z, 2.0)
    z.mul_(3)
    ops.scale_(z, 0.5)
    z[0] = y[1]
    ops.scale_(z, 0.25)
    return z * z


def unseen(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    with torch.no_grad():
        ops.scale_(z[1:], 2.0)
    return z * z


def unseen_through_a_view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * y
    view = z[1:]
    with torch.no_grad():
        ops.scale_(view, 2.0)
    return z * z, view.sin()


def detached_part(x: Tensor, y: Tensor) -> Tensor:
    """Autograd sees neither write, so the gradient of all of `z` goes on."""
    z = x * y
    ops.exchange(z[:2], z[2:].detach())
    return z * z


def equal_values(x: Tensor, y: Tensor) -> Tensor:
    """Common subexpressions become one value, which is read while it is written to."""
    z, w = x + 1, x + 1
    return ops.add_if(z, w).detach() * z * y  # type: ignore[no-any-return]


def out_of_nothing(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    ops.square_out(out, x)
    return out + y


def inner_and_saved(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    ops.scale_(z, 2.0)
    return z * z + z.exp()


FUNCTIONS = [
    *(one_input, one_inner, result_and_write, listed, optional, optional_none, two_targets, slice_of_input),
    *(column_of_inner, view_read_later, base_with_views, disjoint_slices, several, unseen, out_of_nothing),
    *(inner_and_saved, unseen_through_a_view, detached_part, equal_values),
]
#: Which of the two arguments require grad.
GRADS = [(False, False), (True, False), (False, True), (True, True)]


def outcome(function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Any]:
    """Everything that a call leaves: results, gradients, arguments and their versions."""
    results = function(x, y)
    results = results if isinstance(results, tuple) else (results,)
    flags = [one.requires_grad for one in results]
    if any(flags):
        torch.stack([one.sum() for one in results if one.requires_grad]).sum().backward()
    return [
        *(one.detach() for one in results),
        *(one for pair in (x, y) for one in (pair.grad, pair.detach(), pair._version)),
        flags,
    ]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.stride() == right.stride() and torch.equal(left, right)
    return bool(type(left) is type(right) and left == right)


def arguments(grads: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    x, y = numbers(4, 3, dtype=torch.float32), numbers(4, 3, dtype=torch.float32) + 0.25
    return x.requires_grad_(grads[0]), y.detach().requires_grad_(grads[1])


@pytest.mark.parametrize("executors", EXECUTORS, ids=("torch", "default"))
@pytest.mark.parametrize("grads", GRADS, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_equals_eager(function: Any, grads: tuple[bool, bool], executors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_VERIFY", "1")
    jitted = sg.jit(function, executors=executors, fallback="error", compile="now")
    for _ in range(2):
        expected, actual = outcome(function, *arguments(grads)), outcome(jitted, *arguments(grads))
        assert all(map(same, expected, actual)), (expected, actual)


def test_a_buffer() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("count", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.linear(x)
            ops.scale_(self.count, 2.0)
            ops.add_if(self.count, hidden.detach().mean(0))
            return hidden * self.count

    torch.manual_seed(0)
    eager = Counting()
    other = Counting()
    other.load_state_dict(eager.state_dict())
    jitted = sg.jit(other, executors=["torch"], fallback="error")
    x = numbers(4, 3, dtype=torch.float32)
    before = eager.count._version, other.count._version
    for _ in range(3):
        expected, actual = eager(x), jitted(x)
        assert torch.equal(expected, actual)
        expected.sum().backward()
        actual.sum().backward()
        assert torch.equal(eager.count, other.count)
        assert torch.equal(eager.linear.weight.grad, other.linear.weight.grad)  # type: ignore[arg-type]
    assert eager.count._version - before[0] == other.count._version - before[1] == 6


def names(trace: sg.Trace) -> list[str]:
    return [item.symbol.name for item in trace.bound_symbols if item.symbol.name != "del"]


def test_one_line_that_writes_in_place() -> None:
    """A slice of an input costs the slice: the operator writes to it, and nothing is copied back."""

    def store(k: Tensor, x: Tensor) -> Tensor:
        ops.square_out(k[:, :, 5], x)
        return k[:, :, :8].sum()

    jitted = sg.jit(store, executors=["torch"], fallback="error")
    k, x = torch.zeros(2, 4, 512, 16), torch.ones(2, 4, 16)
    jitted(k, x)
    trace = sg.last_traces(jitted)[-1]
    assert names(trace)[1:3] == [f"{_SPACE}.square_out.default", "after"]
    assert "switchgear.duplicate" not in names(trace)
    assert None in trace.outputs
    assert torch.equal(k[:, :, 5], x * x)
    assert f"torch.ops.{_SPACE}.square_out.default(" in str(trace)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_memory_made_inside_is_written_in_place(needs_grad: bool) -> None:
    """The usual way to call a kernel: with an empty tensor for its result."""
    jitted = sg.jit(out_of_nothing, executors=["torch"], fallback="error")
    x, y = arguments((False, needs_grad))
    assert torch.equal(jitted(x, y), x * x + y)
    assert "switchgear.duplicate" not in names(sg.last_traces(jitted)[-1])


def test_a_copy_where_the_old_value_is_read_later() -> None:
    def function(x: Tensor) -> Tensor:
        z = x * 2
        ops.scale_(w := z.clone(), 2.0)
        return z + w

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2
        y = z.view(12)
        ops.scale_(z, 2.0)
        return z, y

    for one in (function, both):
        jitted = sg.jit(one, executors=["torch"], fallback="error")
        x = numbers(4, 3)
        torch.testing.assert_close(jitted(x), one(x), rtol=0, atol=0)


def test_a_plugins_implementation_writes_too() -> None:
    table, calls = sg.Table("mine"), []

    @table.implementation(scale_)
    def implementation(x: Tensor, factor: float) -> None:
        calls.append(x.shape)
        x.data.mul_(factor)

    mine = sg.Executor("mine", table=table)
    for function in (slice_of_input, one_inner, several):
        jitted = sg.jit(function, executors=[mine, "torch"], fallback="error")
        for grads in GRADS:
            calls.clear()
            expected, actual = outcome(function, *arguments(grads)), outcome(jitted, *arguments(grads))
            assert all(map(same, expected, actual)), (expected, actual)
            assert calls


def test_a_plugins_grad_rule() -> None:
    """The rule's outputs are the results, then the new values: PyTorch has no formula for such an operator."""
    table = sg.Table("mine")

    @table.grad_rule(f"{_SPACE}::add_sin")
    def add_sin_rule(x: Tensor, y: Tensor) -> Any:
        z = x.clone()
        result = ops.add_sin(z, y)

        def pullback(grad: Tensor, grad_z: Tensor) -> tuple[Tensor, Tensor]:
            total = grad * z.cos() + grad_z
            return total, total

        return (result, z), pullback

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x * 1
        return ops.add_sin(z, y) + z  # type: ignore[no-any-return]

    def plain(x: Tensor, y: Tensor) -> Tensor:
        z = x * 1 + y
        return z.sin() + z

    jitted = sg.jit(function, executors=["torch"], grad_rules=table, fallback="error")
    expected, actual = outcome(plain, *arguments((True, True))), outcome(jitted, *arguments((True, True)))
    assert all(map(same, expected[:-1], actual[:-1]))
    assert "1 x " + _SPACE + ".add_sin.default: gradient by mine (pullback rule)" in str(sg.explain(jitted).gradients())
    x, y = arguments((True, True))

    def second(called: Any) -> Any:
        (grad,) = torch.autograd.grad(called(x, y).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), [x, y])

    for one, other in zip(second(plain), second(jitted), strict=True):
        torch.testing.assert_close(one, other)


def test_a_rule_for_the_written_value() -> None:
    """Autograd does not see the write, so eager's gradient is that of the old value; a rule says otherwise."""
    table = sg.Table("mine")

    @table.grad_rule(scale_)
    def scale_rule(x: Tensor, factor: float) -> Any:
        z = x.clone()
        ops.scale_(z, factor)
        return z, lambda grad: grad * factor

    def function(x: Tensor) -> Tensor:
        z = x * 1
        ops.scale_(z, 2.0)
        return z * 5

    for rules, slope in (((), 5.0), (table, 10.0)):
        x = torch.ones(3, requires_grad=True)
        sg.jit(function, executors=["torch"], grad_rules=rules, fallback="error")(x).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), slope))  # type: ignore[arg-type]


def test_no_formula_raises_as_in_eager() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return ops.add_sin(x * 1, y)  # type: ignore[no-any-return]

    jitted = sg.jit(function, executors=["torch"])
    with pytest.warns(FallbackWarning, match="no gradient for"):
        result = jitted(*arguments((True, True)))
    for one in (result, function(*arguments((True, True)))):
        with pytest.raises(RuntimeError, match="no autograd formula"):
            one.sum().backward()


def test_register_autograd_is_refused_by_pytorch() -> None:
    with pytest.raises(RuntimeError, match="non-functional operator"):
        scale_.register_autograd(lambda ctx, *grads: None)


@pytest.fixture
def raw() -> Any:
    """Operators of the plain library: no version, no autograd, and results that are arguments."""
    space = "switchgear_test_raw"
    library = torch.library.Library(space, "DEF")
    library.define("scale(Tensor(a!) x, float factor) -> Tensor(a!)")
    library.impl("scale", lambda x, factor: x.data.mul_(factor) is None or x, "CPU")
    library.impl("scale", lambda x, factor: x, "Meta")
    library.define("mixed(Tensor(a!) x, *, Tensor y, Tensor(b!)[]? zs=None) -> (Tensor(a!), Tensor)")

    def mixed(x: Tensor, *, y: Tensor, zs: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        x.data.add_(y)
        for z in zs or []:
            z.data.mul_(3)
        return x, y * 2

    library.impl("mixed", mixed, "CPU")
    library.impl("mixed", lambda x, *, y, zs=None: (x, torch.empty_like(y)), "Meta")
    yield getattr(torch.ops, space)
    library._destroy()


def test_operators_of_a_plain_library(raw: Any) -> None:
    def returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 2
        result = raw.scale(z, 2.0)
        return result + z, raw.scale(y, 3.0)

    def with_keywords(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x * 1
        result, other = raw.mixed(z, y=y, zs=[x])
        return result + other, z

    def without(x: Tensor, y: Tensor) -> Tensor:
        result, other = raw.mixed(x, y=y)
        return result + other  # type: ignore[no-any-return]

    for function in (returned, with_keywords, without):
        jitted = sg.jit(function, executors=["torch"], fallback="error")
        for _ in range(2):
            expected = outcome(function, *arguments((False, False)))
            actual = outcome(jitted, *arguments((False, False)))
            assert all(map(same, expected, actual)), (function, expected, actual)


def test_a_library_without_autograd_is_refused_with_gradients(raw: Any) -> None:
    """PyTorch runs its kernel under autograd: what flows depends on the kernel."""

    def function(x: Tensor) -> Tensor:
        z = x * 2
        raw.scale(z, 2.0)
        return z

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(Unsupported, match=r"scale\.default has no kernel for autograd"):
        sg.jit(function, executors=["torch"], fallback="error")(x)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: ops.exchange(x, x), "memory of another of its arguments"),
        (lambda x: ops.exchange(x[:3], x[1:]), "memory of another of its arguments"),
        (lambda x: ops.scale_(x[:, :1].expand(4, 3), 2.0), "view made by expand"),
    ],
)
def test_refused(call: Any, reason: str) -> None:
    def function(x: Tensor) -> Tensor:
        call(x)
        return x + 1

    with pytest.raises(Unsupported, match=reason):
        sg.jit(function, executors=["torch"], fallback="error")(numbers(4, 3))


def test_refused_with_gradients() -> None:
    def transposed(x: Tensor) -> Tensor:
        z = x * 1
        ops.scale_(z.t(), 2.0)
        return z

    def written_again(x: Tensor) -> Tensor:
        z = x * 1
        view = z[1:]
        ops.scale_(view, 2.0)
        view.mul_(3)
        return z

    for function, reason in ((transposed, "transposed view"), (written_again, "make the view again")):
        x = numbers(4, 3, grad=True)
        with pytest.raises(Unsupported, match=reason):
            sg.jit(function, executors=["torch"], fallback="error")(x)


def test_symbolic_sizes() -> None:
    def function(x: Tensor) -> Tensor:
        ops.scale_(x[1:], 2.0)
        z = x * 2
        ops.scale_(z, 3.0)
        return z

    jitted = sg.jit(function, executors=["torch"], fallback="error", dynamic=True)
    for size in (4, 5, 6, 7):
        x, y = numbers(size, 3), numbers(size, 3)
        assert torch.equal(function(x), jitted(y))
        assert torch.equal(x, y)
    assert "compiled once" in str(sg.explain(jitted))


def test_inside_a_checkpoint() -> None:
    """A value made inside is recomputed with the operator; a write to an input is refused, as of any function."""
    from torch.utils.checkpoint import checkpoint

    def inner(x: Tensor, y: Tensor) -> Tensor:
        def region(x: Tensor) -> Tensor:
            z = x.sin()
            ops.scale_(z, 2.0)
            return (z * y).sin()

        result: Tensor = checkpoint(region, x, use_reentrant=False)
        return result

    def outer(x: Tensor, y: Tensor) -> Tensor:
        def region(x: Tensor) -> Tensor:
            ops.scale_(y, 2.0)
            return (x * y).sin()

        result: Tensor = checkpoint(region, x, use_reentrant=False)
        return result

    expected, actual = (
        outcome(called, *arguments((True, False)))
        for called in (inner, sg.jit(inner, executors=["torch"], fallback="error"))
    )
    assert all(map(same, expected, actual)), (expected, actual)
    with pytest.raises(Unsupported, match="written to inside a region"):
        sg.jit(outer, executors=["torch"], fallback="error")(*arguments((True, False)))


def test_saved_before_the_write() -> None:
    """Eager raises; the trace holds both values, so the gradient is that of the value which was used."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        w = z.sin()
        ops.scale_(z, 2.0)
        return w + z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outcome(function, *arguments((True, False)))
    x, y = arguments((True, False))
    sg.jit(function, executors=["torch"], fallback="error")(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y * (x.detach() * y).cos() + y)


def test_a_write_that_no_version_shows(raw: Any) -> None:
    """Eager's backward would silently read the new value."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        product = x * y
        raw.scale(y, 2.0)
        return product

    with pytest.raises(Unsupported, match=r"eager's backward reads the new value"):
        sg.jit(function, executors=["torch"], fallback="error")(*arguments((True, False)))


def test_pytorch_has_its_own_way_afterwards() -> None:
    """The kernels are registered during a capture alone: `torch.compile` takes the operators as before."""

    def function(x: Tensor) -> Tensor:
        z = x * 1
        ops.scale_(z, 2.0)
        return z

    x = numbers(3)
    expected = function(x)
    assert torch.equal(sg.jit(function, executors=["torch"], fallback="error")(x), expected)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"{_SPACE}::scale_", "Functionalize")
    assert torch.equal(torch.compile(function, backend="aot_eager")(x), expected)


def test_the_captured_line_changes_nothing() -> None:
    """Before claiming, the line is a function like any other, and runs as printed."""
    jitted = sg.jit(one_inner, executors=["torch"], fallback="error")
    x, y = arguments((False, False))
    jitted(x, y)
    captured = sg.last_traces(jitted)[0]
    (line,) = [one for one in with_parts(captured.bound_symbols) if "scale_" in one.symbol.name]
    z = numbers(3)
    results, (value,) = line.symbol.fn(z, 2.0)
    assert results is None
    assert torch.equal(value, z * 2)
    assert torch.equal(z, numbers(3))


def test_functional_transforms() -> None:
    def function(x: Tensor) -> Tensor:
        z = x * x
        ops.scale_(z, 2.0)
        return z.sum()

    x = numbers(3)
    assert torch.equal(sg.grad(function)(x), 2 * x)


#: The steps of random programs, each on one or two values of the pool, with a number that decides details.
STEPS: dict[str, Callable[[list[Tensor], Tensor, Tensor, float], Any]] = {
    "scale": lambda pool, p, q, c: ops.scale_(p, 1.5),
    "exchange": lambda pool, p, q, c: ops.exchange(p, q),
    "list": lambda pool, p, q, c: ops.scale_all([p, q], 1.25),
    "result": lambda pool, p, q, c: pool.append(ops.add_sin(p, q.detach()).detach()),
    "optional": lambda pool, p, q, c: pool.append(ops.add_if(p if c < 0.7 else None, q.detach()).detach()),
    "out": lambda pool, p, q, c: ops.square_out(p, q.detach()),
    "in place": lambda pool, p, q, c: None if p.is_leaf and p.requires_grad else p.mul_(0.5),
    "sin": lambda pool, p, q, c: pool.append(p.sin()),
    "view": lambda pool, p, q, c: pool.append(p[1:] if c < 0.5 else p[:, :2]),
    "product": lambda pool, p, q, c: pool.append(p * q),
    "detach": lambda pool, p, q, c: pool.append(p.detach()),
    "unseen": lambda pool, p, q, c: _without_grad(p),
}


def _without_grad(x: Tensor) -> None:
    with torch.no_grad():
        ops.scale_(x, 0.75)


def random_program(seed: int) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    choose = random.Random(seed)
    names = [choose.choice([*STEPS]) for _ in range(choose.randint(3, 8))]
    steps = [(STEPS[name], choose.random(), choose.random(), choose.random()) for name in names]

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y]
        for step, first, second, detail in steps:
            p, q = pool[int(first * len(pool))], pool[int(second * len(pool))]
            step(pool, p, q if p.shape == q.shape and p is not q and detail < 0.4 else p * 1, detail)
        return tuple(one * 1 for one in pool)

    return function


def test_random_programs() -> None:
    """Everything is eager's to the bit, or refused with a reason; where eager raises, nothing is compared."""
    compared = 0
    for seed in range(120):
        function = random_program(seed)
        grads = GRADS[seed % len(GRADS)]
        try:
            expected = outcome(function, *arguments(grads))
        except RuntimeError as error:
            if "modified" in str(error) or "in-place" in str(error):
                continue
            raise
        jitted = sg.jit(function, executors=["torch"], fallback="error")
        try:
            actual = outcome(jitted, *arguments(grads))
        except Unsupported:
            continue
        assert all(map(same, expected, actual)), (seed, expected, actual)
        compared += 1
    assert compared > 60

"""The global modes, around a call and inside it: autocast, grad and inference mode, default dtype and device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor as T
from torch import nn
from torch.autograd import forward_ad
from torch.backends import cuda
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import switchgear as sg
from switchgear import errors
from switchgear_core import torch_private as internals
from switchgear_runtime.last_call import last_entry
from tests.core.against_eager import check, numbers
from tests.falling_back import assert_falls_back, falls_back
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
Context = Callable[[], AbstractContextManager[Any]]


def jit(function: Function, executors: Any = None) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS if executors is None else list(executors))
    return jitted


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Context:
    return lambda: torch.autocast("cpu", dtype, **options)


# --- autocast ---


def arguments(gradient: bool, dtype: torch.dtype = torch.float32) -> list[T]:
    """A batch, a square weight and a bias."""
    made = [numbers(4, 8, dtype=dtype), numbers(8, 8, dtype=dtype), numbers(8, dtype=dtype)]
    return [made[0], made[1].requires_grad_(gradient), made[2].requires_grad_(gradient)]


def at_least_single(x: T) -> T:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear(x: T, w: T, b: T) -> T:
    return functional.linear(x, w, b)


def twice(x: T, w: T, b: T) -> T:
    return functional.softmax(functional.linear(functional.linear(x, w, b).relu(), w, b), -1)


def regions(x: T, w: T, b: T) -> T:
    y = x @ w
    with torch.autocast("cpu", enabled=False):
        z = at_least_single(y) @ w
    with torch.autocast("cpu", torch.float16):
        u = x @ w
    return z + y + u


def inside(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        y = functional.layer_norm(functional.linear(x, w, b), (8,), b, b)
        z = functional.linear(y, w)
    with torch.autocast("cpu", torch.bfloat16):
        z = z + functional.linear(x, w)
    return z + functional.linear(x, w)


def half_inside(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.float16):
        return functional.linear(x, w, b) @ w


def nested(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", torch.float16):
            y = x @ w
        with torch.autocast("cpu", enabled=False), torch.autocast("cpu", torch.bfloat16):
            return y @ w


def disabled(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", enabled=False):
        return functional.linear(functional.linear(x, w), w, b)


def attention(x: T, w: T, b: T) -> T:
    q = x[:, None]
    packed = torch.cat([w, w, w])
    given: Any = (q, q, q, 8, 2, packed, None, None, None, False, 0.0, w, b)
    return functional.multi_head_attention_forward(*given)[0]


def scaled_attention(x: T, w: T, b: T) -> T:
    q = (x @ w).reshape(1, 2, 4, 4)
    return functional.scaled_dot_product_attention(q, at_least_single(q), q)


def cross_entropy(x: T, w: T, b: T) -> T:
    return functional.cross_entropy(x @ w + b, torch.tensor([0, 1, 2, 3]))


def distances(x: T, w: T, b: T) -> T:
    def distance(one: T, other: T) -> T:
        return functional.mse_loss(one @ other.t(), other @ other.t(), reduction="none").mean(-1)

    return functional.triplet_margin_with_distance_loss(x + b, x * 2, x - b, distance_function=distance)


def convolution(x: T, w: T, b: T) -> T:
    return functional.group_norm(functional.conv1d(x[:, None], w[:, None, :3], b), 2, b, b)


def batch_norm(x: T, w: T, b: T) -> T:
    return functional.batch_norm(x @ w, None, None, b, b, training=True)


def widest(x: T, w: T, b: T) -> T:
    return torch.cat([x @ w, x]) + torch.stack([x @ w, x]).sum(0).repeat(2, 1)


def cache_off(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        return (x @ w) @ w


def cast_once(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        return ((x @ w) @ w) @ w


def written_in_the_region(x: T, w: T, b: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ w  # casts the weight, and autocast remembers
        with torch.no_grad():
            b.mul_(2)
        return functional.linear(y, w, b * 1)


def frozen(x: T, w: T, b: T) -> T:
    with torch.no_grad():
        y = x @ w
    return y @ w


AUTOCAST = [
    linear,
    twice,
    regions,
    inside,
    half_inside,
    nested,
    disabled,
    attention,
    scaled_attention,
    cross_entropy,
    distances,
    convolution,
    batch_norm,
    widest,
    cache_off,
    cast_once,
    written_in_the_region,
    frozen,
]

AROUND: dict[str, Context] = {
    "outside": nullcontext,
    "bfloat16": autocast(),
    "half": autocast(torch.float16),
    "no cache": autocast(cache_enabled=False),
    "disabled": autocast(enabled=False),
}


def observe(
    called: Function, around: Context, gradient: bool, backward_inside: bool, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    inputs = arguments(gradient, dtype)
    with around():
        try:
            output = called(*inputs)
        except (RuntimeError, errors.ExecutorFailed) as error:
            # the cache hands a parameter out in the dtype that it was first cast to; an executor's has eager's as cause
            return {"error": str(error.__cause__ or error)}
        if backward_inside:
            output.float().square().sum().backward()
    if gradient and not backward_inside:
        output.float().square().sum().backward()
    return {"output": output.detach(), "inputs": inputs, "gradients": [leaf.grad for leaf in inputs]}


def exact(function: Function, around: Context, gradient: bool, backward_inside: bool) -> dict[str, Any] | None:
    """What eager does in float64, which autocast leaves alone: executors that fuse are compared with that too."""
    return None if EXECUTORS == ["torch"] else observe(function, around, gradient, backward_inside, torch.float64)


@pytest.mark.parametrize("mode", ["inference", "training", "backward inside"])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("function", AUTOCAST, ids=lambda function: function.__name__)
def test_autocast(function: Function, around: Context, mode: str) -> None:
    given = around, mode != "inference", mode == "backward inside"
    expected = observe(function, *given)
    jitted = jit(function)
    for call in ("first", "cached"):
        found = observe(jitted, *given)
        faults = list(differences(expected, found, f"{call} call", exact=exact(function, *given)))
        assert not faults, "\n".join(faults)


@pytest.mark.parametrize("function", AUTOCAST, ids=lambda function: function.__name__)
def test_one_jitted_function_in_every_region(function: Function) -> None:
    jitted = jit(function)
    for name in ("outside", "bfloat16", "half", "outside", "no cache", "bfloat16", "disabled"):
        for backward_inside in (False, True):
            given = AROUND[name], True, backward_inside
            found = observe(jitted, *given)
            faults = list(differences(observe(function, *given), found, name, exact=exact(function, *given)))
            assert not faults, "\n".join(faults)


def test_backward_in_another_region_than_the_forward() -> None:
    def observed(called: Function, dtype: torch.dtype = torch.float32) -> list[Any]:
        found: list[Any] = []
        for forward in AROUND.values():
            for backward in AROUND.values():
                inputs = arguments(True, dtype)
                with forward():
                    loss = called(*inputs).float().square().sum()
                with backward():
                    loss.backward()
                found.append([leaf.grad for leaf in inputs])
        return found

    exact = None if EXECUTORS == ["torch"] else observed(twice, torch.float64)
    assert not list(differences(observed(twice), observed(jit(twice)), "gradients", exact=exact))


def test_module_under_autocast() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))

        def forward(self, x: T) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return self.stack(x)

    check(Casting(), numbers(4, 8, grad=True, dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        check(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2), numbers(3, 4, 8, grad=True, dtype=torch.float32))


def test_parameter_is_cast_once_in_a_region() -> None:
    jitted = jit(cast_once)
    jitted(*arguments(True))
    text = sg.last_traces(jitted)[-1].python()
    assert text.count("_to_copy.default(t_1") == 1
    jitted = jit(cache_off)
    jitted(*arguments(True))
    assert sg.last_traces(jitted)[-1].python().count("_to_copy.default(t_1") == 2
    jitted = jit(inside)  # one cast a region
    jitted(*arguments(True))
    assert sg.last_traces(jitted)[-1].python().count("_to_copy.default(t_1") == 2


def fakes_alive() -> int:
    gc.collect()
    return sum(issubclass(type(item), torch._subclasses.FakeTensor) for item in gc.get_objects())


def test_no_capture_stays_in_the_cast_cache() -> None:
    def fails(x: T, w: T, b: T) -> T:
        raise ZeroDivisionError(str((x @ w).shape))

    def refused(x: T, w: T, b: T) -> None:
        (x @ w).backward()

    inputs = arguments(True)
    before = fakes_alive()
    with torch.autocast("cpu", torch.bfloat16):
        jit(cast_once)(*inputs)
        with pytest.raises(ZeroDivisionError):
            jit(fails)(*inputs)
        with pytest.raises(errors.Unsupported):
            sg.jit(refused, executors=["torch"], strict=True)(*inputs)
        # once: what is in the cache lives until the outermost region ends
        assert fakes_alive() == before


def test_called_twice_in_one_region() -> None:
    def observed(called: Function, dtype: torch.dtype = torch.float32) -> list[Any]:
        inputs = arguments(True, dtype)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = [called(*inputs), called(*inputs), linear(*inputs)]
        for output in outputs:
            output.float().square().sum().backward()
        return [*(output.detach() for output in outputs), *(leaf.grad for leaf in inputs)]

    exact = None if EXECUTORS == ["torch"] else observed(twice, torch.float64)
    assert not list(differences(observed(twice), observed(jit(twice)), "two calls", exact=exact))


class Counts(sg.Executor):
    """Runs a composite by PyTorch's own function, and notes the dtypes that it is given."""

    def __init__(self, symbol: str) -> None:
        super().__init__("counts")
        self.symbol = symbol
        self.seen: list[tuple[torch.dtype, ...]] = []

    def claim(self, bound_symbol: sg.BoundSymbol, entry: object) -> sg.executors.Implementation | sg.Declined:
        if bound_symbol.symbol.name != self.symbol:
            return sg.Declined("not mine")

        def run(*args: Any, **kwargs: Any) -> Any:
            assert not internals.autocast_active()
            self.seen.append(tuple(arg.dtype for arg in args if isinstance(arg, T)))
            return bound_symbol.symbol.fn(*args, **kwargs)

        return sg.executors.Implementation(self.name, run)


@pytest.mark.parametrize("around", [nullcontext, autocast()], ids=["inside", "around"])
@pytest.mark.parametrize("gradient", [False, True])
def test_executor_gets_what_autocast_would_compute_on(gradient: bool, around: Context) -> None:
    def stack(x: T, w: T, b: T) -> T:
        with torch.autocast("cpu", torch.bfloat16):
            y = functional.linear(functional.linear(x, w, b), w, bias=b)
        with torch.autocast("cpu", enabled=False):
            return functional.linear(y.float(), w)

    executor = Counts("torch.nn.functional.linear")
    expected, found = (observe(called, around, gradient, False) for called in (stack, jit(stack, (executor, "torch"))))
    assert not list(differences(expected, found, "claimed"))
    low, full = torch.bfloat16, torch.float32
    assert executor.seen[:3] == [(low, low, low), (low, low), (full, full)]


def test_composite_that_casts_within_is_not_kept_under_autocast() -> None:
    executor = Counts("torch.nn.functional.triplet_margin_with_distance_loss")
    inputs = arguments(False)
    with torch.autocast("cpu", torch.bfloat16):
        found = jit(distances, (executor, "torch"))(*inputs)
        assert torch.equal(found, distances(*inputs))
    assert executor.seen == []
    jit(distances, (executor, "torch"))(*inputs)
    assert executor.seen


def test_nested_gradient_under_autocast() -> None:
    def loss(w: T, x: T) -> T:
        with torch.autocast("cpu", enabled=False):
            y = x @ w
        return ((y @ w).float() ** 2).sum()

    x, w, _ = arguments(True)
    for around in AROUND.values():
        for context in (nullcontext, torch.no_grad):
            with around():
                (expected,) = torch.autograd.grad(loss(w, x), w)
                with context():
                    found = sg.grad(loss)(w, x)
            assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cuda_autocast(dtype: torch.dtype) -> None:
    for function in (linear, twice, attention, cross_entropy, batch_norm, widest):
        observed = []
        for called in (function, jit(function)):
            inputs = [leaf.detach().cuda().requires_grad_(leaf.requires_grad) for leaf in arguments(True)]
            with torch.device("cuda"), torch.autocast("cuda", dtype):
                outputs = [called(*inputs) for _ in range(2)]
            for output in outputs:
                output.float().square().sum().backward()
            observed.append([*(output.detach() for output in outputs), *(leaf.grad for leaf in inputs)])
        assert not list(differences(observed[0], observed[1], function.__name__))


# --- a changed mode never meets an entry that was compiled in another ---


@contextmanager
def changed(ask: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = ask()
    put(value)
    try:
        yield
    finally:
        put(before)


def put_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def ask_deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def ask_attention() -> tuple[bool, bool, list[int]]:
    return cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), torch._C._get_sdp_priority_order()


def ask_autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


GUARDED: dict[str, tuple[Context, Callable[[], Any]]] = {
    "grad mode": (torch.no_grad, torch.is_grad_enabled),
    "set_grad_enabled": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "inference mode": (torch.inference_mode, torch.is_grad_enabled),
    "default dtype": (
        lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        torch.get_default_dtype,
    ),
    "default device": (lambda: changed(lambda: None, torch.set_default_device, "meta"), torch.get_default_device),
    "device context": (lambda: torch.device("meta"), torch.get_default_device),
    "matmul precision": (
        lambda: changed(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
        torch.get_float32_matmul_precision,
    ),
    "attention backend": (lambda: sdpa_kernel(SDPBackend.MATH), ask_attention),
    "attention backends in order": (
        lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True),
        ask_attention,
    ),
    "deterministic": (
        lambda: changed(ask_deterministic, put_deterministic, (True, False)),
        ask_deterministic,
    ),
    "deterministic, warn only": (
        lambda: changed(ask_deterministic, put_deterministic, (True, True)),
        ask_deterministic,
    ),
    "autocast": (autocast(), internals.autocast_key),
    "autocast to half": (autocast(torch.float16), internals.autocast_key),
    "autocast, disabled": (autocast(enabled=False), ask_autocast_nesting),
    "autocast without its cache": (autocast(cache_enabled=False), internals.autocast_key),
}


@pytest.mark.parametrize("first", GUARDED)
@pytest.mark.parametrize("second", GUARDED)
def test_changed_mode_never_meets_a_wrong_entry(first: str, second: str) -> None:
    """What a function asks for when it is captured is what it would have asked for at every call."""
    (one, ask), (other, ask_other) = GUARDED[first], GUARDED[second]

    def asks(x: T) -> tuple[T, str]:
        return x * 2, repr((ask(), ask_other()))

    jitted = jit(asks)
    x = torch.ones(2, requires_grad=True)
    for context in (nullcontext, one, other, nullcontext, other, one):
        with context():
            (found, answer), (expected, right) = jitted(x), asks(x)
        assert answer == right
        assert (found.requires_grad, found.is_inference()) == (expected.requires_grad, expected.is_inference())


# --- the modes inside ---


def grads_off(x: T) -> tuple[T, ...]:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    with torch.set_grad_enabled(False):
        u = z * x
    return y, z, u, x * 4


def grads_off_by_call(x: T) -> T:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y * x


@torch.no_grad()
def decorated(x: T) -> T:
    return x * 2


def double_dtype(x: T) -> T:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = x * torch.ones(3) + torch.tensor(0.1)
    torch.set_default_dtype(before)
    return y * torch.tensor([0.1, 0.2, 0.3])


def on_a_device(x: T) -> T:
    with torch.device("cpu"):
        return x * torch.ones(3)


def on_a_device_set(x: T) -> T:
    torch.set_default_device("meta")
    shape = torch.ones(3).shape
    torch.set_default_device(None)
    return x * torch.ones(shape)


def deterministic(x: T) -> T:
    before = ask_deterministic()
    put_deterministic((True, False))
    y = torch.zeros(3, dtype=x.dtype).index_add(0, torch.tensor([0, 0, 2]), x)
    put_deterministic(before)
    return y


INSIDE = [
    grads_off,
    grads_off_by_call,
    decorated,
    deterministic,
]


@pytest.mark.parametrize("function", INSIDE, ids=lambda function: function.__name__)
def test_mode_changed_inside(function: Function) -> None:
    for context in (nullcontext, torch.no_grad):
        with context():
            check(function, numbers(3, grad=True))
            check(function, numbers(3))


@pytest.mark.parametrize("function", [double_dtype, on_a_device_set], ids=lambda function: function.__name__)
def test_default_changed_inside_falls_back(function: Function) -> None:
    assert_falls_back(function, lambda: (numbers(3, grad=True),), "has changed the default d")


def attends(q: T) -> T:
    return functional.scaled_dot_product_attention(q, q, q)


def attends_by_math(q: T) -> T:
    with sdpa_kernel(SDPBackend.MATH):
        return attends(q) + functional.layer_norm(q, (16,))


@pytest.mark.parametrize("grad", [False, True])
def test_attention_backend_chosen_inside(grad: bool) -> None:
    q = torch.linspace(-1, 1, 2048).reshape(1, 2, 64, 16).clone().requires_grad_(grad)
    jitted = sg.jit(attends_by_math, executors=["torch"], strict=True)
    for _ in range(2):
        result = jitted(q)
        assert torch.equal(result, attends_by_math(q))
    names = [item.symbol.name for item in sg.last_traces(jitted)[-1].bound_symbols]
    assert not [name for name in names if "attention" in name]
    if grad:
        ours, eager = (torch.autograd.grad(f(q).square().sum(), q)[0] for f in (jitted, attends_by_math))
        assert torch.equal(ours, eager)


def test_attention_backend_chosen_around() -> None:
    """A backend that has a gradient of second order is not taken for one that has none."""
    q = torch.randn(1, 2, 64, 16, requires_grad=True)
    jitted = jit(attends)
    for context in (nullcontext, lambda: sdpa_kernel(SDPBackend.MATH), nullcontext):
        with context():
            assert torch.equal(jitted(q), attends(q))
    with sdpa_kernel(SDPBackend.MATH):
        first = [torch.autograd.grad(f(q).sin().sum(), q, create_graph=True)[0].sum() for f in (jitted, attends)]
        found, expected = (torch.autograd.grad(one, q)[0] for one in first)
        torch.testing.assert_close(found, expected)


def cast_twice(x: T, w: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        first = x @ w
    with torch.autocast("cpu", torch.bfloat16):
        return first + x @ w


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_rare_modes_around_what_depends_on_them() -> None:
    q, w = torch.randn(1, 2, 64, 16), torch.randn(16, 16, requires_grad=True)
    cases: list[tuple[Callable[..., T], tuple[T, ...]]] = [
        (attends, (q,)),
        (torch.jit.script(attends), (q,)),
        (lambda q: attends(q).relu(), (q,)),
        (cast_twice, (q[0, 0], w)),
    ]
    for function, inputs in cases:
        jitted = jit(lambda *args, function=function: function(*args))
        for context in (nullcontext, lambda: sdpa_kernel(SDPBackend.MATH), autocast(enabled=False), nullcontext):
            with context():
                assert torch.equal(jitted(*inputs), function(*inputs))


def test_rare_modes_around_what_does_not_depend_on_them() -> None:
    jitted = jit(lambda x: (x * 2).sin())
    x = numbers(3)
    jitted(x)
    entry = last_entry(jitted)
    for context in (lambda: sdpa_kernel(SDPBackend.MATH), autocast(enabled=False), GUARDED["matmul precision"][0]):
        with context():
            jitted(x)
        assert last_entry(jitted) is entry


LEFT: dict[str, Callable[[], Any]] = {
    "grad mode": lambda: torch.set_grad_enabled(False),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "the attention backends": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True),
}


@pytest.mark.parametrize("name", LEFT)
def test_mode_left_changed_is_refused_and_put_back(name: str) -> None:
    def leaves(x: T) -> T:
        LEFT[name]()
        return x * 2

    def modes() -> tuple[Any, ...]:
        return (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            internals.attention_backends(),
            ask_deterministic(),
        )

    before = modes()
    with pytest.raises(errors.Unsupported, match=f"(leaves|changed) {name}"):
        sg.jit(leaves, executors=["torch"], strict=True)(numbers(3))
    assert modes() == before


# --- inference mode ---


def test_inference_mode_around() -> None:
    jitted = jit(lambda x: (x * 2, x.reshape(3, 1)))
    x = torch.ones(3, requires_grad=True)
    for context in (torch.inference_mode, nullcontext, torch.inference_mode):
        with context():
            found, expected = jitted(x), (x * 2, x.reshape(3, 1))
        assert [made.is_inference() for made in found] == [made.is_inference() for made in expected]
        assert [made.requires_grad for made in found] == [made.requires_grad for made in expected]
        assert torch.equal(found[0], expected[0])


#: What PyTorch itself imports when a level of forward mode is first entered.
forward_mode_warns = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

FORWARD_MODE: dict[str, Callable[[T], T]] = {
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "cov": torch.cov,
    "bilinear": lambda x: functional.bilinear(x, x, torch.ones(2, 3, 3, dtype=x.dtype)),
    "max_pool1d": lambda x: functional.max_pool1d(x, 2),
    "view": lambda x: x[0],
    "write": lambda x: x.mul_(2)[0],
}


@forward_mode_warns
@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_around(name: str) -> None:
    function = FORWARD_MODE[name]
    jitted, found = jit(function), []
    jitted(numbers(3, 3))  # an entry made outside is the same
    for each in (function, jitted):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(numbers(3, 3), numbers(3, 3).cos())
            found.append([*forward_ad.unpack_dual(each(dual)), forward_ad.unpack_dual(dual).tangent])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@forward_mode_warns
@pytest.mark.parametrize(
    ("other", "connected"), [(lambda x: x.detach(), False), (lambda x: x[1:], True)], ids=["detached", "view"]
)
def test_forward_mode_around_a_write_to_shared_memory(other: Callable[[T], T], connected: bool) -> None:
    def function(x: T, y: T) -> T:
        x.add_(1)
        return y * 2

    jitted = jit(function)
    x = numbers(3, 3)
    expected = (other(x) + 1) * 2
    with nullcontext() if connected else falls_back("shares memory with another"):
        assert torch.equal(jitted(x, other(x)), expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(numbers(3, 3), numbers(3, 3).cos())
        with fallbacks_recorded():
            ours = forward_ad.unpack_dual(jitted(dual, other(dual)))
        twin = forward_ad.make_dual(numbers(3, 3), numbers(3, 3).cos())
        eagers = forward_ad.unpack_dual(function(twin, other(twin)))
        assert not list(differences([*eagers], [*ours], "value and tangent"))


def test_inference_tensor_as_argument() -> None:
    with torch.inference_mode():
        inference = numbers(3) * 1
    jitted = jit(lambda x, w: x * w)
    w = numbers(3, grad=True)
    for x in (numbers(3), inference, numbers(3)):
        assert torch.equal(jitted(x, numbers(3)), x * numbers(3))
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        (inference * w).sum().backward()
    with pytest.raises((RuntimeError, errors.Unsupported), match=r"[Ii]nference"):
        jitted(inference, w).sum().backward()


def test_inference_mode_inside() -> None:
    def infers(x: T) -> T:
        with torch.inference_mode():
            return x * 2

    def uses(x: T) -> T:
        return x * infers(x)

    x = numbers(3, grad=True)
    for around in (nullcontext, torch.inference_mode):
        with falls_back("inference mode of its own") if around is nullcontext else nullcontext(), around():
            found, expected = jit(infers)(x), infers(x)
        assert torch.equal(found, expected)
        assert (found.requires_grad, found.is_inference()) == (expected.requires_grad, expected.is_inference())
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        uses(x)
    with pytest.raises((RuntimeError, errors.Unsupported), match=r"[Ii]nference"):
        jit(uses)(x).sum().backward()

"""In-place on inputs, parameters and buffers: values, gradients, version counters and metadata are exactly eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

import switchgear as sg
from switchgear.errors import DataDependent, SwitchgearError
from tests.aot_behaviours.observation import Make, arguments, check, leaves, results, succeeds, values, windows
from tests.falling_back import assert_falls_back
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]


def jit(function: Function) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS)
    return jitted


# --- one write of every kind, to an input ---

INDEX = torch.tensor([2, 0])
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda x, w: x.add_(w, alpha=2),
    "mul_": lambda x, w: x.mul_(w),
    "operator": lambda x, w: x.__itruediv__((w + 0.25).sign() * 4),
    "copy_": lambda x, w: x.copy_(w[0]),
    "fill_": lambda x, w: x.fill_(2.5),
    "fill_ with a tensor": lambda x, w: x.fill_(w[0, 0]),
    "zero_": lambda x, w: x.zero_(),
    "clamp_": lambda x, w: x.clamp_(min=1, max=3),
    "relu_": lambda x, w: F.relu(x, inplace=True),
    "function with inplace": lambda x, w: F.leaky_relu(x - 2, 0.5, inplace=True).mul_(x.neg_()),
    "addcmul_": lambda x, w: x.addcmul_(w, w, value=0.5),
    "addmm_": lambda x, w: x.addmm_(w, w.new_ones(3, 3)),
    "lerp_": lambda x, w: x.lerp_(w, 0.25),
    "masked_fill_": lambda x, w: x.masked_fill_(w > 2, 1.5),
    "index_add_": lambda x, w: x.index_add_(0, INDEX, w[:2], alpha=2),
    "index_copy_": lambda x, w: x.index_copy_(1, INDEX, w[:, :2]),
    "index_put_": lambda x, w: x.index_put_((INDEX, INDEX), w[0, :2], accumulate=True),
    "scatter_": lambda x, w: x.scatter_(1, INDEX.repeat(3, 2)[:, :3], w),
    "scatter_reduce_": lambda x, w: x.scatter_reduce_(0, INDEX.repeat(3, 2)[:, :3], w, "sum"),
    "item": lambda x, w: x.__setitem__(1, w[1]),
    "item by index": lambda x, w: x.__setitem__(INDEX, w[:2]),
    "item by mask": lambda x, w: x.__setitem__(w > 2, 0.5),
    "part": lambda x, w: x[:, 1:].mul_(w[:, 1:]),
    "part of a part": lambda x, w: x.t()[1].unsqueeze(0)[:, 1:].add_(w[0, 1:]),
    "diagonal": lambda x, w: x.diagonal().mul_(w[0]),
    "chunks": lambda x, w: [part.mul_(w[0, 0]) for part in (x[:1], x[1:])],
    "foreach": lambda x, w: torch._foreach_mul_([x], [w]),
    "out": lambda x, w: torch.mul(w.detach(), 3, out=x.detach()),
    "twice": lambda x, w: x.mul_(w).add_(x),
    "random": lambda x, w: x.uniform_(),
}


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", WRITES)
def test_write_to_an_input(name: str, grad: bool) -> None:
    """The input's gradient flows through the write, the new values are the caller's."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        before = x + w
        WRITES[name](x, w)
        return before * 2 + x * x

    def make() -> Any:
        torch.manual_seed(1)
        return results((3, 3), (3, 3), grad=grad)()

    assert succeeds(check(function, make))


@pytest.mark.parametrize("seen", ["no_grad", "detach"])
@pytest.mark.parametrize("name", [name for name in WRITES if name != "out"])
def test_write_that_autograd_does_not_see(name: str, seen: str) -> None:
    """Leaf or not, the input requires grad and has the history afterwards that it had before, at the new values."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        if seen == "detach":
            WRITES[name](x.detach(), w.detach())
        else:
            with torch.no_grad():
                WRITES[name](x, w)
        return x * w

    def make(of: Callable[..., Make]) -> Make:
        def seeded() -> Any:
            torch.manual_seed(1)
            return of((3, 3), (3, 3))()

        return seeded

    assert succeeds(check(function, make(leaves), make(results)))


@pytest.mark.parametrize(
    "take", [lambda base: base[1], lambda base: base.t()[1:], lambda base: base.expand(2, 3, 3)[0]]
)
def test_write_to_an_input_that_is_a_view(take: Callable[[Tensor], Tensor]) -> None:
    """The base outside sees the values, and its history passes through the call."""

    def function(x: Tensor) -> Tensor:
        x.mul_(3).sin_()
        return x.exp()

    assert succeeds(check(function, windows((3, 3), take), windows((3, 3), take, grad=False)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_write_in_every_dtype(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        x[0] = x[1]
        return x.logical_not_()

    assert succeeds(check(function, arguments(values(3, 3).sub_(1).to(dtype))))


def of_every_kind() -> list[Tensor]:
    base = values(4, 3)
    real = [values(3).sub_(1), torch.tensor(2.0), base.t()[1:], base.bfloat16().t(), torch.arange(3), torch.empty(0, 3)]
    return [*real, base.clone().requires_grad_(), base.clone().requires_grad_() * 2]


def lazily() -> list[Tensor]:
    """A conjugate, an imaginary part with a lazy sign, and one with neither."""
    return [torch.complex(values(3), values(3)).conj(), torch.complex(values(3), values(3)).conj().imag, values(3)]


def shift(*tensors: Tensor) -> Tensor:
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(tensor - 1)
    return tensors[0] * 2


def test_writes_to_lazily_conjugated_inputs_fall_back() -> None:
    assert_falls_back(shift, lambda: tuple(lazily()), "lazily conjugated")


def test_writes_to_many_inputs_in_one_call() -> None:
    jitted = jit(shift)
    for _ in range(3):
        ours, eagers = of_every_kind(), of_every_kind()
        assert not list(differences(shift(*eagers), jitted(*ours), "result"))
        for mine, theirs in zip(ours, eagers, strict=True):
            assert not list(differences(theirs.detach(), mine.detach(), "input"))
            assert mine._version == theirs._version
            assert (mine.requires_grad, mine.is_leaf) == (theirs.requires_grad, theirs.is_leaf)


def test_write_of_one_input_to_another_that_is_written_to() -> None:
    def rotate(x: Tensor, y: Tensor, z: Tensor) -> None:
        first = x.clone()
        x.copy_(y)
        y.copy_(z)
        z.copy_(first)

    ours, eagers = ([values(3) + number for number in range(3)] for _ in range(2))
    jitted = jit(rotate)
    for _ in range(2):
        jitted(*ours)
        rotate(*eagers)
        assert not list(differences(eagers, ours, "inputs"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_writes_of_tangents() -> None:
    def keep(x: Tensor, first: Tensor, second: Tensor) -> None:
        with torch.no_grad():
            first.add_(x.sin())
            second.mul_(x)

    jitted = jit(keep)
    jitted(values(3), values(3), values(3))
    with forward_ad.dual_level():
        found: list[Any] = []
        for function in (keep, jitted):
            kept = [values(3), values(3)]
            function(forward_ad.make_dual(values(3), values(3) + 1), *kept)
            found.append([[*forward_ad.unpack_dual(tensor)] for tensor in kept])
        assert not list(differences(found[0], found[1], "inputs"))


def test_writes_to_tensors_outside_a_transform() -> None:
    jitted = jit(shift)
    ours, eagers = ([values(3), values(3) * 2] for _ in range(2))
    jitted(*ours)
    shift(*eagers)
    torch.vmap(lambda x: (jitted(*ours), x)[1])(values(3))
    torch.vmap(lambda x: (shift(*eagers), x)[1])(values(3))
    assert not list(differences(eagers, ours, "inputs"))


# --- parameters and buffers ---


class Renormalised(nn.Module):
    """Writes to its own weight, as `torch.nn.Embedding(max_norm=…)` does, before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.div_(self.weight.norm(dim=1, keepdim=True))
        return x @ self.weight


class Averaged(nn.Module):
    """Two buffers: an average that is written in place, by values that require grad, and a count."""

    average: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(3))
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        self.average.lerp_(y.detach().mean(0), 0.125)
        self.count += 1
        return y - self.average * self.count


class Quantised(nn.Module):
    """The codebook of a vector quantiser: counts and sums by index, and a straight-through estimate."""

    codes: Tensor
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", values(4, 3))
        self.register_buffer("counts", torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codes).argmin(1)
        with torch.no_grad():
            self.counts.mul_(0.5).index_add_(0, nearest, torch.ones_like(x[:, 0]))
            self.codes.mul_(0.5).index_add_(0, nearest, x).div_(self.counts[:, None])
        return x + (self.codes[nearest] - x).detach()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "parameter": Renormalised,
    "buffers": Averaged,
    "codebook": Quantised,
    "in a module": lambda: nn.Sequential(nn.Linear(3, 3), Renormalised(), Averaged()),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    "batch norm": lambda: nn.BatchNorm1d(3),
    "twice in one call": lambda: nn.Sequential(*[nn.BatchNorm1d(3)] * 2),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(0, (1, -1)), nn.InstanceNorm1d(4, track_running_stats=True)),
}


UNVERSIONED = "PyTorch's kernels of batch norm write the statistics past the version counter"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_write_to_parameters_and_buffers(name: str, training: bool) -> None:
    module = MODULES[name]().double().train(training)
    assert succeeds(check(module, leaves((4, 3)), leaves((4, 3), grad=False), unversioned=UNVERSIONED))


@pytest.mark.parametrize("name", ["buffers", "batch norm", "spectral norm"])
def test_statistics_over_several_steps(name: str) -> None:
    """Each call starts from what the one before it has left, in training and evaluation by turns."""
    torch.manual_seed(0)
    eager = MODULES[name]().double()
    torch.manual_seed(0)
    jitted = jit(MODULES[name]().double())
    for step in range(6):
        for module in (eager, jitted):
            module.train(step % 3 < 2)  # type: ignore[attr-defined]
        x = values(4, 3) + step
        states = [dict(module.state_dict()) for module in (eager, jitted)]  # type: ignore[attr-defined]
        assert not list(differences((eager(x), states[0]), (jitted(x), states[1]), f"step {step}"))


def test_statistics_as_arguments() -> None:
    """`batch_norm` as a function: statistics that are arguments, or rows of one."""

    def function(x: Tensor, statistics: Tensor) -> Tensor:
        return F.batch_norm(x, statistics[0], statistics[1], training=True, momentum=0.25)

    assert succeeds(check(function, arguments(values(4, 3, grad=True), values(2, 3)), unversioned=UNVERSIONED))


def test_cumulative_average_is_refused_in_the_second_call() -> None:
    """Without momentum the weight of a batch is the number of batches so far, which is data; nothing is written."""
    module = nn.BatchNorm1d(3, momentum=None)
    jitted = sg.jit(module, executors=["torch"], strict=True)
    jitted(torch.ones(4, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(DataDependent, match="data of a tensor"):
        jitted(torch.ones(4, 3))
    assert not list(differences(before, dict(module.state_dict()), "state"))


def test_buffers_assigned_anew() -> None:
    """A buffer that is replaced instead of written to."""

    class Replacing(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(0.0))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x * self.count

    module = Replacing()
    jitted = sg.jit(module, executors=["torch"], strict=True)
    for count in range(1, 4):
        assert torch.equal(jitted(values(3)), values(3) * count)
        assert module.count.item() == count
        assert type(module.count) is Tensor


# --- a KV cache as tensors ---


def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """One step of decoding: written at a position that is data, and attention reads all up to it."""
    keys.index_copy_(2, position, k)
    values.index_copy_(2, position, v)
    mask = torch.arange(keys.shape[2])[None] <= position
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def attend_to_slice(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
    """The same at a position that is a number, so each has an entry of its own."""
    keys[:, :, position : position + 1] = k
    values[:, :, position : position + 1] = v
    return F.scaled_dot_product_attention(q, keys[:, :, : position + 1], values[:, :, : position + 1])


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("function", [attend, attend_to_slice])
def test_key_value_cache(function: Function, grad: bool) -> None:
    """Four steps of decoding; with gradients, that of the last step's loss reaches every step's keys and values."""

    def decode(step: Function) -> list[Any]:
        tokens = [torch.sin(values(3, 1, 2, 1, 4) + index).requires_grad_(grad) for index in range(4)]
        cache = torch.zeros(2, 1, 2, 4, 4, dtype=torch.float64)
        keys, held = cache.clone().unbind(0) if not grad else (cache[0].clone(), cache[1].clone())
        seen: list[Any] = []
        for index, token in enumerate(tokens):
            position: Any = torch.tensor([index]) if function is attend else index
            made = step(*token.clone().unbind(0), keys, held, position)
            seen += [made.detach().clone(), keys.detach().clone(), keys.requires_grad, keys._version]
        if grad:
            # the last step alone: earlier attention has saved a cache that was written to since, as in eager
            made.sum().backward()
        return [*seen, *(token.grad for token in tokens)]

    assert not list(differences(decode(function), decode(jit(function)), "decoding"))


class Cached(nn.Module):
    """An attention layer whose cache is a pair of buffers."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12, dtype=torch.float64)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 8, 4, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        with torch.no_grad():
            self.keys[:, position] = k
            self.values[:, position] = v
        return F.scaled_dot_product_attention(q, self.keys, self.values)


def test_cache_in_buffers() -> None:
    at = (arguments(torch.sin(values(1, 2, 4)), torch.tensor([i, i + 1])) for i in (0, 4))
    assert succeeds(check(Cached(), *list(at)[:1]))
    eager, module = Cached(), Cached()
    module.load_state_dict(eager.state_dict())
    jitted = jit(module)
    for start in (0, 2, 4):
        x, position = torch.sin(values(1, 2, 4) + start), torch.arange(start, start + 2)
        expected, found = (eager(x, position), eager.keys), (jitted(x, position), module.keys)
        assert not list(differences(expected, found, f"position {start}"))


# --- in-place on a leaf that requires grad ---


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(3))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.mul_(2)
        return x * self.weight


LEAF_WRITES: dict[str, Function] = {
    "assigned": lambda x: x.__setitem__(0, 1.0),
    "method": lambda x: x.mul_(2),
    "function": lambda x: F.relu(x, inplace=True),
    "view": lambda x: x[:1].zero_(),
    "metadata": lambda x: x.unsqueeze_(0),
    "out": lambda x: torch.sin(values(3), out=x),
    "parameter": WritesParameter(),
    "after a result": lambda x: (x * 2, x.add_(1)),
    "enabled again": lambda x: torch.no_grad()(lambda: torch.enable_grad()(lambda: x.mul_(2))())(),
}


@pytest.mark.parametrize("name", LEAF_WRITES)
def test_in_place_on_a_leaf_that_requires_grad_is_eagers_error(name: str) -> None:
    """The same type and words, the leaf as it was, and so after an entry exists for what requires no grad."""
    function = LEAF_WRITES[name]
    jitted, x = jit(function), values(3).clone().requires_grad_()
    with pytest.raises(RuntimeError) as expected:
        function(x)
    for call in ("first", "after a call that works"):
        with pytest.raises(RuntimeError) as found:
            jitted(x)
        assert str(found.value) == str(expected.value), call
        assert not isinstance(found.value, SwitchgearError)
        assert (x._version, x.shape, x.grad_fn) == (0, (3,), None)
        assert torch.equal(x, values(3))
        if name != "parameter":
            jitted(values(3).clone())


# --- version counters ---


def scaled(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def scaled_behind(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x + 1


def scaled_under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[0].mul_(2)
    return x + 1


def untouched(x: Tensor) -> Tensor:
    return x + 1


def untouched_but_its_clone(x: Tensor) -> Tensor:
    return x.clone().mul_(2)


@pytest.mark.parametrize("through", ["tensor", "view", "base"])
@pytest.mark.parametrize("function", [scaled, scaled_behind, scaled_under_no_grad, untouched, untouched_but_its_clone])
def test_stale_backward(function: Function, through: str) -> None:
    """What was saved of the input before the call, itself or through an alias, and after it: same error, or none."""

    def outcome(target: Function) -> list[Any]:
        w, base = values(3, grad=True), values(3)
        x = base[:] if through == "base" else base
        early = w * (x[:] if through == "view" else base)
        target(x)
        late = w * x
        seen: list[Any] = [base, x._version > 0, base._version == x._version]
        for loss in (late, early):
            try:
                loss.sum().backward()
                seen.append(w.grad)
            except RuntimeError as error:
                seen.append("modified by an inplace operation" in str(error))
        return seen

    jitted = jit(function)
    for _ in range(2):
        assert not list(differences(outcome(function), outcome(jitted), "outcome"))


def test_stale_backward_of_the_call_before() -> None:
    """A second call writes to what the first has saved for its backward."""

    def function(w: Tensor, state: Tensor, write: bool) -> Tensor:
        if write:
            state.add_(1)
        return w * state

    def outcome(target: Function) -> list[bool]:
        w, state = values(3).clone().requires_grad_(), values(3)
        outputs = [target(w, state, write) for write in (False, True, False, True)]
        works = []
        for output in reversed(outputs):
            try:
                output.sum().backward()
                works.append(True)
            except RuntimeError as error:
                works.append("modified by an inplace operation" not in str(error))
        return works

    assert outcome(function) == [True, False, False, False]
    assert outcome(jit(function))[1::2] == [False, False]


def test_write_to_what_the_same_call_has_read_for_a_gradient() -> None:
    """Eager's backward fails; ours may, or gives the gradient at the value that was read, never another."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        read = x * w
        x.mul_(2)
        return read

    w, x = values(3).clone().requires_grad_(), values(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        function(x, w).sum().backward()
    jit(function)(values(3).clone(), w).sum().backward()
    assert w.grad is not None
    assert torch.equal(w.grad, values(3))


# --- metadata, alone and with data ---

RESHAPES: dict[str, Callable[[Tensor], Any]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).unsqueeze_(-1).squeeze_(),
    "squeeze_ of one dimension": lambda x: x.unsqueeze_(0).squeeze_(0),
    "swapaxes_": lambda x: x.swapaxes_(0, -1),
    "swapdims_": lambda x: x.swapdims_(1, 0),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 2), 1),
    "two in a row": lambda x: x.t_().unsqueeze_(0),
}
ORDERS: dict[str, Callable[[Tensor, Callable[[Tensor], Any]], Any]] = {
    "alone": lambda x, reshape: reshape(x),
    "data first": lambda x, reshape: (x.mul_(2), reshape(x)),
    "data after": lambda x, reshape: (reshape(x), x.mul_(2)),
    "data of a part after": lambda x, reshape: (reshape(x), x[0].mul_(2)),
    "data through an old view": lambda x, reshape: (view := x.view(-1), reshape(x), view.mul_(2)),
    "data between": lambda x, reshape: (reshape(x), x.mul_(2), x.unsqueeze_(0)),
    "under no_grad": lambda x, reshape: torch.no_grad()(lambda: (reshape(x), x.mul_(2)))(),
}
# PyTorch's functionalization cannot view flat what was transposed in place since, and raises an error of its own
CHANGES = [
    (name, order)
    for name in RESHAPES
    for order in ORDERS
    if order != "data through an old view" or name.startswith(("unsqueeze_", "squeeze_"))
]


@pytest.mark.parametrize(("name", "order"), CHANGES)
def test_metadata_of_an_input(name: str, order: str) -> None:
    refusable = "metadata of what requires grad under no_grad: a typed error" if order == "under no_grad" else ""

    def function(x: Tensor) -> Tensor:
        ORDERS[order](x, RESHAPES[name])
        return x * 3

    assert succeeds(check(function, results((2, 3), grad=False)))
    assert succeeds(check(function, results((2, 3)), refusable=refusable))


@pytest.mark.parametrize("take", [lambda x: x[1:], lambda x: x.detach(), lambda x: x.view(-1)[1:5].view(2, 2)])
def test_metadata_of_a_view_of_an_input_falls_back(take: Callable[[Tensor], Tensor]) -> None:
    """The input keeps its own, and has a new version: eager's."""

    def function(x: Tensor) -> Tensor:
        y = x.exp()
        take(x).t_()
        return y

    assert succeeds(check(function, results((2, 3), grad=False)))


@pytest.mark.parametrize("name", ["t_", "transpose_", "swapaxes_"])
def test_metadata_under_no_grad_of_a_result(name: str) -> None:
    """The history stays, and the gradient is of the value as it was made."""

    def function(x: Tensor) -> Any:
        y = x * 3
        with torch.no_grad():
            RESHAPES[name](y)
            y.mul_(2)
        z = y * values(4, 4)
        with torch.no_grad():
            RESHAPES[name](y)
        return z, y * 3, y

    assert succeeds(check(function, results((4, 4))))


@pytest.mark.parametrize("name", ["t_", "unsqueeze_", "swapaxes_"])
def test_metadata_of_a_buffer(name: str) -> None:
    """Each call changes it once more, so the second is none for the first's entry."""

    class Turning(nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", values(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            RESHAPES[name](self.state)
            return self.state * x

    eager, module = Turning(), Turning()
    jitted = sg.jit(module, executors=["torch"])
    for _ in range(4):
        x = values(1)
        assert not list(differences((eager(x), eager.state), (jitted(x), module.state), name))


# --- set_ and resize_ ---


def storage_swapped(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.set_(torch.ones(5, dtype=x.dtype))  # type: ignore[call-overload]  # the stubs know storages only
    return x + 1


def grown(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.resize_(4, 4)
        x.fill_(1)
    return x + 1


def shrunk(x: Tensor) -> Tensor:
    return x.resize_(2) * 2


def data_replaced(x: Tensor) -> Tensor:
    x.data = torch.zeros(2, dtype=x.dtype)
    return x * 2


@pytest.mark.parametrize("function", [storage_swapped, grown, shrunk, data_replaced])
def test_another_storage_or_size_is_eagers_or_a_clear_error(function: Function) -> None:
    """Never a silent difference; after a refusal the input is as it was."""
    eager, x = values(2, 3), values(2, 3)
    expected = function(eager)
    try:
        found = sg.jit(function, executors=["torch"], strict=True)(x)
    except SwitchgearError as error:
        assert len(str(error)) > 40  # noqa: PT017
        assert (x.shape, x._version) == ((2, 3), 0)
        assert torch.equal(x, values(2, 3))
    else:
        assert not list(differences((expected, eager), (found, x), "call"))


class Lowest(nn.Module):
    """Keeps the lowest values, in a buffer that has their size from the first call on."""

    def __init__(self, resize: Function) -> None:
        super().__init__()
        self.register_buffer("low", torch.empty(0))
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        low = x.detach().amin(0)
        self.low: Tensor = self.resize(self.low, low).copy_(low)
        lowest: Tensor = x - self.low
        return lowest


@pytest.mark.filterwarnings("ignore:.*has been deprecated:UserWarning")
@pytest.mark.parametrize("resize", [torch.Tensor.resize_as_, torch.resize_as_, torch.ops.aten.resize_as_.default])
def test_buffer_that_gets_the_size_of_another_tensor_is_eagers(resize: Function) -> None:
    # once: KeyError 't1'
    eager, module = Lowest(resize), Lowest(resize)
    jitted = sg.jit(module, executors=["torch"])
    for _ in range(3):
        x = torch.randn(3, 4)
        with fallbacks_recorded():
            assert not list(differences((eager(x), eager.low), (jitted(x), module.low), "call"))


class Observed(nn.Module):
    """What training aware of quantisation makes of a weight: an observer whose statistics are empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.tensor([1]))
        for name, value in {"low": torch.empty(0), "high": torch.empty(0), "scale": torch.ones(1)}.items():
            self.register_buffer(name, value)
        self.register_buffer("zero", torch.zeros(1, dtype=torch.int))

    def forward(self, x: Tensor) -> Tensor:
        quantise: Function = torch.fused_moving_avg_obs_fake_quant
        state = self.on, self.on, self.low, self.high, self.scale, self.zero
        quantised: Tensor = quantise(x, *state, 0.01, -128, 127, 0, True, True)
        return quantised


def test_observer_whose_statistics_are_empty_at_first_is_eagers() -> None:
    # once: the size of tensor a (0) must match the size of tensor b (3)
    eager, module = Observed(), Observed()
    jitted = sg.jit(module, executors=["torch"])
    with fallbacks_recorded() as reasons:
        for _ in range(3):
            x = torch.randn(3, 4)
            assert not list(differences((eager(x), eager.state_dict()), (jitted(x), module.state_dict()), "call"))
    assert len(reasons) == 1
    again: Any = sg.jit(module, executors=["torch"], strict=True)  # they have sizes by now
    x = torch.randn(3, 4)
    assert not list(differences((eager(x), eager.state_dict()), (again(x), module.state_dict()), "call"))


# --- an input that requires grad, and is itself a view of a tensor that does not ---


def lone_view() -> tuple[Tensor]:
    return (values(4, 3).mT.requires_grad_(),)


def test_view_that_requires_grad_by_itself_falls_back() -> None:
    def write_and_use(x: Tensor) -> Any:
        before = x[0].sum()
        x.detach().mul_(2)
        return before, x[1] * 2

    assert_falls_back(write_and_use, lone_view, r"t_0 is a view that requires_grad_\(\) was called on")


def test_entry_for_other_inputs_is_not_used_for_such_a_view() -> None:
    def view_under_no_grad(x: Tensor) -> Any:
        with torch.no_grad():
            view = x.diagonal()
        return view, view * 2

    jitted = sg.jit(view_under_no_grad, executors=["torch"])
    for (x,) in ((values(4, 3).mT.clone().requires_grad_(),), lone_view()):
        with fallbacks_recorded() as reasons:
            assert not list(differences(view_under_no_grad(x), jitted(x), "call"))
        assert len(reasons) == (x._base is not None)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_write_under_enable_grad_within_a_call_under_no_grad(mode: Callable[[], Any]) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x.mul_(3)
            return x[0] * 2

    found = []
    for call in (function, jit(function)):
        leaf = values(3, 4).requires_grad_()
        x = leaf * 1
        with mode():
            result = call(x)
        grad = torch.autograd.grad((x.sum() + result.sum()) if result.requires_grad else x.sum(), leaf)
        found.append((x, result.requires_grad, x.requires_grad, grad))
    assert not list(differences(found[0], found[1], "call"))


def test_gradients_do_not_flow_into_memory_that_autograd_does_not_connect() -> None:
    def function(x: Tensor, alias: Tensor, w: Tensor) -> Tensor:
        alias.copy_(w)
        return x * 2

    x, w = values(3, 4), values(3, 4).requires_grad_()
    with pytest.raises(SwitchgearError, match=r"autograd knows nothing|as_strided"):
        sg.jit(function, executors=["torch"], strict=True)(x, x.detach(), w)
    assert x._version == 0


@pytest.mark.parametrize("rises", [False, True])
def test_a_write_through_data_leaves_the_version_as_it_is(rises: bool) -> None:
    def function(x: Tensor) -> Tensor:
        if rises:
            x.add_(1)
        x.data.mul_(2)
        return x + 1

    jitted, x, expected = jit(function), values(3), values(3)
    for _ in range(2):
        assert torch.equal(jitted(x), function(expected))
        assert torch.equal(x, expected)
        assert x._version == expected._version


def test_a_write_by_foreach_beside_an_alias_raises_the_version() -> None:
    def function(x: Tensor) -> None:
        torch._foreach_add_([x], [x.detach()])

    x = values(3)
    jit(function)(x)
    assert x._version > 0
    assert torch.equal(x, values(3) * 2)


def test_several_views_of_an_input_that_is_written_to_twice() -> None:
    """They are usable: no later change of version makes them outdated."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.fill_(2)
        x.mul_(3)
        return x.chunk(2)

    jitted = sg.jit(function, executors=["torch"])
    for called in (jitted, function):
        leaf = torch.ones(2, requires_grad=True)
        x = leaf * 1
        first, second = called(x)
        assert x._version == 2
        assert not first.is_leaf
        assert torch.equal(first + second, torch.tensor([12.0]))
    assert "0 in eager" in repr(jitted)


@pytest.mark.parametrize("name", ["product", "linear"])
def test_write_to_a_result_that_the_backward_reads(name: str) -> None:
    """A product of three dimensions is a view, with a version of its own, of one of two."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w if name == "product" else torch.nn.functional.linear(x, w)
        return y, y.sin()

    for call in (function, jit(function)):
        w = values(3, 3).clone().requires_grad_()
        for _ in range(2):
            y, z = call(values(2, 2, 3), w)
            with torch.no_grad():
                y.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                z.sum().backward()

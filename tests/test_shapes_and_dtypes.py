"""Shapes, layouts and dtypes: values, strides and gradients of all that strided tensors can be, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor as T
from torch import nn
from torch.nn import functional

import switchgear as sg
from switchgear import errors
from tests.core.against_eager import check, numbers
from tests.falling_back import falls_back
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]


def jit(function: Function) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS)
    return jitted


def made(*shape: int, dtype: torch.dtype = torch.float64) -> T:
    """Numbers in memory of their own: no view."""
    return numbers(*shape, dtype=dtype).clone()


LAYOUTS: dict[str, Callable[[], T]] = {
    "contiguous": lambda: made(2, 3, 4),
    "0-dim": lambda: made(),
    "one element": lambda: made(1),
    "empty": lambda: made(0),
    "no rows": lambda: made(0, 3),
    "no columns": lambda: made(3, 0),
    "empty in the middle": lambda: made(2, 0, 3),
    "transposed": lambda: made(3, 4).t(),
    "permuted": lambda: made(2, 3, 4).permute(2, 0, 1),
    "strided": lambda: made(4, 6)[:, ::2],
    "offset": lambda: made(5, 4)[2:],
    "reversed by flip": lambda: made(3, 4).flip(0),
    "channels last": lambda: made(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels last, one channel": lambda: made(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels last 3d": lambda: made(2, 3, 2, 3, 2).contiguous(memory_format=torch.channels_last_3d),
    "channels last, sliced": lambda: made(2, 4, 4, 5).contiguous(memory_format=torch.channels_last)[:, 1:3],
    "expanded": lambda: made(3, 1).expand(3, 4),
    "expanded from 0-dim": lambda: made().expand(2, 3),
    "expanded in front": lambda: made(4).expand(3, 4),
    "overlapping": lambda: made(8).unfold(0, 4, 2),
    "gaps": lambda: torch.empty_strided((2, 3), (10, 2), dtype=torch.float64).copy_(made(2, 3)),
    "odd strides of size one": lambda: torch.empty_strided((1, 3), (17, 1), dtype=torch.float64).copy_(made(1, 3)),
    "conjugated": lambda: torch.complex(made(2, 3), made(2, 3)).conj(),
    "negated": lambda: torch.complex(made(2, 3), made(2, 3)).conj().imag,
    "conjugated transpose": lambda: torch.complex(made(2, 3), made(2, 3)).mH,
    "real part": lambda: torch.complex(made(2, 3), made(2, 3)).real,
    "complex": lambda: torch.complex(made(2, 3), made(2, 3)),
    "complex, 0-dim": lambda: torch.complex(made(), made()),
    "complex, empty": lambda: torch.complex(made(0, 2), made(0, 2)),
}

ON_LAYOUTS: dict[str, Function] = {
    "mul": lambda x: x * 2 + x,
    "itself": lambda x: (x, x * 1),
    "sum": lambda x: x.sum(),
    "sum of a dim": lambda x: x.sum(0) if x.dim() else x.sum(0, keepdim=True),
    "mean": lambda x: x.mean(),
    "sin": lambda x: torch.sin(x),
    "clone": lambda x: (x.clone(), x.clone(memory_format=torch.contiguous_format)),
    "contiguous": lambda x: x.contiguous() * 2,
    "reshape": lambda x: x.reshape(-1) * 2,
    "flatten": lambda x: x.flatten() + 1,
    "transpose": lambda x: x.transpose(0, -1) * 2 if x.dim() else x * 2,
    "unsqueeze": lambda x: x.unsqueeze(0) * x,
    "matmul": lambda x: x @ x.mT if x.dim() > 1 else x * x,
    "where": lambda x: torch.where(x.abs() > 0.3, x, x * 2),
    "cat": lambda x: torch.cat([x, x * 2]) if x.dim() else torch.stack([x, x]),
    "index": lambda x: x[..., :1] * 3 if x.dim() else x[None],
    "setitem": lambda x: write_first(x * 1),
    "in place": lambda x: x.clone(memory_format=torch.contiguous_format).mul_(2).add_(1),
    "conj": lambda x: x.conj() * x,
    "real": lambda x: (torch.real(x) * 2, x.abs()),
    "empty_like": lambda x: torch.empty_like(x).fill_(2) * x,
    "zeros_like": lambda x: (torch.zeros_like(x), torch.ones_like(x, memory_format=torch.contiguous_format)),
    "expand": lambda x: x.expand(2, *x.shape) * 2,
    "to": lambda x: x.to(torch.complex128) * 1,
    "detach": lambda x: x.detach() * x,
    "softmax": lambda x: torch.softmax(x.abs(), -1) if x.dim() else x.abs(),
    "dropout": lambda x: functional.dropout(x.abs(), 0.5),
    "metadata": lambda x: x * (x.dim() + x.numel() + sum(x.stride()) + x.is_contiguous() + 2 * x.is_conj()),
}


def write_first(x: T) -> T:
    if x.dim():
        x[..., :1] = 2.0
    else:
        x.fill_(3.0)
    return x


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("function", ON_LAYOUTS.values(), ids=ON_LAYOUTS)
def test_layout(function: Function, layout: Callable[[], T]) -> None:
    check(function, layout())
    check(function, layout().detach().requires_grad_())


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_of_what_is_closed_over(layout: Callable[[], T]) -> None:
    held = layout()
    jitted = jit(lambda x: x * held + held.sum())
    for _ in range(2):
        found, expected = jitted(torch.ones(())), torch.ones(()) * held + held.sum()
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_layouts_have_entries_of_their_own() -> None:
    jitted = sg.jit(lambda x: x * 2 + x.reshape(-1).sum(), executors=["torch"], recompile_limit=100)
    for _ in range(2):
        for layout in LAYOUTS.values():
            x = layout()
            found, expected = jitted(x), x * 2 + x.reshape(-1).sum()
            assert torch.equal(found, expected)
            assert (found.stride(), found.dtype) == (expected.stride(), expected.dtype)


# --- channels last ---

IMAGES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(3, 6, 3),
    "grouped": lambda: nn.Conv2d(3, 6, 3, groups=3, bias=False),
    "1x1": lambda: nn.Conv2d(3, 6, 1),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 2),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
    # PyTorch's own backward of a group of one channel crashes in this layout
    "group norm": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8)),
    "instance norm": lambda: nn.InstanceNorm2d(3, affine=True),
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
    "adaptive pool": lambda: nn.AdaptiveAvgPool2d(2),
    "pool to one": lambda: nn.AdaptiveAvgPool2d(1),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "pixel shuffle": lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.PixelShuffle(2)),
    "padding": lambda: nn.ReflectionPad2d(1),
    "dropout": lambda: nn.Dropout2d(0.4),
    "prelu": lambda: nn.PReLU(3),
    "softmax": lambda: nn.Softmax2d(),
    "head": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("image", ["channels last", "contiguous"])
@pytest.mark.parametrize("weights", ["channels last", "contiguous"])
@pytest.mark.parametrize("module", IMAGES.values(), ids=IMAGES)
def test_channels_last(module: Callable[[], nn.Module], weights: str, image: str) -> None:
    formats = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}
    layer = module().to(memory_format=formats[weights])  # type: ignore[call-overload]
    x = made(2, 3, 6, 6, dtype=torch.float32).contiguous(memory_format=formats[image])
    check(layer, x.requires_grad_())
    check(layer.eval(), x.detach())


def test_residual_in_channels_last() -> None:
    def residual(x: T, w: T) -> T:
        y = functional.conv2d(x, w, padding=1)
        return (y + x).relu() * y.to(memory_format=torch.contiguous_format)

    x = made(2, 3, 5, 5, dtype=torch.float32).contiguous(memory_format=torch.channels_last).requires_grad_()
    check(residual, x, made(3, 3, 3, 3, dtype=torch.float32).requires_grad_())


# --- dtypes ---

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATING, *COMPLEX, *INTEGERS, torch.bool]

ON_DTYPES: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y * 2,
    "with a float": lambda x, y: x * 1.5 + y,
    "with an int": lambda x, y: x * 3 + y,
    "with a bool": lambda x, y: x * True + y,
    "division": lambda x, y: x / (y + 3),
    "sum": lambda x, y: (x.sum(), y.sum(0)),
    "sum in float64": lambda x, y: x.sum(dtype=torch.float64 if not x.is_complex() else torch.complex128) * y.sum(),
    "mean": lambda x, y: x.to(torch.promote_types(x.dtype, torch.float32)).mean(-1),
    "matmul": lambda x, y: (
        x.to(torch.promote_types(x.dtype, torch.int32)) @ y.to(torch.promote_types(y.dtype, torch.int32)).mT
    ),
    "abs": lambda x, y: (x.to(torch.promote_types(x.dtype, torch.int8)) * 1).abs(),
    "equal": lambda x, y: (x == y, x != y),
    "where": lambda x, y: torch.where(x == y, x, y),
    "promotion with float32": lambda x, y: x * torch.ones(3) + y,
    "promotion with int64": lambda x, y: x + torch.arange(3) + y,
    "promotion with a 0-dim float64": lambda x, y: x * torch.tensor(1.5, dtype=torch.float64) + y,
    "to float64": lambda x, y: x.to(torch.complex128) * y.to(torch.complex128),
    "to bool": lambda x, y: (x.bool(), x.to(torch.bool) & y.bool()),
    "in place": lambda x, y: x.clone().add_(y),
    "in place into a wider one": lambda x, y: torch.zeros(2, 3, dtype=torch.complex128).add_(x).mul_(y),
    "cat": lambda x, y: torch.cat([x, y]),
    "cat of two dtypes": lambda x, y: torch.cat([x, torch.ones(1, 3), y]),
    "index": lambda x, y: x[torch.tensor([1, 0])] + y[:, [0, 2, 1]],
    "mask": lambda x, y: x.masked_fill(torch.tensor([True, False, True]), 1) + y,
    "cumulative": lambda x, y: x.cumsum(-1) + y,
    "full_like": lambda x, y: torch.full_like(x, 1) + y,
    "view as bytes": lambda x, y: x.detach().clone().view(torch.uint8) if x.dtype is not torch.bool else y,
    "type_as": lambda x, y: x.type_as(y) + torch.ones(3, dtype=torch.float64).type_as(y),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", ON_DTYPES.values(), ids=ON_DTYPES)
def test_dtype(function: Function, dtype: torch.dtype) -> None:
    x, y = ((made(2, 3) * scale).to(dtype) for scale in (4, 3))
    check(function, x, y)
    if dtype.is_floating_point or dtype.is_complex:
        check(function, x.requires_grad_(), y.requires_grad_())
        check(function, x.detach(), y)


@pytest.mark.parametrize("one", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_promotion(one: torch.dtype, other: torch.dtype) -> None:
    def promoted(x: T, y: T) -> tuple[T, ...]:
        return x * y, torch.where(x == x, x, y), x + y[0]

    x, y = (made(2, 3) * 4).to(one), (made(3) * 3).to(other)
    for tensor in (x, y):
        # eager's `where` has no gradient across real and complex numbers, and no half complex sum
        tensor.requires_grad_(x.dtype.is_floating_point and y.dtype.is_floating_point)
    try:
        with warnings.catch_warnings(action="ignore"):
            promoted(x, y)
    except NotImplementedError as error:  # from 2.14 on bfloat16 has a complex type, with few kernels
        pytest.skip(f"eager cannot: {error}")
    check(promoted, x, y)


@pytest.mark.parametrize("name", ["add", "minimum", "hypot"])
def test_strides_where_broadcasting_adds_a_dimension_of_size_one(name: str) -> None:
    """Fakes have them otherwise; a write whose functional form keeps no strides then shows."""

    def function(x: T, y: T) -> T:
        z: T = getattr(torch, name)(x, y)
        z.masked_fill_(z > 0, 0.5)
        return z

    check(function, made(4).unfold(0, 1, 1).unfold(0, 4, 1), made(4, 1))


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("values", [made(), made(2), torch.tensor(3)], ids=["0-dim", "1-dim", "integer"])
def test_values_of_another_dtype_by_index_are_eagers_error(values: T, used: bool) -> None:
    """Though fakes take them, and also where the result is dead code."""

    def function(x: T) -> T:
        y = x * 2
        y[torch.tensor([0, -1])] = values
        return y if used else x + 1

    for call in (function, jit(function)):
        with pytest.raises(RuntimeError, match="Index put requires the source and destination dtypes match"):
            call(made(4, dtype=torch.float32))


def test_number_of_another_dtype_by_mask_is_no_error() -> None:
    def function(x: T) -> T:
        y = x * 2
        y[x > 1] = made()
        return y

    check(function, made(4, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_module(dtype: torch.dtype) -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to(dtype)
    check(layer, made(3, 4, dtype=dtype).requires_grad_())


def test_complex_network() -> None:
    def network(x: T, w: T) -> tuple[T, ...]:
        y = torch.fft.fft(x) @ w
        z = torch.view_as_real(y.conj().resolve_conj()).sum(-1)
        return y, z, torch.view_as_complex(torch.stack([z, z * 2], -1)).mH, y.resolve_conj().angle()

    check(network, made(3, 4).requires_grad_(), torch.complex(made(4, 4), made(4, 4)).requires_grad_())


# --- refused by name ---


class Marked(torch.Tensor):
    """A subclass that adds nothing."""


def subclass() -> T:
    return made(3).as_subclass(Marked)


def masked() -> T:
    from torch.masked import masked_tensor

    return masked_tensor(made(3), torch.tensor([True, False, True]))


def quantised() -> T:
    return torch.quantize_per_tensor(made(3, dtype=torch.float32), 0.1, 0, torch.qint8)


def jagged_with_lengths() -> T:
    offsets, lengths = torch.tensor([0, 3, 6]), torch.tensor([2, 1])
    return torch.nested.nested_tensor_from_jagged(made(6), offsets, lengths)


STRANGE: dict[str, tuple[Callable[[], T], str]] = {
    "sparse_coo": (lambda: made(3, 3).to_sparse(), "sparse_coo"),
    "sparse_csr": (lambda: made(3, 3).to_sparse_csr(), "sparse_csr"),
    "sparse_csc": (lambda: made(3, 3).to_sparse_csc(), "sparse_csc"),
    "sparse_bsr": (lambda: made(4, 4).to_sparse_bsr((2, 2)), "sparse_bsr"),
    "mkldnn": (lambda: made(3, 3, dtype=torch.float32).to_mkldnn(), "mkldnn"),
    "quantised": (quantised, "quanti"),
    "nested": (lambda: torch.nested.nested_tensor([made(2), made(3)]), "nested"),
    "jagged with lengths": (jagged_with_lengths, "NestedTensor"),
    "masked": (masked, "MaskedTensor"),
    "subclass": (subclass, "Marked"),
}
PROTOTYPES = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@PROTOTYPES
@pytest.mark.parametrize("name", STRANGE)
def test_refused_as_argument(name: str) -> None:
    make, message = STRANGE[name]
    for call in (lambda x: x, lambda x: torch.ones(2)):
        with falls_back(rf"argument 0 .*{message}"):
            jit(call)(make())


@PROTOTYPES
@pytest.mark.parametrize("name", STRANGE)
def test_refused_when_closed_over(name: str) -> None:
    make, message = STRANGE[name]
    held = make()
    for call in (lambda x: (x, held * 2), lambda x: (x, held)):
        with pytest.raises(errors.Unsupported, match=message):
            sg.jit(call, executors=["torch"], strict=True)(torch.ones(2))


MADE_INSIDE: dict[str, tuple[Function, str]] = {
    "sparse_csr": (lambda x: x.to_sparse_csr(), "sparse"),
    "mkldnn": (lambda x: x.float().to_mkldnn(), "mkldnn"),
    "quantised": (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8), "quanti"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "nested"),
    "nested, as": (lambda x: torch.nested.as_nested_tensor([x[0], x[1]]), "nested"),
    "jagged with lengths": (
        lambda x: torch.nested.narrow(x, 1, 0, torch.tensor([1, 2, 1]), layout=torch.jagged),
        "nested",
    ),
    "subclass": (lambda x: (x * 2).as_subclass(Marked), "Marked|subclass"),
    "subclass within": (lambda x: ((x * 2).as_subclass(Marked) * 3).as_subclass(torch.Tensor), "Marked|subclass"),
}


@PROTOTYPES
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", MADE_INSIDE)
def test_refused_when_made_inside(name: str, gradient: bool) -> None:
    function, message = MADE_INSIDE[name]
    with falls_back(message):
        jit(function)(made(3, 3).requires_grad_(gradient))
    assert torch.equal(jit(lambda x: x * 2)(made(3)), made(3) * 2)  # and nothing is left behind


SPARSE: dict[str, Function] = {
    "sparse_coo": lambda x: (x * 2).to_sparse(),
    "sparse_coo of indices": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), x[0, :2], (3,)),
    "sparse within": lambda x: torch.sparse.mm((x * 2).to_sparse(), x),
    "sparse and back": lambda x: x.to_sparse().to_dense(),
}


@PROTOTYPES
@pytest.mark.parametrize("function", SPARSE.values(), ids=SPARSE)
def test_sparse_coo_made_inside_is_eagers_or_has_a_typed_error(function: Function) -> None:
    for gradient in (False, True):
        try:
            found = jit(function)(made(3, 3).requires_grad_(gradient))
            if gradient:
                found.to_dense().sum().backward()
        except (errors.Unsupported, errors.NotDifferentiable):
            continue
        assert torch.equal(found.to_dense(), function(made(3, 3)).to_dense())


@pytest.mark.parametrize("shape", [(8, 1, 64, 64), (4, 37, 211, 53), (16, 3, 300, 7)])
def test_batch_by_a_single_matrix_without_a_gradient(shape: tuple[int, int, int, int]) -> None:
    batch, rows, inner, columns = shape
    many, single = numbers(batch, rows, inner, grad=True), numbers(1, inner, columns)
    check(lambda x, y: (x @ y).sin(), many, single)
    check(lambda x, y: y.__rmatmul__(x).sin(), many, single)
    check(lambda x, y: torch.matmul(x, other=y).sin(), many, single)
    check(lambda x, y: (y @ x).sin(), many.detach().mT.clone().requires_grad_(), single.mT.clone())
    check(lambda x, y: (x @ y).sin(), many, single.requires_grad_())

"""Modules: parameters, buffers that are written to, and the gradients of both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.aot_behaviours.observation import Inputs, arguments, check, leaves, results, succeeds, values, windows

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


class Counting(nn.Module):
    """Adds to a buffer in each call, and multiplies by two parameters."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.first = nn.Parameter(torch.full((1,), 2.0))
        self.second = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        """The product and the count."""
        self.count.add_(1)
        return (self.first * x * self.second).sum() + self.count.sum()


class CountingMatrix(nn.Module):
    """Adds to a buffer of another shape than the parameter's."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(4, 4))
        self.weight = nn.Parameter(values(4, 2, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """The product and the count."""
        self.count.add_(1)
        return (self.weight @ x).sum() + self.count.sum()


class Resizing(nn.Module):
    """Resizes what an in-place addition to its buffer returns, which is the buffer."""

    held: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        """A sum that shows whether the buffer was written to."""
        self.held.add_(3).resize_([20])
        return x.sum() + self.held.sum()


class ComplexLinear(nn.Module):
    """A linear layer over complex numbers, and a real loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 10, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        """The absolute value of the sum."""
        return self.linear(x).sum().abs()  # type: ignore[no-any-return]


class FlatEmbedding(nn.Module):
    """Bags of embeddings with sparse gradients, as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(100, 8, sparse=True)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """The flattened embeddings."""
        return self.embedding(x, offsets).view(-1)  # type: ignore[no-any-return]


def single(*shape: int, grad: bool = False) -> Tensor:
    """Numbers in single precision, which modules are in."""
    return values(*shape, grad=grad, dtype=torch.float32)


@BOTH
def test_linear(grad: bool) -> None:
    """A linear layer: parameters get their gradients, twice the calls accumulate."""
    assert succeeds(check(nn.Linear(3, 3), arguments(single(3, 3, grad=grad))))


@pytest.mark.parametrize("inside", [False, True], ids=["made outside", "made inside"])
def test_linear_in_inference_mode(inside: bool) -> None:
    """Under `inference_mode` around the call: an inference tensor comes out, of tensors made outside or inside."""
    with torch.inference_mode(inside):
        x = single(3, 3) * 2
    assert x.is_inference() is inside

    def make() -> Inputs:
        return Inputs((), (x,))

    assert succeeds(check(nn.Linear(3, 3), make, around=torch.inference_mode))


def test_sequence_of_modules() -> None:
    """Linear and ReLU in a row."""
    assert succeeds(check(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), arguments(single(8, 8))))


def test_complex_linear() -> None:
    """Complex parameters, a real scalar of them, and their gradients."""
    x = torch.complex(single(1, 10, 10), single(1, 10, 10).flip(1))
    assert succeeds(check(ComplexLinear(), arguments(x)))


def test_sparse_gradient_of_an_embedding() -> None:
    """The gradient of the embedding is sparse; sizes may change."""
    makes = [arguments(torch.arange(size), torch.arange(size)) for size in (3, 4)]
    assert succeeds(check(FlatEmbedding(), *makes))


@BOTH
def test_buffer_that_counts(grad: bool) -> None:
    """A buffer is added to in place in every call."""
    assert succeeds(check(Counting(), arguments(single(1, grad=grad))))


@BOTH
def test_buffer_of_another_shape_that_counts(grad: bool) -> None:
    """The same where buffer and parameter have different shapes."""
    assert succeeds(check(CountingMatrix(), arguments(single(2, 4, grad=grad))))


def test_buffer_that_is_resized() -> None:
    """The buffer is written to and resized in place."""
    check(Resizing(), arguments(single(2, 5)), refusable="cannot call metadata-changing operators on it")


UNVERSIONED = "eager's batch norm writes to its statistics without a new version of them"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("module", [nn.BatchNorm1d(6), nn.BatchNorm2d(4)], ids=["1d", "2d"])
def test_batch_norm(module: nn.Module, training: bool) -> None:
    """Running statistics change in training and not in evaluation."""
    shape = (20, 6) if isinstance(module, nn.BatchNorm1d) else (2, 4, 2, 2)
    make = arguments(single(*shape, grad=True))
    first, *others = check(module.train(training), make, unversioned=UNVERSIONED)
    assert succeeds([first, *others])
    mean = first.facts["running_mean after the call: values"]
    assert isinstance(mean, Tensor)
    assert bool(mean.any()) is training


def test_batch_norm_in_evaluation_under_no_grad() -> None:
    """Evaluation under `no_grad`: nothing is written."""
    observed = check(nn.BatchNorm2d(4).eval(), arguments(single(4, 4, 4, 4)), around=torch.no_grad)
    assert succeeds(observed)
    assert not any(one.facts["running_var has a new version"] for one in observed)


class Transposing(nn.Module):
    """A module that changes its first argument's strides."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        """The sum."""
        x.t_()
        return (x + y,)


@BOTH
def test_module_called_with_one_tensor_twice_and_with_two(grad: bool) -> None:
    """One tensor as both arguments of a module that transposes the first, then two tensors."""
    twice = windows((3, 3), lambda base: base, lambda base: base, grad=grad)
    assert succeeds(check(Transposing(), twice, results((3, 3), (3, 3), grad=grad)))


class Adding(nn.Module):
    """A module without state."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        """The sum."""
        return (x + y,)


def test_module_called_with_and_without_requires_grad() -> None:
    """Whether the second argument requires grad is part of the guard of a module, too."""
    makes = [leaves((3, 3), (3, 3), grad=(True, flag)) for flag in (True, False)]
    assert succeeds(check(Adding(), *makes))
    assert succeeds(check(Adding(), *makes[::-1]))

"""What a step can do. An operator is a function that writes one line of Python for the operands it picks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.fuzz.source import Picker

Fits = Callable[[Tensor], bool]


@dataclass(frozen=True, slots=True)
class Line:
    """An expression with one result, or so many in a tuple; with none, a statement."""

    text: str
    results: int = 1
    is_tuple: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """How often it is drawn, and what writes it."""

    weight: int
    write: Callable[[Picker], Line | str]


OPERATORS: dict[str, Operator] = {}


def operator(weight: int) -> Callable[[Callable[[Picker], Line | str]], Callable[[Picker], Line | str]]:
    """Put the decorated function into the table under its name."""

    def register(write: Callable[[Picker], Line | str]) -> Callable[[Picker], Line | str]:
        OPERATORS[write.__name__] = Operator(weight, write)
        return write

    return register


# What a tensor has to be to be an operand.


def anything(_: Tensor) -> bool:
    return True


def floating(x: Tensor) -> bool:
    return x.is_floating_point()


def numeric(x: Tensor) -> bool:
    return x.dtype is not torch.bool


def inexact(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def boolean(x: Tensor) -> bool:
    return x.dtype is torch.bool


def of_rank(low: int, fits: Fits = anything) -> Fits:
    return lambda x: x.dim() >= low and fits(x)


def filled(low: int, fits: Fits = anything) -> Fits:
    return lambda x: x.dim() >= low and x.numel() > 0 and fits(x)


def broadcasts_with(other: Tensor, fits: Fits = anything) -> Fits:
    def check(x: Tensor) -> bool:
        pairs = zip(reversed(x.shape), reversed(other.shape), strict=False)
        return fits(x) and all(a == b or 1 in (a, b) for a, b in pairs)

    return check


def broadcasts_to(shape: Sequence[int], dtype: torch.dtype) -> Fits:
    """What can be written to such a tensor: its values fit without a cast to a lesser kind of number."""

    def check(x: Tensor) -> bool:
        return (
            torch.can_cast(x.dtype, dtype)
            and x.dim() <= len(shape)
            and all(a in (b, 1) for a, b in zip(reversed(x.shape), reversed(shape), strict=False))
        )

    return check


# Pointwise.


@operator(9)
def unary(o: Picker) -> str:
    x = o.tensor(0)
    if o[x].dtype is torch.bool:
        return f"{x}.logical_not()"
    if o[x].is_complex():
        return o.choose(0, [f"{x} * 2", f"{x}.sin()", f"{x}.exp()", f"-{x}", f"{x}.abs()", f"{x}.conj() * {x}"])
    if not floating(o[x]):
        return o.choose(0, [f"{x} * 2", f"-{x}", f"{x}.abs()", f"{x} // 2", f"{x} % 3"])
    names = ["sin", "exp", "tanh", "relu", "sigmoid", "abs", "square", "neg", "reciprocal", "sqrt", "log1p", "erf"]
    functional = ["gelu", "softplus", "silu", "leaky_relu", "elu"]
    return o.choose(
        0,
        [
            *(f"{x}.{name}()" for name in names),
            *(f"torch.nn.functional.{name}({x})" for name in functional),
            f"{x}.clamp(-0.5, 0.5)",
            f"{x} ** 2",
            f"1 - {x}",
        ],
    )


@operator(12)
def binary(o: Picker) -> str:
    x = o.tensor(0, numeric)
    y = o.tensor(1, broadcasts_with(o[x], numeric))
    signs = ["*", "+", "-", "*", "/"]
    if floating(o[x]) and floating(o[y]) and o[x].dtype == o[y].dtype and o.number(1, 3) == 0:
        return f"torch.{o.choose(0, ['maximum', 'atan2', 'minimum', 'hypot'])}({x}, {y})"
    return f"{x} {o.choose(0, signs)} {y}"


@operator(5)
def with_number(o: Picker) -> str:
    x = o.tensor(0, numeric)
    return f"{x} {o.choose(0, ['*', '+', '/', '-'])} {o.scalar(1)}"


@operator(3)
def comparison(o: Picker) -> str:
    x = o.tensor(0, lambda x: not x.is_complex())
    y = o.tensor(1, broadcasts_with(o[x], lambda y: not y.is_complex()))
    return o.choose(
        0, [f"{x} > 0", f"{x} >= {y}", f"{x} == {y}", f"torch.isfinite({x})", f"torch.signbit({x})", f"{x} != {y}"]
    )


@operator(3)
def conversion(o: Picker) -> str:
    x = o.tensor(0)
    calls = [
        "to(torch.float64)",
        "to({x}.dtype)",
        "float()",
        "long()",
        "bool()",
        "contiguous()",
        "clone()",
        "type_as({x})",
    ]
    if o[x].is_complex():
        calls = ["to(torch.complex128)", "to({x}.dtype)", "contiguous()", "clone()", "resolve_conj()"]
    return f"{x}.{o.choose(0, calls)}".replace("{x}", x)


@operator(2)
def made_like(o: Picker) -> str:
    x = o.tensor(0)
    return o.choose(
        0,
        [
            f"torch.zeros_like({x})",
            f"torch.ones_like({x})",
            f"{x}.new_zeros(3, 4)",
            f"torch.full_like({x}, {o.scalar(1)})",
        ],
    )


@operator(3)
def where(o: Picker) -> str:
    x = o.tensor(0, floating)
    y = o.tensor(1, broadcasts_with(o[x], floating))
    return o.choose(
        0, [f"torch.where({x} > 0, {x}, {y})", f"torch.where({x} > {y}, {x}, 0.5)", f"torch.lerp({x}, {x}, 0.3)"]
    )


# Views.


@operator(4)
def transpose(o: Picker) -> str:
    x = o.tensor(0, of_rank(2))
    dims = ", ".join(str(dim) for dim in reversed(range(o[x].dim())))
    return o.choose(
        0,
        [
            f"{x}.transpose({o.dim(1, x)}, {o.dim(2, x)})",
            f"{x}.mT",
            f"{x}.permute({dims})",
            f"{x}.t()" if o[x].dim() == 2 else f"{x}.movedim(0, -1)",
        ],
    )


@operator(5)
def select(o: Picker) -> str:
    x = o.tensor(0, filled(1))
    dim = o.dim(0, x)
    index = o.number(1, o[x].shape[dim])
    return o.choose(2, [f"{x}[{o.number(1, o[x].shape[0])}]", f"{x}.select({dim}, {index})", f"{x}[..., -1]"])


@operator(5)
def window(o: Picker) -> str:
    x = o.tensor(0, of_rank(1))
    dim = o.dim(0, x)
    start = o.number(1, max(o[x].shape[dim], 1))
    length = o[x].shape[dim] - start
    return o.choose(
        2,
        [f"{x}[1:]", f"{x}.narrow({dim}, {start}, {max(length, 0)})", f"{x}[..., ::2]", f"{x}[:-1]", f"{x}[..., 1:3]"],
    )


@operator(2)
def unfold(o: Picker) -> str:
    x = o.tensor(0, filled(1))
    dim = o.dim(0, x)
    size = 1 + o.number(1, o[x].shape[dim])
    return f"{x}.unfold({dim}, {size}, {1 + o.number(2, 2)})"


@operator(2)
def diagonal(o: Picker) -> str:
    return f"{o.tensor(0, of_rank(2))}.diagonal({o.choose(0, ['', '1', '-1', '0, -1, -2'])})"


@operator(2)
def expand(o: Picker) -> str:
    x = o.tensor(0, lambda x: x.dim() < 4)
    shape = ", ".join(str(3 if size == 1 else size) for size in o[x].shape)
    return o.choose(0, [f"{x}.expand(2, {shape})" if shape else f"{x}.expand(2)", f"{x}[None].expand_as({x}[None])"])


@operator(4)
def reshape(o: Picker) -> str:
    x = o.tensor(0)
    choices = [f"{x}.reshape(-1)", f"{x}.view(-1)", f"{x}.flatten()", f"{x}.view_as({x})", f"{x}.ravel()"]
    if o[x].numel() and o[x].numel() % 2 == 0:
        choices += [f"{x}.view(2, -1)", f"{x}.reshape(-1, 2)", f"{x}.view(-1, 1, 2)"]
    if o[x].dim() and o[x].shape[0] == 4:
        choices.append(f"{x}.unflatten(0, (2, 2))")
    return o.choose(0, choices)


@operator(2)
def squeeze(o: Picker) -> str:
    x = o.tensor(0, lambda x: x.dim() < 4)
    return o.choose(0, [f"{x}.unsqueeze(0)", f"{x}.squeeze()", f"{x}[..., None]", f"{x}[...]", f"{x}.unsqueeze(-1)"])


@operator(3)
def parts(o: Picker) -> Line:
    x = o.tensor(0, filled(1))
    size = o[x].shape[0]
    if o.number(0, 3) == 0:
        return Line(f"{x}.unbind({o.dim(1, x)})", o[x].shape[o.dim(1, x)], is_tuple=True)
    if o.number(0, 3) == 1:
        return Line(f"{x}.split({[1, size - 1] if size > 1 else [1]})", min(size, 2), is_tuple=True)
    return Line(f"{x}.chunk(2, {o.dim(1, x)})", min(2, o[x].shape[o.dim(1, x)]), is_tuple=True)


@operator(2)
def as_strided(o: Picker) -> str:
    # A window of what the operand can reach, overlapping itself or not.
    x = o.tensor(0, lambda x: x.numel() >= 4 and x.is_contiguous())
    return o.choose(
        0, [f"{x}.as_strided((2, 2), (2, 1))", f"{x}.as_strided((2, 3), (1, 1))", f"{x}.as_strided((2,), (2,))"]
    )


@operator(2)
def complex_view(o: Picker) -> str:
    x = o.tensor(0, lambda x: x.is_complex() or (x.dim() > 0 and x.shape[-1] == 2 and x.dtype is torch.float32))
    if not o[x].is_complex():
        return f"torch.view_as_complex({x})"
    return o.choose(0, [f"torch.view_as_real({x})", f"{x}.real", f"{x}.imag", f"{x}.conj()"])


@operator(4)
def detach(o: Picker) -> str:
    return f"{o.tensor(0)}.detach()"


@operator(1)
def other_dtype(o: Picker) -> str:
    return f"{o.tensor(0, lambda x: x.dtype is torch.float32)}.view(torch.int32)"


# Reductions and products. `prod` is left out: which formula PyTorch's gradient uses depends on the zeros in the data.


@operator(6)
def reduction(o: Picker) -> str:
    x = o.tensor(0, floating)
    if o[x].dim() == 0 or o[x].numel() == 0:
        return f"{x}.sum()"
    dim = o.dim(1, x)
    return o.choose(
        0,
        [
            f"{x}.sum()",
            f"{x}.mean({dim})",
            f"{x}.sum({dim}, keepdim=True)",
            f"{x}.amax({dim})",
            f"{x}.cumsum({dim})",
            f"{x}.softmax({dim})",
            f"{x}.logsumexp({dim})",
            f"{x}.var({dim}, correction=0)",
            f"{x}.argmax({dim})",
            f"({x} > 0).any({dim})",
            f"{x}.norm()",
            f"torch.nn.functional.layer_norm({x}, {x}.shape[-1:])",
        ],
    )


@operator(2)
def ordered(o: Picker) -> Line:
    x = o.tensor(0, filled(1, floating))
    dim = o.dim(1, x)
    return Line(
        o.choose(0, [f"{x}.max({dim})", f"{x}.sort({dim})", f"{x}.topk(1, {dim})", f"{x}.cummax({dim})"]),
        2,
        is_tuple=True,
    )


@operator(5)
def product(o: Picker) -> str:
    x = o.tensor(0, of_rank(2, inexact))
    left = o[x]
    y = o.tensor(
        1, lambda y: y.dtype == left.dtype and y.dim() in (1, 2) and y.shape[0] == left.shape[-1], or_none=True
    )
    if y is None or o.number(1, 3) == 0:
        return f"{x} @ {x}.mT"
    if o[y].dim() == 2 and left.dim() == 2:
        shape = (left.shape[0], o[y].shape[1])
        z = o.tensor(2, lambda z: z.dtype == left.dtype and broadcasts_to(shape, left.dtype)(z), or_none=True)
        if z is not None and o.number(0, 2):
            return f"torch.addmm({z}, {x}, {y}, beta=0.5)"
    return f"{x} @ {y}"


@operator(1)
def batched_product(o: Picker) -> str:
    x = o.tensor(0, lambda x: x.dim() == 3 and inexact(x))
    return o.choose(0, [f"torch.bmm({x}, {x}.mT)", f"torch.einsum('bij,bkj->bik', {x}, {x})"])


# Indexing.


@operator(4)
def indexed(o: Picker) -> str:
    x = o.tensor(0, filled(1))
    if o.number(0, 4) == 3:
        # An index that itself comes out of the program.
        index = o.tensor(1, lambda i: i.dtype is torch.int64 and i.dim() <= 1, or_none=True)
        if index is not None:
            return f"{x}[{index} % {o[x].shape[0]}]"
    return o.choose(
        0,
        [
            f"{x}[torch.tensor([0, -1])]",
            f"{x}.index_select({o.dim(1, x)}, torch.tensor([0, 0]))",
            f"{x}[..., torch.tensor([0, -1])]",
            f"{x}[None, 0]",
            f"{x}.gather(0, torch.zeros_like({x}, dtype=torch.int64))",
            f"{x}.flip(0)",
            f"{x}.take(torch.tensor([0, 0]))",
            f"{x}.roll(1, {o.dim(1, x)})",
        ],
    )


@operator(3)
def functional_write(o: Picker) -> str:
    x = o.tensor(0, filled(1, floating))
    zeros = "torch.zeros_like({x}, dtype=torch.int64)".replace("{x}", x)
    return o.choose(
        0,
        [
            f"{x}.masked_fill({x} > 0, {o.scalar(1)})",
            f"{x}.index_put((torch.tensor([0, 0]),), {x}[-1], accumulate=True)",
            f"{x}.index_fill(0, torch.tensor([0]), 0.5)",
            f"{x}.scatter(0, {zeros}, 0.5)",
            f"{x}.scatter_add(0, {zeros}, {x})",
            f"{x}.index_add(0, torch.tensor([0]), {x}[-1:])",
            f"{x}.select_scatter({x}[0], 0, -1)",
        ],
    )


@operator(3)
def joined(o: Picker) -> str:
    x = o.tensor(0)
    y = o.tensor(1, lambda y: y.shape == o[x].shape)
    joiner = "stack" if o[x].dim() == 0 else o.choose(0, ["cat", "stack"])
    return f"torch.{joiner}([{x}, {y}])"


# Writes: on intermediates, on arguments and on views of either, as the operand happens to be.


def written(o: Picker) -> str:
    """The target of a write: arguments and views more often than chance."""
    preferred: list[Fits] = [anything, lambda x: x._is_view(), o.is_argument, lambda x: x.dim() == 0]
    fits = preferred[(0, 0, 1, 1, 1, 2, 2, 3)[o.number(2, 8)]]
    return o.tensor(0, fits, or_none=True) or o.tensor(0)


@operator(9)
def in_place(o: Picker) -> Line:
    x = written(o)
    if boolean(o[x]):
        return Line(o.choose(0, [f"{x}.logical_not_()", f"{x}.fill_(True)"]), 0)
    if not floating(o[x]):
        return Line(o.choose(0, [f"{x}.mul_(2)", f"{x}.zero_()", f"{x}.add_(1)"]), 0)
    y = o.tensor(1, broadcasts_to(o[x].shape, o[x].dtype))
    choices = [
        f"{x}.mul_({o.scalar(1)})",
        f"{x}.add_({y})",
        f"{x}.add_(1)",
        f"{x}.sin_()",
        f"{x}.copy_({y})",
        f"{x}.zero_()",
        f"{x}.mul_({y})",
        f"{x}.clamp_(-0.5, 0.5)",
        f"{x}.masked_fill_({x} > 0, 0.5)",
        f"{x}.relu_()",
        f"{x}.sub_({y}, alpha=0.5)",
    ]
    return Line(o.choose(0, choices), 0)


@operator(5)
def set_item(o: Picker) -> Line:
    x = o.tensor(0, filled(1, numeric))
    y = o.tensor(1, broadcasts_to(o[x].shape[1:], o[x].dtype), or_none=True) or "0"
    return Line(
        o.choose(
            0,
            [
                f"{x}[0] = {y}",
                f"{x}[1:] = {o.scalar(1)}",
                f"{x}[..., -1] *= 2",
                f"{x}[0] += {y}",
                f"{x}[{x} != 0] = 2",
                f"{x}[torch.tensor([0, -1])] = {y}",
                f"{x}[torch.tensor([0])] += 1",
                f"{x}.index_put_((torch.tensor([0, 0]),), {x}[-1].clone(), accumulate=True)",
                f"{x}.diagonal().fill_(2)",
            ],
        ),
        0,
    )


@operator(3)
def unseen_write(o: Picker) -> Line:
    x = written(o)
    if not inexact(o[x]):
        return Line(f"{x}.detach().fill_(1)", 0)
    return Line(o.choose(0, [f"{x}.detach().add_(1)", f"{x}.detach().mul_({o.scalar(1)})", f"{x}.detach().zero_()"]), 0)


@operator(1)
def in_place_result(o: Picker) -> str:
    # The result of an in-place call is its target, not a new tensor.
    return f"{o.tensor(0, inexact)}.mul_(0.5)"


@operator(1)
def into_out(o: Picker) -> Line:
    x = o.tensor(0, floating)
    z = o.tensor(1, lambda z: z.shape == o[x].shape and z.dtype == o[x].dtype)
    return Line(f"torch.mul({x}, 2, out={z})", 0)


@operator(1)
def metadata_write(o: Picker) -> Line:
    x = o.tensor(0, of_rank(2))
    return Line(o.choose(0, [f"{x}.t_()", f"{x}.unsqueeze_(0)", f"{x}.squeeze_()", f"{x}.transpose_(0, -1)"]), 0)


# Random draws.


@operator(4)
def draw(o: Picker) -> str:
    x = o.tensor(0, floating)
    return o.choose(
        0,
        [
            f"torch.nn.functional.dropout({x}, 0.3)",
            f"torch.rand_like({x})",
            f"{x} * torch.randn({list(o[x].shape)}, dtype={x}.dtype)",
            f"torch.bernoulli({x}.sigmoid())",
            "torch.randint(0, 2, (3,))",
            "torch.randperm(3)",
            f"torch.nn.functional.dropout({x}, 0.3, training=False)",
        ],
    )


@operator(1)
def draw_in_place(o: Picker) -> Line:
    x = written(o)
    if not floating(o[x]):
        return Line(f"{x}.random_(0, 2)", 0)
    return Line(
        o.choose(
            0, [f"{x}.uniform_()", f"{x}.bernoulli_(0.5)", f"torch.nn.functional.dropout({x}, 0.3, inplace=True)"]
        ),
        0,
    )


# Custom autograd functions; `tests.fuzz.functions` has them.


@operator(5)
def custom_function(o: Picker) -> Line:
    x = o.tensor(0, floating)
    y = o.tensor(1, lambda y: y.shape == o[x].shape and y.dtype == o[x].dtype)
    lines: Sequence[Line] = [
        Line(f"Cubed.apply({x})"),
        Line(f"SinAndCos.apply({x})", 2, is_tuple=True),
        Line(f"ReluAndMask.apply({x})", 2, is_tuple=True),
        Line(f"Weighted.apply({x}, {y}, {o.scalar(1)})"),
        Line(f"ScaledInPlace.apply({x}, 0.5)"),
        Line(f"Swapped.apply({x})"),
    ]
    return lines[o.number(0, len(lines))]


# Python numbers that decide.


@operator(3)
def branch(o: Picker) -> str:
    x = o.tensor(0, numeric)
    y = o.tensor(1)
    condition = o.choose(
        0,
        [
            f"{o.scalar(2)} > 1",
            f"{y}.dim() > 1",
            f"{y}.requires_grad",
            f"{y}.is_contiguous()",
            f"{y}.numel() > 4",
            f"{y} is {x}",
            f"{y}.is_leaf",
            f"{y}.stride() == {x}.stride()",
        ],
    )
    return f"{x} * 2 if {condition} else {x} + 1"

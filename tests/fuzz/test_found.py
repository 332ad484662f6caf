"""Programs that the fuzzer found to differ from eager, made small."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from tests.falling_back import fallback_told, falls_back
from tests.fuzz.compare import Outcome, Script, judge
from tests.fuzz.functions import Cubed, ReluAndMask, Rounded, ScaledInPlace, SinAndCos, Swapped, Weighted
from tests.fuzz.programs import Write

Arguments = tuple[list[Any], list[Tensor]]


def non_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4).requires_grad_()
    return [leaf * 1], [leaf]


def rows_of_a_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 4).requires_grad_()
    return [leaf[1:]], [leaf]


def complex_plain() -> Arguments:
    torch.manual_seed(7)
    return [torch.randn(4, dtype=torch.complex64)], []


def booleans() -> Arguments:
    torch.manual_seed(7)
    return [torch.randint(0, 2, (3, 4), dtype=torch.bool)], []


def empty_view_of_a_leaf_that_is_a_view() -> Arguments:
    leaf = torch.zeros(1)[1:].requires_grad_()
    return [leaf, leaf.view_as(leaf)], [leaf]


def result_written_to_through_a_view(x: Tensor) -> Any:
    y = Cubed.apply(x)  # type: ignore[no-untyped-call]
    y.diagonal(1).zero_()
    return y * 2


def one_of_two_results_written_to_through_a_view(x: Tensor) -> Any:
    sin, cos = SinAndCos.apply(x * 1)  # type: ignore[no-untyped-call]
    cos.diagonal(1).zero_()
    return sin * cos


def result_written_to_through_views_and_by_itself(x: Tensor) -> Any:
    y = Cubed.apply(x)  # type: ignore[no-untyped-call]
    view = y.mT[1:]
    view.mul_(2)
    y.mul_(3)
    view.add_(x.mT[1:])
    return view, y


def view_of_a_view_after_a_write(x: Tensor) -> Any:
    x.mul_(0.5)
    rows = x[1:]
    return rows @ rows.mT


def base_written_to_through_a_conjugate(x: Tensor) -> Any:
    parts = torch.view_as_real(x)
    x.conj().mul_(2)
    return parts * 2


def one_view_of_a_reshaped_input_twice(x: Tensor) -> Any:
    x.t_()
    view = x[...]
    return view, view


def empty_view_written_to(x: Tensor, view: Tensor) -> Any:
    with torch.no_grad():
        return view.mul_(0.5)


def saved_part_of_a_split_overwritten(x: Tensor) -> Any:
    part, _ = x.split([1, 2])
    y = part @ part.mT
    x.detach().mul_(2)
    return y


def view_used_after_its_base_was_reshaped(x: Tensor) -> Any:
    view = x.view(-1, 2)
    x.transpose_(0, -1)
    return view.mT.exp()


def view_by_a_function_of_an_input_written_to(x: Tensor) -> Any:
    x.mul_(2)
    return Swapped.apply(x)  # type: ignore[no-untyped-call]


def input_reshaped_and_then_saved(x: Tensor) -> Any:
    x.t_()
    return x.sin()


def plain_and_leaf() -> Arguments:
    torch.manual_seed(7)
    plain, leaf = torch.randn(3, 1), torch.randn(3, 1).requires_grad_()
    return [plain, leaf], [leaf]


def saved_view_of_no_grad_whose_base_is_overwritten(plain: Tensor, leaf: Tensor) -> Any:
    with torch.no_grad():
        view = plain.transpose(0, 1)
    y = torch.maximum(view, leaf)
    plain.add_(leaf)
    return y


def two_views_of_one() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 4, 3).requires_grad_()
    view = (leaf * 1).mT
    return [view, view.mT], [leaf]


def input_beside_one_that_is_reshaped(x: Tensor, y: Tensor) -> Any:
    y.unsqueeze_(0)
    return x.sin()


def detached_view_by_a_function_of_an_input_written_to(x: Tensor) -> Any:
    view = Swapped.apply(x)  # type: ignore[no-untyped-call]
    x.mul_(2)
    return view.detach()


def every_other_column() -> Arguments:
    torch.manual_seed(7)
    return [torch.randn(3, 3)[..., 1::2]], []


def view_of_an_input_reshaped_and_written_to(x: Tensor) -> Any:
    x.t_()
    x.mul_(2)
    return x.unsqueeze(0)


def leaf_that_is_a_view() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 3).mT.requires_grad_()
    return [leaf], [leaf]


def leaf_that_is_a_view_marked_dirty_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        return ScaledInPlace.apply(x, 0.5)  # type: ignore[no-untyped-call]


def low_and_wide() -> Arguments:
    torch.manual_seed(7)
    low, wide = torch.randn(3, 4).bfloat16().requires_grad_(), torch.randn(3, 1).requires_grad_()
    return [low * 1, wide], [low, wide]


def wide_operands_of_in_place_calls(low: Tensor, wide: Tensor) -> Any:
    low.mul_(wide)
    low[1:].add_(wide[0])
    low.mT.atan2_(wide[0]).xlogy_(wide[1])
    low[0] = wide[2]
    low *= wide
    return low


def written_to_where_autograd_sees_it_and_then_where_not(x: Tensor, view: Tensor) -> Any:
    view.mul_(3)
    view.detach().mul_(2)
    return x * x


def one_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4).requires_grad_()
    return [leaf], [leaf]


def results_in_memory_that_a_composite_hides(x: Tensor) -> Any:
    made = torch.einsum("ij,kj->ik", x, x)
    return made[1:], made, made


def expanded_complex_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(1, 1, 4, dtype=torch.complex64).requires_grad_()
    return [leaf], [leaf]


def product_with_a_conjugate_that_repeats(x: Tensor) -> Any:
    v = x.expand(2, 3, 4)
    return v.conj() * v


def non_leaf_and_a_view() -> Arguments:
    (x,), leaves = non_leaf()
    return [x, x.view_as(x)], leaves


def view_of_what_was_written_to_and_then_reshaped(x: Tensor) -> Any:
    y = x.detach().sin()
    y[..., -1] *= 2
    row = y.unbind(0)[0]
    y.t_()
    return row.unbind(0)[3]


def alias_of_an_input_reshaped(x: Tensor) -> Any:
    x.transpose_(0, 1)
    return x.detach()


def view_of_an_alias_of_an_input_reshaped(x: Tensor) -> Any:
    x.transpose_(0, 1)
    return x.detach()[1:]


def leaf_and_a_view() -> Arguments:
    (leaf,), leaves = one_leaf()
    return [leaf, leaf.view_as(leaf)], leaves


def view_of_a_leaf_squeezed_to_no_effect(x: Tensor, view: Tensor) -> Any:
    view[1:].squeeze_()
    return x * 2


def non_leaf_by_columns() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 3).mT.clone().requires_grad_()
    return [leaf * 1], [leaf]


def view_made_after_a_write_and_written_to(x: Tensor) -> Any:
    x.uniform_()
    row = x[0]
    row[0] = 0
    return row.sin()


def view_of_what_was_reshaped_and_then_written_to(x: Tensor) -> Any:
    y = x.detach().sin()
    y.transpose_(0, -1)
    y.mul_(0.5)
    return y.transpose(0, -1)


def detached_twice() -> Arguments:
    torch.manual_seed(7)
    x = torch.randn(2, 3, 4)
    return [x, x.detach()], []


def view_of_one_of_two_bases_reshaped(x: Tensor, other: Tensor) -> Any:
    other.mul_(2)
    x.transpose_(0, 1)
    return x[1:]


def view_written_to_by_a_function_under_no_grad(x: Tensor) -> Any:
    view = x.view_as(x)
    with torch.no_grad():
        ScaledInPlace.apply(view, 0.5)  # type: ignore[no-untyped-call]
    x.mul_(view)


def low_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 3, 4, dtype=torch.bfloat16).requires_grad_()
    return [leaf], [leaf]


def views_of_what_a_function_returns(x: Tensor) -> Any:
    y = Cubed.apply(x)  # type: ignore[no-untyped-call]
    rows = y[None].expand_as(y[None])
    return rows @ rows.mT


def view_of_no_grad_of_an_input_reshaped(x: Tensor) -> Any:
    x.t_()
    with torch.no_grad():
        return x.transpose(0, 1)


def channels_last_and_a_part() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last).requires_grad_()
    return [leaf, leaf[1:]], [leaf]


def part_of_a_leaf_in_channels_last_written_to(x: Tensor, part: Tensor) -> Any:
    result = part.contiguous()
    part.detach().add_(1)
    return result


def view_written_to_of_a_leaf_that_is_a_view(x: Tensor) -> Any:
    view = x[None]
    with torch.no_grad():
        view.mul_(2)
    return view


def view_added_to_itself(x: Tensor) -> Any:
    y = x.sin()
    view = y[None]
    total = view.sum()
    view.add_(view)
    return total.sin(), y


def square_leaf_and_its_transpose() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 4).requires_grad_()
    return [leaf, leaf.mT], [leaf]


def view_reshaped_under_no_grad(x: Tensor, view: Tensor) -> Any:
    with torch.no_grad():
        view.t_()
    return view.sin()


def cube_and_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4).requires_grad_()
    return [torch.randn(2, 3, 4), leaf], [leaf]


def two_rows_each() -> Arguments:
    leaf = torch.randn(4, 4).requires_grad_()
    base = leaf * 1
    return [base[:2], base[2:]], [leaf]


def rows_and_nothing() -> Arguments:
    leaf = torch.randn(4, 4).requires_grad_()
    base = leaf * 1
    return [base[:2], base[4:]], [leaf]


def complex_columns() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
    return [leaf.t() * 1], [leaf]


def view_that_no_grad_reads_first_after_a_write(x: Tensor, y: Tensor) -> Any:
    part = x[0]
    x.add_(y)
    with torch.no_grad():
        part.mul(2)
    return part * 3


def tensor_reshaped_after_views_of_it_were_made(x: Tensor) -> Any:
    y = x.sin()
    part = y.diagonal()
    y.unsqueeze_(0)
    return y, part, y[0], y.detach()


def write_beside_a_view_of_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        part = x[0]
    y.detach().add_(1)
    return part * 2


def write_to_nothing_beside_a_view_of_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        part = x[0]
    y.add_(1)
    return part * 2


def real_part_of_columns_written_to(x: Tensor) -> Any:
    x.real.mul_(2)
    return x * 3


def conjugate_of_columns_written_to(x: Tensor) -> Any:
    x.conj().mul_(2)
    return x * 3


def scattered_copy_written_to(x: Tensor, y: Tensor) -> Any:
    rows = torch.select_scatter(x[1:], y.expand(3, 4), 0, 0)
    return rows.mul_(2)


def pairs_as_complex_numbers_written_to(x: Tensor) -> Any:
    part = torch.view_as_complex(x)[1:]
    part.mul_(2j)
    return part.sin()


def conjugate_of_pairs_written_to(x: Tensor) -> Any:
    y = x * 2
    torch.view_as_complex(y[1:]).conj().mul_(2j)
    return y


def pairs() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4, 2).requires_grad_()
    return [leaf * 1], [leaf]


def scattered_copy_of_one_written_to(x: Tensor) -> Any:
    part = x[2:].flatten().narrow(0, 3, 1).reshape(-1)
    return part.select_scatter(part[0], 0, -1).mul_(2)


def conjugate_of_columns_copied_and_written_to(x: Tensor) -> Any:
    return x.conj().reshape(-1).sin_()


def input_turned_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.transpose_(0, 1)
    return x * 3


def square_rows_of_a_non_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 3).requires_grad_()
    return [(leaf * 1)[1:]], [leaf]


def one_of_several_views_beside_its_base(x: Tensor, view: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x * 2


def non_leaf_and_one_of_several_views() -> Arguments:
    (x,), leaves = non_leaf()
    return [x, x.chunk(3)[1]], leaves


def view_by_a_function_of_a_leaf_that_is_a_view(x: Tensor) -> Any:
    view = Swapped.apply(x)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return view[0]


def view_written_to_by_a_function_of_a_leaf_that_is_a_view(x: Tensor) -> Any:
    with torch.no_grad():
        first, _ = x.split([1, 2])
    return ScaledInPlace.apply(first.diagonal(), 0.5)  # type: ignore[no-untyped-call]


def transposed_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 3).mT.requires_grad_()
    return [leaf], [leaf]


def alias_and_input_overwritten(x: Tensor) -> Any:
    part = x[1:]
    x.detach().zero_()
    x.mul_(2)
    return part * 2


def steps_of_a_non_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 9).requires_grad_()
    return [(leaf * 1)[..., 1::2]], [leaf]


def one_of_several_views_of_an_input_reshaped(x: Tensor) -> Any:
    x.transpose_(0, -1)
    return x.unbind(0)[0]


def view_that_eager_refuses(x: Tensor) -> Any:
    x.mT.unsqueeze(1).view(-1)
    return x * 2


def view_of_all_read_and_multiplied_by_itself(x: Tensor) -> Any:
    view = x.mT
    y = view.sin()
    view.mul_(view)
    return y


def strides_of_what_is_put(x: Tensor) -> Any:
    column = x[:, -1:].unfold(0, 1, 1)[0, 0]
    put = column.index_put((torch.tensor([0]),), column[-1], accumulate=True)
    return column * 2 if put.stride() == column.stride() else column + 1


def view_of_a_detached_argument_reshaped(x: Tensor, detached: Tensor) -> Any:
    view = detached[1:]
    detached.transpose_(0, -1)
    x.detach().mul_(2)
    return view.unfold(0, 1, 2)


def leaf_and_detached() -> Arguments:
    (x,), leaves = one_leaf()
    return [x, x.detach()], leaves


def written_to_beside_a_view_of_a_leaf_that_is_a_view(x: Tensor, beside: Tensor) -> Any:
    view = x.view(3, 1)
    beside.zero_()
    return view * 2


def halves_one_of_them_a_leaf() -> Arguments:
    torch.manual_seed(7)
    base = torch.randn(6)
    leaf = base[:3].requires_grad_()
    return [leaf, base[3:]], [leaf]


def view_of_a_leaf_that_is_a_view_marked_dirty_under_no_grad(x: Tensor) -> Any:
    view = x[:1]
    with torch.no_grad():
        ScaledInPlace.apply(view, 0.5)  # type: ignore[no-untyped-call]
    return view * 2


def view_by_a_function_of_an_input_reshaped(x: Tensor) -> Any:
    x.t_()
    return Swapped.apply(x)[0]  # type: ignore[no-untyped-call]


def transposed_before_another_part_is_written_to(x: Tensor, beside: Tensor) -> Any:
    y = x.view(1, 3).mT * 2
    beside.zero_()
    return y


def product_of_a_view_that_no_grad_wrote_to(x: Tensor) -> Any:
    with torch.no_grad():
        part = x[:2]
        part.relu_()
        view = part.unsqueeze(0)
    return view @ view.mT


def row_of_columns() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(1, 3).mT.requires_grad_()
    return [leaf], [leaf]


def strides_of_relu(x: Tensor) -> Any:
    return x * 2 if x.relu().stride() == x.stride() else x + 1


def every_other_column_but_the_first() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 9)[:, 1::2].requires_grad_()
    return [leaf], [leaf]


def scattered_into_what_was_written_to(x: Tensor) -> Any:
    x.detach().add_(1)
    x.detach().mul_(2)
    return x.select_scatter(x[0], 0, -1), x[1:].slice_scatter(x[:1], 0, 0, 1)


def every_other_column_but_the_first_of_a_constant() -> Arguments:
    torch.manual_seed(7)
    return [torch.randn(3, 9)[:, 1::2]], []


def scattered_into_what_was_multiplied(x: Tensor) -> Any:
    x.mul_(2)
    return x.select_scatter(x[0], 0, -1)


def non_leaf_in_other_strides() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 4, 3).mT.clone().requires_grad_()
    return [leaf * 1], [leaf]


def view_marked_dirty(x: Tensor) -> Any:
    ScaledInPlace.apply(x.movedim(0, -1), 0.5)  # type: ignore[no-untyped-call]


def part_marked_dirty(x: Tensor) -> Any:
    part = x[1:]
    scaled = ScaledInPlace.apply(part, 0.5)  # type: ignore[no-untyped-call]
    return scaled * x[1:], part.sin()


def nothing_as_pairs() -> Arguments:
    leaf = torch.zeros(0, 4, dtype=torch.complex64).requires_grad_()
    return [leaf, torch.view_as_real(leaf)], [leaf]


def pairs_written_to_through_a_function(x: Tensor, pairs: Tensor) -> Any:
    view = Swapped.apply(pairs)  # type: ignore[no-untyped-call]
    sin = view.sin()
    view.detach().add_(1)
    return sin


def part_of_a_view_written_to(x: Tensor) -> Any:
    view = x[:2]
    view[0] = 0
    view.mul_(-1.5)
    x.clamp_(-0.5, 0.5)


def part_of_a_part_of_a_view_written_to(x: Tensor) -> Any:
    view = x.mT[1:]
    part = view[:, 1:]
    part[0].mul_(-2)
    part.mul_(-1.5)
    view[0, 0] = 0
    x.clamp_(-0.5, 0.5)
    return part * 2


def detached_copy_of_a_row_written_to(x: Tensor) -> Any:
    row = x[2].select_scatter(x[2, 0], 0, -1).detach()
    row[torch.tensor([0, -1])] = 0
    return row


def rolled_and_dropped_out(x: Tensor) -> Any:
    rolled = x.roll(1, 0)
    return torch.nn.functional.dropout(rolled, 0.3)


def channels_last() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 3, 2, 2).requires_grad_()
    return [leaf.to(memory_format=torch.channels_last)], [leaf]


def conjugate_of_two_that_are_one(x: Tensor) -> Any:
    difference = x - torch.view_as_complex(x[:2, 0].sin())
    return torch.cat([difference, difference]).conj()


def part_of_a_leaf_that_is_a_view() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4)[1:].requires_grad_()
    return [leaf.mT], [leaf]


def used_after_a_write_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(0.5)
    return x.sin()


def written_to_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(0.5)
        x.add_(0.5)
    return x


def half_and_view_of_a_leaf_that_is_the_other() -> Arguments:
    torch.manual_seed(7)
    memory = torch.randn(4)
    leaf = memory[2:].requires_grad_()
    return [memory[:2], leaf.view_as(leaf)], [leaf]


def used_after_the_other_half_was_written_to(half: Tensor, other: Tensor) -> Any:
    half.mul_(2)
    return other.sin()


def written_to_through_the_leaf(leaf: Tensor, view: Tensor) -> Any:
    leaf.detach().add_(1)
    return view.sin()


def part_of_what_was_reshaped_in_place_written_to(x: Tensor) -> Any:
    view = x[1:]
    view.unsqueeze_(0)
    part = view[..., -1]
    part.mul_(2)
    return part


def view_reshaped_in_place_and_saved(x: Tensor) -> Any:
    view = x.sin()[None]
    view.transpose_(0, 1)
    return view, torch.bmm(view, view.mT)


def expanded_to_its_own_size_and_marked_dirty(x: Tensor) -> Any:
    rows = (x * 0.7).clamp(min=0).neg()
    return ScaledInPlace.apply(rows.expand_as(rows), 0.3), rows  # type: ignore[no-untyped-call]


def view_that_no_grad_makes_after_a_write_multiplied_by_itself(x: Tensor) -> Any:
    y = x * 2
    view = y[None]
    y.mul_(2)
    with torch.no_grad():
        part = view[..., ::2]
    return part @ part.mT


def view_by_functions_of_a_leaf_that_is_a_view(x: Tensor) -> Any:
    return Swapped.apply(Swapped.apply(x))  # type: ignore[no-untyped-call]


def pairs_of_a_non_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, dtype=torch.complex64).requires_grad_()
    return [torch.view_as_real(leaf * 1)], [leaf]


def written_to_and_transposed(pairs: Tensor) -> Any:
    pairs.mul_(2)
    pairs.t_()
    return pairs


def transposed_leaf_and_part() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(2, 4, 3).mT.requires_grad_()
    return [leaf, leaf[1:]], [leaf]


def read_after_a_view_was_transposed_under_no_grad(x: Tensor, part: Tensor) -> Any:
    with torch.no_grad():
        row = part[0]
    row.t_()
    return part.sum()


def transposed_leaf_and_rows() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 4).mT.detach().requires_grad_()
    return [leaf, leaf[1:]], [leaf]


def rows_written_to_under_no_grad(x: Tensor, rows: Tensor) -> Any:
    y = x * 1
    with torch.no_grad():
        rows.copy_(rows * 0.9)
    return y


def variable_of_a_checkpoint_assigned_again(x: Tensor) -> Any:
    scale = x * 2
    y = checkpoint(lambda v: v.sin() * scale, x, use_reentrant=False)
    scale = x * 3
    return y


def variable_of_a_checkpoint_written_to(x: Tensor) -> Any:
    moment = x.detach().clone()
    y = checkpoint(lambda v: v.sin() * moment, x, use_reentrant=False)
    moment.mul_(2)
    return y


def sum_of_the_gradient_of_rows_written_to(x: Tensor) -> Any:
    y = x.detach() - x.norm()
    y[1:] += 0.5
    return y


def reshaped_by_its_data(x: Tensor) -> None:
    x.data.squeeze_()


def its_data_written_to_after_the_call(x: Tensor) -> Any:
    return x.data.mul_(2), x.data[1:]


def rows_that_attend_in_bfloat16(x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = torch.zeros_like(x)
        for row in range(len(x)):
            y[row] = x[row] * row
        return torch.nn.functional.scaled_dot_product_attention(y[None], y[None], y[None], is_causal=True)


def row_of_its_data_written_to_by_what_requires_grad(x: Tensor, scale: Tensor) -> Any:
    data = x.data
    data.select(0, 0).mul_(scale)
    return data + data


def columns_of_a_transposed_value_parted_and_written_to(x: Tensor) -> Any:
    parts = torch.nn.functional.gelu(x).view(len(x), 2, 2)
    parts.masked_fill_(parts > 1, 0)
    return parts


def transposed_wide_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4, 64, dtype=torch.float64).mT.detach().requires_grad_()
    return [leaf], [leaf]


def leaf_and_number() -> Arguments:
    torch.manual_seed(7)
    leaves = [torch.randn(3, 4).requires_grad_(), torch.randn(()).requires_grad_()]
    return leaves, leaves


def square_leaf() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(16, 16).requires_grad_()
    return [leaf], [leaf]


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], Arguments]]] = [
    (result_written_to_through_a_view, non_leaf),
    (one_of_two_results_written_to_through_a_view, non_leaf),
    (result_written_to_through_views_and_by_itself, non_leaf),
    (view_of_a_view_after_a_write, non_leaf),
    (base_written_to_through_a_conjugate, complex_plain),
    (one_view_of_a_reshaped_input_twice, booleans),
    (empty_view_written_to, empty_view_of_a_leaf_that_is_a_view),
    (saved_part_of_a_split_overwritten, rows_of_a_leaf),
    (wide_operands_of_in_place_calls, low_and_wide),
    (view_by_a_function_of_an_input_written_to, non_leaf),
    (input_reshaped_and_then_saved, non_leaf),
    (saved_view_of_no_grad_whose_base_is_overwritten, plain_and_leaf),
    (leaf_that_is_a_view_marked_dirty_under_no_grad, leaf_that_is_a_view),
    (input_beside_one_that_is_reshaped, two_views_of_one),
    (detached_view_by_a_function_of_an_input_written_to, non_leaf),
    (view_of_an_input_reshaped_and_written_to, every_other_column),
    (view_used_after_its_base_was_reshaped, non_leaf),
    (written_to_where_autograd_sees_it_and_then_where_not, non_leaf_and_a_view),
    (view_of_what_was_written_to_and_then_reshaped, one_leaf),
    (alias_of_an_input_reshaped, non_leaf),
    (view_of_an_alias_of_an_input_reshaped, non_leaf),
    (view_of_a_leaf_squeezed_to_no_effect, leaf_and_a_view),
    (view_made_after_a_write_and_written_to, non_leaf_by_columns),
    (view_of_what_was_reshaped_and_then_written_to, one_leaf),
    (view_of_one_of_two_bases_reshaped, detached_twice),
    (view_written_to_by_a_function_under_no_grad, non_leaf),
    (views_of_what_a_function_returns, low_leaf),
    (view_of_no_grad_of_an_input_reshaped, non_leaf),
    (part_of_a_leaf_in_channels_last_written_to, channels_last_and_a_part),
    (view_written_to_of_a_leaf_that_is_a_view, leaf_that_is_a_view),
    (view_added_to_itself, one_leaf),
    (view_reshaped_under_no_grad, square_leaf_and_its_transpose),
    (results_in_memory_that_a_composite_hides, one_leaf),
    (product_with_a_conjugate_that_repeats, expanded_complex_leaf),
    (view_that_no_grad_reads_first_after_a_write, cube_and_leaf),
    (tensor_reshaped_after_views_of_it_were_made, one_leaf),
    (write_beside_a_view_of_no_grad, two_rows_each),
    (write_to_nothing_beside_a_view_of_no_grad, rows_and_nothing),
    (real_part_of_columns_written_to, complex_columns),
    (conjugate_of_columns_written_to, complex_columns),
    (scattered_copy_of_one_written_to, non_leaf),
    (conjugate_of_columns_copied_and_written_to, complex_columns),
    (input_turned_under_no_grad, square_rows_of_a_non_leaf),
    (one_of_several_views_beside_its_base, non_leaf_and_one_of_several_views),
    (view_by_a_function_of_a_leaf_that_is_a_view, transposed_leaf),
    (view_written_to_by_a_function_of_a_leaf_that_is_a_view, transposed_leaf),
    (alias_and_input_overwritten, steps_of_a_non_leaf),
    (one_of_several_views_of_an_input_reshaped, non_leaf),
    (view_that_eager_refuses, non_leaf),
    (pairs_as_complex_numbers_written_to, pairs),
    (conjugate_of_pairs_written_to, pairs),
    (scattered_copy_written_to, cube_and_leaf),
    (view_of_all_read_and_multiplied_by_itself, non_leaf),
    (strides_of_what_is_put, one_leaf),
    (product_of_a_view_that_no_grad_wrote_to, non_leaf),
    (view_by_a_function_of_an_input_reshaped, non_leaf),
    (transposed_before_another_part_is_written_to, halves_one_of_them_a_leaf),
    (view_of_a_leaf_that_is_a_view_marked_dirty_under_no_grad, transposed_leaf),
    (written_to_beside_a_view_of_a_leaf_that_is_a_view, halves_one_of_them_a_leaf),
    (view_of_a_detached_argument_reshaped, leaf_and_detached),
    (strides_of_relu, row_of_columns),
    (scattered_into_what_was_written_to, every_other_column_but_the_first),
    (scattered_into_what_was_multiplied, every_other_column_but_the_first_of_a_constant),
    (part_of_a_view_written_to, non_leaf),
    (part_of_a_part_of_a_view_written_to, non_leaf_in_other_strides),
    (detached_copy_of_a_row_written_to, one_leaf),
    (rolled_and_dropped_out, channels_last),
    (conjugate_of_two_that_are_one, one_leaf),
    (used_after_a_write_under_no_grad, part_of_a_leaf_that_is_a_view),
    (written_to_under_no_grad, part_of_a_leaf_that_is_a_view),
    (used_after_the_other_half_was_written_to, half_and_view_of_a_leaf_that_is_the_other),
    (written_to_through_the_leaf, empty_view_of_a_leaf_that_is_a_view),
    (part_of_what_was_reshaped_in_place_written_to, non_leaf),
    (view_reshaped_in_place_and_saved, one_leaf),
    (expanded_to_its_own_size_and_marked_dirty, one_leaf),
    (view_that_no_grad_makes_after_a_write_multiplied_by_itself, one_leaf),
    (view_by_functions_of_a_leaf_that_is_a_view, transposed_leaf),
    (written_to_and_transposed, pairs_of_a_non_leaf),
    (view_marked_dirty, non_leaf_in_other_strides),
    (part_marked_dirty, non_leaf_in_other_strides),
    (pairs_written_to_through_a_function, nothing_as_pairs),
    (read_after_a_view_was_transposed_under_no_grad, transposed_leaf_and_part),
    (rows_written_to_under_no_grad, transposed_leaf_and_rows),
    (columns_of_a_transposed_value_parted_and_written_to, transposed_wide_leaf),
    (row_of_its_data_written_to_by_what_requires_grad, leaf_and_number),
    (rows_that_attend_in_bfloat16, square_leaf),
    (sum_of_the_gradient_of_rows_written_to, transposed_leaf),
    (reshaped_by_its_data, one_leaf),
    (variable_of_a_checkpoint_assigned_again, non_leaf),
    (variable_of_a_checkpoint_written_to, non_leaf),
]


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS, ids=[case[0].__name__ for case in PROGRAMS])
def test_found(function: Callable[..., Any], arguments: Callable[[], Arguments]) -> None:
    verdict = judge(Script(arguments, function))
    assert verdict.outcome is not Outcome.DIFFERENT, verdict.detail


def test_view_that_not_every_place_allows_is_checked_in_every_call() -> None:
    def pairs_unused(x: Tensor) -> Any:
        torch.view_as_complex(x)
        return x * 2

    jitted = sg.jit(pairs_unused, executors=["torch"])
    memory = torch.randn(5)
    assert torch.equal(jitted(memory[:4].view(2, 2)), memory[:4].view(2, 2) * 2)
    with falls_back("begins where"), pytest.raises(RuntimeError, match="storage_offset divisible"):
        jitted(memory[1:].view(2, 2))


def base_and_rows() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4).requires_grad_()
    base = leaf * 1
    return [base, base[1:]], [leaf]


def one_of_two_results(base: Tensor, rows: Tensor) -> Any:
    _, cos = SinAndCos.apply(rows)  # type: ignore[no-untyped-call]
    return cos, base


def test_what_a_function_saved_is_not_made_again_from_an_argument_overwritten_since() -> None:
    verdict = judge(Script(base_and_rows, one_of_two_results, write=Write(slot=0, no_grad=False)))
    assert verdict.outcome is not Outcome.DIFFERENT, verdict.detail


@pytest.mark.parametrize("arguments", [one_leaf, non_leaf])
def test_data_that_is_returned_counts_versions_by_itself(arguments: Callable[[], Arguments]) -> None:
    def versions(call: Callable[..., Any]) -> int:
        (x,), _ = arguments()
        for data in call(x):
            data.mul_(0.5)
        return int(x._version)

    jitted = sg.jit(its_data_written_to_after_the_call, executors=["torch"])
    with falls_back("counts versions by itself"):
        assert versions(jitted) == versions(its_data_written_to_after_the_call)


def data_beside_the_value(x: Tensor) -> Any:
    y = x.exp()
    return y.data, y


def data_of_what_is_saved(x: Tensor) -> Any:
    y = x.exp()
    return y.data.view(-1), y.sin()


def data_of_a_loss(x: Tensor) -> Any:
    loss = x.square().mean()
    return loss.data, loss


@pytest.mark.parametrize("function", [data_beside_the_value, data_of_what_is_saved, data_of_a_loss])
def test_data_of_a_result_counts_versions_by_itself(function: Callable[..., Any]) -> None:
    def versions_and_gradient(call: Callable[..., Any]) -> tuple[int, int, Tensor]:
        (x,), (leaf,) = non_leaf()
        data, result = call(x)
        data.mul_(2)
        versions = data._version, result._version
        result.sum().backward()
        assert leaf.grad is not None
        return *versions, leaf.grad

    found, eager = map(versions_and_gradient, (sg.jit(function, executors=["torch"], strict=True), function))
    assert found[:2] == eager[:2]
    assert torch.equal(found[2], eager[2])


@pytest.mark.parametrize("views", [False, True], ids=["alone", "beside a view"])
def test_data_of_a_result_that_is_returned_twice_is_one(views: bool) -> None:
    def function(x: Tensor) -> Any:
        data, other = x.exp().data, x.sin()
        return data, {"again": data}, *((other, other[0]) if views else ())

    first, second, *_ = sg.jit(function, executors=["torch"], strict=True)(torch.ones(2, 2, requires_grad=True))
    assert first is second["again"]
    assert first._version == 0


def a_view_of_data_beside_the_value(x: Tensor) -> Any:
    y = x.exp()
    return y.data[0], y


def reshaped_beside_its_base(x: Tensor, data: Tensor) -> Any:
    data.t_()
    return x.sigmoid()


def written_beside_its_data(x: Tensor) -> Any:
    own, scale = x.data, x.sigmoid() + 1
    with torch.no_grad():
        x.mul_(0.9)
    return own / scale


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (a_view_of_data_beside_the_value, "a view of .data"),
        (reshaped_beside_its_base, "other sizes or strides in place"),
        (written_beside_its_data, "uses .data"),
    ],
)
def test_what_is_read_where_data_is_written_to_after_the_call(function: Callable[..., Any], why: str) -> None:
    def gradient(call: Callable[..., Any]) -> Tensor:
        x = torch.linspace(-1, 1, 6).requires_grad_()
        results = call(x, x.data) if function is reshaped_beside_its_base else call(x)
        written, result = results if isinstance(results, tuple) else (x.data, results)
        written.mul_(2)
        result.sum().backward()
        assert x.grad is not None
        return x.grad

    with falls_back(why):
        found = gradient(sg.jit(function, executors=["torch"]))
    assert torch.equal(found, gradient(function))


def leaf_of_four() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(4).requires_grad_()
    return [leaf], [leaf]


def two_non_leaves() -> Arguments:
    torch.manual_seed(7)
    leaves = [torch.randn(3, 4).requires_grad_() for _ in range(2)]
    return [leaf * 1 for leaf in leaves], leaves


def written_unseen_and_then_in_part(x: Tensor) -> None:
    x.data.mul_(-0.03)
    x.view(-1)[0] += 0.45


def interpolated_after_an_unseen_write(x: Tensor) -> Any:
    sin = x.sin()
    x.data.mul_(-0.76)
    mixed = sin.lerp(x.view_as(x), 0.3)
    return mixed[(mixed.sum() * 0).long()]


def overwritten_after_a_use(x: Tensor) -> Any:
    y = x.cos()
    x.data.mul_(0.3)
    return y


def view_of_no_grad_of_an_input_given_other_sizes(x: Tensor) -> Any:
    x.unsqueeze_(0)
    with torch.no_grad():
        view = x.view(-1)
    return view.unsqueeze(-1)


def attention(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


def of_what_was_written_to(x: Tensor) -> Any:
    x.mul_(1.5)
    return attention(x)


def of_the_result_of_a_function(x: Tensor) -> Any:
    sin, _ = SinAndCos.apply(x.expand(2, *x.shape))  # type: ignore[no-untyped-call]
    return attention(sin)


@pytest.mark.parametrize("function", [of_what_was_written_to, of_the_result_of_a_function])
def test_gradients_of_views_are_summed_in_the_order_of_the_calls(function: Callable[..., Any]) -> None:
    """Functionalization makes views anew where it has seen a write: the sums were eager's but for rounding."""

    def gradients(f: Callable[..., Any]) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        leaves = [torch.randn(2, 3, 4, dtype=dtype, requires_grad=True) for dtype in (torch.bfloat16, torch.float32)]
        return torch.autograd.grad([f(leaf * 1).sum() for leaf in leaves], leaves)

    jitted = sg.jit(function, executors=["torch"], strict=True)
    assert all(map(torch.equal, gradients(jitted), gradients(function)))


#: Wrong once.
WRONG: dict[str, Script] = {
    "a": Script(non_leaf, written_unseen_and_then_in_part),
    "b": Script(non_leaf, interpolated_after_an_unseen_write, options={"specialize_on_data": True}),
    "c": Script(non_leaf, overwritten_after_a_use),
    "d": Script(non_leaf, view_of_no_grad_of_an_input_given_other_sizes),
}


@pytest.mark.parametrize("name", WRONG)
def test_once_wrong(name: str) -> None:
    verdict = judge(WRONG[name])
    assert verdict.outcome is not Outcome.DIFFERENT, verdict.detail


def overwritten_after_a_sum(x: Tensor) -> Any:
    y = x + 1
    x.data.mul_(0.3)
    return y, x[0].relu()


def overwritten_after_distances(x: Tensor) -> Any:
    """As a codebook is that a quantiser looks up and then moves."""
    nearest = (x @ x.mT).argmax(-1)
    x.data.mul_(0.99).add_(x[nearest].detach(), alpha=0.01)
    return x[nearest] * 2


@pytest.mark.parametrize("function", [overwritten_after_a_sum, overwritten_after_distances])
@pytest.mark.parametrize("arguments", [non_leaf, one_leaf])
def test_overwritten_unseen_where_no_backward_reads(
    function: Callable[..., Any], arguments: Callable[[], Arguments]
) -> None:
    verdict = judge(Script(arguments, function))
    assert verdict.outcome is Outcome.EQUAL, verdict.detail


def argument_and_its_data() -> Arguments:
    torch.manual_seed(7)
    x = torch.randn(4)
    return [x, x.data], []


def written_through_its_data(x: Tensor, data: Tensor) -> None:
    data[0] = 0.5


def marked_dirty_and_written_unseen(x: Tensor) -> None:
    ScaledInPlace.apply(x.clone(), 0.5)  # type: ignore[no-untyped-call]
    x.data.copy_(x * 2)


def moments_beside_an_unseen_write(x: Tensor, moment: Tensor) -> Tensor:
    y = x.cos()
    x.data.mul_(0.99)
    moment.addcmul_(x.detach(), x.detach(), value=0.5)
    return y


def differentiated_after_a_refused_write(x: Tensor) -> Tensor:
    y = x * x
    rows = list(x)
    x[..., 0] = x[..., 1]
    (gradient,) = torch.autograd.grad(y.sum(), y)
    return gradient * len(rows)


def leaf_and_moment() -> Arguments:
    torch.manual_seed(7)
    leaf = torch.randn(64).requires_grad_()
    return [leaf, torch.rand(64)], [leaf]


def plain() -> Arguments:
    torch.manual_seed(7)
    return [torch.randn(4)], []


def marked_dirty_and_kept_in_a_variable(x: Tensor, y: Tensor) -> None:
    scaled = ScaledInPlace.apply(x.clone(), 0.5) + 0.0  # type: ignore[no-untyped-call]
    y += 0.45

    def unused() -> Tensor:
        return scaled  # type: ignore[no-any-return]


def attribute_read_under_no_grad(x: Tensor) -> Any:
    x[x.argmax()]
    with torch.no_grad():
        return x.mT, x.mT * 2


def hook_on_what_was_written_to(x: Tensor) -> Any:
    x[0] = 1.7
    x.register_hook(lambda grad: grad * 2)
    return sum(x)


#: What TorchDynamo takes apart.
SPLIT: list[tuple[Callable[..., Any], Callable[[], Arguments]]] = [
    (written_through_its_data, argument_and_its_data),
    (marked_dirty_and_written_unseen, plain),
    (moments_beside_an_unseen_write, leaf_and_moment),
    (differentiated_after_a_refused_write, non_leaf),
    (marked_dirty_and_kept_in_a_variable, two_non_leaves),
    (attribute_read_under_no_grad, row_of_columns),
    (hook_on_what_was_written_to, non_leaf),
]


@pytest.mark.parametrize(("function", "arguments"), SPLIT, ids=[case[0].__name__ for case in SPLIT])
def test_found_where_the_function_is_split(function: Callable[..., Any], arguments: Callable[[], Arguments]) -> None:
    verdict = judge(Script(arguments, function, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def test_globals_of_a_function_of_no_module() -> None:
    scope: dict[str, Any] = {"SCALE": 2.0}
    exec("def function(x):\n    return x * SCALE", scope)
    jitted, x = sg.jit(scope["function"], executors=["torch"]), torch.ones(3)
    for scope["SCALE"] in (2.0, 3.0):
        assert torch.equal(jitted(x), x * scope["SCALE"])


def test_running_statistics_are_written_without_a_new_version() -> None:
    """A backward through the statistics that a step in eval read may come after a step in training."""

    def gradients(wrap: Callable[..., Any]) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        called, x = wrap(model), torch.randn(8, 4)
        with_running = called.eval()(x).sum()
        loss = with_running + called.train()(x).square().sum()
        return torch.autograd.grad(loss, [*model.parameters()])

    jitted = gradients(lambda model: sg.jit(model, executors=["torch"], strict=True))
    assert all(map(torch.equal, jitted, gradients(lambda model: model)))


def written_by_foreach(x: Tensor, moment: Tensor) -> None:
    x.data.mul_(2)
    torch._foreach_add_([moment], [x], alpha=-0.1)


def test_versions_beside_an_unseen_write() -> None:
    verdict = judge(Script(lambda: ([torch.ones(3), torch.zeros(3)], []), written_by_foreach))
    assert verdict.outcome is Outcome.EQUAL, verdict.detail


def test_a_parameter_where_another_call_had_a_tensor_and_a_list_has_grown() -> None:
    class Notes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))
            self.history: list[float] = []

        def forward(self, x: Tensor) -> Tensor:
            self.history.append(0.5)
            return self.weight.clamp(-1, 1)

    module = Notes()
    jitted = sg.jit(module, executors=["torch"], dynamic=True, strict=True)
    for x in (torch.nn.Parameter(torch.ones(4)), torch.ones(4, requires_grad=True) * 1):
        jitted(x)
        module.history.clear()
    for _ in range(2):
        jitted(torch.nn.Parameter(torch.ones(2)))
    assert len(module.history) == 2


def copied(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def copied_to_itself(x: Tensor, y: Tensor) -> Tensor:
    z = y.data
    z.copy_(y)
    return z


@pytest.mark.parametrize("function", [copied, copied_to_itself])
def test_a_copy_alone(function: Callable[..., Any]) -> None:
    y = torch.ones(3, requires_grad=True)
    script = Script(lambda: ([torch.zeros(3), y], [y]), function, options={"fallback": "split"})
    verdict = judge(script)
    assert verdict.outcome in (Outcome.EQUAL, Outcome.FALLBACK), verdict.detail


def transposed_and_then_written(x: Tensor) -> Tensor:
    y = x * 2
    z = y.permute(1, 0)
    y.sub_(y.mean())
    return z


def written_when_transposed(x: Tensor) -> Tensor:
    y = x * 2
    z = y.permute(1, 0)
    z.sub_(z.mean())
    return z * 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("function", [transposed_and_then_written, written_when_transposed])
def test_sums_of_gradients_of_a_transposed_view(function: Callable[..., Any], seed: int) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    verdict = judge(Script(lambda: ([x], [x]), function))
    assert verdict.outcome in (Outcome.EQUAL, Outcome.FALLBACK), verdict.detail


def written_inside_a_region(x: Tensor, y: Tensor) -> Tensor:
    def inside(x: Tensor) -> Tensor:
        taken = x.take_along_dim(x.argmax(keepdim=True))
        y[...] *= 0.5
        return taken

    result: Tensor = checkpoint(inside, x, use_reentrant=False)
    return result


def test_a_write_inside_a_region_where_functions_are_split() -> None:
    def arguments() -> Arguments:
        x = torch.arange(3.0).requires_grad_()
        return [x, torch.ones(1)], [x]

    verdict = judge(Script(arguments, written_inside_a_region, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def sizes_before_and_after(x: Tensor) -> tuple[int, int]:
    before = x.shape[1]
    x.t_()
    return before, x.shape[1]


def test_sizes_of_what_is_given_other_sizes() -> None:
    jitted = sg.jit(sizes_before_and_after, executors=["torch"], dynamic=True)
    for rows in (2, 3):
        assert jitted(torch.ones(rows, 4)) == (4, rows)


def read_by_a_region_when_written(x: Tensor) -> Tensor:
    x *= 3
    result: Tensor = checkpoint(lambda: F.gelu(x), use_reentrant=False)
    return result


def test_a_region_reads_an_input_that_was_written_to() -> None:
    verdict = judge(Script(non_leaf, read_by_a_region_when_written, write=Write(slot=0, no_grad=True)))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def rectified_and_then_written(x: Tensor, y: Tensor) -> None:
    F.relu(x, inplace=True)
    max(y.unbind(0), key=lambda row: row.dim())
    x.data.copy_(y[:1])


def test_a_hidden_write_beside_one_that_is_seen_where_functions_are_split() -> None:
    def arguments() -> Arguments:
        leaf = torch.linspace(-2, 2, 12).view(3, 4).requires_grad_()
        return [leaf * 1, torch.ones(2, 4)], [leaf]

    verdict = judge(Script(arguments, rectified_and_then_written, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def rectified_and_written_behind_a_break(x: Tensor) -> None:
    F.relu(x, inplace=True)
    print(end="")
    x.data[0] = 1.7


def left_in_autocast(x: Tensor) -> Tensor:
    row = x[-1]
    with torch.no_grad():
        x.mul_(-0.03)
        with torch.autocast("cpu", torch.bfloat16):
            difference = row.mul_(1.7) - row
    return difference @ difference.t()


@pytest.mark.parametrize("function", [rectified_and_written_behind_a_break, left_in_autocast])
def test_graphs_that_are_refused_where_functions_are_split(function: Callable[..., Any]) -> None:
    def arguments() -> Arguments:
        leaf = torch.linspace(-2, 2, 24).view(2, 3, 4).requires_grad_()
        return [leaf * 1], [leaf]

    verdict = judge(Script(arguments, function, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail
    assert not torch.is_autocast_enabled("cpu")


def activated_column(x: Tensor) -> Tensor:
    x.t_()
    return F.gelu(x.unbind(1)[-1])


def test_what_is_saved_of_a_view_with_holes_has_its_layout() -> None:
    leaf = torch.randn(64, 3, generator=torch.Generator().manual_seed(7)).mT.requires_grad_()
    found = [
        torch.autograd.grad(function(leaf * 1).sum(), leaf)[0]
        for function in (activated_column, sg.jit(activated_column, executors=["torch"]))
    ]
    assert torch.equal(*found)


def rounded_after_writes(x: Tensor, mean: Tensor) -> Any:
    moved = mean**2
    moved.mul_(0.9).add_(x, alpha=0.1)
    return Rounded.apply(moved)  # type: ignore[no-untyped-call]


def test_a_function_of_what_requires_grad_by_a_write_of_another_dtype() -> None:
    def arguments() -> Arguments:
        x = torch.linspace(-2, 2, 12, dtype=torch.float64).requires_grad_()
        return [x, torch.zeros(12)], [x]

    verdict = judge(Script(arguments, rounded_after_writes, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


class Logging(torch.nn.Module):
    """Keeps a log inside of a region that eager's backward runs once more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.log: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        """One logged product."""

        def product(x: Tensor) -> Tensor:
            self.log.append(f"{x.dtype}")
            return F.linear(x, self.weight)

        result: Tensor = checkpoint(product, x, use_reentrant=False)
        return result


def test_a_log_that_a_region_keeps() -> None:
    module, x = Logging(), torch.ones(2, 4)
    jitted = sg.jit(module, executors=["torch"])
    with fallback_told("an object of Python's is written to inside a region"):
        jitted(x).sum().backward()
    for count in (2, 3):
        jitted(x).sum().backward()
        assert len(module.log) == 2 * count


def activated_and_given_other_memory(x: Tensor) -> Tensor:
    result = F.gelu(x)
    x.data = x * 0.9
    return result


def dimensions_of_a_squeezed_part(x: Tensor) -> tuple[Tensor, int]:
    part = x[:1]
    part.squeeze_()
    return part, part.dim()


def sizes_of_a_row_where_autograd_is_off(x: Tensor) -> Tensor:
    row = x.unbind()[1]
    with torch.no_grad():
        row.unsqueeze_(0)
        return torch.zeros(row.shape)


def dimensions_beside_data(x: Tensor) -> tuple[Tensor, int]:
    row = x[-1].cos()
    x.data.add_(row.data)
    row.unsqueeze_(0)
    return row, row.dim()


def rectified_part_of_what_is_shifted(x: Tensor, shift: Tensor) -> list[Tensor]:
    part = x[:2]
    x += shift
    rectified, _ = ReluAndMask.apply(part)  # type: ignore[no-untyped-call]
    return [rectified, rectified.view(2, 4).mul_(0.9)]


def attended_and_written_to_beside_data(x: Tensor, data: Tensor) -> None:
    part = x.mT
    attended = F.scaled_dot_product_attention(x, x, x[None], is_causal=True)[0]
    with torch.no_grad():
        data.add_(0.03, alpha=0.5)

    def written(value: Tensor) -> Tensor:
        x.copy_(attended.detach())
        return value.clamp(-1, 1)

    del part
    written(attended)


def beside_its_data() -> Arguments:
    leaf = torch.linspace(-1, 2, 12).view(3, 4).detach().requires_grad_()
    x = leaf * 1
    return [x, x.data], [leaf, x]


def batch_and_parameter() -> Arguments:
    leaf = torch.nn.Parameter(torch.linspace(-1, 2, 4))
    return [torch.ones(3, 4), leaf], [leaf]


def parameter() -> Arguments:
    leaf = torch.nn.Parameter(torch.linspace(-1, 2, 12).view(3, 4))
    return [leaf], [leaf]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (activated_and_given_other_memory, parameter),
        (dimensions_of_a_squeezed_part, non_leaf),
        (sizes_of_a_row_where_autograd_is_off, non_leaf),
        (dimensions_beside_data, non_leaf),
        (rectified_part_of_what_is_shifted, batch_and_parameter),
        (attended_and_written_to_beside_data, beside_its_data),
    ],
)
def test_what_the_parts_of_a_split_function_would_get_wrong(
    function: Callable[..., Any], arguments: Callable[[], Arguments]
) -> None:
    verdict = judge(Script(arguments, function, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


class Counting(torch.nn.Module):
    """Counts before and after it registers a hook."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        """Three times its argument."""
        y = x * 2
        self.steps += 1
        y.register_hook(lambda grad: grad * 3)
        self.steps += 1
        return y + x


def test_a_count_around_a_hook() -> None:
    module, x = Counting(), torch.ones(3, requires_grad=True)
    with falls_back("register_hook"):
        sg.jit(module, executors=["torch"], fallback="split")(x)
    assert module.steps == 2


def used_and_then_written(x: Tensor) -> Any:
    row = (x * 2)[0]
    change = row - row
    row.add_(change, alpha=0.5)
    return row * 1.5


def used_and_written_through_a_view_of_a_view(x: Tensor) -> Any:
    base = x * 2
    flat = base.view(-1)
    part = flat[1:]
    difference = part - part * 3
    part.mul_(0.5).add_(difference, alpha=0.3)
    return base * 1.5 + flat.view(x.shape) * difference.sum()


def used_and_written_through_a_new_view_of_it(x: Tensor) -> Any:
    base = x * 1
    flat = base.view(-1)
    total = flat.sum() * 0.7
    result = base * 1.3
    flat[None].mul_(0.9).add_(total, alpha=0.1)
    return result + base


def written_in_a_loop(x: Tensor) -> Any:
    base = x * 1
    row = base[0]
    for place in range(3):
        change = row * 0.3 - row
        row[place] = change.sum()
        row += change
    return base.sin() + row


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "function",
    [
        used_and_then_written,
        used_and_written_through_a_view_of_a_view,
        used_and_written_through_a_new_view_of_it,
        written_in_a_loop,
    ],
)
def test_sums_of_gradients_of_a_view_that_was_used_before_it_is_written_to(
    function: Callable[..., Any], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(4, dtype=torch.float64, generator=generator)
    jitted = sg.jit(function, executors=["torch"], strict=True)
    found = [torch.autograd.grad((one(x) * weight).sum(), x)[0] for one in (function, jitted)]
    assert torch.equal(*found)


def cubed_and_left_out(x: Tensor, y: Tensor) -> Any:
    unused = Cubed.apply(y)  # type: ignore[no-untyped-call]
    scale = y.detach().argmax(0).view(-1)[0].item()
    unused = unused - 4

    def helper() -> Any:
        return unused

    return x.softmax(-1).sum() * scale


def leaves_alone() -> Arguments:
    (x, y) = leaves = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    return [x, y], leaves


def test_a_function_whose_result_is_left_out_where_functions_are_split() -> None:
    verdict = judge(Script(leaves_alone, cubed_and_left_out, options={"fallback": "split"}))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def divided_by_a_root_of_its_size(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(1.1)
    rows = x.view(x.shape)
    return (rows @ rows.mT / math.sqrt(rows.shape[-1])) @ rows


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_gradients_of_a_view_whose_size_is_decided_after_it_was_made(seed: int) -> None:
    def gradient(function: Callable[..., Any]) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x, weight = (torch.randn(2, 3, 4, generator=generator) for _ in range(2))
        function(x.requires_grad_()).backward(weight)
        assert x.grad is not None
        return x.grad

    jitted = sg.jit(divided_by_a_root_of_its_size, executors=["torch"], strict=True, dynamic=True)
    assert torch.equal(gradient(jitted), gradient(divided_by_a_root_of_its_size))


def clamped_through_data(weight: Tensor, x: Tensor) -> Tensor:
    weight.data.clamp_(-1, 1)
    return (x @ weight.t()).sum()


def test_a_write_through_data_after_the_call_to_what_the_function_wrote_to_so() -> None:
    def gradient(function: Callable[..., Any]) -> Tensor:
        x, weight = torch.ones(3, 3, requires_grad=True), torch.eye(3, requires_grad=True)
        result = function(weight, x)
        weight.data.mul_(2)
        result.backward()
        assert x.grad is not None
        return x.grad

    with falls_back("uses .data"):
        found = gradient(sg.jit(clamped_through_data, executors=["torch"], fallback="split"))
    assert torch.equal(found, gradient(clamped_through_data))


def shifted_by_its_mean(x: Tensor) -> None:
    columns = x.t()
    columns.sub_(columns.mean())


def columns_shifted_in_memory(x: Tensor) -> Tensor:
    y = x.t() * torch.sigmoid(x.t())
    columns = y.t()
    columns.sub_(columns.mean())
    return y


@pytest.mark.parametrize("function", [shifted_by_its_mean, columns_shifted_in_memory])
def test_a_write_of_what_requires_grad_through_a_transposed_view(function: Callable[..., Any]) -> None:
    verdict = judge(Script(non_leaf, function))
    assert verdict.outcome is Outcome.FALLBACK, verdict.detail


def normalized_beside_its_norm(x: Tensor) -> Tensor:
    twice = x.expand(2, *x.shape)
    norm: Tensor = twice.norm()
    F.normalize(twice, dim=1)
    return twice - norm


def test_an_out_that_is_none_is_not_written_to() -> None:
    """`normalize` has one: its argument was taken for a view that is made again, whose gradients are summed apart."""
    jitted = sg.jit(normalized_beside_its_norm, executors=["torch"], strict=True)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(2, 3, 4)
    found = [torch.autograd.grad(one(x), x, weight)[0] for one in (normalized_beside_its_norm, jitted)]
    assert torch.equal(*found)


def test_requires_grad_of_what_was_written_to_and_viewed_unseen() -> None:
    """TorchDynamo takes it for False."""

    def function(x: Tensor, y: Tensor) -> int:
        [0 for _ in x]
        x.mul_(0.9).add_(y, alpha=0.1)
        with torch.no_grad():
            x[:1]
        return x.requires_grad * 1

    jitted = sg.jit(function, executors=["torch"], fallback="split")
    y = torch.tensor(1.0, requires_grad=True).sin()
    with falls_back("made under no_grad"):
        assert jitted(torch.ones(2), y) == 1


def test_a_transform_of_a_view_of_what_was_written_to_unseen() -> None:
    def function(x: Tensor) -> Tensor:
        half = x[:2]
        with torch.no_grad():
            x.copy_(x * 0.9)
        return torch.func.grad(lambda part: (part.sin() * part).sum())(half)  # type: ignore[no-any-return]

    values = torch.randn(4)
    jitted = sg.jit(function, executors=["torch"], fallback="split")
    with falls_back("make the view after the change"):
        found = jitted(values.clone().requires_grad_())
    assert torch.equal(found, function(values.clone().requires_grad_()))


def column_written_to(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1].add_(x.mean().expand(y.shape[0]))
    return y


def transposed_when_a_part_was_written_to(x: Tensor) -> Tensor:
    y = x / x.sum(0)
    y[..., 0] = y[..., 1]
    return y.mT


@pytest.mark.parametrize("function", [column_written_to, transposed_when_a_part_was_written_to])
def test_sums_of_gradients_lie_as_where_autograd_copies_them_for_a_write(function: Callable[..., Any]) -> None:
    jitted = sg.jit(function, executors=["torch"], strict=True)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(3, 64, 72, generator=generator).select(0, 0).clone().requires_grad_()
        weight = torch.randn(function(x).shape, generator=generator)
        found = [torch.autograd.grad(one(x), x, weight)[0] for one in (function, jitted)]
        assert torch.equal(*found)


def test_a_function_before_a_graph_of_a_split_function_is_not_run_in_vain() -> None:
    """One node has all results of the graph, and hands zeros to the Function, of whose result one of them is made."""

    def function(x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        scaled = Weighted.apply(x, x, scale)  # type: ignore[no-untyped-call]
        return scaled.clone(), y.sin() * 2

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    jitted = sg.jit(function, executors=["torch"], fallback="split")
    with falls_back("attribute of ctx"):
        result = jitted(x, y, torch.tensor(2.0))[1]
    assert torch.autograd.grad(result.sum(), x, allow_unused=True)[0] is None

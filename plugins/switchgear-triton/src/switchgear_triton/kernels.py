"""The kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, y, size, EPS: tl.constexpr, HAS_WEIGHT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row + at, inside, 0.0).to(WIDE)
    normal = value * tl.rsqrt(tl.sum(value * value) / size + EPS)
    # round before the weight is applied, as models do
    normal = normal.to(y.dtype.element_ty).to(WIDE)
    if HAS_WEIGHT:
        normal *= tl.load(weight + at, inside, 0.0).to(WIDE)
    tl.store(y + row + at, normal.to(y.dtype.element_ty), inside)


@triton.jit
def rms_norm_backward(
    grad,
    x,
    weight,
    by_x,
    by_weight,
    rows,
    size,
    EPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # each program takes rows at a fixed step, and keeps its own sum of the weight's gradients
    at = tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], WIDE)
    for index in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        row = index * size
        value = tl.load(x + row + at, inside, 0.0).to(WIDE)
        row_grad = tl.load(grad + row + at, inside, 0.0).to(WIDE)
        root = tl.rsqrt(tl.sum(value * value) / size + EPS)
        normal = value * root
        total += row_grad * normal
        if HAS_WEIGHT:
            row_grad *= tl.load(weight + at, inside, 0.0).to(WIDE)
        result = root * (row_grad - normal * (tl.sum(row_grad * normal) / size))
        tl.store(by_x + row + at, result.to(by_x.dtype.element_ty), inside)
    tl.store(by_weight + tl.program_id(0) * size + at, total, inside)


@triton.jit
def rope(
    x,
    cos,
    sin,
    y,
    heads,
    length,
    half,
    x_0,
    x_1,
    x_2,
    y_0,
    y_1,
    y_2,
    cos_0,
    cos_1,
    cos_2,
    sin_0,
    sin_1,
    sin_2,
    BACKWARD: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch, head, place = row // (heads * length), row // length % heads, row % length
    x += batch * x_0 + head * x_1 + place * x_2
    y += batch * y_0 + head * y_1 + place * y_2
    cos += batch * cos_0 + head * cos_1 + place * cos_2
    sin += batch * sin_0 + head * sin_1 + place * sin_2
    at = tl.arange(0, BLOCK)
    inside = at < half
    first, second = tl.load(x + at, inside).to(WIDE), tl.load(x + half + at, inside).to(WIDE)
    cos_first, cos_second = tl.load(cos + at, inside).to(WIDE), tl.load(cos + half + at, inside).to(WIDE)
    sin_first, sin_second = tl.load(sin + at, inside).to(WIDE), tl.load(sin + half + at, inside).to(WIDE)
    if BACKWARD:
        y_first = first * cos_first + second * sin_second
        y_second = second * cos_second - first * sin_first
    else:
        y_first = first * cos_first - second * sin_first
        y_second = second * cos_second + first * sin_second
    tl.store(y + at, y_first.to(y.dtype.element_ty), inside)
    tl.store(y + half + at, y_second.to(y.dtype.element_ty), inside)


@triton.jit
def swiglu(gate, up, y, count, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(gate + at, inside, 0.0).to(WIDE)
    result = value / (1 + tl.exp(-value)) * tl.load(up + at, inside, 0.0).to(WIDE)
    tl.store(y + at, result.to(y.dtype.element_ty), inside)


@triton.jit
def swiglu_backward(grad, gate, up, by_gate, by_up, count, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    y_grad = tl.load(grad + at, inside, 0.0).to(WIDE)
    value = tl.load(gate + at, inside, 0.0).to(WIDE)
    sigmoid = 1 / (1 + tl.exp(-value))
    other = tl.load(up + at, inside, 0.0).to(WIDE)
    slope = sigmoid * (1 + value * (1 - sigmoid))
    tl.store(by_gate + at, (y_grad * other * slope).to(by_gate.dtype.element_ty), inside)
    tl.store(by_up + at, (y_grad * value * sigmoid).to(by_up.dtype.element_ty), inside)


@triton.jit
def row_losses(
    logits, target, losses, sums, classes, ignored, SMOOTHING: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * classes
    at = tl.arange(0, BLOCK)
    highest = tl.full([], float("-inf"), WIDE)
    power = tl.zeros([], WIDE)
    total = tl.zeros([], WIDE)
    for start in range(0, classes, BLOCK):
        inside = start + at < classes
        value = tl.load(logits + start + at, inside, float("-inf")).to(WIDE)
        higher = tl.maximum(highest, tl.max(value))
        # a row of only -inf has no finite maximum to subtract
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        power = power * tl.exp(highest - shift) + tl.sum(tl.exp(value - shift))
        highest = higher
        total += tl.sum(tl.where(inside, value, 0.0))
    result = tl.log(power) + tl.where(highest == float("-inf"), 0.0, highest)
    label = tl.load(target + row)
    counts = label != ignored
    # a class index out of range makes the loss NaN
    in_range = counts & (label >= 0) & (label < classes)
    label_logit = tl.load(logits + tl.where(in_range, label, 0), in_range, float("nan")).to(WIDE)
    loss = result - (1 - SMOOTHING) * label_logit
    if SMOOTHING > 0:
        loss -= SMOOTHING * (total / classes)
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    tl.store(sums + row, result)


@triton.jit
def row_losses_backward(
    grad,
    logits,
    target,
    sums,
    by_logits,
    classes,
    ignored,
    SMOOTHING: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < classes
    label = tl.load(target + row)
    value = tl.load(logits + row * classes + at, inside, float("-inf")).to(WIDE)
    share = tl.exp(value - tl.load(sums + row))
    unit = tl.full([], 1.0, WIDE)  # Triton treats a Python number as float32
    share -= tl.where(at == label, unit * (1 - SMOOTHING), 0.0) + unit * SMOOTHING / classes
    result = tl.where(label != ignored, share * tl.load(grad + row), 0.0)
    tl.store(by_logits + row * classes + at, result.to(by_logits.dtype.element_ty), inside)

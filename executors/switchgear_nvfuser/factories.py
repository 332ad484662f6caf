"""Translations of operators that create tensors from numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import switchgear as sg

from .definition import Value
from .translation import Translator, Untranslatable, translates


def _filled(t: Translator, shape: Sequence[Any], value: Any) -> Value:
    return t.full(shape, value, t.output.dtype)


@translates("full")
def full(t: Translator, size: Sequence[int], fill_value: Any, **options: Any) -> Value:
    return _filled(t, size, fill_value)


@translates("scalar_tensor")
def scalar_tensor(t: Translator, value: Any, **options: Any) -> Value:
    return _filled(t, (), value)


@translates("full_like")
def full_like(t: Translator, x: sg.TensorProxy, fill_value: Any, **options: Any) -> Value:
    return _filled(t, t.shape(x), fill_value)


@translates("new_full")
def new_full(t: Translator, x: sg.TensorProxy, size: Sequence[int], fill_value: Any, **options: Any) -> Value:
    return _filled(t, size, fill_value)


@translates("fill.Scalar")
def fill(t: Translator, x: sg.TensorProxy, value: Any) -> Value:
    return _filled(t, t.shape(x), value)


def _constant(name: str, number: int) -> None:
    @translates(name)
    def plain(t: Translator, size: Sequence[int], **options: Any) -> Value:
        return _filled(t, size, number)

    @translates(f"{name}_like")
    def like(t: Translator, x: sg.TensorProxy, **options: Any) -> Value:
        return _filled(t, t.shape(x), number)

    @translates(f"new_{name}")
    def new(t: Translator, x: sg.TensorProxy, size: Sequence[int], **options: Any) -> Value:
        return _filled(t, size, number)


for _name, _number in (("zeros", 0), ("ones", 1)):
    _constant(_name, _number)


def _arange(t: Translator, start: float, step: float) -> Value:
    length = t.output.shape[0]
    if isinstance(start, int) and isinstance(step, int):
        return t.definition.call("iota", length, start, step, dtype=torch.int64)
    raise Untranslatable("of numbers that are no integers")


@translates("arange")
def arange(t: Translator, end: float, **options: Any) -> Value:
    return _arange(t, 0, 1)


@translates("arange.start")
def arange_from(t: Translator, start: float, end: float, **options: Any) -> Value:
    return _arange(t, start, 1)


@translates("arange.start_step")
def arange_by(t: Translator, start: float, end: float, step: float = 1, **options: Any) -> Value:
    return _arange(t, start, step)

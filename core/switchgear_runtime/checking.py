"""Checking: a program runs line by line, and results of plugins are checked.

The first run checks number and metadata of results, writes to arguments, memory shared by results, and PyTorch's modes.
Under the option `check`, or `SWITCHGEAR_CHECK=1`, every run does. Then values, too, are compared: with PyTorch's
operators (`nearness`), with a second run, and arguments with their previous values. Random numbers that an
implementation draws itself are not compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from switchgear_core.errors import ExecutorFailed
from switchgear_core.ir.aliasing import aliased_argument, written_arguments
from switchgear_core.ir.composites import bind_outputs, leaves_of
from switchgear_core.ir.printing import BOXED
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.purity import uninitialised
from switchgear_core.ir.symbol import BoundSymbol, map_proxies
from switchgear_core.nearness import Named, dense, differences, mismatch, named, widened
from switchgear_core.nesting import map_tensors, memory_of, tensors_in, twin
from switchgear_core.passes.pipeline import Program
from switchgear_core.record.sizes import has_numbers
from switchgear_core.record.tracker import version_of
from switchgear_core.registry.isolation import restoring
from switchgear_runtime.walk import function_of, walk


def is_never_blamed(item: BoundSymbol) -> bool:
    """Check whether a line runs its own operator, so that no plugin is to blame for the result."""
    return item.implementation is None or item.implementation.fn is item.symbol.fn


def run_checked(program: Program, arguments: tuple[Any, ...], *, values: bool = False) -> Any:
    """Run a program with checks; with `values`, results are compared too.

    Raises:
        ExecutorFailed: an implementation of a plugin failed a check, or raised where PyTorch does not.
    """

    def run(item: BoundSymbol, args: Any, kwargs: Any, environment: Mapping[str, Any]) -> Any:
        if is_never_blamed(item):
            return function_of(item)(*args, **kwargs)
        return _run(program, item, args, kwargs, environment, values=values)

    return walk(program, arguments, run)


def fault(
    program: Program, item: BoundSymbol, values: Mapping[str, object], error: Exception
) -> Exception:
    """Return the error to raise where an implementation raised: PyTorch's error if its operators raise, too."""
    is_boxed = any(value is BOXED for value in item.args)
    if not is_boxed and not has_numbers((item.args, dict(item.kwargs))):
        args, kwargs = map_proxies(lambda proxy: values[proxy.name], (item.args, dict(item.kwargs)))
        try:
            item.symbol.fn(*args, **kwargs)
        except Exception as pytorch_error:
            return pytorch_error
    return _failure(program, item, f"{type(error).__name__}: {error}")


def _run(
    program: Program,
    item: BoundSymbol,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    environment: Mapping[str, object],
    *,
    values: bool,
) -> Any:
    """Run one line of a plugin with checks."""
    assert item.implementation is not None
    targets = written_arguments(item)
    before = _Arguments((args, kwargs), by_value=values and not targets)
    try:
        with restoring() as changed:
            result = item.implementation.fn(*args, **kwargs)
    except Exception as error:
        raise fault(program, item, environment, error) from error
    finally:
        del args, kwargs
    unexpected = f"it changed {changed[0].name}, which was put back" if changed else ""
    unexpected = unexpected or _unexpected(item.output, result)
    if not unexpected and not targets:
        unexpected = before.changed() or _shared(program, item, before, result)
        unexpected = unexpected or _misplaced(item, environment, result)
    if not unexpected and before.copies is not None and not item.is_random:
        unexpected = _different(item, before.copies, result)
    if unexpected:
        raise _failure(program, item, unexpected)
    return result


class _Arguments:
    """Arguments of a line, as weak references with their versions, and copies if `by_value`."""

    def __init__(
        self, nest: tuple[tuple[object, ...], dict[str, object]], *, by_value: bool
    ) -> None:
        self.copies = map_tensors(twin, nest) if by_value else None
        tensors = [*tensors_in(nest)]
        copies = [*tensors_in(self.copies)] if by_value else [None] * len(tensors)
        self._tensors = [
            (weakref.ref(tensor), version_of(tensor), copy)
            for tensor, copy in zip(tensors, copies, strict=True)
        ]

    @property
    def alive(self) -> list[torch.Tensor]:
        """The arguments that are still alive."""
        return [tensor for reference, *_ in self._tensors if (tensor := reference()) is not None]

    def changed(self) -> str:
        """Return which argument was written to; empty if none was."""
        for place, (reference, version, copy) in enumerate(self._tensors):
            tensor = reference()
            if tensor is None:
                continue
            if version_of(tensor) != version or not (copy is None or _equal(tensor, copy)):
                return f"it wrote to its tensor argument {place}, which holds something else by now"
        return ""


def _shared(program: Program, item: BoundSymbol, before: _Arguments, result: object) -> str:
    """Describe the memory that a result shares and must not share; empty if none."""
    holders = {place: "with an argument" for place in map(memory_of, before.alive) if place}
    for index, tensor in enumerate(tensors_in(result)):
        place = memory_of(tensor)
        if place in holders and not _may_share(program, item):
            return f"result {index} shares memory {holders[place]}; where the operator makes a new tensor, so must it"
        if place:
            holders[place] = "with another result"
    return ""


def _misplaced(item: BoundSymbol, environment: Mapping[str, object], result: object) -> str:
    """Describe strides that match neither the trace nor PyTorch's operators (fakes may be wrong); empty if none."""
    if item.is_random or any(value is BOXED for value in item.args):
        return ""
    values, theirs = dict[str, Any](), dict[str, Any]()
    bind_outputs(item.output, result, values)
    odd = [p for p in item.outputs if not _lies(values[p.name], p.stride)]
    if odd:
        args, kwargs = map_proxies(lambda p: environment[p.name], (item.args, dict(item.kwargs)))
        with suppress(Exception):  # an operator that only the plugin can run
            bind_outputs(item.output, item.symbol.fn(*args, **kwargs), theirs)
    for p in odd:
        strides = values[p.name].stride()
        if p.name not in theirs or not _lies(theirs[p.name], strides):
            return f"result {item.outputs.index(p)} has strides {strides}, expected {p.stride}"
    return ""


def _lies(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Check whether the elements of a tensor have these strides; sizes of 0 or 1 always match."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    steps = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return all(size == 1 or step == expected for size, step, expected in steps)


def _may_share(program: Program, item: BoundSymbol) -> bool:
    """Check whether PyTorch's operators would return views, or arguments themselves."""
    if item.subsymbols:  # a region
        return False
    names = {proxy.name for proxy in item.outputs}
    if not names.isdisjoint(proxy.name for proxy in item.inputs):
        return True
    # a claimed composite has lost its operators; an earlier stage has its operators
    makers = (
        maker
        for stage in program.stages
        for maker in stage.bound_symbols
        if not names.isdisjoint(proxy.name for proxy in maker.outputs)
    )
    return any(aliased_argument(leaf) is not None for leaf in leaves_of(makers))


def _different(
    item: BoundSymbol, copies: tuple[tuple[Any, ...], dict[str, Any]], result: Any
) -> str:
    """Describe how values differ from PyTorch's operators, or from another run; empty if equal."""
    assert item.implementation is not None
    garbage = uninitialised([item])
    skipped = {
        place
        for place, proxy in enumerate(item.outputs)
        if proxy.name in garbage or proxy.shape == (0,)
    }
    ours = named(result, skipped)
    args, kwargs = map_tensors(twin, copies)
    rerun = named(item.implementation.fn(*args, **kwargs), skipped)
    for name, tensor in ours.items():
        if not _equal(tensor, rerun[name]):
            return f"{name} differs between two runs on the same arguments"
    args, kwargs = copies
    args = tuple(args[0]) if item.implementation.boxed else args

    def exactly() -> Named:
        wide, options = map_tensors(widened, (args, kwargs))
        return named(item.symbol.fn(*wide, **options), skipped)

    expected = named(item.symbol.fn(*map_tensors(twin, args), **map_tensors(twin, kwargs)), skipped)
    return next(differences(ours, expected, exactly, [*tensors_in((args, kwargs))]), "")


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(dense(first), dense(second), rtol=0, atol=0, equal_nan=True)


def _unexpected(output: object, result: object, place: str = "its result") -> str:
    """Describe how a result differs from its description in the trace; empty if it does not."""
    if isinstance(output, tuple):
        if not isinstance(result, (tuple, list)):
            return (
                f"{place} is {type(result).__name__}, not the {len(output)} results of the operator"
            )
        if len(result) != len(output):
            return f"{place} has {len(result)} parts, not the {len(output)} of the operator"
        parts = (
            _unexpected(*pair, f"result {i}")
            for i, pair in enumerate(zip(output, result, strict=True))
        )
        return next(filter(None, parts), "")
    # fakes give a kernel's workspace the size 0
    if not isinstance(output, TensorProxy) or output.shape == (0,):
        return ""
    if not isinstance(result, torch.Tensor):
        return f"{place} is {type(result).__name__}, not a tensor"
    # strides are all 0 where the operator makes a sparse tensor
    if result.layout is not torch.strided and any(output.stride):
        return f"{place} has layout {result.layout}, expected {torch.strided}"
    text = mismatch(result, output)
    return f"{place} has {text}" if text else ""


def _failure(program: Program, item: BoundSymbol, problem: str) -> ExecutorFailed:
    assert item.implementation is not None
    owner = item.implementation.owner
    label, remedy = program.blame.get(owner, (owner, "leave it out of executors"))
    decline = (
        "have its `supports` decline" if item.subsymbols else "give it a checker that declines"
    )
    return ExecutorFailed(
        f"executor {label} failed in {item.symbol.name}, called at {item.source}: {problem}. To go on without it, "
        f"{remedy}; its author can correct it, or {decline} such calls"
    )

"""Leaves: from the call of an operator overload to its line."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.naming import symbol_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.purity import is_random
from switchgear_core.ir.symbol import RANDOM, BoundSymbol, Symbol, map_proxies, proxies
from switchgear_core.ir.writes import DRAW_BERNOULLI
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.record.call import Operation
from switchgear_core.record.rare_modes import RARE_MODES
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.shared_memory import reaches_outside
from switchgear_core.record.sizes import active_sizes, settled

_aten = torch.ops.aten
#: Positional and keyword arguments of an operator.
Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
#: Operators that refuse a tensor with a storage offset at which the view would be misaligned.
_ALIGNED = frozenset({_aten.view_as_complex.default, _aten.view.dtype})
#: Flags for the differentiable outputs of an overload: facts about PyTorch, computed once per process.
_DIFFERENTIABLE: dict[object, tuple[bool, ...]] = {}


def record_leaf(recorder: Recorder, call: Operation, result: Any) -> None:
    """Record the call of an overload with its `result`."""
    values, tape, func = recorder.values, recorder.tape, call.func
    args, kwargs = _generators_known(recorder, call)
    if active_sizes() is not None:
        args, kwargs = settled((args, kwargs))
    operands: Given = map_tensors(values.proxy_of, (args, kwargs))
    frame = tape.frame
    # a custom operator's autograd is a Function, which turns grad mode off while the operator itself runs
    is_called = frame.fn in (func, func.overloadpacket)
    grad_enabled = torch.is_grad_enabled() or (is_called and frame.grad_enabled)
    recorder.matters.offsets |= func in _ALIGNED
    # with no open call of a function, the caller (compiled TorchScript code) is unknown
    RARE_MODES.matter |= frame.fn is None and recorder.tracker.follow_autograd
    flags: Iterator[bool] = iter(())
    if any(proxy.requires_grad for proxy in proxies(operands)):
        if grad_enabled:
            flags = iter(_differentiable(recorder, Operation(func, args, kwargs), operands, result))
        elif makes_views(func):
            # under no_grad eager treats a view of a tensor that requires grad as a leaf that requires grad, if its base
            # does
            flags = itertools.repeat(True)
            _note_view_unseen(recorder, args)
    output = _outputs(recorder, result, flags)
    if not any(proxies(output)):
        return
    tags = tape.tags | {RANDOM} if is_random(func, *operands) else tape.tags
    if tape.tags_of is not None:
        with recorder.paused():
            tags = tags | tape.tags_of(func, args, kwargs, result)
    if func is _aten.as_strided.default and any(out.requires_grad for out in proxies(output)):
        _refuse_odd_gradient(recorder, result, args[0])
    symbol, source = leaf_symbol(recorder, func), tape.source()
    tape.lines.append(BoundSymbol(symbol, *operands, output, (), source, grad_enabled, tags))
    if recorder.tracker.writes.remakes_views and makes_views(func):
        origins = map_proxies(lambda proxy: values.views.get(proxy.name, proxy.name), operands)
        for index, proxy in enumerate(proxies(output)):
            values.views[proxy.name] = (func, index, origins)


def _generators_known(recorder: Recorder, call: Operation) -> Given:
    """Return the arguments with generators replaced by the trace's own."""
    kwargs, generator, adopt = call.kwargs, recorder.tape.frame.generator, recorder.known_generator
    if generator is not None and torch.Tag.nondeterministic_seeded in call.func.tags:
        kwargs = kwargs | {"generator": generator}
    return tuple(map(adopt, call.args)), {name: adopt(arg) for name, arg in kwargs.items()}


def _outputs(recorder: Recorder, result: object, flags: Iterator[bool]) -> Any:
    """Return the proxies of an operator's results, each with its own name."""
    names: set[str] = set()

    def define(fake: torch.Tensor) -> TensorProxy:
        proxy = recorder.values.define(fake, next(flags, False))
        if proxy.name in names:
            return replace(proxy, name=recorder.tape.names.fresh())
        names.add(proxy.name)
        return proxy

    output = map_tensors(define, result)
    return tuple(output) if isinstance(output, list) else output


def leaf_symbol(recorder: Recorder, func: internals.OpOverload) -> Symbol:
    """Return the symbol of an overload."""
    if func is _aten.bernoulli.p and not calls(recorder, "bernoulli"):  # `bernoulli_`
        return DRAW_BERNOULLI
    symbol = symbol_of(func)
    assert symbol is not None
    return symbol


def calls(recorder: Recorder, name: str) -> bool:
    """Check whether the PyTorch function called by the user has the given name."""
    fn = recorder.tape.frame.fn
    symbol = symbol_of(fn) if fn is not None else None
    return symbol is not None and name in symbol.name.split(".")


def _note_view_unseen(recorder: Recorder, args: tuple[object, ...]) -> None:
    """Note a view created under no_grad: whether it is a leaf of autograd depends on its base."""
    recorder.matters.bases = True
    memory = recorder.tracker.writes.memory
    is_written = any(internals.storage_key(fake) in memory for fake in tensors_in(args))
    if recorder.tracker.follow_autograd and is_written:
        raise Unsupported(
            f"a view of a tensor that was written to and requires grad is made under no_grad, in {recorder.here()}; "
            "make it in grad mode, or of a clone",
            splits=False,  # TorchDynamo may treat it as not requiring grad
        )


def _refuse_odd_gradient(recorder: Recorder, view: torch.Tensor, viewed: torch.Tensor) -> None:
    if not calls(recorder, "as_strided") and reaches_outside(view, viewed):
        raise Unsupported(
            f"in {recorder.here()} a view made with as_strided() is used after a write to its base: it has "
            "elements that its own base, a view, lacks, and autograd lets their gradient through; make it of the "
            "first base"
        )


def _differentiable(
    recorder: Recorder, call: Operation, operands: Given, result: object
) -> tuple[bool, ...]:
    """Return which results of a call require grad, according to PyTorch's own formula."""
    func = call.func
    mask = tuple((proxy.requires_grad, proxy.dtype) for proxy in proxies(operands))
    key = func, mask, tuple(tensor.dtype for tensor in tensors_in(result))
    entry = _DIFFERENTIABLE.get(key)
    if entry is not None:
        return entry
    if func is _aten.as_strided_scatter.default:
        # PyTorch's formula demands contiguous arguments, and logs this
        return (True,)
    flags = iter(mask)
    with recorder.paused(), internals.dispatch_from_top(recorder.tape.dispatch_state):
        leaves = map_tensors(
            lambda fake: fake.detach().requires_grad_(next(flags)[0]), (call.args, call.kwargs)
        )
        leaves[1].pop("generator", None)
        try:
            answers = func(*leaves[0], **leaves[1])
        except RuntimeError:  # without a formula for complex numbers: `slice_scatter`
            fakes = [fake.detach() for fake in tensors_in(result)]
            answers = [fake.requires_grad_(_is_inexact(fake)) for fake in fakes]
    flags_out = tuple(tensor.requires_grad for tensor in tensors_in(answers))
    return _DIFFERENTIABLE.setdefault(key, flags_out)


def _is_inexact(tensor: torch.Tensor) -> bool:
    """Check whether a tensor can require grad."""
    return tensor.is_floating_point() or tensor.is_complex()


@functools.cache
def makes_views(overload: internals.OpOverload) -> bool:
    """Check whether the outputs of an overload are differentiable views of an argument."""
    returns = overload._schema.returns
    return overload is not _aten.detach.default and any(
        result.alias_info is not None for result in returns
    )

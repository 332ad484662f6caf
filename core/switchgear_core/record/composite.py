"""From a torch-level call to its lines: one composite, kept whole if it wrote nothing, reads only its arguments, and no
outside line reads its insides; otherwise its parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.composites import is_closed, read_first_views, turns_grad_off, unread_views
from switchgear_core.ir.naming import pack_dims
from switchgear_core.ir.symbol import CHECK, GRAD_OFF_INSIDE, BoundSymbol, proxies
from switchgear_core.nesting import tensors_in
from switchgear_core.record.call import Call
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.refused_writes import (
    is_in_place,
    refuse_detached,
    refuse_expanded,
    refuse_transposed,
)
from switchgear_core.record.tracker import is_detached


def note_target(recorder: Recorder, call: Call) -> None:
    """Note whether a call writes to its first argument, or to `out`."""
    out = call.kwargs.get("out")
    name = str(getattr(call.fn, "_opname", None) or getattr(call.fn, "__name__", ""))
    call.writes = out is not None or is_in_place(name)
    if not all(tensor.numel() for tensor in tensors_in(out)):
        raise Unsupported(
            f"out= of no elements, in {recorder.here()}, which is given other sizes; leave it out"
        )
    if isinstance(out, torch.Tensor) and internals.is_wrapper(out):
        call.out = internals.unwrap(out)
    target = _target(call)
    if call.writes and isinstance(target, torch.Tensor):
        refuse_expanded(target, recorder.here)
        operands = call.args[1:], call.kwargs
        index = call.args[1] if name == "__setitem__" else ()
        refuse_transposed(target, operands, index, call.grad_enabled, recorder.here)
        if (
            call.grad_enabled
            and internals.is_wrapper(target)
            and is_detached(recorder.tracker, target)
        ):
            refuse_detached(operands, recorder.here)


def _target(call: Call) -> object:
    """Return the written object of a call, if any."""
    out = call.kwargs.get("out")
    return next(iter(call.args), None) if out is None else out


def part_from_former_uses(recorder: Recorder, call: Call) -> None:
    """Let a call write to a recreated view, if the view, or one that it was made of, was used before.

    Autograd sums the gradients of these uses; the gradient of the overwritten value reaches the base separately.
    """
    view, tracker = _target(call), recorder.tracker
    if not isinstance(view, torch.Tensor) or not (view.requires_grad and tracker.follow_autograd):
        return
    base = view._base
    if base is None or base not in tracker or recorder.inputs.of(view) is not None:
        return
    lines = [line for frame in recorder.tape.frames for line in frame.lines]
    makers = {output.name: line for line in lines for output in line.outputs}
    value, base_value = tracker.proxy_of(view), tracker.proxy_of(base)
    maker: BoundSymbol | None = None
    while value != base_value:
        if any(value in line.inputs for line in lines if line is not maker):
            tracker.make_again(view, base)
            return
        maker = makers.get(value.name)
        if maker is None or len(maker.inputs) != 1:
            return
        value = maker.inputs[0]


@contextlib.contextmanager
def spliced(recorder: Recorder, call: Call) -> Iterator[None]:
    """Return a context recording the parts of a call without a composite."""
    note_target(recorder, call)
    try:
        with recorder.tape.framed(call):
            yield
    finally:
        recorder.tape.lines.extend(call.lines)


def close(recorder: Recorder, call: Call, *tags: str) -> None:
    """Record a call as a single composite with the given tags, or as its parts if it cannot be kept whole."""
    lines = _lines(recorder, call)
    is_whole = len(lines) == 1 and lines[0].symbol == call.symbol
    if tags and is_whole:
        lines = [replace(lines[0], tags=lines[0].tags.union(tags))]
    recorder.tape.lines.extend((*call.before, *lines))


def output_of(recorder: Recorder, result: object) -> object:
    """Return the nested output of a composite, or NotImplemented for more than tensors and None."""
    if isinstance(result, torch.Tensor) and internals.is_wrapper(result):
        return recorder.values.proxy_of(recorder.tracker.fake_of(result))
    if isinstance(result, (tuple, list)):
        items = tuple([output_of(recorder, item) for item in result])
        return NotImplemented if NotImplemented in items else items
    return None if result is None else NotImplemented


def _lines(recorder: Recorder, call: Call) -> list[BoundSymbol]:
    lines, symbol, tape = call.lines, call.symbol, recorder.tape
    assert symbol is not None
    if recorder.tracker.writes.remakes_views:
        lines = read_first_views(lines, proxies(call.operands), recorder.values.views)
        remade, lines = unread_views(lines, call.output, recorder.values.views)
        call.before.extend(remade)
    if not lines or (len(lines) == 1 and _says_it_all(lines[0], call, recorder)):
        return lines
    turned_off = call.grad_enabled and turns_grad_off(call.fn, lines)
    checks = any(CHECK in line.tags for line in lines)
    if call.is_unit and not checks and is_closed(call.operands, lines, call.output, tape.constants):
        tags = frozenset({GRAD_OFF_INSIDE} if turned_off else ())
        tags = tags.union(*(line.tags for line in lines))
        args, kwargs = pack_dims(symbol, call.operands[0]), call.operands[1]
        where = tape.source(), torch.is_grad_enabled()
        return [BoundSymbol(symbol, args, kwargs, call.output, tuple(lines), *where, tags)]
    if turned_off:
        raise Unsupported(
            f"{symbol.name} turns grad mode off inside, in {recorder.here()}, and cannot be kept whole here; "
            "call it without autocast, and on other tensors than those it writes to"
        )
    return lines


def _says_it_all(line: BoundSymbol, call: Call, recorder: Recorder) -> bool:
    """Check whether the only part is the call itself, or builds a tensor of Python numbers read at capture."""
    is_constant = any(proxy.name in recorder.tape.constants for proxy in line.inputs)
    return line.symbol == call.symbol or is_constant

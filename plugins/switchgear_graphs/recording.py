"""Programs from elsewhere, run on stand-ins for their tensors and recorded as traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.composites import splice_escaping
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, map_proxies, renamed, with_parts
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.ir.writes import NEW_LEAF
from switchgear_core.record.attempts import compiles
from switchgear_core.record.doors import Doors
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.options import check_options, in_force
from switchgear_core.registry.order import Executors, select
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.registry import Table
from switchgear_core.registry.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An input of a recorded program; `tensor` is the object by which the program reaches it, if any."""

    proxy: TensorProxy
    tensor: torch.Tensor | None = None


def selection_of(executors: Executors = ("torch",), grad_rules: Any = None) -> Selection:
    """Return the participants of a call of `jit` with these options."""
    parts = installed_parts()
    options = {"executors": executors, "grad_rules": grad_rules}
    check_options(parts.options, options)
    settings = in_force(parts.options, options, os.environ)
    rules = (grad_rules,) if isinstance(grad_rules, (Table, str)) else tuple(grad_rules or ())
    return select(installed(executors, rules), executors, settings, parts)


@compiles
def recorded(
    name: str,
    inputs: Sequence[Input],
    tensors: Mapping[str, torch.Tensor],
    run: Callable[[dict[str, Any]], Sequence[Any]],
    selection: Selection,
    names_in_use: Sequence[str] = (),
) -> Trace:
    """Run a program on stand-ins, and return its trace.

    Args:
        name: the name of the trace.
        inputs: its inputs.
        tensors: constants of the program, by name.
        run: the program: from the values of inputs and constants by name to the flat outputs.
        selection: the features of capture that take part.
        names_in_use: names that no new value gets.

    Raises:
        CaptureError: a trace cannot hold the program.
    """
    names = Names({*(item.proxy.name for item in inputs), *tensors, *names_in_use})
    names_by_id = {id(tensor): key for key, tensor in tensors.items()}
    constants: dict[str, torch.Tensor] = {}

    def adopt(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
        key = names_by_id.get(id(tensor)) or names.claim(f"c{len(constants)}")
        with internals.real_dispatch():
            constants[key] = tensor.detach()
        return recorder.enter(tensor, metadata_proxy(key, tensor, False))

    recorder = Recorder(names, adopt)
    doors = Doors(recorder, selection.handlers)
    stand_ins = [item.tensor if item.tensor is not None else torch.empty(0, device="meta") for item in inputs]
    with (
        selection.handlers.entered("around"),
        internals.exact_functionalization(),
        internals.autocast_off(),
        torch.enable_grad(),
        doors.open(),
    ):
        values: dict[str, Any] = dict(tensors)
        with internals.DisableTorchFunction():
            for item, tensor in zip(inputs, stand_ins, strict=True):
                values[item.proxy.name] = recorder.enter(tensor, item.proxy)
        results = run(values)
        with internals.DisableTorchFunction():
            recorder.tracker.settle()
            adopted = [recorder.adopted(item) if isinstance(item, torch.Tensor) else None for item in results]
            _refuse_writes(recorder)
            outputs = tuple([None if item is None else recorder.tracker.proxy_of(item) for item in adopted])
            body = splice_escaping(recorder.tape.take(), [proxy for proxy in outputs if proxy is not None])
    proxies = tuple([item.proxy for item in inputs])
    return Trace(name, proxies, outputs, body, {**recorder.tape.constants, **constants})


def _refuse_writes(recorder: Recorder) -> None:
    for entry in recorder.inputs:
        if recorder.tracker.proxy_of(entry.wrapper).name != entry.proxy.name:
            raise Unsupported(f"the program writes to {entry.proxy.name}; return the new value instead")


def replay(item: BoundSymbol, values: dict[str, Any]) -> None:
    """Run a line on the values of a program under way, and add its results."""
    if item.symbol == NEW_LEAF:
        values[item.output.name] = values[item.inputs[0].name].requires_grad_()
    else:
        evaluate([item], values)


def with_names(trace: Trace, names: Mapping[str, str]) -> Trace:
    """Return a copy of a trace with other names for some of its values."""
    values = {
        proxy.name: replace(proxy, name=names[proxy.name])
        for item in with_parts(trace.bound_symbols)
        for proxy in item.outputs
        if proxy.name in names
    }
    body = tuple([renamed(item, values) for item in trace.bound_symbols])
    outputs = map_proxies(lambda proxy: values.get(proxy.name, proxy), trace.outputs)
    return replace(trace, bound_symbols=body, outputs=outputs)

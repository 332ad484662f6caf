"""Write to inputs: what is to be copied into an input is computed there, where nobody can tell the difference."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import switchgear as sg

from .reuse_buffers import out_of_hand, written_to


def write_to_inputs(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Let pointwise operators that PyTorch runs write to inputs; `context.destined` says for which.

    Such an output comes out no more. Written to is an input that is not read afterwards, and that nothing which comes
    out, and no call of anybody else's, can see; nor may anybody see the value. Nothing is written before a check.
    """
    if not context.destined:
        return trace
    lines, outputs = list(trace.bound_symbols), list(trace.outputs)
    home = sg.storages(lines)

    def memory(proxy: sg.TensorProxy) -> str:
        return home.get(proxy.name, proxy.name)

    barred = {home.get(name, name) for item in lines for name in out_of_hand(item)}.union(trace.tensors)
    last = {memory(proxy): index for index, item in enumerate(lines) for proxy in item.inputs}
    checked = max([index for index, item in enumerate(lines) if item.is_check], default=-1)
    coming = Counter(memory(proxy) for proxy in trace.outputs if proxy is not None)
    maker = {proxy.name: index for index, item in enumerate(lines) for proxy in item.outputs}
    written = set()
    for place, number in context.destined.items():
        target, value = trace.inputs[number], trace.outputs[place]
        if value is None or value.name not in maker or memory(value) != value.name or coming[value.name] > 1:
            continue
        index = maker[value.name]
        if lines[index].output != value or index < max(checked, last.get(target.name, -1)) or coming[target.name]:
            continue
        if target.name in barred or value.name in barred:
            continue
        if any(memory(proxy) == target.name != proxy.name for proxy in lines[index].inputs):
            continue
        made = written_to(lines[index], target, value)
        if made is not None:
            lines[index], outputs[place] = made, None
            written.add(target.name)
    if not written:
        return trace
    return replace(trace, bound_symbols=tuple(lines), outputs=tuple(outputs), written=frozenset(written))

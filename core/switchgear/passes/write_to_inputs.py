"""Write to inputs: what is to be copied into an input is computed there, where nobody can tell the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from switchgear.aliasing import storages
from switchgear.proxy import TensorProxy
from switchgear.symbol import CHECK, proxies
from switchgear.trace import Trace

from .reuse_buffers import out_of_hand, written_to


def write_to_inputs(trace: Trace, destined: Mapping[int, int]) -> Trace:
    """Let pointwise operators that PyTorch runs write to inputs; `destined` says which output is for which input.

    Such an output comes out no more. Written to is an input that is not read afterwards, and that nothing which comes
    out, and no call of anybody else's, can see; nor may anybody see the value. Nothing is written before a check.
    """
    lines, outputs = list(trace.bound_symbols), list(trace.outputs)
    home = storages(lines)

    def memory(proxy: TensorProxy) -> str:
        return home.get(proxy.name, proxy.name)

    barred = {home.get(name, name) for item in lines for name in out_of_hand(item)}.union(trace.constants)
    last = {memory(proxy): index for index, item in enumerate(lines) for proxy in item.inputs}
    checked = max([index for index, item in enumerate(lines) if CHECK in item.tags], default=-1)
    coming = Counter(map(memory, proxies(trace.outputs)))
    maker = {proxy.name: index for index, item in enumerate(lines) for proxy in item.outputs}
    written = set()
    for place, number in destined.items():
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

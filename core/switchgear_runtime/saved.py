"""The tensors that a forward saves for its backward, with reasons and readers."""

from __future__ import annotations

from collections import Counter, defaultdict

from switchgear_core.grad.partition import Partitioned
from switchgear_core.ir.choice import Saved
from switchgear_core.ir.proxy import TensorProxy, bytes_of
from switchgear_core.ir.symbol import (
    OFFLOAD,
    RECOMPUTE,
    RECOMPUTED,
    SAVE,
    BoundSymbol,
    policy_of,
    proxies,
)
from switchgear_core.registry.savings import is_recomputed, why_once


def saved_values(parts: Partitioned) -> tuple[Saved, ...]:
    """Return the saved tensors of a forward, with reasons and readers in the backward."""
    maker = {proxy.name: item for item in parts.forward.bound_symbols for proxy in item.outputs}
    readers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in parts.backward.bound_symbols:
        for name in {proxy.name for proxy in item.inputs}:
            readers[name][
                item.symbol.name + (" (recomputed)" if RECOMPUTED in item.tags else "")
            ] += 1
    values = {item.inputs[0].name: item.outputs[0] for item in parts.unpacked}
    for item in parts.unpacked:
        readers[item.inputs[0].name] = readers[item.outputs[0].name]
    outputs = parts.forward.outputs[: len(parts.forward.outputs) - len(parts.saved)]
    returned = {proxy.name for proxy in proxies(outputs)} - parts.overwritten
    report = []
    for proxy in parts.saved:
        value = values.get(proxy.name, proxy)
        line = maker.get(value.name)
        origin = "input" if line is None else f"{line.symbol.name} at {line.source}"
        reason = _reason(value, line, parts)
        reason += "; it is returned as well" if value.name in returned else ""
        alive = line is None and value.name not in parts.overwritten
        by = tuple(readers[proxy.name].items())
        report.append(
            Saved(value.name, proxy.type_string, bytes_of(proxy), alive, origin, reason, by)
        )
    return tuple(report)


def recomputed_lines(parts: Partitioned) -> tuple[str, ...]:
    """Return the operators that the backward runs again, with the reason, and the number of such lines."""
    counts: Counter[str] = Counter()
    for item in parts.backward.bound_symbols:
        if RECOMPUTED in item.tags:
            rule = item.links[0].rule.owner if item.links else ""
            reason = (
                "a region of torch.utils.checkpoint"
                if rule == "checkpoint"
                else "its result is not saved"
            )
            if any(is_recomputed(item, proxy) for proxy in item.outputs):
                reason = f"tagged {RECOMPUTE}"
            counts[f"{item.symbol.name} at {item.source}: {reason}"] += 1
    return tuple([f"{count} x {text}" for text, count in counts.items()])


def _reason(proxy: TensorProxy, item: BoundSymbol | None, parts: Partitioned) -> str:
    tag = "" if item is None else policy_of(item, proxy)
    if item is not None and tag == OFFLOAD:
        return f"tagged {OFFLOAD}, which is not done yet: it stays on its device"
    if item is not None and tag == SAVE:
        return f"tagged {SAVE}"
    if item is not None and tag == RECOMPUTE and (why := why_once(item)):
        return f"tagged {RECOMPUTE}, but {why}"
    if proxy.name in parts.overwritten:
        return "saved as a copy, for the call overwrites it"
    return "an input, which takes no more memory" if item is None else parts.reason(proxy, item)

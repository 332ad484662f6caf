"""Undefined grad outputs: the joint trace without grad outputs that are only added to other gradients.

An example is the logits of a model that also returns its loss: one differentiation serves both cases.
"""

from __future__ import annotations

from dataclasses import replace

from switchgear_core.grad.differentiate import Joint
from switchgear_core.grad.sweep import ADD
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, proxies
from switchgear_core.registry.rules import Grads


def without_undefined(joint: Joint, grad_outputs: Grads) -> Joint | None:
    """Return the joint trace for the given grad outputs; None where the trace must be differentiated again."""
    pairs = list(zip(joint.grad_outputs, grad_outputs, strict=True))
    if any(new is not None and new != old for old, new in pairs):
        return None
    absent = {old.name for old, new in pairs if old is not None and new is None}
    made_of_defined = {new.name for _, new in pairs if new is not None}
    env: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for item in joint.trace.bound_symbols:
        if absent.isdisjoint(proxy.name for proxy in item.inputs):
            body.append(item.reading(env))
            if any(proxy.name in made_of_defined for proxy in body[-1].inputs):
                made_of_defined.update(proxy.name for proxy in item.outputs)
            continue
        terms = [proxy for proxy in item.inputs if proxy.name not in absent]
        if item.symbol is not ADD or [term.layout for term in terms] != [item.output.layout]:
            return None
        env[item.output.name] = env.get(terms[0].name, terms[0])
    outputs = tuple([proxy and env.get(proxy.name, proxy) for proxy in joint.trace.outputs])
    # a gradient of constant zeros may belong to an undefined grad output
    gradients = {proxy.name for proxy in proxies(outputs[joint.count :])}
    if absent and not gradients <= made_of_defined:
        return None
    inputs = tuple([proxy for proxy in joint.trace.inputs if proxy.name not in absent])
    trace = replace(joint.trace, inputs=inputs, outputs=outputs, bound_symbols=tuple(body))
    return replace(joint, trace=trace, grad_outputs=grad_outputs)

"""Passes that remove needless lines: calls of constants, calls without effect, equal calls. A part."""

from __future__ import annotations

from switchgear_core.ir.trace import Trace
from switchgear_core.registry.hookspecs import PassContext, PassPlacement, hookimpl
from switchgear_simplify.constants import fold_constants
from switchgear_simplify.effects import no_ops
from switchgear_simplify.equal_calls import common_subexpressions


def _no_ops(trace: Trace, context: PassContext) -> Trace:
    # gradients of a trace that is differentiated again would sum in another order than autograd's
    if context.is_differentiated:
        return trace
    trace, replacements = no_ops(trace)
    context.replace(replacements)
    return trace


def _common_subexpressions(trace: Trace, context: PassContext) -> Trace:
    if context.is_differentiated:
        return trace
    trace, replacements = common_subexpressions(trace, context.count)
    context.replace(replacements)
    return trace


@hookimpl
def switchgear_passes() -> list[PassPlacement]:
    """Place them before the partition."""
    return [
        PassPlacement("fold_constants", "before_partition", lambda trace, _: fold_constants(trace)),
        PassPlacement("no_ops", "before_partition", _no_ops),
        PassPlacement("common_subexpressions", "before_partition", _common_subexpressions),
    ]

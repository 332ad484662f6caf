"""The compiler behind a jitted function, and the traces, choices and saved tensors of its last call."""

from __future__ import annotations

from dataclasses import replace

from switchgear_core.errors import SwitchgearError
from switchgear_core.ir.choice import Choices, Saved
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.stages import Stages
from switchgear_core.showing import Listing
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.entry import Entry
from switchgear_runtime.jitted import JitFunction
from switchgear_runtime.saved import saved_values


def compiler_of(jitted: object) -> Compiler:
    """Return the compiler of a jitted function.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
    """
    assigned = getattr(jitted, "_switchgear_forward", None)
    jitted = assigned if isinstance(assigned, JitFunction) else jitted
    compiler = getattr(jitted, "_switchgear", None)
    if not isinstance(compiler, Compiler):
        raise TypeError(
            f"expected a jitted function, got a {type(jitted).__name__}: jit it (f = sg.jit(f)) and call that"
        )
    return compiler


def last_entry(jitted: object) -> Entry:
    """Return the most recent entry.

    Raises:
        SwitchgearError: no entry has run.
    """
    compiler = compiler_of(jitted)
    if compiler.last is None:
        raise SwitchgearError(f"nothing of {compiler.name} is compiled: {why_no_entry(compiler)}")
    return compiler.last


def why_no_entry(compiler: Compiler) -> str:
    """Return why there is no entry that ran last."""
    if not compiler.calls:
        return "it has not been called yet; call it first"
    if compiler.cache.reasons:
        return "a module that its last call was for is gone"
    reasons = [fallback for fallback in compiler.fallbacks.reasons.values() if fallback.calls]
    if reasons:
        return f"all calls fell back, as sg.explain tells; the last reason: {reasons[-1]}"
    return "its calls raised, or initialised the module, before anything was compiled"


def last_traces(jitted: object) -> Stages:
    """Return the stages of the forward of the most recent entry. The last stage is the program that runs.

    Args:
        jitted: the result of `sg.jit`, after a call.

    Returns:
        The traces, in order. `print` shows a list of them.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
        SwitchgearError: no entry has run.
    """
    return _shown(jitted, last_entry(jitted).forward.stages)


def last_backward_traces(jitted: object) -> Stages:
    """Return the stages of the backward of the most recent entry.

    Args:
        jitted: the result of `sg.jit`, after a call.

    Returns:
        The traces of the last backward, or else of the next, in order. Empty if the entry has no gradient.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
        SwitchgearError: no entry has run.
    """
    bridge = last_entry(jitted).bridge
    return Stages() if bridge is None else _shown(jitted, bridge.backwards.last_backward.stages)


def _shown(jitted: object, stages: tuple[Trace, ...]) -> Stages:
    link = compiler_of(jitted).link
    return Stages([replace(trace, links_shown=link) for trace in stages])


def last_choices(jitted: object) -> Choices:
    """Return the choices of the most recent entry: gradients, forward, backward.

    Args:
        jitted: the result of `sg.jit`, after a call.

    Returns:
        One `Choice` for each decision: its owner, and the others with their reasons.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
        SwitchgearError: no entry has run.
    """
    entry = last_entry(jitted)
    backward = entry.bridge.backwards.last_backward.choices if entry.bridge is not None else ()
    return Choices((*entry.forward.choices, *backward))


def last_saved(jitted: object) -> Listing[Saved]:
    """Return the tensors that the most recent entry saves for its backward.

    Args:
        jitted: the result of `sg.jit`, after a call.

    Returns:
        The saved tensors, with bytes and reasons. Empty if the entry has no gradient.

    Raises:
        TypeError: `jitted` is not the result of `sg.jit`.
        SwitchgearError: no entry has run.
    """
    bridge = last_entry(jitted).bridge
    return Listing(() if bridge is None else saved_values(bridge.training.parts))

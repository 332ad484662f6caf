"""`jit`: functions and modules that run as compiled traces."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

import torch
from torch import nn

from switchgear.options import Defaults, FallbackTo, Options, check_options, with_defaults
from switchgear_core import torch_private as internals
from switchgear_core.background.decisions import opened
from switchgear_core.errors import InvalidInput, SwitchgearError
from switchgear_core.ir.choice import Choices
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.stages import Stages
from switchgear_core.record.sizes import Dynamic
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import PassPlacement
from switchgear_core.registry.modes import CompileMode
from switchgear_core.registry.order import ExecutorOptions, Executors
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.preferences import PerOperator
from switchgear_core.registry.registry import Table
from switchgear_core.registry.selection import select
from switchgear_core.showing import Listing
from switchgear_core.torch_private.names import warn_if_untested
from switchgear_frontend.features import BUILT_IN
from switchgear_memory import MemoryOption, savings
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.entry import Entry
from switchgear_runtime.jitted import (
    Decorator,
    JitFunction,
    Module,
    P,
    R,
    jitted_module,
)
from switchgear_runtime.saved import Saved, saved_values
from switchgear_runtime.split import graph_runner


@overload
def jit(function: Module, **options: Unpack[Options]) -> Module: ...
@overload
def jit(function: Callable[P, R], **options: Unpack[Options]) -> Callable[P, R]: ...
@overload
def jit(function: None = None, **options: Unpack[Options]) -> Decorator: ...
@internals.opaque
@with_defaults
def jit(
    function: Callable[..., object] | nn.Module | None = None,
    *,
    methods: Sequence[str] = (),
    executors: Executors = "auto",
    options: ExecutorOptions | None = None,
    grad_rules: Table | str | Sequence[Table | str] | None = None,
    prefer: PerOperator | None = None,
    avoid: PerOperator | None = None,
    passes: Sequence[PassPlacement | str] = (),
    fallback: FallbackTo = "split",
    strict: bool = False,
    check: bool = False,
    memory: MemoryOption = "auto",
    compile: CompileMode | None = None,
    decisions: str | os.PathLike[str] | None = None,
    recompile_limit: int = 8,
    cache_size: int = 64,
    link: bool = False,
    specialize_on_data: bool | None = None,
    dynamic: Dynamic | None = None,
    fuel: int | Fuel | None = None,
    **unknown: object,
) -> Any:
    """Run a function or a module as compiled traces. Also a decorator, with or without options.

    The first call captures a trace of PyTorch's operators, differentiates it and compiles it. Later calls that pass its
    guards run the compiled program. Guards cover the structure of the arguments, the metadata of tensors, Python values
    among the arguments, the state of modules, and global modes. They also cover attributes, globals, closures and
    containers that the function reads; each call repeats its writes.

    A jitted module shares its state with the original. A bound method of a module is compiled with the module's state.
    A forward that is assigned to a jitted module runs as it is; its calls of the former forward are compiled.
    The first call of a module with lazy parameters initialises them in eager mode.

    Args:
        function: a function, an `nn.Module` or a bound method of one. None returns a decorator.
        methods: names of a module's methods that are jitted, too.

    Args: Decide first
        executors: the executors, and plugins of rules, by name or as objects, the first asked first. With ["torch"]
            results are bit-identical to eager mode. `...` stands for the default ones, "-name" leaves one out. "auto"
            is [...]: all that are installed, and each region goes to the fastest, as measured. None: all that are
            installed, by (priority, name), without measuring.
        memory: bytes saved for the backward, which recomputes the rest. "auto": recompute only operators that cost
            almost nothing. "eager": save as eager mode does. "balanced": save matrix products and other expensive
            results. "lean": half of the bytes of "balanced" or "auto". A budget, 0.5 of eager's bytes or "2GB", is met
            by each program; else the first call raises. `sg.plan` shows the costs. Random numbers and operators from
            outside of PyTorch are never recomputed.
        dynamic: sizes for which one program is compiled. None: sizes that have changed. True: those of every tensor
            argument. A dict from parameters to dimensions: `{"input_ids": {1}}`. False: none. 0 and 1 are separate
            sizes, as in PyTorch. A branch on a size becomes a guard.
        fallback: the fate of a call that cannot be captured, with one `FallbackWarning` for each reason. "split":
            TorchDynamo splits the function, its graphs are compiled, and the rest runs in eager mode. "eager": the
            original function runs. "error": the call raises `CaptureError`.
        compile: when regions are compiled. "background": in a worker process, while operators run; the program is
            exchanged between two calls, which may change the last bits. `sg.wait` waits for it. "now": before the
            first call returns. "never": only code on disk is used. None: `SWITCHGEAR_COMPILE`, else "background" if
            regions are measured, and "now" for an explicit list.
        strict: raise instead of falling back: for a call that cannot be captured, a listed executor that is
            unavailable, and a claimed forward that has no gradient.

    Args: Tuning
        options: options of single executors, by their names: `{"mine": {"fast": True}}`. They are the keyword
            arguments of the executor's class.
        prefer: executors that are asked first about single operators: `{F.softplus: "mine"}`. An operator is a
            function, or a name in a trace. Executors that fuse take leaves.
        avoid: executors that are not asked about single operators: `{"aten.mm.default": ["other"]}`.
        grad_rules: tables of grad rules for this function, or names of plugins with rules, asked before any executor.
        passes: passes for this function, after those of plugins. "-name" leaves out a plugin's pass.
        specialize_on_data: compile for values of tensors (`item()`, a branch, indexing by a mask), and guard them.
            None: for integers and masks, unrounded floats, and what is asked only to raise, until outcomes keep
            changing. False: never. Other uses of values raise `DataDependent`.
        decisions: a file of choices. If it does not exist, it is written: the executor of each region and line. If it
            exists, its choices are repeated, and one seed gives the same bits. Implies compile="now".
        recompile_limit: compilations before a `RecompileWarning` names the values that keep changing.
        cache_size: compiled entries; the least recently used is dropped first.

    Args: Debugging
        check: compare every result of a plugin with PyTorch's operators, in every call. Slow.
        fuel: the number of regions that are fused, the first ones; `switchgear bisect` finds the wrong one.
        link: print each backward line with its forward line and rule.

    Returns:
        A function with the same signature, a module that shares the original's state, or a decorator.

    Raises:
        InvalidInput: an option has an invalid value, or the function cannot be jitted.
        UnknownExecutor: no installed executor has a listed name.
        ExecutorUnavailable: with `strict`, a listed executor cannot run here.
        RuleError: in a call, a plugin's rule, checker or pass raised, or returned something invalid.
        ExecutorFailed: in a call, an implementation raised or returned a wrong result.
        OtherDecisions: in a call, a file of decisions cannot be repeated.
        CaptureError: in a call, with fallback="error" or `strict`, the call cannot be captured.
        NotDifferentiable: in a call, with `strict`, no rule differentiates an operator.
    """
    own = {name: value for name, value in locals().items() if name in Defaults.__annotations__}
    check_options({**unknown, **own, "methods": methods}, names=("methods",))
    if function is None:
        return functools.partial(jit, methods=methods, **own)
    if not callable(function):
        raise TypeError(
            f"sg.jit takes a function or a module, not a {type(function).__name__}; jit the function that makes it, "
            "and call that: sg.jit(f)(x)"
        )
    if isinstance(function, type) and issubclass(function, nn.Module):
        name = function.__name__
        raise InvalidInput(f"{name} is a class; jit an object of it: sg.jit({name}(...))")
    if inspect.iscoroutinefunction(getattr(function, "forward", function)):
        raise InvalidInput(
            f"{getattr(function, '__qualname__', function)!s} is a coroutine function, whose call only makes a "
            "coroutine; give sg.jit the functions that it calls between awaits"
        )
    warn_if_untested()
    tables = (grad_rules,) if isinstance(grad_rules, (Table, str)) else tuple(grad_rules or ())
    if decisions is not None and compile not in (None, "now"):
        raise InvalidInput(
            f"decisions repeats bits, which compile={compile!r} changes; leave compile out"
        )
    selection = select(
        installed(executors, tables),
        executors,
        grad_rules=tables,
        strict=strict,
        savings=savings(memory),
        fuel=fuel,
        features=BUILT_IN,
        prefer=prefer or {},
        avoid=avoid or {},
        check=check,
        passes=passes,
        options=options or {},
        compile=compile if decisions is None else "now",
        decisions=None if decisions is None else opened(decisions).file,
    )
    again = functools.partial(jit, **own)

    def compiler(function: Callable[..., object], module: nn.Module | None) -> Compiler:
        return Compiler(function, module, selection, own)

    if isinstance(function, nn.Module):
        return jitted_module(
            function, compiler, functools.partial(again, methods=methods), again, methods
        )
    if methods:
        raise InvalidInput(
            f"methods={methods!r} is for modules, and {function!r} is none; leave methods out"
        )
    if isinstance(function, JitFunction):
        function = function._switchgear.function
    owner = getattr(function, "__self__", None)
    return JitFunction(compiler(function, owner if isinstance(owner, nn.Module) else None), again)


def dynamo_backend(
    graph: torch.fx.GraphModule, inputs: Sequence[object], options: dict[str, object] | None = None
) -> Callable[..., object]:
    """Compile a graph of `torch.compile(backend="switchgear")`.

    Args:
        graph: the graph that TorchDynamo captured.
        inputs: its example inputs.
        options: options of `sg.jit`.

    Returns:
        A function of the graph's inputs.
    """

    def compile_graph(
        graph: torch.fx.GraphModule, dynamic: Mapping[str, frozenset[int]], name: str
    ) -> Compiler:
        chosen: dict[str, Any] = {"fallback": "eager", "dynamic": dynamic, **(options or {})}
        return compiler_of(jit(graph, **chosen))

    return graph_runner(graph, inputs, compile_graph)[1]


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
    """Return the entry that ran last.

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
    reasons = [one for one in compiler.fallbacks.reasons.values() if one.calls]
    if reasons:
        return f"all calls fell back, as sg.explain tells; the last reason: {reasons[-1]}"
    return "its calls raised, or initialised the module, before anything was compiled"


def last_traces(jitted: object) -> Stages:
    """Return the stages of the forward of the entry that ran last. The last stage is the program that runs.

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
    """Return the stages of the backward of the entry that ran last.

    Args:
        jitted: the result of `sg.jit`, after a call.

    Returns:
        The traces of the backward that ran last, or will run, in order. Empty if the entry has no gradient.

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
    """Return the choices of the entry that ran last: gradients, forward, backward.

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
    """Return the tensors that the entry that ran last saves for its backward.

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

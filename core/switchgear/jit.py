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

from switchgear import torch_private as internals
from switchgear.capture.sizes import Dynamic
from switchgear.compile.decisions import opened
from switchgear.compile.stages import Stages
from switchgear.compiler import Compiler
from switchgear.errors import InvalidInput, SwitchgearError
from switchgear.features import BUILT_IN
from switchgear.grad.partition import saved_values
from switchgear.ir.choice import Choices, Saved
from switchgear.ir.trace import Trace
from switchgear.jitted import (
    Decorator,
    JitFunction,
    Module,
    P,
    R,
    jitted_module,
)
from switchgear.options import Defaults, FallbackTo, Options, check_options, with_defaults
from switchgear.runtime.entry import Entry
from switchgear.runtime.split import graph_runner
from switchgear.showing import Listing
from switchgear.torch_private.names import warn_if_untested
from switchgear.who.fuel import Fuel
from switchgear.who.hookspecs import PassPlacement
from switchgear.who.memory import MemoryOption
from switchgear.who.modes import CompileMode
from switchgear.who.order import ExecutorOptions, Executors
from switchgear.who.plugins import installed
from switchgear.who.preferences import PerOperator
from switchgear.who.registry import Table
from switchgear.who.selection import select


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
    """A function or module that runs as compiled traces; also a decorator, with or without options.

    A trace is specialised on the structure of the arguments, the metadata of their tensors, the Python values among
    them, module state, global modes, and what it reads from Python: attributes, global variables, closures, containers.
    What it writes there is done again by every call.

    A jitted module shares its state with the original. A forward that is assigned to it runs as it is, and what of it
    calls the former one is compiled. A bound method of a module is compiled with the module's state. The first call
    of a module with lazy parts initialises them, in eager.

    - `methods`: names of a module's methods that are jitted beside its forward.
    - `executors`: the whole list of executors and of packages of rules, by name or as objects, the first asked first:
      with ["torch"] results are eager's to the bit, whatever is installed. `...` stands for the default ones that are
      not named, "-name" leaves one of these out. "auto" is [...]: all that are installed, those that fuse early, each
      region compiled by every one that takes it, measured, and left to the others where none is faster; times are
      remembered on disk. None is all that are installed, by (declared priority, name), and nothing is measured.
    - `options`: what executors are to do otherwise, by their names: `options={"mine": {"fast": True}}`. Each has its
      own, the keyword arguments of its class, and runs as if made with them and listed as that object.
    - `grad_rules`: tables of grad rules for this function alone, or names of plugins whose rules these are to be,
      asked before any executor.
    - `prefer`, `avoid`: who is asked about single operators before everybody else, or not at all, forward and
      backward: `prefer={F.softplus: "mine"}`, `avoid={"aten.mm.default": ["other"]}`. An operator is a function or a
      name that traces show; what one that fuses takes are the leaves.
    - `passes`: passes for this function alone, after those of plugins; "-name" leaves out one of theirs.
    - `fallback`: what becomes of a call that cannot be captured, with one `FallbackWarning` for each reason. "split":
      TorchDynamo takes the function apart, each graph that it finds is compiled as a function is, by the same
      executors, and the rest runs in eager; where the call itself is refused, or TorchDynamo is known to be wrong, all
      of it; and in calls without gradients on a CPU the original function, once that was faster. "eager": the original
      function runs. "error": the call raises `CaptureError`.
    - `strict`: raise where otherwise a fallback happens with a reason: a call that cannot be captured, as with
      fallback="error"; an executor listed but unavailable; a forward that an executor claims and nobody
      differentiates.
    - `check`: compare what plugins' implementations and regions make, in every call, with PyTorch's operators; slow,
      to find one that is wrong. `SWITCHGEAR_CHECK=1` does it everywhere.
    - `memory`: what the backward makes again instead of having it saved. "auto": where an executor fuses, what costs
      next to nothing there, and what takes little beside the rest; else as "eager": views alone, so that what eager
      saves is saved. "balanced": what takes next to no time beside matrix products. A budget, 0.5 of what eager saves
      or "2GB", is met in each program by making again what costs least, matrix products and attention too, or is an
      error that tells the least possible; `sg.plan` shows what it costs. "lean": half of what "balanced" or "auto"
      saves, or as near to it as can be. Random numbers and operators from outside PyTorch are never made again. What
      is made again from an input must find it as it was: overwriting it before the backward is an error.
    - `compile`: when regions are compiled. "background": by a worker process of low priority, while operators run; once
      they are compiled and measured, the program is exchanged between two calls, and results may change in their last
      bits. `sg.wait` waits for that. "now": before the first call returns, so that every call gives the same bits.
      "never": what is on disk is used, nothing is compiled. None: `SWITCHGEAR_COMPILE`, else "background" where regions
      are measured, by default, and "now" for a list that says who runs them.
    - `decisions`: a file of who ran what. Where it is not there, it is written as programs are made; where it is, each
      is made in the same way, and one seed gives the same bits as in the process that wrote it: nothing is measured
      anew. `OtherDecisions` says what differs where that cannot be: the program, an executor or its version, PyTorch,
      the threads, the processor. Regions are then compiled now.
    - `recompile_limit`: compilations after which a `RecompileWarning` says what keeps changing. Calls with the same
      tensors that have been compiled 16 times, or twice as often as that, for other Python values, run in eager from
      then on.
    - `cache_size`: compiled entries kept, the least recently used dropped first.
    - `link`: print every backward line with the forward line and the rule that it comes from, in `str(trace)` too.
    - `specialize_on_data`: where a Python value or a shape depends on the data of tensors (`item()`, a branch,
      indexing by a mask), compile for what it is in a call, and check in every call that it is. None: only branches
      on masks, ids and other integers, `if mask.all()`, until they came out in so many ways that it is not worth it.
      What is not compiled for is `DataDependent`.
    - `dynamic`: sizes that one entry is to serve, so that another sequence length or batch does not compile again.
      None: those that have changed from one call to another; True: those of every tensor argument; a dict from
      parameters to dimensions, `dynamic={"input_ids": {1}}`; False: none. As in PyTorch, 0 and 1 are sizes of their
      own, and what the function decides by a size (a branch, `range(len(x))`) an entry holds other calls to.
    - `fuel`: fuse so many regions only, the first ones, to find the one that makes a result differ.

    Raises `UnknownExecutor`, `ExecutorUnavailable`; calls raise `RuleError`, `OtherDecisions`, and, where they are
    strict, `CaptureError` and `NotDifferentiable`.
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
    if isinstance(function, type):
        name = function.__name__
        raise InvalidInput(f"{name} is a class; jit an object of it: sg.jit({name}(...))")
    if inspect.iscoroutinefunction(getattr(function, "forward", function)):
        raise InvalidInput(
            f"{getattr(function, '__qualname__', function)!s} is a coroutine function, whose call only makes a "
            "coroutine; give sg.jit the functions that it calls between what it awaits"
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
        memory=memory,
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
    """The backend "switchgear" of `torch.compile`, whose `options` are those of `jit`: each graph is jitted."""

    def compile_graph(
        graph: torch.fx.GraphModule, dynamic: Mapping[str, frozenset[int]], name: str
    ) -> Compiler:
        chosen: dict[str, Any] = {"fallback": "eager", "dynamic": dynamic, **(options or {})}
        return compiler_of(jit(graph, **chosen))

    return graph_runner(graph, inputs, compile_graph)[1]


def compiler_of(jitted: object) -> Compiler:
    """The compiler behind what `jit` returned; `TypeError` for anything else."""
    compiler = getattr(jitted, "_switchgear", None)
    if not isinstance(compiler, Compiler):
        raise TypeError(
            f"expected a jitted function, got a {type(jitted).__name__}: jit it (f = sg.jit(f)) and call that"
        )
    return compiler


def last_entry(jitted: object) -> Entry:
    """The entry last run."""
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
    """The stages of the forward of the entry last run; the last one is what is executed."""
    return _shown(jitted, last_entry(jitted).forward.stages)


def last_backward_traces(jitted: object) -> Stages:
    """The stages of the backward last run, or about to run, of the entry last run; empty if it has no gradient."""
    bridge = last_entry(jitted).bridge
    return Stages() if bridge is None else _shown(jitted, bridge.backwards.last_backward.stages)


def _shown(jitted: object, stages: tuple[Trace, ...]) -> Stages:
    link = compiler_of(jitted).link
    return Stages([replace(trace, links_shown=link) for trace in stages])


def last_choices(jitted: object) -> Choices:
    """Who was chosen for what, and why others were not, in the entry last run: gradients, forward, backward."""
    entry = last_entry(jitted)
    backward = entry.bridge.backwards.last_backward.choices if entry.bridge is not None else ()
    return Choices((*entry.forward.choices, *backward))


def last_saved(jitted: object) -> Listing[Saved]:
    """What the forward of the entry last run keeps for its backward, and why; nothing if it has no gradient."""
    bridge = last_entry(jitted).bridge
    return Listing(() if bridge is None else saved_values(bridge.training.parts))

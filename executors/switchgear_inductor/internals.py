"""Every private API of Inductor and its surroundings that this executor leans on, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._inductor.kernel.bmm
import torch._inductor.kernel.conv
import torch._inductor.kernel.mm
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import LocalSource
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

import switchgear as sg

from .variants import Compiled

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@functools.cache
def is_lowered(fn: Any) -> bool:
    """Whether Inductor has more for an overload than a call of PyTorch's kernel."""
    return fn not in fallbacks and (fn in lowerings or fn in select_decomp_table())


def python(value: Any) -> str:
    """Numbers, nested in tuples, as Python; symbolic ones by the names of sizes."""
    if isinstance(value, tuple):
        return f"({''.join([f'{python(item)}, ' for item in value])})"
    return _printed(value.node.expr) if isinstance(value, _SYMBOLIC) else repr(value)


@functools.lru_cache(4096)
def _printed(expression: Any) -> str:
    return str(PythonPrinter().doprint(expression))


def _function(names: Sequence[str], expression: str) -> Callable[..., Any]:
    """What Python says of numbers of these names, which may be symbolic."""
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {expression}", dict(SYMPY_INTERP))
    return function


class Region:
    """A region of a trace, with the layouts of what it takes and gives as functions of its numbers."""

    def __init__(self, region: sg.Trace) -> None:
        names = [number.name for number in region.numbers]
        outputs = [proxy for proxy in region.outputs if proxy is not None]
        self.name = region.name
        self.function = region.function()
        self.boxed = region.function(boxed=True)
        self.kinds = [(proxy.dtype, proxy.device) for proxy in region.inputs]
        self.layouts = _function(names, python(tuple([(proxy.shape, proxy.stride) for proxy in region.inputs])))
        self.strides = _function(names, python(tuple([proxy.stride for proxy in outputs])))


def compile_region(region: Region, sizes: Sequence[int], options: Mapping[str, Any]) -> Compiled:
    """A function that returns the region's outputs in their proxies' strides, for `sizes` and others.

    For which others, Inductor decides on the way; `sizes` are those that it estimates by.
    """
    env, numbers = _symbolic(sizes) if sizes else (None, [])
    # fixed layouts are guarded already; symbolic ones are PyTorch's formulas, which its kernels need not keep to
    asserts = {"size_asserts": env is not None}
    mode = FakeTensorMode(shape_env=env)
    strides = region.strides(*numbers)

    def permuted(*args: Any) -> list[torch.Tensor]:
        return [_permuted(value, stride) for value, stride in zip(region.function(*args), strides, strict=True)]

    with config.patch({**asserts, **options}), tracing(TracingContext(mode)), warnings.catch_warnings():
        # that it does not vectorize them, which no user can change
        warnings.filterwarnings("ignore", "bf16 and fp16 are mixed", UserWarning)
        with mode, enable_python_dispatcher() if env else contextlib.nullcontext():
            layouts = zip(region.layouts(*numbers), region.kinds, strict=True)
            inputs = [
                *numbers,
                *[torch.empty_strided(*layout, dtype=dtype, device=device) for layout, (dtype, device) in layouts],
            ]
            graph = make_fx(permuted, decomposition_table=select_decomp_table())(*inputs)
        (end,) = graph.graph.find_nodes(op="output")
        # without this, the strides of outputs are Inductor's choice
        end.meta["user_visible_output_idxs"] = list(range(len(strides)))
        compiled: Any = compile_fx_inner(graph, inputs)
    run = getattr(compiled, "current_callable", None) or compiled
    number_of: Callable[[Any], Any] = env.deserialize_symexpr if env else int
    # in strides with gaps, or of a dimension of one, Inductor writes nothing
    known = getattr(compiled, "output_strides", None)
    made = [tuple(map(number_of, one)) for one in known] if known else [v.meta["val"].stride() for v in end.args[0]]
    odd = [index for index, stride in enumerate(strides) if not _same(made[index], stride)]
    holds = _holds(env, numbers) if env else None
    if not odd:
        # an object of its own, for Inductor's caches keep theirs
        return Compiled(functools.partial(run), holds)

    def laid_out(args: list[Any]) -> list[torch.Tensor]:
        wanted = region.strides(*args[: len(numbers)])
        results = list(run(args))
        for index in odd:
            value = results[index]
            results[index] = torch.empty_strided(
                value.shape, wanted[index], dtype=value.dtype, device=value.device
            ).copy_(value)
        return results

    return Compiled(laid_out, holds)


def _symbolic(sizes: Sequence[int]) -> tuple[ShapeEnv, list[Any]]:
    """An environment, and its numbers, each a symbol of its own, with `sizes` for hints."""
    env = ShapeEnv(duck_shape=False)
    numbers = []
    for index, size in enumerate(sizes):
        source = LocalSource(f"s{index}")
        symbol = env.create_symbol(size, source, DimDynamic.DYNAMIC)
        numbers.append(env.create_symintnode(symbol, hint=size, source=source))
    return env, numbers


def _holds(env: ShapeEnv, numbers: Sequence[Any]) -> Callable[..., bool] | None:
    """Whether all that was decided in the environment is true of other numbers; None if nothing was."""
    conditions = [f"({_printed(guard.expr)})" for guard in env.guards]
    return _function([str(number.node._expr) for number in numbers], " and ".join(conditions)) if conditions else None


def _same(stride: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether strides are the same for all numbers, as far as it shows; nothing is decided or traced by asking."""
    return [*map(_expression, stride)] == [*map(_expression, other)]


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else number


def _permuted(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """`value` in PyTorch's order of strides, which a decomposition need not keep; traced, it is part of the region."""
    if _same(value.stride(), stride):
        return value
    order = sorted(range(value.dim()), key=lambda dim: (-_hint(stride[dim]), -_hint(value.shape[dim])))
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

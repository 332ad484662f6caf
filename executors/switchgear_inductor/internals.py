"""Every private API of Inductor and its surroundings that this executor leans on, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.kernel.bmm
import torch._inductor.kernel.conv
import torch._inductor.kernel.mm
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import LocalSource
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import FxGraphCache, write_atomic
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import pass_patterns
from torch._inductor.lowering import fallbacks, lowerings
from torch._inductor.output_code import CompiledFxGraphConstants
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import BoxedBool
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

import switchgear as sg

from .quoting import quoted_paths
from .variants import Compiled

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

if hasattr(os, "register_at_fork"):
    # A forked process has none of the threads of Inductor's pool, and waits for them: as of 2.13, Inductor makes the
    # pool of processes anew there, and not that of threads.
    os.register_at_fork(after_in_child=AsyncCompile.pool.cache_clear)


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
    """A region of a trace, with the layouts of what it takes and gives as functions of its numbers.

    What is compiled for its `key` in the same surroundings (`around`) is found on disk at its `place`.
    """

    def __init__(self, region: sg.Trace, key: str, around: str | None) -> None:
        names = [number.name for number in region.numbers]
        outputs = [proxy for proxy in region.outputs if proxy is not None]
        self.name = region.name
        self.place = None if around is None else _place(key, around)
        self.function = functools.cache(region.function)
        self.kinds = [(proxy.dtype, proxy.device) for proxy in region.inputs]
        self.layouts = _function(names, python(tuple([(proxy.shape, proxy.stride) for proxy in region.inputs])))
        self.strides = _function(names, python(tuple([proxy.stride for proxy in outputs])))


def surroundings(options: Mapping[str, Any]) -> str | None:
    """What decides beside a region what Inductor makes of it, as a key; None where it is to keep nothing on disk."""
    with _settings(options), tracing(TracingContext(FakeTensorMode(shape_env=_environment()))):
        if config.force_disable_caches or not config.fx_graph_cache:
            return None
        # these wrap the code once it is loaded
        # `cudagraph_policy`: 2.11 has none ("AttributeError: torch._inductor.config.cudagraph_policy does not exist")
        if config.triton.cudagraphs or getattr(config, "cudagraph_policy", None) is not None:
            return None
        # of a decomposition of the user's, nobody knows what it does by now
        if not all(getattr(fn, "func", fn).__module__.startswith("torch.") for fn in select_decomp_table().values()):
            return None
        own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        nothing = torch.fx.GraphModule({}, torch.fx.Graph())
        # Inductor's own key of a graph, of which there is none; the number of threads, a constant in the code
        # ("#pragma omp parallel num_threads(1)"), is no part of it in 2.11
        more: Any = {"own": own, "threads": torch.get_num_threads()}
        key, _ = FxGraphCache.prepare_key(nothing, [torch.empty(0)], more, (), remote=False)
        return key and key[0]


def compile_region(region: Region, sizes: Sequence[int], options: Mapping[str, Any]) -> Compiled:
    """A function that returns the region's outputs in their proxies' strides, for `sizes` and others.

    For which others, Inductor decides on the way; `sizes` are those that it estimates by. What is on disk need not be
    traced.
    """
    env = _environment()
    mode = FakeTensorMode(shape_env=env)
    numbers = [_symbol(env, index, size) for index, size in enumerate(sizes)]
    strides = region.strides(*numbers)

    def permuted(*args: Any) -> list[torch.Tensor]:
        results = region.function()(*args)
        return [_permuted(value, stride) for value, stride in zip(results, strides, strict=True)]

    # fixed layouts are guarded already; symbolic ones are PyTorch's formulas, which its kernels need not keep to
    with _settings({"size_asserts": bool(sizes), **options}), tracing(TracingContext(mode)):
        with mode, enable_python_dispatcher() if sizes else contextlib.nullcontext():
            layouts = zip(region.layouts(*numbers), region.kinds, strict=True)
            inputs = [
                *numbers,
                *[torch.empty_strided(*layout, dtype=dtype, device=device) for layout, (dtype, device) in layouts],
            ]
        compiled = None if region.place is None else _found(region.place, inputs)
        if compiled is None:
            with mode, enable_python_dispatcher() if sizes else contextlib.nullcontext():
                graph = make_fx(permuted, decomposition_table=_decompositions())(*inputs)
                _simplify(graph)
            (end,) = graph.graph.find_nodes(op="output")
            # without this, the strides of outputs are Inductor's choice
            end.meta["user_visible_output_idxs"] = list(range(len(strides)))
            traced = [value.meta["val"].stride() for value in end.args[0]]
            compiled = compile_fx_inner(graph, inputs)
            if region.place is not None:
                _keep(region.place, compiled)
    run = getattr(compiled, "current_callable", None) or compiled
    number_of: Callable[[Any], Any] = env.deserialize_symexpr if sizes else int
    # in strides with gaps, or of a dimension of one, Inductor writes nothing
    known = getattr(compiled, "output_strides", None)
    made = [tuple(map(number_of, one)) for one in known] if known else traced
    odd = [index for index, stride in enumerate(strides) if not _same(made[index], stride)]
    holds = _holds(env, numbers)
    if not odd:
        # an object of its own, for Inductor's caches keep theirs
        return Compiled(functools.partial(run), holds)

    strides_of = region.strides

    def laid_out(args: list[Any]) -> list[torch.Tensor]:
        wanted = strides_of(*args[: len(numbers)])
        results = list(run(args))
        for index in odd:
            value = results[index]
            results[index] = torch.empty_strided(
                value.shape, wanted[index], dtype=value.dtype, device=value.device
            ).copy_(value)
        return results

    return Compiled(laid_out, holds)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    return {**select_decomp_table(), torch.ops.aten.cat.default: _cat}


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """As Inductor has it, laid out as by PyTorch's kernel: one that is left without empty ones keeps its strides."""
    result = select_decomp_table()[torch.ops.aten.cat.default](tensors, dim)
    if result is NotImplemented:
        return result
    formats = {suggest_memory_format(tensor) for tensor in tensors}
    return result.contiguous(memory_format=formats.pop() if len(formats) == 1 else torch.contiguous_format)


def _simplify(graph: torch.fx.GraphModule) -> None:
    """What torch.compile does to a graph before it is lowered: a scatter onto constants becomes a choice."""
    for patterns in pass_patterns:
        patterns.apply(graph.graph)
    stable_topological_sort(graph.graph)
    graph.recompile()


def _place(key: str, around: str) -> Path:
    """Where on disk Inductor's key of a compiled region is kept."""
    name = hashlib.sha256(f"{around} {key}".encode()).hexdigest()
    return Path(cache_dir()) / "switchgear" / name


def _found(place: Path, inputs: Sequence[Any]) -> Any:
    """The compiled region whose key is in a place, if both are still there."""
    try:
        key = place.read_text()
    except OSError:
        return None
    constants = CompiledFxGraphConstants()
    found, _ = FxGraphCache.load_with_key(key, [], inputs, True, None, is_backward=False, constants=constants)
    if found is not None:
        found.post_compile(inputs, constants, {"cudagraphs": BoxedBool(False), "is_backward": False})
    return found


def _keep(place: Path, compiled: Any) -> None:
    """Keep the key of a compiled region in a place, if Inductor keeps the region."""
    key = getattr(compiled, "_fx_graph_cache_key", None)
    if key is not None:
        with contextlib.suppress(OSError):
            write_atomic(str(place), key, make_dirs=True)


@contextlib.contextmanager
def _settings(options: Mapping[str, Any]) -> Iterator[None]:
    """Inductor as it is to be while it compiles a region."""
    with config.patch(dict(options)), quoted_paths(), warnings.catch_warnings():
        # that it does not vectorize them, which no user can change
        warnings.filterwarnings("ignore", "bf16 and fp16 are mixed", UserWarning)
        yield


def _environment() -> ShapeEnv:
    """Where symbols live; without one, Inductor keeps nothing on disk."""
    return ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def _symbol(env: ShapeEnv, index: int, size: int) -> Any:
    """A number that is a symbol of its own, with `size` for a hint."""
    source = LocalSource(f"s{index}")
    symbol = env.create_symbol(size, source, DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=size, source=source)


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

"""Every private API of Inductor and its surroundings in the executor, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._inductor.kernel.bmm
import torch._inductor.kernel.conv
import torch._inductor.kernel.mm
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import LocalSource
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import FxGraphCache
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import pass_patterns
from torch._inductor.lowering import fallbacks, lowerings
from torch._inductor.output_code import CompiledFxGraphConstants
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.utils import BoxedBool
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

import switchgear as sg

from .loading import function, keep, laid_down, laid_out, recorded
from .places import files_in_place, files_of_ours
from .quoting import quoted_paths
from .variants import Compiled

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

if hasattr(os, "register_at_fork"):
    # A forked process has no threads of Inductor's pool, and waits for them: as of 2.13, Inductor recreates the pool of
    # processes there, but not the pool of threads.
    os.register_at_fork(after_in_child=AsyncCompile.pool.cache_clear)


@functools.cache
def is_lowered(fn: Any) -> bool:
    """Check whether Inductor has more for an overload than a call of PyTorch's kernel."""
    return fn not in fallbacks and (fn in lowerings or fn in select_decomp_table())


def python(value: Any) -> str:
    """Return numbers, nested in tuples, as Python; symbolic numbers by the names of sizes."""
    if isinstance(value, tuple):
        return f"({''.join([f'{python(item)}, ' for item in value])})"
    return _printed(value.node.expr) if isinstance(value, _SYMBOLIC) else repr(value)


@functools.lru_cache(4096)
def _printed(expression: Any) -> str:
    return str(PythonPrinter().doprint(expression))


class Region:
    """A region of a trace, with the layouts of inputs and outputs as functions of its numbers.

    Compiled code is kept on disk by the key `place`, unless it is None.
    """

    def __init__(self, region: sg.Trace, place: str | None) -> None:
        names = [number.name for number in region.numbers]
        outputs = [proxy for proxy in region.outputs if proxy is not None]
        self.name = region.name
        self.place = place
        self.function = functools.cache(region.function)
        self.kinds = [(proxy.dtype, proxy.device) for proxy in region.inputs]
        self.layouts = function(names, python(tuple([(proxy.shape, proxy.stride) for proxy in region.inputs])))
        self.names = names
        self.strides_text = python(tuple([proxy.stride for proxy in outputs]))
        self.strides = function(names, self.strides_text)
        self.dtypes = [proxy.dtype for proxy in outputs]


def keeps_nothing() -> bool:
    """Check whether Inductor's code cannot be stored: by its settings, or because its later effect is unknown."""
    if config.force_disable_caches or not config.fx_graph_cache:
        return True
    # these wrap the loaded code; `cudagraph_policy`: 2.11 has none ("AttributeError:
    # torch._inductor.config.cudagraph_policy does not exist")
    if config.triton.cudagraphs or getattr(config, "cudagraph_policy", None) is not None:
        return True
    # the later effect of a user's decomposition is unknown
    return not all(getattr(fn, "func", fn).__module__.startswith("torch.") for fn in select_decomp_table().values())


def lowered() -> list[str]:
    """Return the names of overloads for which Inductor has more than a call of PyTorch's kernel."""
    overloads = {fn for fn in (*lowerings, *select_decomp_table()) if isinstance(fn, torch._ops.OpOverload)}
    return sorted(str(fn) for fn in overloads if fn not in fallbacks)


def restore(record: Mapping[str, Any], region: Region, options: Mapping[str, Any]) -> Compiled | None:
    """Return Inductor's stored code by the key in a record, for a region of fixed sizes, or None if it is gone."""
    if not laid_down(record):
        raise ValueError("a file is not kept any more")
    mode = FakeTensorMode(shape_env=_environment())
    with _settings(options), tracing(TracingContext(mode)):
        with mode:
            inputs = _inputs(region, [])
        constants = CompiledFxGraphConstants()
        compiled, _ = FxGraphCache.load_with_key(
            record["key"], [], inputs, True, None, is_backward=False, constants=constants
        )
        if compiled is None:
            return None
        compiled.post_compile(inputs, constants, {"cudagraphs": BoxedBool(False), "is_backward": False})
    run = getattr(compiled, "current_callable", None) or compiled
    return Compiled(laid_out(run, record["odd"], region.strides, 0))


def compile_region(region: Region, sizes: Sequence[int], options: Mapping[str, Any]) -> Compiled:
    """Return a function that returns the region's outputs in their proxies' strides, for `sizes` and others.

    Inductor determines the valid sizes; `sizes` serve its estimates.
    """
    env = _environment()
    mode = FakeTensorMode(shape_env=env)
    numbers = [_symbol(env, index, size) for index, size in enumerate(sizes)]
    before = files_of_ours()
    strides = region.strides(*numbers)

    def permuted(*args: Any) -> list[torch.Tensor]:
        results = region.function()(*args)
        for value, dtype in zip(results, region.dtypes, strict=True):
            if value.dtype != dtype:
                raise TypeError(f"its code would return {value.dtype} where PyTorch's kernels return {dtype}")
        return [_permuted(value, stride) for value, stride in zip(results, strides, strict=True)]

    # fixed layouts are guarded already; symbolic layouts come from PyTorch's formulas, unlike some kernels'
    with _settings({"size_asserts": bool(sizes), **options}), tracing(TracingContext(mode)):
        with mode, enable_python_dispatcher() if sizes else contextlib.nullcontext():
            inputs = _inputs(region, numbers)
            graph = make_fx(permuted, decomposition_table=_decompositions())(*inputs)
            # decompositions repeat values, as of a norm and its backward: each would be a buffer
            graph = torch.fx.GraphModule(graph, fx_graph_cse(graph.graph))
            _simplify(graph)
        (end,) = graph.graph.find_nodes(op="output")
        # otherwise Inductor chooses the strides of outputs
        end.meta["user_visible_output_idxs"] = list(range(len(strides)))
        traced = [value.meta["val"].stride() for value in end.args[0]]
        compiled: Any = compile_fx_inner(graph, inputs)
    run = getattr(compiled, "current_callable", None) or compiled
    number_of: Callable[[Any], Any] = env.deserialize_symexpr if sizes else int
    # for strides with gaps, or of a dimension of size 1, Inductor reports nothing
    output_strides = getattr(compiled, "output_strides", None)
    actual_strides = [tuple(map(number_of, stride)) for stride in output_strides] if output_strides else traced
    odd = [index for index, stride in enumerate(strides) if not _same(actual_strides[index], stride)]
    conditions = _conditions(env, numbers, region.names)
    key = getattr(compiled, "_fx_graph_cache_key", None)
    if region.place is not None and key is not None and not getattr(compiled, "constants", None):
        with contextlib.suppress(OSError):
            keep(region.place, recorded(run, odd, region.strides_text, conditions, key, files_of_ours() - before))
    holds = None if conditions is None else function(region.names, conditions)
    return Compiled(laid_out(run, odd, region.strides, len(sizes)), holds)


def _inputs(region: Region, numbers: Sequence[Any]) -> list[Any]:
    layouts = zip(region.layouts(*numbers), region.kinds, strict=True)
    tensors = [torch.empty_strided(*layout, dtype=dtype, device=device) for layout, (dtype, device) in layouts]
    return [*numbers, *tensors]


def _decompositions() -> dict[Any, Callable[..., Any]]:
    table = select_decomp_table()
    widened = {fn: _widened(table[fn], place) for fn, place in _NORMS.items() if fn in table}
    return {**table, **widened, torch.ops.aten.cat.default: _cat}


_aten = torch.ops.aten
#: Norms, each with the position of its input.
_NORMS = {
    _aten.native_layer_norm.default: 0,
    _aten.native_group_norm.default: 0,
    _aten.native_group_norm_backward.default: 1,
    _aten.native_batch_norm.default: 0,
    _aten._native_batch_norm_legit_functional.default: 0,
    _aten._native_batch_norm_legit_no_training.default: 0,
    _aten._native_batch_norm_legit.no_stats: 0,
}


def _widened(formula: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a norm with results in the dtypes of CPU kernels.

    Statistics are float32 if any argument is float32; Inductor's formulas round them to the input's dtype.
    """

    def norm(*args: Any) -> Any:
        operand = args[place]
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if operand.device.type != "cpu":
            return formula(*args)
        wide = args
        if any(tensor.dtype is torch.float32 for tensor in tensors):
            wide = tuple([arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args])
        result, *others = formula(*wide)
        # running statistics of a batch norm
        others[2:] = [new.to(args[3].dtype) for new in others[2:]]
        return (None if result is None else result.to(operand.dtype), *others)

    return norm


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Concatenate as Inductor does, in the layout of PyTorch's kernel: a single non-empty tensor keeps its strides."""
    result = select_decomp_table()[torch.ops.aten.cat.default](tensors, dim)
    if result is NotImplemented:
        return result
    formats = {suggest_memory_format(tensor) for tensor in tensors}
    return result.contiguous(memory_format=formats.pop() if len(formats) == 1 else torch.contiguous_format)


def _simplify(graph: torch.fx.GraphModule) -> None:
    """Simplify a graph as torch.compile does before lowering: a scatter onto constants becomes a choice."""
    for patterns in pass_patterns:
        patterns.apply(graph.graph)
    stable_topological_sort(graph.graph)
    graph.recompile()


@contextlib.contextmanager
def _settings(options: Mapping[str, Any]) -> Iterator[None]:
    """Return a context with Inductor's settings for compiling a region."""
    with files_in_place(), config.patch(dict(options)), quoted_paths(), warnings.catch_warnings():
        # a lack of vectorisation, outside the user's control
        warnings.filterwarnings("ignore", "bf16 and fp16 are mixed", UserWarning)
        # advice on a process-wide setting, which eager does not give
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        yield


def _environment() -> ShapeEnv:
    """Return an environment for symbols; without one, Inductor keeps nothing on disk."""
    return ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def _symbol(env: ShapeEnv, index: int, size: int) -> Any:
    """Return a number with its own symbol, and `size` as hint."""
    source = LocalSource(f"s{index}")
    symbol = env.create_symbol(size, source, DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=size, source=source)


def _conditions(env: ShapeEnv, numbers: Sequence[Any], names: Sequence[str]) -> str | None:
    """Return all decisions in the environment, as Python over these names of the numbers; None without decisions."""
    if not env.guards:
        return None
    renamed = {str(number.node._expr): name for number, name in zip(numbers, names, strict=True)}
    text = " and ".join([f"({_printed(guard.expr)})" for guard in env.guards])
    return re.sub(r"\b[A-Za-z_]\w*", lambda word: renamed.get(word[0], word[0]), text)


def _same(stride: Sequence[Any], other: Sequence[Any]) -> bool:
    """Check whether strides are visibly equal for all numbers, without deciding or tracing anything."""
    return [*map(_expression, stride)] == [*map(_expression, other)]


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else number


def _permuted(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return `value` in PyTorch's order of strides, which decompositions may change; traced as part of the region."""
    if _same(value.stride(), stride):
        return value
    order = sorted(range(value.dim()), key=lambda dim: (-_hint(stride[dim]), -_hint(value.shape[dim])))
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)

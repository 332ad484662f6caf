"""Every private API of PyTorch that Switchgear leans on, and nothing else.

Tested against each supported torch by `tests/core/test_torch_private.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
import torch._functorch.vmap as functorch_vmap
import torch.utils.checkpoint
from torch._functorch import eager_transforms, pyfunctorch
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from switchgear.errors import Unsupported
from switchgear.nesting import tensors_in
from switchgear.patches import redirected, replaced
from switchgear.torch_private.names import private

if TYPE_CHECKING:
    from torch._C._dynamo.guards import GlobalStateGuard as GlobalStateGuard
    from torch._C._dynamo.guards import TensorGuards as _TensorGuards
    from torch._dispatch.python import enable_python_dispatcher
    from torch._ops import OpOverload as OpOverload
    from torch._prims_common import suggest_memory_format
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._device import DeviceContext as DeviceContext
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import _disable_current_modes

    FakeMode = FakeTensorMode
else:
    GlobalStateGuard = private("torch._C._dynamo.guards.GlobalStateGuard")
    _TensorGuards = private("torch._C._dynamo.guards.TensorGuards")
    enable_python_dispatcher = private("torch._dispatch.python.enable_python_dispatcher")
    OpOverload = private("torch._ops.OpOverload")
    suggest_memory_format = private("torch._prims_common.suggest_memory_format")
    FakeMode = private("torch._subclasses.fake_tensor.FakeTensorMode")
    DeviceContext = private("torch.utils._device.DeviceContext")
    TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode")
    _disable_current_modes = private("torch.utils._python_dispatch._disable_current_modes")

DATA_DEPENDENT: tuple[type[Exception], ...] = (
    private("torch._subclasses.fake_tensor.DataDependentOutputException"),
    private("torch._subclasses.fake_tensor.DynamicOutputShapeException"),
)
NO_FAKE: type[Exception] = private("torch._subclasses.fake_tensor.UnsupportedOperatorException")

is_wrapper: Callable[[torch.Tensor], bool] = private("torch._is_functional_tensor")


@functools.cache
def _functionalize_keys() -> Any:
    return torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor is one of a fake mode's."""
    return isinstance(tensor, fake_tensor.FakeTensor)


def new_fake_mode(shape_env: Any = None) -> FakeMode:
    """A mode in which operators compute metadata only; sizes are static but for those of a shape environment."""
    return _FakeMode(allow_non_fake_inputs=False, shape_env=shape_env)


@functools.cache
def _symbolic() -> Any:
    """PyTorch's symbolic sizes, with names that count from `s0`; imported on first use, for sympy takes a while."""
    names = (
        "torch._guards",
        "torch.fx.experimental.symbolic_shapes",
        "torch.utils._sympy.printers",
    )
    guards, symbolic_shapes, printers = map(importlib.import_module, names)

    class Place(guards.Source):  # type: ignore[name-defined, misc]
        def __init__(self, name: str) -> None:
            self._name = name

        @property
        def name(self) -> str:
            return self._name

    class ShapeEnv(symbolic_shapes.ShapeEnv):  # type: ignore[name-defined, misc]
        where: Callable[[], str]

        def _generate_unique_id(self, source_name: str) -> int:
            self.unique_ids.add(number := len(self.unique_ids))
            return number

        def _get_stack_summary(self, is_debug: bool = False, framework_loc: Any = None) -> Any:
            return symbolic_shapes.SLoc(self.where(), None), ""

        def _check_frozen(self, expr: Any, concrete_val: Any) -> None:
            if self.frozen:
                raise Unsupported(f"{expr} is asked for, and what it must be is not known any more")

    return ShapeEnv, Place, symbolic_shapes.DimDynamic.DYNAMIC, printers.PythonPrinter()


def new_shape_env(where: Callable[[], str]) -> Any:
    """An environment for symbolic sizes; what is decided about them while `where()` is kept among its guards."""
    env = _symbolic()[0](
        allow_scalar_outputs=False,
        allow_dynamic_output_shape_ops=False,
        specialize_zero_one=True,
        duck_shape=False,
    )
    env.where = where
    return env


def new_size(shape_env: Any, place: str, value: int) -> torch.SymInt:
    """A symbolic size, at least 2, whose value is `value` in the call at hand."""
    _, kind, dynamic, _ = _symbolic()
    symbol = shape_env.create_symbol(value, kind(place), dynamic)
    return shape_env.create_symintnode(symbol, hint=value)  # type: ignore[no-any-return]


def decided(shape_env: Any, start: int = 0) -> list[tuple[str, str]]:
    """What the sizes must be for all that was decided, from the `start`th on, to hold: as Python, and where it was.

    Raises `Unsupported` where that cannot be said to the bit: floats.
    """
    for guard in shape_env.guards[start:]:
        if not _compares_integers(guard.expr):
            raise Unsupported(
                f"{guard.expr} was asked for, which computes with floats, {guard.sloc.framework_loc}"
            )
    return [
        (python_of_expression(guard.expr), str(guard.sloc.framework_loc))
        for guard in shape_env.guards[start:]
    ]


def decide_all(number: Any) -> Any:
    """Let every size in a symbolic number be what it is in the call at hand; the number as Python has computed it.

    Its expression is another order of the same sums and products, which may round otherwise.
    """
    env, value = number.node.shape_env, number.node.hint
    for symbol in sorted(number.node.expr.free_symbols, key=str):
        int(env.create_symintnode(symbol, hint=int(env.backed_var_to_val[symbol])))
    return value


def composites_of_sizes(fn: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Run a product of matrices by operators that keep sizes symbolic: before 2.13 what is in C++ knows numbers alone.

    Of what these functions are made, nothing else is written in Python as well.
    """
    known = _TORCH >= (2, 13) or getattr(fn, "__name__", "") not in (
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "linear",
    )
    return contextlib.nullcontext() if known else enable_python_dispatcher()


_TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def guard_count(shape_env: Any) -> int:
    """How often something was decided about the sizes of an environment."""
    return len(shape_env.guards)


def set_closed(shape_env: Any, closed: bool) -> None:
    """Let an environment decide no more, an `Unsupported` where it would have to, or let it again."""
    shape_env.frozen = closed


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def python_of_number(number: Any, *, simplified: bool = True) -> str:
    """A symbolic number as Python, in terms of the names of sizes; `simplified` by all that was decided."""
    return python_of_expression(number.node.expr if simplified else number.node._expr)


def names_in(number: Any) -> set[str]:
    """The names of the sizes that a symbolic number is made of, by all that was decided."""
    return {str(symbol) for symbol in number.node.expr.free_symbols}


@functools.lru_cache(4096)
def python_of_expression(expression: Any) -> str:
    """An expression of sympy's as Python."""
    return str(_symbolic()[3].doprint(expression))


def _compares_integers(expression: Any) -> bool:
    if expression.is_Boolean or expression.is_Relational:
        return all(map(_compares_integers, expression.args))
    return bool(expression.is_integer)


def hint_of(number: Any) -> Any:
    """What a symbolic number is in the call that it was captured for."""
    node = number.node
    return eval(
        python_of_number(number),
        {"torch": torch},
        {str(k): int(v) for k, v in node.shape_env.backed_var_to_val.items()},
    )


def make_fake(mode: FakeMode, layout: Layout) -> torch.Tensor:
    """A fake tensor of that layout."""
    shape, stride, dtype, device, offset, is_conj, is_neg = layout
    if mode.shape_env is None and not offset:
        with outside_autograd():
            return _fake(mode, layout)
    reach = (
        sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if 0 not in shape
        else 0
    )
    with outside_autograd(), mode:
        if offset:
            whole = torch.empty(offset + 1 + reach, dtype=dtype, device=device)
            fake = whole.as_strided(shape, stride, offset)
        else:
            fake = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        fake = torch._conj(fake) if is_conj else fake
        return torch._neg_view(fake) if is_neg else fake


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Neither autograd, functionalization nor a function mode sees what runs here."""
    with (
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(_functionalize_keys()),
        torch.no_grad(),
    ):
        yield


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, if it is on, for a plain `no_grad`."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def real_dispatch() -> Iterator[None]:
    """Run on real tensors, outside of autograd and functionalization, whatever modes are active."""
    with outside_autograd(), _disable_current_modes():
        yield


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """In-place calls on wrappers dispatch as functional ones while this is active; nests."""
    if torch._C._dispatch_tls_is_dispatch_key_included("Functionalize"):
        yield
        return
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def wrap(fake: torch.Tensor) -> torch.Tensor:
    """A functionalization wrapper around a fake tensor."""
    with torch.no_grad():
        return torch._to_functional_tensor(fake)


def unwrap(wrapper: torch.Tensor, *, synchronise: bool = True) -> torch.Tensor:
    """The fake tensor that a wrapper stands for now, pending writes through its aliases applied if so wanted."""
    if synchronise:
        torch._sync(wrapper)  # type: ignore[attr-defined,no-untyped-call]
    return torch._from_functional_tensor(wrapper)


def rebind(wrapper: torch.Tensor, fake: torch.Tensor, *, aliases: bool) -> None:
    """Let the wrapper stand for another fake tensor; with `aliases`, its aliases follow."""
    torch._functionalize_replace(wrapper, fake)
    if aliases:
        torch._functionalize_commit_update(wrapper)


def is_functionalization_error(error: RuntimeError) -> bool:
    """Whether PyTorch says that it cannot turn a write into a functional call."""
    return any(
        text in str(error) for text in ("functionaliz", "frozen storage", "invalid python storage")
    )


def is_one_of_several(view: torch.Tensor) -> bool:
    """Whether an operator made a view together with others, so that autograd refuses it once its base is written to."""
    several = torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE
    return view._is_view() and torch._C._autograd._get_creation_meta(view) == several


def view_again(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Of another base what `view` is of its own, by the same calls."""
    return view._view_func_unsafe(base)  # type: ignore[no-any-return]


def storage_replaced(wrapper: torch.Tensor) -> bool:
    """Whether the wrapper's storage was another before: `set_`."""
    return bool(torch._functionalize_was_storage_changed(wrapper))


def storage_resized(wrapper: torch.Tensor) -> bool:
    """Whether the wrapper's storage was resized."""
    return bool(torch._functionalize_was_inductor_storage_resized(wrapper))


def make_non_leaf(wrapper: torch.Tensor) -> None:
    """Give a wrapper requires_grad and a history, as the result of an operator has."""
    with torch.enable_grad():
        example = torch.zeros(1, requires_grad=True).clone()
    torch._mirror_autograd_meta_to(example, wrapper)  # type: ignore[attr-defined]


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share storage, for as long as they live."""
    return int(tensor.untyped_storage()._cdata)


def storage_keys(tensors: Iterable[torch.Tensor]) -> list[int]:
    """The `storage_key` of each."""
    return [storage._cdata for storage in map(torch.Tensor.untyped_storage, tensors)]


def none_share_storage(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the `storage_keys` all differ, asked in one call."""
    return not torch._C._any_output_is_alias_to_input_or_output((), {}, tuple(tensors))


def dispatch_state() -> tuple[Any, Any]:
    """The thread's included and excluded dispatch keys, functionalization left out."""
    include = torch._C._dispatch_tls_local_include_set() - _functionalize_keys()
    return include, torch._C._dispatch_tls_local_exclude_set()


@contextlib.contextmanager
def dispatch_from_top(state: tuple[Any, Any]) -> Iterator[None]:
    """Inside a dispatch mode's handler: dispatch with autograd on, as `dispatch_state` was."""
    with (
        torch._C._ForceDispatchKeyGuard(*state),
        torch.enable_grad(),
        torch._C.DisableTorchFunction(),
    ):
        yield


@contextlib.contextmanager
def saved_tensors_hooks_off() -> Iterator[None]:
    """Set aside the hooks for saved tensors that are active: what is traced saves nothing real."""
    autograd: Any = torch._C._autograd
    stack: list[Any] = []
    while (top := autograd._top_saved_tensors_default_hooks(True)) is not None:
        stack.append(top)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(stack):
            autograd._push_saved_tensors_default_hooks(*hooks)


def function_modes_on() -> AbstractContextManager[None]:
    """Function modes see what runs here again, inside `torch._C.DisableTorchFunction()`."""
    return torch._C._EnableTorchFunction()


@contextlib.contextmanager
def exact_functionalization() -> Iterator[None]:
    """Put kernels of our own in place of those of functionalization that are not exact.

    `native_batch_norm` writes its running statistics without declaring it; the overload that declares it is used.
    `masked_fill_` keeps strides, which its functional overload does not; formulas of PyTorch's gradients call it.
    """
    with _EXACT_LOCK:
        _EXACT.append(_EXACT[0] if _EXACT else _exact_kernels())
    try:
        yield
    finally:
        with _EXACT_LOCK:
            library = _EXACT.pop()
            if not _EXACT:
                library._destroy()


#: The library of those kernels, once for everyone who is inside: PyTorch 2.11 refuses to register them twice.
_EXACT: list[torch.library.Library] = []
_EXACT_LOCK = threading.Lock()


def _exact_kernels() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # PyTorch says once that there is a kernel already
        library.impl("native_batch_norm", _declared_batch_norm, "Functionalize")
        for overload in ("Scalar", "Tensor"):
            library.impl(f"masked_fill_.{overload}", _masked_fill_, "Functionalize")
    return library


def _declared_batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float
) -> Any:
    aten = torch.ops.aten
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, mean, var, *rest
        )
    if mean is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, *rest)
    return aten._native_batch_norm_legit.default(input, weight, bias, mean, var, training, *rest)


def _masked_fill_(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    aten = torch.ops.aten
    if not is_wrapper(self):
        with torch._C._ExcludeDispatchKeyGuard(_functionalize_keys()):
            aten.masked_fill_(self, mask, value)
        return self
    filled: torch.Tensor = aten.masked_fill(self, mask, value)
    if filled.shape != self.shape:
        raise RuntimeError(
            f"masked_fill_: a mask of shape {[*mask.shape]} for a tensor of shape {[*self.shape]}"
        )
    if filled.stride() != self.stride():
        kind = {"dtype": self.dtype, "device": self.device}
        filled = aten.copy(aten.empty_strided(self.shape, self.stride(), **kind), filled)
    torch._functionalize_replace(self, unwrap(filled))
    torch._functionalize_commit_update(self)
    torch._sync(self)  # type: ignore[attr-defined,no-untyped-call]
    return self


#: The `context_fn` of `torch.utils.checkpoint.checkpoint` that stands for none.
NO_CONTEXT = torch.utils.checkpoint.noop_context_fn


@contextlib.contextmanager
def checkpoint_regions(
    region: Callable[[Callable[[], Any]], AbstractContextManager[None]],
    run_reentrant: Callable[[Callable[..., Any], tuple[Any, ...]], Any],
) -> Iterator[None]:
    """Run what `torch.utils.checkpoint` marks inside `region(context_fn)`, or with reentrance as `run_reentrant`."""

    def before_2_14(
        original: Any, fn: Any, preserve: Any, context_fn: Any, *rest: Any, **kwargs: Any
    ) -> Iterator[None]:
        with region(context_fn):
            yield

    def from_2_14(
        original: Any, fn: Any, args: Any, kwargs: Any, *, context_fn: Any, **rest: Any
    ) -> Iterator[None]:
        with region(context_fn):
            yield

    def apply(
        original: Any, cls: Any, function: Callable[..., Any], preserve: bool, *args: Any
    ) -> Any:
        return run_reentrant(function, args)

    module = torch.utils.checkpoint
    # 2.14 keeps the old name for others, and calls a new one: regions went unseen, and were no regions
    name, generator = "_checkpoint_without_reentrant_generator", cast(Any, before_2_14)
    if hasattr(module, f"{name}_impl"):
        name, generator = f"{name}_impl", from_2_14
    with (
        redirected(module, name, generator),
        redirected(module.CheckpointFunction, "apply", apply),
    ):
        yield


def selective_policy(context_fn: Callable[[], Any]) -> Callable[..., bool] | None:
    """Whether a selective policy saves what an overload made: from the overload, its arguments and its result.

    None where `context_fn` has no policy, and NotImplemented where it is no way to have one.
    """
    if context_fn is NO_CONTEXT:
        return None
    module: Any = torch.utils.checkpoint
    forward, _ = context_fn()
    if not isinstance(forward, module._CachingTorchDispatchMode):
        return NotImplemented  # type: ignore[no-any-return]
    policy, saving = (
        forward.policy_fn,
        (True, module.CheckpointPolicy.MUST_SAVE, module.CheckpointPolicy.PREFER_SAVE),
    )

    def saves(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        if overload in module.SAC_IGNORED_OPS:
            return False
        context = module.SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result
        return policy(context, overload, *args, **kwargs) in saving

    return saves


def compiling_flag(value: bool) -> AbstractContextManager[None]:
    """What `torch.compiler.is_compiling()` answers; libraries avoid data-dependent branches when it says True."""
    return replaced(torch.compiler, "_is_compiling_flag", value)


autocast_off: Callable[[], AbstractContextManager[None]] = private("torch._C._DisableAutocast")
autocast_active: Callable[[], bool] = private("torch._C._is_any_autocast_enabled")


@contextlib.contextmanager
def autocast_cache_cleared() -> Iterator[None]:
    """Leave no cast in autocast's cache, which is the process's and else lives as long as the outermost region."""
    nested = autocast_nested()
    try:
        yield
    finally:
        if nested:
            torch.clear_autocast_cache()


_increment_autocast_nesting = torch.autocast_increment_nesting


def autocast_nested() -> bool:
    """Whether a region of autocast is around, maybe a disabled one: casts are remembered until the outermost ends."""
    _increment_autocast_nesting()
    return bool(torch.autocast_decrement_nesting())


def autocast_key() -> tuple[Any, ...]:
    """What autocast does here, hashable; empty where it does nothing."""
    if not autocast_active():
        return ()
    devices = torch._C._autocast_supported_devices()
    dtypes = [
        (name, torch.get_autocast_dtype(name))
        for name in devices
        if torch.is_autocast_enabled(name)
    ]
    return (torch.is_autocast_cache_enabled(), *dtypes)


def tensor_guards(
    tensors: list[torch.Tensor],
    sizes: Any = None,
    strides: Any = None,
) -> Callable[..., bool]:
    """One C++ check that other tensors have the type, dispatch keys, dtype, device, sizes, strides of these.

    Where `sizes` and `strides` are given, a list for each tensor, these; None in them stands for any.
    """
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def fastest_entry(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a function comes to by one call less: of an operator overload, what its wrapper in Python calls."""
    return fn._op if type(fn) is OpOverload else fn


#: Operators dispatch below autograd while this is active, and so cost less.
below_autograd: Callable[[], AbstractContextManager[None]] = private(
    "torch._C._AutoDispatchBelowAutograd"
)


def forward_mode_active() -> bool:
    """Whether a level of forward-mode differentiation is entered, so that tensors may carry tangents."""
    return forward_ad._current_level >= 0


set_grad_enabled: Callable[[bool], None] = private("torch._C._set_grad_enabled")
#: Copies tensors of the second list into those of the first; on the CPU in their order.
foreach_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = private(
    "torch._foreach_copy_"
)
functorch_active: Callable[[], bool] = private("torch._C._are_functorch_transforms_active")


def node_apply(node: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`node.apply` for arguments none of which a `torch.func` transform has wrapped, and outside of any."""
    return super(torch.autograd.Function, node).apply  # type: ignore[misc, no-any-return]


def make_lean(node: type[torch.autograd.Function], *slots: str) -> None:
    """Give nodes slots, so that no dict is made for them, and let the engine call `node.backward` itself.

    Else it calls a method that finds out each time what is to be called.
    """
    kind: Any = node._backward_cls
    node._backward_cls = type(kind.__name__, (kind,), {"__slots__": slots, "apply": node.backward})


#: Which backward of autograd's this is part of, for ever; -1 outside of any.
graph_task: Callable[[], int] = private("torch._C._current_graph_task_id")


def outside_functorch() -> AbstractContextManager[Any]:
    """Leave every `torch.func` transform for a while."""
    return pyfunctorch.temporarily_clear_interpreter_stack()


@contextlib.contextmanager
def functorch_operands(operand: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The `torch.func` transforms of this thread wrap `operand(tensor)` in place of each tensor that they wrap."""

    def wrap(original: Callable[..., Any], tensor: torch.Tensor, *rest: Any) -> Any:
        return original(operand(tensor), *rest)

    with contextlib.ExitStack() as stack:
        for place, name in (
            (eager_transforms, "_wrap_for_grad"),
            (functorch_vmap, "_add_batch_dim"),
        ):
            stack.enter_context(redirected(place, name, wrap))
        yield


@contextlib.contextmanager
def tracers_refused(refuse: Callable[[str], None]) -> Iterator[None]:
    """`refuse(name)` is called when this thread calls a `torch.func` transform that is a tracer itself."""

    def refused(name: str, original: Any, *args: Any) -> Any:
        refuse(name)
        return original(*args)

    with contextlib.ExitStack() as stack:
        for name, part in (
            ("functionalize", "_wrap_all_tensors_to_functional"),
            ("linearize", "lazy_dynamo_disallow"),
        ):
            stack.enter_context(
                redirected(eager_transforms, part, functools.partial(refused, name))
            )
        yield


def inside_functorch() -> bool:
    """Whether a `torch.func` transform is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def function_modes() -> list[Any]:
    """The active `__torch_function__` modes, outermost first; a default device is one of them."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def default_devices() -> list[torch.device]:
    """The active default devices, outermost first."""
    return [mode.device for mode in function_modes() if isinstance(mode, DeviceContext)]


def global_default_device() -> torch.device | None:
    """What `torch.set_default_device` was called with."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


#: How many `__torch_function__` modes are active.
function_mode_count: Callable[[], int] = private("torch._C._len_torch_function_stack")
#: What `torch.get_float32_matmul_precision` gives, without a call in Python.
float32_precision: Callable[[], str] = private("torch._C._get_float32_matmul_precision")

_BACKENDS: Iterable[str] = private("torch.nn.attention._backend_names")
_GET_ATTENTION = [private(f"torch._C._get_{name}_sdp_enabled") for name in _BACKENDS]
_GET_ATTENTION += [private("torch._C._get_math_sdp_allow_fp16_bf16_reduction")]
_SET_ATTENTION = [private(f"torch._C._set_sdp_use_{name}") for name in _BACKENDS]
_SET_ATTENTION += [private("torch._C._set_math_sdp_allow_fp16_bf16_reduction")]
_get_attention_order: Callable[[], Sequence[Any]] = private("torch._C._get_sdp_priority_order")
_RARE_WORDS = ("_sdp_", "_attention", "precision", "_tf32")
#: What the modes that few functions depend on are asked with, and set with.
_RARE = [
    (torch._C, name)
    for name in dir(torch._C)
    if name.startswith(("_get_", "_set_", "_can_use_"))
    and any(word in name for word in _RARE_WORDS)
]
_RARE += [(torch, "autocast_increment_nesting")]


def rare_modes() -> tuple[Any, ...]:
    """The modes that few functions depend on: regions of autocast, precision, attention's backends; hashable."""
    return autocast_nested(), float32_precision(), *attention_backends()


@contextlib.contextmanager
def rare_modes_noticed(note: Callable[[], object]) -> Iterator[None]:
    """`note` is called when this thread asks for one of `rare_modes` or sets it, other than by this module."""

    def noticed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note()
        return original(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for holder, name in _RARE:
            stack.enter_context(redirected(holder, name, noticed))
        yield


def attention_backends() -> tuple[Any, ...]:
    """What decides of which operators `scaled_dot_product_attention` consists, as `sdpa_kernel` sets it; hashable."""
    return (*_get_attention_order(), *[get() for get in _GET_ATTENTION])


def set_attention_backends(state: tuple[Any, ...]) -> None:
    """Put back what `attention_backends` gave."""
    count = len(state) - len(_SET_ATTENTION)
    torch._C._set_sdp_priority_order(list(state[:count]))
    for put, value in zip(_SET_ATTENTION, state[count:], strict=True):
        put(value)


def dispatch_mode_count() -> int:
    """How many `__torch_dispatch__` modes are active."""
    return torch._C._len_torch_dispatch_stack()


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Whether a `torch.func` transform wraps the tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def stream_key(generator: Any) -> int:
    """Equal for objects that stand for one generator, for as long as it lives."""
    return int(generator._cdata)


def global_module_hooks() -> tuple[Any, ...]:
    """The hooks that PyTorch calls for every module."""
    module: Any = torch.nn.modules.module
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return tuple([getattr(module, f"_global_{name}") for name in names])


def clear_saved_tensors(ctx: Any) -> None:
    """Let a node drop its saved tensors now, unless the graph is retained."""
    clear = getattr(ctx, "maybe_clear_saved_tensors", None)
    if clear is not None:
        clear()


def unwatch_saved_tensors(ctx: Any, indices: Iterable[int]) -> None:
    """Let a node give saved tensors even if they were written to since it saved them."""
    saved = ctx._raw_saved_tensors
    for index in indices:
        saved[index].register_hooks(lambda tensor: tensor, lambda tensor: tensor)


def asks_device(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call asks for the device of a fake tensor, as is done more often than anything else."""
    return func is torch.ops.prim.device.default and is_fake(args[0])


#: Kernels that copy the argument with the memory before it, which PyTorch's fakes leave out.
KEEP_PLACE = frozenset(
    (
        torch.ops.aten.select_scatter.default,
        torch.ops.aten.slice_scatter.default,
        torch.ops.aten.diagonal_scatter.default,
    )
)


def _iterated(*tensors: torch.Tensor) -> torch.Tensor:
    return (torch.neg, torch.add, torch.addcmul)[len(tensors) - 1](*tensors)


def _broadcast_copy(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    wide: torch.Tensor = torch.broadcast_tensors(tensor, other)[0]
    return wide.clone(memory_format=torch.contiguous_format)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, device="meta")


def _suggested(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, memory_format=suggest_memory_format(tensor), device="meta")


#: Operators whose fakes have other strides than their results, by what lays these out as their kernels do: a function
#: of some of the arguments.
_LAID_OUT_AS: dict[Any, tuple[slice, Callable[..., torch.Tensor]]] = {
    functools.reduce(getattr, name.split("."), torch.ops.aten): (taken, known)
    for known, taken, names in (
        (
            _iterated,
            slice(1),
            "clamp.default clamp_max.default clamp_min.default gelu.default hardshrink.default isinf.default "
            "logit.default relu.default softshrink.default threshold.default",
        ),
        (
            _iterated,
            slice(2),
            "_prelu_kernel.default clamp_max.Tensor clamp_min.Tensor complex.default copysign.Tensor div.Tensor_mode "
            "floor_divide.default heaviside.default huber_loss.default logaddexp.default logical_and.default "
            "logical_or.default logical_xor.default native_dropout_backward.default polar.default "
            "special_xlog1py.default xlogy.Tensor",
        ),
        (_iterated, slice(3), "clamp.Tensor"),
        (
            torch.clone,
            slice(1),
            "binary_cross_entropy.default deg2rad.default empty_like.default fill.Scalar fill.Tensor flip.default "
            "full_like.default hardtanh.default index_put.default nan_to_num.default ones_like.default "
            "rad2deg.default rand_like.default randint_like.default randint_like.low_dtype randn_like.default "
            "sort.default sort.stable zeros_like.default",
        ),
        (_broadcast_copy, slice(2), "masked_fill.Scalar masked_fill.Tensor"),
        (
            _contiguous,
            slice(1),
            "_log_softmax.default isin.Tensor_Scalar isin.Tensor_Tensor log_sigmoid_forward.default tril.default "
            "triu.default",
        ),
        (_contiguous, slice(1, 2), "pow.Scalar"),
        (
            _suggested,
            slice(1),
            "native_batch_norm.default native_channel_shuffle.default native_group_norm.default roll.default",
        ),
    )
    for name in names.split()
}


_VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
#: Operators whose fakes take no notice of a number, which broadcasts: strides of dimensions of one place depend on it.
_TAKE_NUMBERS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for overload, names in (
        ("Tensor", "add sub mul div"),
        ("Scalar", "rsub eq ne gt ge lt le remainder fmod"),
    )
    for name in names.split()
)


def _laid_out(
    mode: FakeMode,
    kernel: tuple[slice, Callable[..., Any]],
    result: Any,
    args: tuple[Any, ...],
    kwargs: Any,
) -> Any:
    """The fakes that an operator returns, with the strides that its kernel gives to results of that shape."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return result
    taken, known = kernel
    # a number is a tensor without dimensions to a kernel
    layouts = [
        (arg.shape, arg.stride()) if is_fake(arg) else ((), ())
        for arg in args[taken]
        if arg is not None
    ]
    made = known(*[torch.empty_strided(*one, device="meta") for one in layouts])

    def laid_out(fake: fake_tensor.FakeTensor) -> torch.Tensor:
        layout = (
            _layout(mode, fake)
            if fake.shape == made.shape and fake.stride() != made.stride()
            else None
        )
        return fake if layout is None else _fake(mode, (layout[0], made.stride(), *layout[2:]))

    return tuple(map(laid_out, result)) if isinstance(result, tuple) else laid_out(result)


def _viewed(mode: FakeMode, fake: fake_tensor.FakeTensor, viewed: torch.Tensor) -> torch.Tensor:
    """A view of other sizes, with strides as the kernel has them, or its refusal; fakes differ beside sizes of one."""
    made = torch.empty_strided(viewed.shape, viewed.stride(), device="meta").view(fake.shape)
    layout = _layout(mode, fake) if made.stride() != fake.stride() else None
    return fake if layout is None else _fake(mode, (layout[0], made.stride(), *layout[2:]), viewed)


class _FakeMode(FakeMode):
    """Fake tensors, with fakes of our own where PyTorch's are stricter than their kernels, or laxer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_device(func, args):
            return args[0].fake_device
        if func is torch.ops.aten._grouped_mm.default and args[0].device.type == "cpu":
            return _grouped_mm_fake(self, *args, **(kwargs or {}))
        if func in _SUBTRACTIONS and any(map(_is_boolean, args[:2])):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported: use `^`, `~` or logical_not()"
            )
        if self.shape_env is None:
            key = _call_key(self, func, args, kwargs)
            known = _RESULTS.get(key) if key is not None else None
            if known is not None:
                return _result(self, known, args)
            with replaced(_FAKE_LOGGER, "disabled", True):
                result: Any = super().__torch_dispatch__(func, types, args, kwargs)
            if func in _VIEWS and 1 in args[0].shape:
                result = _viewed(self, result, args[0])
            if func in KEEP_PLACE and result.storage_offset() != args[0].storage_offset():
                room = args[0].untyped_storage().nbytes() // args[0].itemsize
                result = (
                    args[0]
                    .new_empty(room)
                    .as_strided(result.shape, result.stride(), args[0].storage_offset())
                )
            if func in _LAID_OUT_AS:
                result = _laid_out(self, _LAID_OUT_AS[func], result, args, kwargs or {})
            elif func in _TAKE_NUMBERS and not is_fake(args[1]) and 1 in result.shape:
                result = _laid_out(self, (slice(2), _iterated), result, args, kwargs or {})
            if key is not None and key not in _RESULTS:
                if len(_RESULTS) >= _RESULTS_LIMIT:
                    _RESULTS.clear()
                _RESULTS[key] = _Result.of(self, result, args, kwargs or {})
            return result
        # kernels in C++ know numbers alone; what was dispatched, and is recorded, stays
        with enable_python_dispatcher(), replaced(_FAKE_LOGGER, "disabled", True):
            return super().__torch_dispatch__(func, types, args, kwargs)


#: Metadata of a strided tensor: shape, stride, dtype, device, storage offset, and the lazy bits.
Layout: TypeAlias = tuple[Any, Any, torch.dtype, torch.device, int, bool, bool]


def _fake(mode: FakeMode, layout: Layout, home: Any = None) -> fake_tensor.FakeTensor:
    """A fake tensor, in the storage of another one if `home` is that."""
    shape, stride, dtype, device, offset, is_conj, is_neg = layout
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta: Any = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        if home is not None:
            meta.set_(home.untyped_storage(), offset, shape, stride)
    if is_conj:
        torch._C._set_conj(meta, True)
    if is_neg:
        torch._C._set_neg(meta, True)
    return fake_tensor.FakeTensor(mode, meta, device)


@dataclass(frozen=True, slots=True)
class _Result:
    """What an operator returns: `kind` is None for one tensor; of each, its layout and the argument it is a view of."""

    kind: type | None
    items: tuple[tuple[Layout, int | None] | None, ...]

    @classmethod
    def of(cls, mode: FakeMode, result: Any, args: tuple[Any, ...], kwargs: Any) -> _Result | None:
        """That of a call; None where the tensors cannot be made again from layouts."""
        kind = type(result) if type(result) in (tuple, list) else None
        homes = [storage_key(other) for other in tensors_in((args, kwargs))]
        items: list[tuple[Layout, int | None] | None] = []
        for made in result if kind else (result,):
            if made is None and kind:
                items.append(None)
                continue
            layout = (
                _layout(mode, made)
                if is_fake(made) and not any(made is other for other in args)
                else None
            )
            if layout is None:
                return None
            key = storage_key(made)
            home = next(
                (i for i, other in enumerate(args) if is_fake(other) and storage_key(other) == key),
                None,
            )
            # in the memory of one of several arguments, of one inside a list, or of another result
            if homes.count(key) != (home is not None):
                return None
            again = _fake(mode, layout, None if home is None else args[home])
            alike = torch._C._dispatch_key_set(again) == torch._C._dispatch_key_set(made)
            if not alike or again.untyped_storage().nbytes() != made.untyped_storage().nbytes():
                return None
            if home is None:
                homes.append(key)
            items.append((layout, home))
        return cls(kind, tuple(items))


def _result(mode: FakeMode, known: _Result, args: tuple[Any, ...]) -> Any:
    """Fresh fake tensors as an operator makes them of these arguments."""
    made = [
        item and _fake(mode, item[0], None if item[1] is None else args[item[1]])
        for item in known.items
    ]
    return made[0] if known.kind is None else known.kind(made)


#: What operators return by their arguments, None where nothing is to be remembered: PyTorch's own memory of that takes
#: several times as long to ask.
_RESULTS: dict[Any, _Result | None] = {}
_RESULTS_LIMIT = 10_000
_DATA_TAGS = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
)


def clear_fake_results() -> None:
    """Forget what operators return."""
    _RESULTS.clear()


class _NotPlain(Exception):
    """An argument that a key cannot be made of."""


def _call_key(mode: FakeMode, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """What the layouts of an operator's results depend on, or None where they depend on more."""
    if not _is_regular(func) or torch.is_inference_mode_enabled():
        return None
    try:
        defaults = torch.get_default_dtype(), torch._C._get_default_device()
        key = (func, defaults, _part(mode, args), _part(mode, kwargs or {}))
        hash(key)
    except (_NotPlain, TypeError):
        return None
    return key


@functools.cache
def _is_regular(func: Any) -> bool:
    """Whether an operator is PyTorch's, writes to nothing, and asks for no data and no bounds of memory."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func._schema.is_mutable:
        return False
    named = any(part in func._opname for part in ("as_strided", "lift", "resize", "zerotensor"))
    return not named and _DATA_TAGS.isdisjoint(func.tags)


def _part(mode: FakeMode, value: Any) -> Any:
    if isinstance(value, fake_tensor.FakeTensor):
        layout = _layout(mode, value)
        if layout is None:
            raise _NotPlain
        return layout
    if isinstance(value, (tuple, list)):
        return (type(value), *[_part(mode, item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _part(mode, item)) for name, item in value.items()])
    if isinstance(value, (torch.Tensor, torch.Generator, *SYMBOLIC)):
        raise _NotPlain
    return (type(value), value)


def _layout(mode: FakeMode, fake: fake_tensor.FakeTensor) -> Layout | None:
    """The layout of a strided tensor of this mode, of which nothing else is known."""
    if fake.fake_mode is not mode or fake.constant is not None or fake.layout is not torch.strided:
        return None
    if fake.requires_grad:
        return None
    place: Any = fake.storage_offset()
    return (
        fake.shape,
        fake.stride(),
        fake.dtype,
        fake.fake_device,
        place,
        fake.is_conj(),
        fake.is_neg(),
    )


#: Says which kernels know numbers alone, and which calls fail, where both are seen to in other ways.
_FAKE_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
_SUBTRACTIONS = frozenset(
    getattr(packet, name)
    for packet in (torch.ops.aten.sub, torch.ops.aten.rsub)
    for name in ("Tensor", "Scalar")
)


def _is_boolean(operand: Any) -> bool:
    return (
        operand.dtype is torch.bool
        if isinstance(operand, torch.Tensor)
        else isinstance(operand, bool)
    )


def _grouped_mm_fake(
    mode: FakeMode, a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Groups are the first dimension of a 3-d operand, and cut by `offs` from a 2-d one; rows are 16-byte aligned."""
    groups = (offs if a.dim() == 2 else a).shape[:1] if a.dim() == b.dim() else ()
    shape = (*groups, a.shape[-2], b.shape[-1])
    alignment = 16 // a.element_size()
    row = -(-shape[-1] // alignment) * alignment
    stride = (shape[-2] * row, row, 1)[-len(shape) :]
    with mode:
        return torch.empty_strided(shape, stride, dtype=out_dtype or a.dtype, device=a.device)

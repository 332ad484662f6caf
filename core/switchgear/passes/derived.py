"""Derived rules: the pullback of an operator overload, recorded from PyTorch's own autograd formula."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from switchgear.errors import NotDifferentiable
from switchgear.proxy import TensorProxy
from switchgear.recorder import Recorder
from switchgear.symbol import BoundSymbol, map_proxies
from switchgear.trace import Names

from .dead_code import live


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A pullback over placeholders: per tensor argument of the call, per output, per defined grad output."""

    arguments: tuple[TensorProxy, ...]
    outputs: tuple[TensorProxy, ...]
    grad_outputs: tuple[TensorProxy | None, ...]
    bound_symbols: tuple[BoundSymbol, ...]
    grads: tuple[TensorProxy | None, ...]


_CACHE: OrderedDict[Any, Template] = OrderedDict()
_CACHE_SIZE = 4096


def derive(
    bound_symbol: BoundSymbol, grad_outputs: tuple[TensorProxy | None, ...], higher_order: bool = False
) -> Template:
    """The template for a leaf and the grad outputs that are defined.

    It depends on the overload, the Python values among the arguments, and metadata alone, so it is cached for the
    process. Raises `NotDifferentiable` if PyTorch has no formula.
    """
    key = _key(bound_symbol, grad_outputs, higher_order)
    template = _CACHE.get(key) if key is not None else None
    if template is None:
        template = _record(bound_symbol, grad_outputs, higher_order)
        if key is not None:
            _CACHE[key] = template
            if len(_CACHE) > _CACHE_SIZE:
                _CACHE.popitem(last=False)
    return template


def clear_templates() -> None:
    """Forget every cached template."""
    _CACHE.clear()


def _key(bound_symbol: BoundSymbol, grad_outputs: tuple[TensorProxy | None, ...], higher_order: bool) -> Any:
    key = (
        bound_symbol.symbol.fn,
        _frozen(bound_symbol.args),
        _frozen(bound_symbol.kwargs),
        tuple([proxy.requires_grad for proxy in bound_symbol.outputs]),
        _frozen(grad_outputs),
        higher_order,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    """A value as a dictionary key: proxies by metadata, numbers by type too."""
    if isinstance(value, TensorProxy):
        return replace(value, name="")
    if isinstance(value, (tuple, list)):
        return tuple([_frozen(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _frozen(item)) for name, item in value.items()])
    return (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)


def _record(bound_symbol: BoundSymbol, grad_outputs: tuple[TensorProxy | None, ...], higher_order: bool) -> Template:
    arguments = tuple(replace(proxy, name=f"a{i}") for i, proxy in enumerate(bound_symbol.inputs))
    outputs = tuple(replace(proxy, name=f"o{i}") for i, proxy in enumerate(bound_symbol.outputs))
    cotangents = tuple(
        None if proxy is None else replace(proxy, name=f"g{i}", requires_grad=False)
        for i, proxy in enumerate(grad_outputs)
    )
    failure: Exception | None = None
    for call in _spellings(bound_symbol.symbol.fn):
        try:
            recorded, grads = _run(bound_symbol, call, arguments, outputs, cotangents, higher_order)
        except (RuntimeError, NotImplementedError) as error:
            failure = failure or error
            continue
        return Template(arguments, outputs, cotangents, recorded, grads)
    raise NotDifferentiable(
        f"no gradient for {bound_symbol.symbol.name}, called at {bound_symbol.source}: no executor or package brings "
        f"a grad rule, it has no decomposition, and PyTorch's own formula fails ({failure}). Register a grad rule "
        "for it, mark it with switchgear_is_constant_for_vjp, or call it under torch.no_grad()"
    ) from failure


def _spellings(overload: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The overload, and its in-place twin on a clone: PyTorch has formulas for some of these alone (`copy_`)."""
    if overload is torch.ops.aten.rrelu_with_noise_functional.default:
        return [_rrelu_with_noise]
    spellings: list[Callable[..., Any]] = [overload]
    twin = _in_place_twin(overload)
    if twin is not None:
        spellings.append(twin)
    return spellings


def _rrelu_with_noise(self: torch.Tensor, noise: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The formula of the functional overload reads the noise as it was before it was drawn."""
    drawn = noise.clone()
    return torch.ops.aten.rrelu_with_noise.default(self, drawn, *args, **kwargs), drawn


#: In-place twins whose overload has another name.
_TWIN_OVERLOADS = {"aten.bernoulli.p": "float"}


def _in_place_twin(overload: Any) -> Callable[..., Any] | None:
    if not isinstance(overload, torch._ops.OpOverload):
        return None
    namespace, _, name = overload._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_functional") + "_", None)
    twin = getattr(packet, _TWIN_OVERLOADS.get(str(overload), overload._overloadname), None) if packet else None
    if twin is None:
        return None

    def on_clone(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return twin(self.clone(), *args, **kwargs)

    return on_clone


def _run(
    bound_symbol: BoundSymbol,
    call: Callable[..., Any],
    arguments: tuple[TensorProxy, ...],
    outputs: tuple[TensorProxy, ...],
    cotangents: tuple[TensorProxy | None, ...],
    higher_order: bool,
) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy | None, ...]]:
    recorder = Recorder(Names(), follow_autograd=False)
    with recorder.recording(), torch._C.DisableTorchFunction(), torch.autograd.set_multithreading_enabled(False):
        wrappers = [recorder.tracker.wrapper_for(proxy, autograd=True) for proxy in arguments]
        given = iter(wrappers)
        args, kwargs = map_proxies(lambda _: next(given), (bound_symbol.args, dict(bound_symbol.kwargs)))
        with torch.enable_grad():
            result = call(*args, **kwargs)
        made = (
            [result]
            if isinstance(result, torch.Tensor)
            else [item for item in result if isinstance(item, torch.Tensor)]
        )
        results = {recorder.tracker.proxy_of(tensor).name: proxy for tensor, proxy in zip(made, outputs, strict=True)}
        pairs = [
            (tensor, recorder.tracker.wrapper_for(cotangent))
            for tensor, cotangent in zip(made, cotangents, strict=True)
            if cotangent is not None and tensor.requires_grad
        ]
        wanted = [wrapper for wrapper, proxy in zip(wrappers, arguments, strict=True) if proxy.requires_grad]
        with torch.set_grad_enabled(higher_order):
            found = iter(_grads(pairs, wanted, create_graph=higher_order))
            grads = tuple(_grad_proxy(recorder, next(found)) if proxy.requires_grad else None for proxy in arguments)
    return _renamed(recorder.take(), results, grads)


def _grads(
    pairs: list[tuple[torch.Tensor, torch.Tensor]], wanted: list[torch.Tensor], *, create_graph: bool
) -> Sequence[torch.Tensor | None]:
    if not pairs:
        return [None] * len(wanted)
    outputs, cotangents = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True, create_graph=create_graph)


def _grad_proxy(recorder: Recorder, grad: torch.Tensor | None) -> TensorProxy | None:
    return None if grad is None else recorder.tracker.proxy_of(grad)


def _renamed(
    recorded: tuple[BoundSymbol, ...],
    results: dict[str, TensorProxy],
    grads: tuple[TensorProxy | None, ...],
) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy | None, ...]]:
    """The recorded program with the call's results as placeholders, and without the call itself.

    PyTorch saves results through `aten.detach`: that one is an alias of the result.
    """
    names = dict(results)
    body: list[BoundSymbol] = []
    for item in recorded:
        if item.outputs and all(proxy.name in results for proxy in item.outputs):
            continue
        args, kwargs = map_proxies(functools.partial(_rename, names), (item.args, dict(item.kwargs)))
        if item.symbol.fn is torch.ops.aten.detach.default and item.inputs[0].name in names and item.grad_enabled:
            names[item.outputs[0].name] = args[0]
            continue
        body.append(replace(item, args=args, kwargs=kwargs, source=None, grad_enabled=False))
    final = tuple(None if grad is None else _rename(names, grad) for grad in grads)
    return live(tuple(body), [grad for grad in final if grad is not None]), final


def _rename(names: dict[str, TensorProxy], proxy: TensorProxy) -> TensorProxy:
    return names.get(proxy.name, proxy)


def instantiate(
    template: Template,
    bound_symbol: BoundSymbol,
    grad_outputs: tuple[TensorProxy | None, ...],
    names: Names,
) -> tuple[list[BoundSymbol], tuple[TensorProxy | None, ...]]:
    """The template's program over the proxies of a call: bound symbols, and a gradient per tensor argument."""
    env: dict[str, TensorProxy] = {}
    for holders, actual in (
        (template.arguments, bound_symbol.inputs),
        (template.outputs, bound_symbol.outputs),
        (template.grad_outputs, grad_outputs),
    ):
        for holder, proxy in zip(holders, actual, strict=True):
            if holder is not None and proxy is not None:
                env[holder.name] = proxy
    body = [rebind(item, env, names) for item in template.bound_symbols]
    return body, tuple(None if grad is None else env.get(grad.name, grad) for grad in template.grads)


def rebind(bound_symbol: BoundSymbol, env: dict[str, TensorProxy], names: Names) -> BoundSymbol:
    """A copy that reads what `env` says and whose outputs, entered into `env`, have fresh names."""

    def read(proxy: TensorProxy) -> TensorProxy:
        return env.get(proxy.name, proxy)

    def define(proxy: TensorProxy) -> TensorProxy:
        if proxy.name not in env:
            env[proxy.name] = replace(proxy, name=names.fresh())
        return env[proxy.name]

    args, kwargs = map_proxies(read, (bound_symbol.args, dict(bound_symbol.kwargs)))
    parts = tuple([rebind(part, env, names) for part in bound_symbol.subsymbols])
    output = map_proxies(define, bound_symbol.output)
    return replace(bound_symbol, args=args, kwargs=kwargs, output=output, subsymbols=parts)

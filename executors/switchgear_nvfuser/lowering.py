"""Lowering: calls that nvFuser runs, directly or decomposed, and the definition of a region of such calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

import switchgear as sg

# each fills the table of translations
from . import factories, indexing, pointwise, reductions, shapes  # noqa: F401
from .definition import DTYPES, Definition, Value, frozen, layout_of, mapped
from .internals import Dispatched, decomposition_of, fake_mode, laid_out, undisturbed
from .translation import LEFT, TRANSLATIONS, Translator, Untranslatable

#: Maximal number of dimensions for nvFuser.
RANKS = 8
_LOWERED_MAX = 4096
#: Results of `lowered`, by operator and metadata.
_lowered: dict[Any, tuple[sg.BoundSymbol, ...] | str] = {}


def lowered(item: sg.BoundSymbol) -> tuple[sg.BoundSymbol, ...]:
    """Return the calls of translated operators for a leaf; raise `Untranslatable` with the reason if there are none."""
    fn = item.symbol.fn
    if not isinstance(fn, torch._ops.OpOverload):
        raise Untranslatable("it is no operator of PyTorch's")
    if not item.outputs:
        raise Untranslatable("it returns no tensor")
    proxies = (*item.inputs, *item.outputs)
    for proxy in proxies:
        _check(proxy)
    if len({proxy.device for proxy in proxies}) > 1:
        raise Untranslatable("on more than one device")
    numbers: dict[str, str] = {}

    def anonymous(proxy: sg.TensorProxy) -> sg.TensorProxy:
        name = numbers.setdefault(proxy.name, str(len(numbers)))
        return sg.TensorProxy(name, proxy.shape, proxy.stride, proxy.dtype, proxy.device)

    parts = (item.args, dict(item.kwargs), item.output)
    args, kwargs, output = mapped(anonymous, parts, sg.TensorProxy)
    key = (item.symbol.name, frozen((args, kwargs, output)))
    template = _lowered.get(key)
    if template is None:
        if len(_lowered) >= _LOWERED_MAX:
            _lowered.clear()
        template = _lowered[key] = _template(sg.BoundSymbol(item.symbol, args, kwargs, output))
    if isinstance(template, str):
        raise Untranslatable(template)
    names = {number: name for name, number in numbers.items()}

    def named(proxy: sg.TensorProxy) -> sg.TensorProxy:
        # no name of a trace has a dot: intermediates are named after the first output
        return replace(proxy, name=names.get(proxy.name) or f"{item.outputs[0].name}.{proxy.name}")

    calls = []
    for call in template:
        args, kwargs, output = mapped(named, (call.args, dict(call.kwargs), call.output), sg.TensorProxy)
        calls.append(sg.BoundSymbol(call.symbol, args, kwargs, output))
    return tuple(calls)


def _check(proxy: sg.TensorProxy) -> None:
    if proxy.dtype not in DTYPES:
        raise Untranslatable(f"nvFuser does not compute with {str(proxy.dtype).removeprefix('torch.')} here")
    if len(proxy.shape) > RANKS:
        raise Untranslatable(f"{len(proxy.shape)} dimensions, more than nvFuser's {RANKS}")
    if not math.prod(proxy.shape):
        raise Untranslatable("a tensor without elements")
    if proxy.is_conj or proxy.is_neg:
        raise Untranslatable("a tensor that is negative or conjugate by a bit")


def _template(item: sg.BoundSymbol) -> tuple[sg.BoundSymbol, ...] | str:
    """Return the calls, or the reason why there are none."""
    try:
        calls = (item,) if item.symbol.fn in TRANSLATIONS else _decomposed(item)
        define(sg.Trace("call", _distinct(item), item.outputs, calls), static=False)
    except Untranslatable as reason:
        return str(reason)
    return calls


def _distinct(item: sg.BoundSymbol) -> tuple[sg.TensorProxy, ...]:
    return tuple({proxy.name: proxy for proxy in item.inputs}.values())


def _decomposed(item: sg.BoundSymbol) -> tuple[sg.BoundSymbol, ...]:
    """Return PyTorch's decomposition of a call into translated operators."""
    calls: list[sg.BoundSymbol] = []
    tensors: list[torch.Tensor] = []  # keeps tensors alive, because ids identify them
    proxies: dict[int, sg.TensorProxy] = {}

    def proxy_of(value: torch.Tensor) -> sg.TensorProxy:
        if id(value) not in proxies:
            tensors.append(value)
            shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
            name = f"d{len(tensors)}"
            proxies[id(value)] = sg.TensorProxy(name, shape, stride, value.dtype, value.device)
            _check(proxies[id(value)])
        return proxies[id(value)]

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in TRANSLATIONS:
            result = func(*args, **kwargs)
            bound, keywords = mapped(proxy_of, (args, kwargs), torch.Tensor)
            output = mapped(proxy_of, tuple(result) if isinstance(result, list) else result, torch.Tensor)
            calls.append(sg.BoundSymbol(sg.Symbol(_name(func), func), bound, keywords, output))
            return result
        if func.namespace == "prim":
            # a decomposition's query of a tensor, such as its device
            return func(*args, **kwargs)
        decomposition = decomposition_of(func)
        if func in LEFT or decomposition is None:
            reason = LEFT.get(func, f"nvFuser has no {_name(func)}")
            raise Untranslatable(reason if func is item.symbol.fn else f"{reason}, a part of it")
        with mode:
            result = decomposition(*args, **kwargs)
        if result is NotImplemented:
            raise Untranslatable(f"PyTorch does not decompose {_name(func)} of these arguments")
        return result

    mode = Dispatched(handle)
    with undisturbed(), fake_mode(), torch.no_grad():
        inputs = {proxy.name: laid_out(proxy) for proxy in _distinct(item)}
        for proxy in _distinct(item):
            proxies[id(inputs[proxy.name])] = proxy
        fn: Any = item.symbol.fn
        args, kwargs = mapped(lambda proxy: inputs[proxy.name], (item.args, dict(item.kwargs)), sg.TensorProxy)
        try:
            result = handle(fn, args, kwargs)
        except Untranslatable:
            raise
        except Exception as error:
            raise Untranslatable(f"PyTorch's decomposition fails: {type(error).__name__}: {error}") from error
    return tuple(_renamed(calls, _flat(result, proxies), item))


def _flat(result: Any, proxies: Mapping[int, sg.TensorProxy]) -> list[sg.TensorProxy]:
    values = result if isinstance(result, (tuple, list)) else [result]
    outputs = [proxies.get(id(value)) for value in values if value is not None]
    if None in outputs:
        raise Untranslatable("its decomposition gives a value that comes from nowhere")
    return [proxy for proxy in outputs if proxy is not None]


def _renamed(calls: list[sg.BoundSymbol], results: list[sg.TensorProxy], item: sg.BoundSymbol) -> list[sg.BoundSymbol]:
    """Return the calls, extended by copies under the names of the operator's own results."""
    clone: Any = torch.ops.aten._to_copy.default
    for result, output in zip(results, item.outputs, strict=True):
        if (result.shape, result.dtype) != (output.shape, output.dtype):
            raise Untranslatable(f"its decomposition gives {result.type_string}, not {output.type_string}")
        calls.append(sg.BoundSymbol(sg.Symbol(_name(clone), clone), (result,), {}, output))
    return calls


def _name(func: Any) -> str:
    return str(func)


def define(region: sg.Trace, *, static: bool) -> Definition:
    """Return the definition of a region of translated calls; its outputs have the layouts of their proxies."""
    definition = Definition(None if region.inputs else next(p.device for p in region.outputs if p is not None))
    values: dict[str, Value] = {}
    translator = Translator(definition, values, static=static)
    for proxy in region.inputs:
        values[proxy.name] = definition.input(layout_of(proxy, static=static))
    for item in region.bound_symbols:
        translator.translate(item)
    for output in region.outputs:
        if output is not None:
            value, order = values[output.name], layout_of(output, static=static).stride_order
            if len(order) > 1:
                # stated even for the usual order, because nvFuser may lay out an output like an input
                value = definition.call("stride_order", value, order, dtype=value.dtype)
            elif value in definition.outputs or value in [source for source, _ in definition.inputs]:
                value = definition.call("set", value, dtype=value.dtype)
            definition.outputs.append(value)
    return definition

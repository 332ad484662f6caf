"""Derived rules: the pullback of an operator overload, recorded from PyTorch's own autograd formula.

Each pair of overload and metadata is recorded once, as a template. A tensor that a formula fills in place keeps its
strides. For other grad outputs, or for a second derivative, PyTorch's formula may read more values. Such values are
saved too, as in eager mode (`further_reads`).
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import NotDifferentiable, Unsupported
from switchgear_core.grad.products import index_product, scatter_product
from switchgear_core.ir.aliasing import in_place_twin
from switchgear_core.ir.dead_code import live
from switchgear_core.ir.proxy import TensorProxy, changed_proxy
from switchgear_core.ir.purity import frozen
from switchgear_core.ir.symbol import BoundSymbol, map_proxies, proxies, renamed
from switchgear_core.ir.trace import Names
from switchgear_core.ir.writes import WRITTEN_VIEWS
from switchgear_core.nesting import tensors_in
from switchgear_core.record.doors import Doors
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.refused_writes import backward_writes_refused
from switchgear_core.record.sizes import active_sizes, depends_on_sizes, fixed
from switchgear_core.registry.rules import Grads


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A pullback over the placeholders of `_placeholders`; a gradient or None per tensor argument."""

    bound_symbols: tuple[BoundSymbol, ...]
    grads: Grads


_CACHE: OrderedDict[object, Template] = OrderedDict()
_CACHE_SIZE = 4096


def derive(bound_symbol: BoundSymbol, grad_outputs: Grads, higher_order: bool = False) -> Template:
    """Return the template for a leaf and its defined grad outputs.

    A template depends on the overload, Python values among the arguments, and metadata alone, and is cached per
    process.

    Raises:
        NotDifferentiable: PyTorch's formula fails.
        Unsupported: PyTorch has no formula, or the formula needs data.
    """
    signature = frozen(
        (bound_symbol.args, bound_symbol.kwargs, bound_symbol.outputs, grad_outputs),
        operator.attrgetter("metadata"),
    )
    modes = (
        higher_order,
        internals.autocast_key(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    key = bound_symbol.symbol.fn, signature, modes
    # a template with symbolic sizes is for its sizes alone, and its decisions bind their entry
    sizes = active_sizes()
    cache: dict[object, Template] = (
        sizes.templates if sizes and depends_on_sizes(bound_symbol) else _CACHE
    )
    try:
        template = cache.get(key)
    except TypeError:  # an argument has no hash
        return _record(bound_symbol, grad_outputs, higher_order)
    if template is None:
        template = cache[key] = _record(bound_symbol, grad_outputs, higher_order)
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return template


def clear_templates() -> None:
    """Clear the cache of templates."""
    _CACHE.clear()


def _placeholders(bound_symbol: BoundSymbol, grad_outputs: Grads) -> dict[str, TensorProxy]:
    """Return the arguments, outputs and defined grad outputs of a call, by their names in a template."""
    kinds: dict[str, Grads] = {
        "a": bound_symbol.inputs,
        "o": bound_symbol.outputs,
        "g": grad_outputs,
    }
    return {
        f"{kind}{i}": proxy
        for kind, group in kinds.items()
        for i, proxy in enumerate(group)
        if proxy is not None
    }


def _record(bound_symbol: BoundSymbol, grad_outputs: Grads, higher_order: bool) -> Template:
    try:
        return _recorded(bound_symbol, grad_outputs, higher_order)
    except NotDifferentiable:
        if not depends_on_sizes(bound_symbol):
            raise
    # some formulas accept only numbers
    return _recorded(fixed(bound_symbol), fixed(grad_outputs), higher_order)


def _recorded(bound_symbol: BoundSymbol, grad_outputs: Grads, higher_order: bool) -> Template:
    failure: Exception | None = None
    for call in _spellings(bound_symbol, higher_order):
        try:
            return _run(bound_symbol, call, grad_outputs, higher_order)
        except (RuntimeError, NotImplementedError) as error:
            failure = failure or error
    # where PyTorch has no formula, eager continues, and raises in a backward
    name = bound_symbol.symbol.name
    if isinstance(failure, NotImplementedError) or (
        name.startswith("aten.") and "is not implemented" in str(failure)
    ):
        raise Unsupported(
            f"no gradient is recorded for {name}, called at {bound_symbol.source}: PyTorch has no formula, or one that "
            "runs on tensors that hold data alone; register a grad rule for it, or call it outside, or under no_grad"
        ) from failure
    raise NotDifferentiable(
        f"no gradient for {bound_symbol.symbol.name}, called at {bound_symbol.source}: no executor or package brings "
        f"a grad rule, it has no decomposition, and PyTorch's own formula fails ({failure}). Register a grad rule "
        "for it, mark it with switchgear_is_constant_for_vjp, or call it under torch.no_grad()"
    ) from failure


#: Products by index, in a spelling with a formula that fakes can differentiate.
_PRODUCTS = {
    torch.ops.aten.index_reduce.default: index_product,
    torch.ops.aten.scatter_reduce.two: scatter_product,
}


def _spellings(bound_symbol: BoundSymbol, higher_order: bool) -> Iterator[Callable[..., object]]:
    """Yield the overload, and its in-place twin on a clone: PyTorch has formulas for some twins alone (`copy_`)."""
    overload: Any = bound_symbol.symbol.fn
    if higher_order and overload in _PRODUCTS and "prod" in bound_symbol.args:
        yield _PRODUCTS[overload]
        return
    if overload is torch.ops.aten.rrelu_with_noise_functional.default:
        yield _rrelu_with_noise
        return
    if overload is torch.ops.aten.index_fill.int_Tensor:
        yield _index_fill
        return
    writers = [WRITTEN_VIEWS[overload]] if overload in WRITTEN_VIEWS else []
    # autograd gives the gradient of a partly written tensor that tensor's layout, on which sums depend
    first, second = (writers, [overload]) if _is_permuted(bound_symbol) else ([overload], writers)
    yield from (*first, *second)
    twin = in_place_twin(overload)
    if twin is not None:
        yield lambda self, *args, **kwargs: twin(self.clone(), *args, **kwargs)


def _is_permuted(bound_symbol: BoundSymbol) -> bool:
    """Check whether the dimensions of a call's first tensor are permuted in memory; False with symbolic sizes."""
    stride = bound_symbol.inputs[0].stride
    return not depends_on_sizes(bound_symbol) and [*stride] != sorted(stride, reverse=True)


def _rrelu_with_noise(
    self: torch.Tensor, noise: torch.Tensor, *args: object, **kwargs: object
) -> object:
    """Compute with the noise drawn: the formula of the functional overload reads the noise before the draw."""
    drawn = noise.clone()
    return torch.ops.aten.rrelu_with_noise.default(self, drawn, *args, **kwargs), drawn


def _index_fill(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Compute by `where`: PyTorch's formula sums the value's gradient over unique indices, whose number is data."""
    filled = torch.zeros_like(self, dtype=torch.bool).index_fill(dim, index, True)
    return torch.where(filled, value, self)


def _run(
    bound_symbol: BoundSymbol, call: Callable[..., object], grad_outputs: Grads, higher_order: bool
) -> Template:
    """Call the operator under autograd, with a placeholder for each tensor, and record its backward."""
    holders = {
        name: replace(p, name=name) for name, p in _placeholders(bound_symbol, grad_outputs).items()
    }
    recorder = Recorder(Names(), follow_autograd=False)
    recorder.values.known_call = bound_symbol.symbol.fn, bound_symbol.outputs
    tracker = recorder.tracker
    with (
        Doors(recorder, Handlers()).open(),
        internals.DisableTorchFunction(),
        torch.autograd.set_multithreading_enabled(False),
    ):
        arguments = [
            tracker.wrapper_for(holders[f"a{i}"], autograd=True)
            for i in range(len(bound_symbol.inputs))
        ]
        values = iter(arguments)
        args, kwargs = map_proxies(
            lambda _: next(values), (bound_symbol.args, dict(bound_symbol.kwargs))
        )
        kwargs.pop("generator", None)
        with torch.enable_grad(), internals.autocast_off():
            outs = list(tensors_in(call(*args, **kwargs)))
        recorder.values.known_call = (None, ())
        results = {tracker.proxy_of(tensor).name: holders[f"o{i}"] for i, tensor in enumerate(outs)}
        defined = [
            i for i, tensor in enumerate(outs) if tensor.requires_grad and f"g{i}" in holders
        ]
        cotangents = [
            tracker.wrapper_for(replace(holders[f"g{i}"], requires_grad=False)) for i in defined
        ]
        positions = [i for i, argument in enumerate(arguments) if argument.requires_grad]
        handed = [*outs, *cotangents, *arguments]
        grads: dict[int, TensorProxy] = {}
        if defined:
            outputs, inputs = [outs[i] for i in defined], [arguments[i] for i in positions]
            subject = (
                f"the backward of {bound_symbol.symbol.name}, called at {bound_symbol.source},"
            )
            with (
                torch.set_grad_enabled(higher_order),
                backward_writes_refused(tracker, handed, subject),
            ):
                result = internals.gradients(outputs, inputs, cotangents, create_graph=higher_order)
                grads = {
                    i: tracker.proxy_of(grad)
                    for i, grad in zip(positions, result, strict=True)
                    if grad is not None
                }
    return _template(
        recorder.tape.take(), results, tuple(grads.get(i) for i in range(len(arguments)))
    )


def _template(
    recorded: tuple[BoundSymbol, ...],
    results: dict[str, TensorProxy],
    grads: Grads,
) -> Template:
    """Return the recorded program with the call's results as placeholders, and without the call itself.

    PyTorch saves results through `aten.detach`, whose output is treated as an alias of the result.
    """
    names = dict(results)
    body: list[BoundSymbol] = []
    for item in recorded:
        if item.outputs and all(proxy.name in results for proxy in item.outputs):
            continue
        source = (
            names.get(item.inputs[0].name)
            if item.symbol.fn is torch.ops.aten.detach.default
            else None
        )
        if source is not None and item.grad_enabled:
            names[item.outputs[0].name] = source
        else:
            body.append(replace(item.reading(names), source=None, grad_enabled=False))
    final = map_proxies(lambda grad: names.get(grad.name, grad), grads)
    return Template(live(tuple(body), proxies(final)), final)


def instantiate(
    template: Template, bound_symbol: BoundSymbol, grad_outputs: Grads, names: Names
) -> tuple[tuple[BoundSymbol, ...], Grads]:
    """Return the template's program over the proxies of a call, and a gradient per tensor argument."""
    env = _placeholders(bound_symbol, grad_outputs)
    body = tuple([rebind(item, env, names) for item in template.bound_symbols])
    return body, map_proxies(lambda grad: env.get(grad.name, grad), template.grads)


#: Overloads whose formula reads other values if differentiated in turn.
_READ_MORE = frozenset(
    {
        torch.ops.aten._linalg_det.default,
        torch.ops.aten._linalg_slogdet.default,
        torch.ops.aten._linalg_solve_ex.default,
    }
)


def further_reads(
    template: Template, bound_symbol: BoundSymbol, grad_outputs: Grads
) -> tuple[TensorProxy, ...]:
    """Return the arguments and outputs of a call that another backward may read.

    Such a backward is for other grad outputs, or is differentiated. `template` is for all `grad_outputs`.
    """
    if bound_symbol.symbol.fn in _READ_MORE:
        template = derive(bound_symbol, grad_outputs, higher_order=True)
    elif sum(grad is not None for grad in grad_outputs) < 2:
        return ()
    pool = _placeholders(bound_symbol, ())
    read = (
        *(proxy for item in template.bound_symbols for proxy in item.inputs),
        *proxies(template.grads),
    )
    return tuple([pool[name] for name in dict.fromkeys(p.name for p in read) if name in pool])


def rebind(bound_symbol: BoundSymbol, env: dict[str, TensorProxy], names: Names) -> BoundSymbol:
    """Return a copy that reads values from `env`; its outputs get fresh names, and are added to `env`."""

    def define(proxy: TensorProxy) -> TensorProxy:
        if proxy.name not in env:
            env[proxy.name] = changed_proxy(proxy, name=names.fresh())
        return env[proxy.name]

    return renamed(bound_symbol, env, define)

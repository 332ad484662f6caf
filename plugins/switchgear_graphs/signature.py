"""The signature of a program: the meaning of each value at its edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.trace import Trace
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import Argument, Base, Closure, Held, InputSource, ModuleState
from switchgear_core.registry.rules import Grads
from switchgear_core.showing import Shown
from switchgear_frontend.session import Captured


@dataclass(frozen=True, slots=True)
class Signature(Shown):
    """The meaning of the inputs and outputs of a joint trace. The values of mappings are names in the trace.

    A parameter that a module has under several names has an item for each of them.

    Attributes:
        parameters: inputs, by the qualified names of parameters.
        buffers: inputs, by the qualified names of buffers.
        inputs: inputs, by the names of arguments: `batch.ids` for the item `ids` of the argument `batch`.
        constants: inputs for other tensors that the function reaches, by a description.
        outputs: results, by their places in the return value; a lone result is called `result`. A result that is a view
            has the name of the value that it is a view of.
        tangents: inputs for grad outputs, by the results and written inputs that they are gradients of.
        gradients: outputs, by the qualified names of parameters and arguments.
        loss: the result that is the only floating-point scalar with a gradient; None if there is none, or several.
        mutations: outputs that are copied into parameters, buffers and arguments, by their names.
        aliases: results that share memory with an input or another output, each with the name of that.
        random: values drawn at random.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    tangents: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)
    loss: str | None = None
    mutations: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    random: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = []
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                lines += [f"{item.name}: {key} = {name}" for key, name in value.items()]
            elif value:
                lines.append(f"{item.name}: {value if isinstance(value, str) else ', '.join(value)}")
        return "\n".join(lines)

    __repr__ = __str__


def signature_of(
    captured: Captured,
    joint: Trace,
    grad_outputs: Grads,
    arguments: Mapping[int, str],
    results: list[tuple[str, str]],
) -> Signature:
    """Return the signature of a captured call.

    Args:
        captured: the call.
        joint: its joint trace, or the trace of its forward.
        grad_outputs: the tangents by output.
        arguments: the names of the arguments, by their places among the leaves.
        results: the places in the return value, with the names of their values.
    """
    sources = [source_name(source, arguments) for source in captured.sources]
    groups: dict[str, dict[str, str]] = {"parameters": {}, "buffers": {}, "inputs": {}, "constants": {}}
    items = zip(captured.sources, sources, kinds_of(captured.sources), captured.trace.inputs, strict=True)
    for source, name, kind, proxy in items:
        groups[kind].update(dict.fromkeys((name, *_tied(source)), proxy.name))
    outputs, aliases = _returned(captured, sources, results)
    count = len(captured.outputs.proxies)
    mutations = {sources[one.input]: _name(joint.outputs[one.output]) for one in captured.outputs.mutations}
    owners = {value: place for place, value in [*mutations.items(), *outputs.items()] if place not in aliases}
    pairs = zip(joint.outputs[:count], grad_outputs, strict=True)
    tangents = {owners.get(_name(out), _name(out)): grad.name for out, grad in pairs if grad is not None}
    final = zip(sources, joint.outputs[count:], strict=False)
    own = {name: proxy.name for name, proxy in final if proxy is not None}
    tied = {twin: own[str(one)] for one in captured.sources if str(one) in own for twin in _tied(one)}
    scalars = [place for place, name in outputs.items() if place in tangents and _is_scalar(joint.outputs, name)]
    return Signature(
        **groups,
        outputs=outputs,
        tangents=tangents,
        gradients=own | tied,
        loss=scalars[0] if len(scalars) == 1 else None,
        mutations=mutations,
        aliases=aliases,
        random=random_values(joint),
    )


def random_values(trace: Trace) -> tuple[str, ...]:
    """Return the names of the values of a trace that are drawn at random."""
    return tuple([proxy.name for item in trace.bound_symbols if item.is_random for proxy in item.outputs])


def source_name(source: InputSource, arguments: Mapping[int, str]) -> str:
    """Return the qualified name of the origin of an input."""
    if isinstance(source, Argument):
        return arguments.get(source.index, str(source))
    return str(source)


def kinds_of(sources: Sequence[InputSource]) -> tuple[str, ...]:
    """Return the field of a signature to which each input belongs."""
    return tuple(map(_kind, sources))


def _kind(source: InputSource) -> str:
    if isinstance(source, ModuleState):
        return "parameters" if source.slots == "_parameters" else "buffers"
    if isinstance(source, Base):
        return _kind(source.of)
    is_outside = isinstance(source, Held) and not isinstance(source.owner, Argument)
    return "constants" if is_outside or isinstance(source, Closure) else "inputs"


def _tied(source: InputSource) -> list[str]:
    """Return the further names of a parameter or buffer."""
    return [twin.path for twin in source.tied] if isinstance(source, ModuleState) else []


def _name(proxy: TensorProxy | None) -> str:
    return "None" if proxy is None else proxy.name


def _is_scalar(outputs: tuple[TensorProxy | None, ...], name: str) -> bool:
    return any(proxy is not None and proxy.name == name and not proxy.shape for proxy in outputs)


class Noticing(Handlers):
    """The handlers of a capture, which also notice the names of the values that a function returns.

    Features may put the flat tensors of a result in its place.
    """

    def __init__(self, handlers: Handlers) -> None:
        vars(self).update(vars(handlers))
        #: The place of each tensor in the return value, with its name in the trace.
        self.results: list[tuple[str, str]] = []

    def finish(self, recorder: Recorder, result: object) -> Any:
        """Implement `Handlers.finish`."""
        with internals.DisableTorchFunction():
            self.results = [(place, _name_of(recorder, tensor)) for place, tensor in paths(result, "result")]
        return super().finish(recorder, result)


def _name_of(recorder: Recorder, tensor: torch.Tensor) -> str:
    entry = recorder.input_of(tensor)
    return entry.proxy.name if entry is not None else recorder.tracker.proxy_of(recorder.adopted(tensor)).name


def _returned(
    captured: Captured, sources: list[str], results: list[tuple[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the name of each result's value by its place, and the owners of the memory of those that share it."""
    steps, inputs = captured.outputs, captured.trace.inputs
    made_from = {out.name: call.inputs[0].name for call in steps.views for out in call.outputs if call.inputs}
    roots = {name: (kind, index) for name, kind, index in steps.roots}
    origins = {proxy.name: source for proxy, source in zip(inputs, sources, strict=True)}
    outputs, aliases, first = dict[str, str](), dict[str, str](), dict[str, str]()
    for place, name in results:
        value = name
        while value in made_from and value not in roots:
            value = made_from[value]
        if value in roots:
            kind, index = roots[value]
            value = (inputs if kind == "input" else steps.proxies)[index].name
        outputs[place] = value
        if value in origins:
            aliases[place] = origins[value]
        elif value in first or value != name:
            aliases[place] = first.get(value, value)
        else:
            first[value] = place
    return outputs, aliases


def paths(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a nested value with their places, such as `hidden.0`; one alone has the place `name`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    else:
        yield from ((place.removesuffix("."), tensor) for place, tensor in _inside(value, ""))


def _inside(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        items = enumerate(value)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        items = vars(value).items()
    for key, item in items:
        yield from _inside(item, f"{prefix}{key}.")


def argument_names(
    bind: Callable[..., Mapping[str, object]], leaves: list[object], call: tuple[Any, Any]
) -> dict[int, str]:
    """Return the names of the tensors among the flattened arguments of a call, by their places."""
    args, kwargs = call
    try:
        arguments: Mapping[str, object] = bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(f"the arguments do not fit the function: {error}") from None
    names: dict[int, str] = {}
    for name, tensor in paths(arguments):
        names.setdefault(id(tensor), name)
    return {place: names[id(leaf)] for place, leaf in enumerate(leaves) if id(leaf) in names}

"""The prologue: does an entry fit a call, and which tensors does it take from it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import Captured
from switchgear.composites import leaves_of
from switchgear.outputs import reshaped_inputs
from switchgear.shared_memory import base_of, requires_grad_alone, sharing
from switchgear.signature import Argument, Base, Closure, InputSource, ModuleState
from switchgear.structure import Structure

from .modes import same_modes
from .module_state import modules_guard

#: From a call's arguments to the input tensors of a trace, or None where the call is not the entry's.
Prologue = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[torch.Tensor, ...] | None"]


def value_key(value: Any) -> Any:
    """A Python value as part of a key: with its type, and floats by representation (nan is nan, 0.0 is not -0.0)."""
    if isinstance(value, (float, complex)):
        return (type(value), repr(value))
    if isinstance(value, slice):
        return (slice, value_key(value.start), value_key(value.stop), value_key(value.step))
    return (type(value), value)


def make_prologue(captured: Captured, leaves: list[Any], spec: Structure, tensors: list[torch.Tensor]) -> Prologue:
    """The prologue of the entry captured for these arguments; `tensors` are the trace's inputs at that time.

    It is one generated function, for it runs on every call.
    """
    scope: dict[str, Any] = {"value_key": value_key}
    body = spec.taking_apart(scope)
    values = [(index, leaf) for index, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
    conditions = [_is_value(f"a{index}", leaf, scope) for index, leaf in values]
    for index, other in captured.identical:
        scope[f"held{index}"] = other
        conditions.append(f"a{index} is " + (f"a{other}" if isinstance(other, int) else f"held{index}()"))
    states = [source for source in captured.sources if isinstance(source, ModuleState)]
    if captured.modules:
        fetched = {(state.holder, state.name) for source in states for state in (source, *source.tied)}
        scope["same_modules"] = modules_guard(captured.modules, fetched)
        conditions.append("same_modules()")
    inputs = "".join([f"{_fetched(source, number, scope)}, " for number, source in enumerate(captured.sources)])
    scope["check"] = internals.tensor_guards(tensors, *_layouts(captured))
    conditions += [f"check(*(found := ({inputs})))", same_modes(scope)]
    if captured.sizes is not None:
        scope["fits"] = captured.sizes.fits()
        conditions.append("fits(found)")
    relations = _relations(captured, tensors)
    if relations is not None:
        scope |= {"relations": relations, "related": relations(tensors)}
        conditions.append("relations(found) == related")
    body.append(f"return found if {' and '.join(conditions)} else None")
    # a parameter, or the registration of a class, that is gone
    body = ["try:", *(f"    {line}" for line in body), "except KeyError:", "    return None"]
    source = "\n    ".join(["def prologue(args, kwargs):", *body])
    exec(compile(source, "<switchgear prologue>", "exec"), scope)
    prologue: Prologue = scope.pop("prologue")
    return prologue


def _layouts(captured: Captured) -> tuple[list[list[int | None]], list[list[int | None]]] | tuple[()]:
    """Sizes and strides of the inputs, None where they are symbolic; nothing where none is."""
    if captured.sizes is None:
        return ()
    inputs = captured.trace.inputs
    kept = [[[n if type(n) is int else None for n in ns] for ns in (p.shape, p.stride)] for p in inputs]
    return [shape for shape, _ in kept], [stride for _, stride in kept]


def _is_value(name: str, value: Any, scope: dict[str, Any]) -> str:
    """The condition that a Python value is one that `value_key` tells from no other."""
    if value is None or value is True or value is False:
        return f"{name} is {value}"
    if type(value) in (int, str):
        return f"type({name}) is {type(value).__name__} and {name} == {value!r}"
    scope[f"key_{name}"] = value_key(value)
    return f"value_key({name}) == key_{name}"


def _fetched(source: InputSource, number: int, scope: dict[str, Any]) -> str:
    """The expression that gives the tensor of an input; what it needs is entered into `scope`."""
    if isinstance(source, Argument):
        return f"a{source.index}"
    if isinstance(source, Closure):
        scope[f"closure{number}"] = source.tensor
        return f"closure{number}"
    if isinstance(source, Base):
        scope[f"find{number}"] = source.fetch
        return f"find{number}({_fetched(source.of, number, scope)})"
    if source.tied:
        scope[f"fetch{number}"] = source.fetch
        return f"fetch{number}()"
    scope[f"state{number}"] = source.holder.__dict__
    return f"state{number}[{source.slots!r}][{source.name!r}]"


def _relations(captured: Captured, tensors: Sequence[torch.Tensor]) -> Callable[[Sequence[torch.Tensor]], Any] | None:
    """What the trace depends on beside the metadata of its inputs, as far as it does: aliasing, leaves, offsets."""
    outputs, leaves_matter = captured.outputs, captured.leaves_matter or bool(captured.outputs.mutations)
    bases_matter = captured.bases_matter or leaves_matter
    reshaped = reshaped_inputs(outputs, captured.trace.inputs)
    written = [*dict.fromkeys([*(mutation.input for mutation in outputs.mutations), *reshaped])]
    bases = [index for index, source in enumerate(captured.sources) if isinstance(source, Base)]
    bound_symbols = (*leaves_of(captured.trace.bound_symbols), *outputs.views)
    strided = (
        captured.offsets_matter
        or bool(bases)
        or any(item.symbol.name.startswith("aten.as_strided") for item in bound_symbols)
    )
    if not bases_matter and not strided and not reshaped:
        return None

    # what the check of the metadata has not settled: a tensor that requires no grad is a leaf
    grown = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    own, based = grown if leaves_matter else [], grown if bases_matter else []

    def relations(inputs: Sequence[torch.Tensor]) -> Any:
        leaves = [inputs[index].is_leaf for index in own]
        alone = [requires_grad_alone(inputs[index]) for index in based]
        offsets = [tensor.storage_offset() for tensor in inputs] if strided else None
        homes = [[base_of(tensor) is inputs[base] for tensor in inputs] for base in bases]
        return [*sharing(inputs, written)], leaves, alone, offsets, homes

    return relations

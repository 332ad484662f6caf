"""The prologue: does an entry fit a call, and which tensors does it take from it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import Captured
from switchgear.composites import leaves_of
from switchgear.shared_memory import base_of, requires_grad_alone, sharing
from switchgear.signature import Argument, Base, Closure, InputSource
from switchgear.structure import Structure, flatten

from .modes import modes_guard
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

    It is one generated expression, for it runs on every call.
    """
    flat = spec == flatten((tuple(leaves), {}))[1]
    conditions = [f"not kwargs and len(args) == {len(leaves)}" if flat else "args_spec == spec"]
    scope: dict[str, Any] = {"value_key": value_key, "spec": spec, "same_modes": modes_guard()}
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            scope[f"key{index}"] = value_key(leaf)
            conditions.append(f"value_key(args[{index}]) == key{index}")
    for index, other in captured.identical:
        scope[f"held{index}"] = other
        conditions.append(f"args[{index}] is " + (f"args[{other}]" if isinstance(other, int) else f"held{index}()"))
    inputs = "".join([f"{_fetched(source, number, scope)}, " for number, source in enumerate(captured.sources)])
    scope["check"] = internals.tensor_guards(tensors)
    conditions += [f"check(*(found := ({inputs})))", "same_modes()"]
    if captured.modules:
        scope["same_modules"] = modules_guard(captured.modules)
        conditions.append("same_modules()")
    relations = _relations(captured)
    if relations is not None:
        scope |= {"relations": relations, "related": relations(tensors)}
        conditions.append("relations(found) == related")
    result = f"found if {' and '.join(conditions)} else None"
    if flat:
        return eval(f"lambda args, kwargs: {result}", scope)  # type: ignore[no-any-return]
    fits = eval(f"lambda args, args_spec: {result}", scope)
    return lambda args, kwargs: fits(*flatten((args, kwargs)))


def _fetched(source: InputSource, number: int, scope: dict[str, Any]) -> str:
    """The expression that gives the tensor of an input; what it needs is entered into `scope`."""
    if isinstance(source, Argument):
        return f"args[{source.index}]"
    if isinstance(source, Closure):
        scope[f"closure{number}"] = source.tensor
        return f"closure{number}"
    if isinstance(source, Base):
        scope[f"find{number}"] = source.find
        return f"find{number}({_fetched(source.of, number, scope)})"
    scope[f"fetch{number}"] = source.fetch
    return f"fetch{number}()"


def _relations(captured: Captured) -> Callable[[Sequence[torch.Tensor]], Any] | None:
    """What the trace depends on beside the metadata of its inputs, as far as it does: aliasing, leaves, offsets."""
    outputs, leaves_matter = captured.outputs, captured.leaves_matter or bool(captured.outputs.mutations)
    bases_matter = captured.bases_matter or leaves_matter
    written = [mutation.input for mutation in outputs.mutations]
    bases = [index for index, source in enumerate(captured.sources) if isinstance(source, Base)]
    bound_symbols = (*leaves_of(captured.trace.bound_symbols), *outputs.views)
    strided = bool(bases) or any(item.symbol.name.startswith("aten.as_strided") for item in bound_symbols)
    if not bases_matter and not strided:
        return None

    def relations(inputs: Sequence[torch.Tensor]) -> Any:
        leaves = [tensor.is_leaf for tensor in inputs if leaves_matter]
        alone = [requires_grad_alone(tensor) for tensor in inputs if bases_matter]
        offsets = [tensor.storage_offset() for tensor in inputs if strided]
        homes = [[base_of(tensor) is inputs[base] for tensor in inputs] for base in bases]
        return [*sharing(inputs, written)], leaves, alone, offsets, homes

    return relations

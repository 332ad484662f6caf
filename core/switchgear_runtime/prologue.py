"""The prologue: whether an entry fits a call, and the tensors that the entry takes from the call.

One list of `Guard`s becomes a generated function. The function flattens the arguments as strictly as their structures
compare (types, lengths, keys and types of keys, because 1 == True). It compares Python values, fetches module state by
a prepared list, and checks the metadata of all tensors in a single call of C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.record.guards import Guard, Known, value_key
from switchgear_core.record.shared_memory import is_view_of_constant, sharing
from switchgear_core.record.signature import (
    Argument,
    Arguments,
    Base,
    Closure,
    Held,
    HeldNumber,
    InputSource,
    ModuleState,
    Part,
    base_of,
    tensor_of,
)
from switchgear_core.source_text import plain
from switchgear_frontend.outputs import reshaped_inputs
from switchgear_frontend.session import Captured
from switchgear_runtime.modes import same_modes
from switchgear_runtime.module_state import modules_guard

_IS_VIEW: Callable[..., bool] = torch.Tensor._is_view
#: The result of a call that an entry does not fit.
MISS: Any = type("Miss", (), {})()


@dataclass(frozen=True, slots=True, eq=False)
class Prologue:
    """The test whether an entry fits a call."""

    guards: tuple[Guard, ...]
    _opening: tuple[str, ...]
    _extras: tuple[str, ...]
    _scope: Mapping[str, object]

    def before(
        self, lines: Sequence[str], scope: Mapping[str, object], miss: object = MISS
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Return a function of a call's arguments: it runs `lines` with `inputs` defined, or returns `miss`."""
        met = " and ".join([f"({guard.condition})" for guard in self.guards])
        return self._function([f"if not ({met}): return miss", *self._extras], lines, scope, miss)

    def _function(
        self, tests: Iterable[str], lines: Iterable[str], scope: Mapping[str, object], miss: object
    ) -> Callable[..., Any]:
        # a removed parameter, a class that is no longer registered, a tensor that has lost its inner tensors
        tests = [f"    {line}" for line in (*self._opening, *tests)]
        body = [
            "try:",
            *tests,
            "except (KeyError, AttributeError, IndexError):",
            "    return miss",
            *lines,
        ]
        return generated("call(args, kwargs)", body, {**self._scope, **scope, "miss": miss})

    def conditions(self) -> list[str]:
        """Return the guards on a call, in words."""
        lines = [
            guard.conditions() if guard.conditions else [f"not changed: {guard.reason()}"]
            for guard in self.guards
        ]
        return [line for part in lines for line in part]

    def why_not(self, call: Arguments) -> str:
        """Return the difference by which the entry does not fit a call."""
        tests = [f"if not ({guard.condition}): return {n}" for n, guard in enumerate(self.guards)]
        first_miss = self._function(tests, ["return miss"], {}, None)
        number: int | None = first_miss(call.args, call.kwargs)
        if number is None:
            return "the structure of the arguments"
        return self.guards[number].reason(call.leaves)


class Inputs(tuple[torch.Tensor, ...]):
    """The input tensors of a trace in a call, and the objects among the call's arguments."""

    objects: tuple[object, ...]


def _inputs_with(tensors: tuple[torch.Tensor, ...], objects: tuple[object, ...]) -> Inputs:
    inputs = Inputs(tensors)
    inputs.objects = objects
    return inputs


def make_prologue(captured: Captured, call: Arguments, tensors: list[torch.Tensor]) -> Prologue:
    """Return the prologue of the entry captured for a call.

    Args:
        tensors: the trace's inputs at the capture.
    """
    guards = (
        *_argument_guards(captured, call),
        *_state_guards(captured, tensors),
        *_relation_guards(captured, tensors),
    )
    scope: dict[str, object] = {}
    opening = (*call.spec.taking_apart(scope),)
    for guard in guards:
        scope |= guard.scope
    extension: tuple[str, ...] = ()
    if captured.objects and captured.after:
        scope["inputs_with"] = _inputs_with
        objects = "".join(f"a{index}, " for index in captured.objects)
        extension = (f"inputs = inputs_with(inputs, ({objects}))",)
    return Prologue(guards, opening, extension, scope)


def generated(head: str, body: Iterable[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """Return a function for the hot path from the given lines; `head` is its name and parameters."""
    name = head.partition("(")[0]
    source = "\n    ".join([f"def {head}:", *body])
    exec(compile(source, f"<switchgear {name}>", "exec"), scope)
    function: Callable[..., Any] = scope.pop(name)  # its globals do not refer to it
    return function


def _argument_guards(captured: Captured, call: Arguments) -> Iterator[Guard]:
    if captured.modules:
        yield Guard("not gone", "a module that is gone", {"gone": captured.dead})
    numbers = {
        source.owner.index
        for source in captured.sources
        if isinstance(source, HeldNumber) and not source.steps  # the argument itself
    }
    for index, leaf in enumerate(call.leaves):
        if index in numbers or index in call.unread:
            continue
        if index in captured.objects:
            kind = f"kind{index}"
            why = f"argument {index} was a {type(leaf).__name__}"
            yield Guard(f"type(a{index}) is {kind}", why, {kind: type(leaf)})
        elif not isinstance(leaf, torch.Tensor):
            yield _value_guard(index, leaf)
    for index, other in captured.identical:
        why = f"argument {index} is the same tensor as another input, or is not any more"
        if isinstance(other, int):
            yield Guard(f"a{index} is a{other}", why)
        else:
            yield Guard(f"a{index} is held{index}()", why, {f"held{index}": other})


def _value_guard(index: int, value: object) -> Guard:
    """Return the guard that `value_key` of an argument is unchanged."""
    name, why = f"a{index}", f"argument {index} was {value!r}"
    if value is None or value is True or value is False:
        return Guard(f"{name} is {value}", why)
    if type(value) in (int, str):
        return Guard(f"type({name}) is {type(value).__name__} and {name} == {value!r}", why)
    if isinstance(value, torch.nn.Module):
        return Guard(f"{name} is module{index}()", why, {f"module{index}": Known(value)})
    return Guard(
        f"value_key({name}) == key{index}",
        why,
        {f"key{index}": value_key(value), "value_key": value_key},
    )


def _state_guards(captured: Captured, tensors: list[torch.Tensor]) -> Iterator[Guard]:
    """Return guards on the metadata of all input tensors, fetched here, and on modules, modes and sizes."""
    # first, because most misses fail here
    scope: dict[str, object] = {"check": internals.tensor_guards(tensors, *_layouts(captured))}
    owners: dict[InputSource, str] = {}
    sources = "".join(
        [
            f"{_fetched(source, number, scope, owners)}, "
            for number, source in enumerate(captured.sources)
        ]
    )
    yield Guard(
        f"check(*(inputs := ({sources})))",
        lambda leaves: _changed_tensor(captured, leaves),
        scope,
    )
    if captured.modules:
        states = [source for source in captured.sources if isinstance(source, ModuleState)]
        fetched = {
            (state.holder(), state.name) for source in states for state in (source, *source.tied)
        }
        same = modules_guard(captured.parts(), fetched)
        yield Guard(
            "same_modules()", "training flags, hooks or parts of a module", {"same_modules": same}
        )
    scope = {}
    yield Guard(same_modes(scope), "the global modes", scope)
    yield from captured.guards
    if captured.sizes is not None:
        yield Guard("fits(inputs)", "relations of the sizes", {"fits": captured.sizes.fits()})


def _changed_tensor(captured: Captured, leaves: Sequence[object]) -> str:
    """Return which input has another layout in a call, and the difference."""
    for source, proxy in (
        zip(captured.sources, captured.trace.inputs, strict=True) if leaves else ()
    ):
        try:
            now = tensor_of(source, leaves)
        except Unsupported:
            kind = "a number of 2 or more" if isinstance(source, HeldNumber) else "a tensor"
            return f"{source}, which was {kind},"
        for aspect, read in _LAYOUT.items():
            before, after = read(proxy), read(now)
            if aspect in ("sizes", "strides"):
                before = tuple(
                    [n if type(n) is int else now for n, now in zip(before, after, strict=False)]
                )
            if before != after:
                return f"the {aspect} of {source} (from {before} to {after})"
    return "sizes, strides, dtype, device or requires_grad of a tensor"


_LAYOUT: dict[str, Callable[[Any], Any]] = {
    "number of dimensions": lambda tensor: len(tensor.shape),
    "sizes": lambda tensor: tuple(tensor.shape),
    "strides": lambda tensor: tuple(
        tensor.stride if isinstance(tensor, TensorProxy) else tensor.stride()
    ),
    "dtype": lambda tensor: tensor.dtype,
    "device": lambda tensor: tensor.device,
    "requires_grad": lambda tensor: tensor.requires_grad,
}


def _layouts(
    captured: Captured,
) -> tuple[list[list[int | None]], list[list[int | None]]] | tuple[()]:
    """Return sizes and strides of the inputs, None where symbolic; empty if no size is."""
    if captured.sizes is None:
        return ()
    inputs = captured.trace.inputs
    layouts = [
        [[n if type(n) is int else None for n in ns] for ns in (p.shape, p.stride)] for p in inputs
    ]
    return [shape for shape, _ in layouts], [stride for _, stride in layouts]


def _fetched(
    source: InputSource, number: int, scope: dict[str, object], owners: dict[InputSource, str]
) -> str:
    """Return the expression for the tensor of an input; add its names to `scope`.

    `owners` has the names of the tuples of inner tensors, each made once.
    """
    if isinstance(source, Part):
        parts = owners.get(source.of)
        if parts is None:
            of, place = _fetched(source.of, number, scope, owners), len(owners)
            scope[f"opened{place}"] = source.shell.opening()
            owners[source.of] = f"parts{place}"
            parts = f"(parts{place} := opened{place}({of}))"
        return f"{parts}[{source.number}]"
    if isinstance(source, Argument):
        return f"a{source.index}"
    if isinstance(source, Closure):
        scope[f"closure{number}"] = source.tensor
        return f"closure{number}"
    if isinstance(source, Base):
        scope[f"find{number}"] = source.fetch
        return f"find{number}({_fetched(source.of, number, scope, owners)})"
    if isinstance(source, Held):
        is_entry = type(source) is Held and type(source.owner) is dict and len(source.steps) == 1
        of_entry = is_entry and not source.tied
        scope[f"fetch{number}"] = (
            partial(source.owner.get, *source.steps) if of_entry else source.fetch
        )
        return f"fetch{number}({f'a{source.owner.index}' if isinstance(source.owner, Argument) else ''})"
    holder = source.holder()
    if source.tied or holder is None:
        scope[f"fetch{number}"] = source.fetch
        return f"fetch{number}()"
    scope[f"state{number}"] = vars(holder)
    return f"state{number}[{source.slots!r}][{plain(source.name)!r}]"


def _relation_guards(captured: Captured, tensors: Sequence[torch.Tensor]) -> Iterator[Guard]:
    """Return guards on relations between inputs that matter to the trace: aliasing, leaves, offsets."""
    outputs, leaves_matter = (
        captured.outputs,
        captured.matters.leaves or bool(captured.outputs.mutations),
    )
    # not settled by the metadata check, because only a tensor that requires no grad is surely a leaf
    grown = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]

    def guard(name: str, why: str, ask: Callable[[Sequence[torch.Tensor]], object]) -> Guard:
        scope = {f"{name}_of": ask, f"{name}_then": ask(tensors)}
        return Guard(f"{name}_of(inputs) == {name}_then", why, scope)

    targets = [mutation.input for mutation in outputs.mutations]
    targets = [*dict.fromkeys([*targets, *reshaped_inputs(outputs, captured.trace.inputs)])]
    if targets:
        alias = guard(
            "sharing", "which inputs share memory", lambda inputs: [*sharing(inputs, targets)]
        )
        if internals.none_share_storage(tensors):  # one call of PyTorch tells
            condition, scope = (
                f"apart(inputs) or {alias.condition}",
                {"apart": internals.none_share_storage},
            )
            alias = replace(alias, condition=condition, scope={**alias.scope, **scope})
        yield alias
    if leaves_matter and grown:
        yield guard(
            "leaves",
            "which inputs are leaves of autograd",
            lambda ts: [ts[i].is_leaf for i in grown],
        )
    if captured.matters.bases and grown:
        why = "which inputs are views of tensors that do not require grad"
        then = any(map(is_view_of_constant, tensors))
        views = "any(map(is_view, inputs)) and any(map(is_view_of_constant, inputs))"
        functions = {"is_view": _IS_VIEW, "is_view_of_constant": is_view_of_constant}
        yield Guard(f"({views}) == {then}", why, functions)
    bases = [index for index, source in enumerate(captured.sources) if isinstance(source, Base)]
    if bases:
        yield guard(
            "homes",
            "which inputs are views of one tensor",
            lambda inputs: [
                [base_of(tensor) is inputs[base] for tensor in inputs] for base in bases
            ],
        )
    lines = (*leaves_of(captured.trace.bound_symbols), *outputs.views)
    strided = any(line.symbol.name.startswith("aten.as_strided") for line in lines)
    if captured.matters.offsets or bases or strided:
        why = "where in its memory an input begins"
        yield guard("offsets", why, lambda inputs: [tensor.storage_offset() for tensor in inputs])

"""The epilogue: inputs get the content that the function leaves, and the return value is built.

Values are written back, in one call where autograd saw none of the writes and all are on the CPU. Calls that change an
input's sizes or strides are repeated on the input, and returned views are created anew from their bases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BACKWARD
from switchgear_core.ir.trace import Trace, compile_trace
from switchgear_core.ir.writes import SET_VALUE
from switchgear_core.record.sizes import Sizes, concrete, has_numbers
from switchgear_frontend.outputs import Outputs, reshaped_inputs

#: A function from the outputs of a trace and its inputs to the return value.
Finisher = Callable[[Sequence[Any], Sequence[torch.Tensor]], Any]


def finisher(
    outputs: Outputs, inputs: Sequence[TensorProxy], sizes: Sizes | None = None
) -> Finisher:
    """Return the end of a call: `finish`, or a specialised function for copies, views and a return value."""
    if sizes is not None and _has_sizes(outputs):
        return _finisher_by_sizes(outputs, sizes)
    scope: dict[str, object] = {}
    expression = None if outputs.metadata else _expression(outputs, scope)
    if expression is not None and outputs.views:
        scope["views_of"] = views_of = _views_of(outputs)
        views_first = f"(views := views_of(outputs, inputs), {expression})[1]"
        expression = None if views_of is None else views_first
    if expression is None or any(mutation.tracked for mutation in outputs.mutations):
        return partial(finish, outputs)
    assemble: Finisher = eval(f"lambda outputs, inputs: {expression}", scope)
    return _writing_first(outputs, inputs, assemble) if outputs.mutations else assemble


def _views_of(outputs: Outputs) -> Finisher | None:
    """Return a function that creates the views by name; None if only `evaluate` can."""
    lines = outputs.views
    results = {proxy.name: proxy for line in lines for proxy in line.outputs}
    operands = {proxy.name: proxy for line in lines for proxy in line.inputs}
    names = {item.place: None for item in outputs.returned if item.kind == "view"}
    modes = {line.grad_enabled for line in lines}
    is_special = any(
        line.symbol == SET_VALUE or BACKWARD in line.tags or proxy.dtype.is_complex
        for line in lines
        for proxy in line.outputs
    )
    if is_special or len(modes) > 1 or not names.keys() <= results.keys():
        return None
    roots = [(name, kind, index) for name, kind, index in outputs.roots if name in operands]
    trace = Trace(
        "views",
        tuple([operands[name] for name, _, _ in roots]),
        tuple([results[name] for name in names]),
        lines,
    )
    run, (mode,) = compile_trace(trace), modes

    def views_of(
        outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        tensors = [(inputs if kind == "input" else outputs)[index] for _, kind, index in roots]
        grad_enabled = torch.is_grad_enabled()
        try:
            internals.set_grad_enabled(mode)
            with internals.autocast_off():  # the lines include the casts
                return dict(zip(names, run(*tensors), strict=True))
        finally:
            internals.set_grad_enabled(grad_enabled)

    return views_of


def assembly(outputs: Outputs, scope: dict[str, object]) -> str | None:
    """Return Python for the return value, over `outputs`, `inputs` and `scope`; None if there are views."""
    return None if outputs.metadata or outputs.views else _expression(outputs, scope)


def _expression(outputs: Outputs, scope: dict[str, object]) -> str | None:
    """Return Python for the return value, over `outputs`, `inputs`, `views` and `scope`."""
    leaves = []
    data: dict[str, str] = {}
    for number, item in enumerate(outputs.returned):
        if item.kind == "value":
            scope[f"value{number}"] = item.value
        leaf = f"value{number}" if item.kind == "value" else f"{item.kind}s[{item.place!r}]"
        if item.is_data and leaf in data:
            leaf = data[leaf]
        elif item.is_data:
            data[leaf] = f"data{number}"
            leaf = f"(data{number} := {leaf}.data)"
        leaves.append(leaf)
    return outputs.spec.expression(leaves)


def _writing_first(
    outputs: Outputs, proxies: Sequence[TensorProxy], assemble: Finisher
) -> Finisher:
    """Return `assemble` after copies into inputs, unseen by autograd; on the CPU in a single call."""
    targets = [mutation.input for mutation in outputs.mutations]
    hidden = frozenset(mutation.input for mutation in outputs.mutations if mutation.hidden)
    sources = [mutation.output for mutation in outputs.mutations]
    # on other devices the copies would have no order, and PyTorch rejects lists of conjugates
    at_once = all(
        proxies[index].device.type == "cpu"
        and not (proxies[index].is_conj or proxies[index].is_neg)
        for index in targets
    )

    def write(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
        places = inputs
        if hidden:
            places = [
                tensor.data if index in hidden else tensor for index, tensor in enumerate(inputs)
            ]
        grad_enabled = torch.is_grad_enabled()
        try:
            internals.set_grad_enabled(False)
            if at_once and not internals.forward_mode_active():
                internals.foreach_copy(
                    [places[index] for index in targets], [results[index] for index in sources]
                )
            else:
                for target, source in zip(targets, sources, strict=True):
                    places[target].copy_(results[source])
        finally:
            internals.set_grad_enabled(grad_enabled)
        return assemble(results, inputs)

    return write


def left_to_copy(outputs: Outputs, trace: Trace) -> tuple[Outputs, dict[int, int], frozenset[int]]:
    """Return the copies that remain after a program with its own writes to inputs.

    Also return, for each written input, by how much the program raises its version. Last, return the inputs to pass as
    `.data`, because some writes of the function raise no version.
    """
    names = [proxy.name for proxy in trace.inputs]
    writes = {names.index(name): count for name, count in trace.writes.items()}
    rest = [item for item in outputs.mutations if trace.outputs[item.output] is not None]
    rises = Counter(writes) + Counter(item.input for item in rest if not item.hidden)
    by_data = frozenset(
        item.input
        for item in outputs.mutations
        if item.input in writes and rises[item.input] > item.versions
    )
    counts = {number: 0 if number in by_data else count for number, count in writes.items()}
    return replace(outputs, mutations=(*rest,)), counts, by_data


def through_data(data_inputs: frozenset[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the inputs; inputs in `by_data` as `.data`, which has its own version counter."""
    return [item.data if index in data_inputs else item for index, item in enumerate(inputs)]


def versions_to_add(
    outputs: Outputs, copied: Outputs, counts: Mapping[int, int], inputs: Sequence[TensorProxy]
) -> list[int]:
    """Return the inputs whose versions must rise further than by the program's own writes, `counts`, and by copies.

    An input occurs once for each rise.
    """
    reshaped = reshaped_inputs(outputs, inputs)
    copies = {item.input for item in copied.mutations if not item.hidden}
    missing: list[int] = []
    for item in outputs.mutations:
        if item.input not in reshaped:
            count = counts.get(item.input, 0) + (item.input in copies)
            missing += [item.input] * (item.versions - count)
    return missing


def add_versions(missing: Sequence[int], result: Any, inputs: Sequence[Any]) -> Any:
    """Raise the versions of inputs, by one for each occurrence in `missing`."""
    tensors = [inputs[index] for index in missing if not inputs[index].is_inference()]
    torch.autograd.graph.increment_version(tensors)
    return result


def _has_sizes(outputs: Outputs) -> bool:
    calls = (*outputs.metadata, *outputs.views)
    return has_numbers([(call.args, dict(call.kwargs)) for call in calls])


def _finisher_by_sizes(outputs: Outputs, sizes: Sizes) -> Finisher:
    @lru_cache(maxsize=64)
    def finisher_at(values: tuple[int, ...]) -> Finisher:
        binding = sizes.binding(values)
        metadata, views = concrete((outputs.metadata, outputs.views), binding)
        return partial(finish, replace(outputs, metadata=metadata, views=views))

    return lambda results, tensors: finisher_at(sizes.measure(tensors))(results, tensors)


def finish(outputs: Outputs, results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    """Return the function's result from the outputs of its trace, and copy written values into inputs.

    Autograd sees a copy only if it saw the function's write.
    """
    environment: dict[str, Any] = {"input": inputs, "output": results}
    values = {name: environment[kind][index] for name, kind, index in outputs.roots}
    evaluate(outputs.metadata, values)
    for mutation in outputs.mutations:
        target, tracked = (
            inputs[mutation.input],
            mutation.tracked and not torch.is_inference_mode_enabled(),
        )
        keeps_history = target.is_leaf or target._is_view() or internals.is_wrapper(target)
        if tracked and not keeps_history:
            # the history of the overwritten value would get a gradient of zeros
            target.detach_()
        with torch.set_grad_enabled(tracked):
            (target.data if mutation.hidden else target).copy_(results[mutation.output])
    evaluate(outputs.views, values)
    environment["view"] = values
    data = {
        (item.kind, item.place): environment[item.kind][item.place].data
        for item in outputs.returned
        if item.is_data
    }
    leaves = [
        item.value
        if item.kind == "value"
        else data.get((item.kind, item.place), environment[item.kind][item.place])
        for item in outputs.returned
    ]
    return outputs.spec.unflatten(leaves)

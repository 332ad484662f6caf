"""`sg.joint` beside PyTorch's joint graph with descriptors: `python -m tests.graphs.beside_aot [NAME ...]`."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Mapping
from typing import Any
from unittest import mock

import torch
from torch._functorch._aot_autograd import descriptors as d
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.utils import _pytree as pytree

import switchgear as sg
from switchgear_graphs import from_fx
from tests.models.small import KINDS, Kind

Edges = dict[str, set[str]]
#: Models with a loss that reads data, with which PyTorch captures none of them: without labels there is no loss.
_CTC = ("Wav2Vec2ForCTC", "HubertForCTC")


def _path(keys: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in keys)


def of_aot(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> Edges:
    """Return the names at the edges of PyTorch's joint graph."""
    leaves = [path for path, _ in pytree.tree_flatten_with_path(((), dict(kwargs)))[0]]
    arguments = [_path(path[1:]) for path in leaves]
    with contextlib.ExitStack() as stack:
        # libraries then ask for no data of masks, as when `sg.joint` captures
        stack.enter_context(mock.patch.object(torch.compiler, "_is_compiling_flag", True))
        joint = aot_export_joint_with_descriptors(stack, module, (), dict(kwargs))
        graph, spec = joint.graph_module.graph, joint.out_spec
        sources = [node.meta["desc"] for node in graph.nodes if node.op == "placeholder"]
        results = [*next(node for node in graph.nodes if node.op == "output").meta["desc"]]
    tree = pytree.tree_unflatten([*range(spec.num_leaves)], spec)
    places = [_path(path) or "result" for path, _ in pytree.tree_flatten_with_path(tree)[0]]

    def name(item: Any) -> str:
        if isinstance(item, d.PlainAOTInput):
            return arguments[item.idx]
        if isinstance(item, d.PlainAOTOutput):
            return places[item.idx]
        if isinstance(item, d.InputMutationAOTOutput):
            return name(item.mutated_input)
        if isinstance(item, d.IntermediateBaseAOTOutput):
            return name(item.base_of)
        return str(item.target)

    edges: Edges = {
        "parameters": {name(item) for item in sources if isinstance(item, d.ParamAOTInput)},
        "buffers": {name(item) for item in sources if isinstance(item, d.BufferAOTInput)},
        "inputs": {name(item) for item in sources if isinstance(item, d.PlainAOTInput)},
        "tangents": {name(item.output) for item in sources if isinstance(item, d.TangentAOTInput)},
        "outputs": {name(item) for item in results if isinstance(item, d.PlainAOTOutput)},
        "mutations": {name(item) for item in results if isinstance(item, d.InputMutationAOTOutput)},
    }
    final = next(node for node in graph.nodes if node.op == "output").args[0]
    pairs = zip(results, final, strict=True)
    edges["gradients"] = {
        name(item.grad_of) for item, node in pairs if isinstance(item, d.GradAOTOutput) and node is not None
    }
    return edges


def of_switchgear(graphs: Any) -> Edges:
    """Return the names at the edges of a joint trace."""
    signature = graphs.signature
    names = ("parameters", "buffers", "inputs", "tangents", "outputs", "mutations", "gradients")
    return {name: set(getattr(signature, name)) for name in names}


def call_of(kind: Kind) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Build a model and its batch, without a cache among the results."""
    torch.manual_seed(0)
    model, batch = kind.build().train(), {**kind.batch(), **kind.always}
    if kind.generates:
        for part in model.modules():
            if hasattr(part, "config"):
                part.config.use_cache = False
    if kind.model in _CTC:
        del batch["labels"]
    return model, batch


def differences(name: str) -> list[str]:
    """Return the differences between both joint graphs of a model, and those after a round trip through FX."""
    model, batch = call_of(KINDS[name])
    graphs = sg.joint(sg.jit(copy.deepcopy(model), executors=["torch"]), **batch)
    faults = []
    ours, theirs = of_switchgear(graphs), of_aot(model, batch)
    # PyTorch names a tied parameter by one of its names
    first: dict[int, str] = {}
    twins = {path: first.setdefault(id(one), path) for path, one in model.named_parameters(remove_duplicate=False)}
    for edges in (ours, theirs):
        for edge in ("parameters", "gradients"):
            edges[edge] = {twins.get(path, path) for path in edges[edge]}
    for edge, names in theirs.items():
        # inputs that nothing reads are inputs of PyTorch's graph all the same
        missing = names - ours[edge] if edge not in ("parameters", "buffers", "inputs") else set()
        extra = ours[edge] - names
        if missing or extra:
            faults.append(f"{edge}: without {sorted(missing)}, with {sorted(extra)}")
    return [*faults, *_beside_eager(graphs, model, batch), *_after_round_trip(graphs, model, batch)]


def values_of(graphs: Any, model: torch.nn.Module, batch: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return tensors for the inputs of a joint trace: those of the call, and random tangents."""
    signature, generator = graphs.signature, torch.Generator().manual_seed(3)
    values = {name: model.get_parameter(path).detach() for path, name in signature.parameters.items()}
    values |= {name: model.get_buffer(path) for path, name in signature.buffers.items()}
    values |= {name: batch[path] for path, name in signature.inputs.items()}
    for proxy in graphs.joint.inputs:
        if proxy.name not in values:
            assert proxy.name in signature.tangents.values()
            values[proxy.name] = torch.randn(proxy.shape, generator=generator)
    return [values[proxy.name] for proxy in graphs.joint.inputs]


def _beside_eager(graphs: Any, model: torch.nn.Module, batch: Mapping[str, Any]) -> list[str]:
    """Compare the gradients of the loss, or of the first result, with eager's by name."""
    signature, inputs = graphs.signature, values_of(graphs, model, batch)
    end = signature.loss or next(iter(signature.tangents))
    ones, zeros = signature.tangents[end], {*signature.tangents.values()}
    for place, proxy in enumerate(graphs.joint.inputs):
        if proxy.name in zeros:
            inputs[place] = torch.full(proxy.shape, float(proxy.name == ones))
    torch.manual_seed(7)
    with torch.no_grad():
        results = graphs.joint.function()(*inputs)
    values = {proxy.name: value for proxy, value in zip(graphs.joint.outputs, results, strict=True) if proxy}
    twin = copy.deepcopy(model)
    torch.manual_seed(7)
    twin(**batch)[end].sum().backward()
    faults = []
    for path, name in signature.gradients.items():
        gradient = twin.get_parameter(path).grad
        if not torch.equal(values[name], torch.zeros_like(values[name]) if gradient is None else gradient):
            faults.append(f"the gradient of {path} is not eager's")
    return faults


def _after_round_trip(graphs: Any, model: torch.nn.Module, batch: Mapping[str, Any]) -> list[str]:
    faults, values = [], values_of(graphs, model, batch)
    count = len(graphs.forward.inputs)
    saved = len(graphs.backward.inputs) - len(values[count:])
    torch.manual_seed(5)
    results = graphs.forward.function()(*values[:count])
    arguments = {"joint": values, "forward": values[:count], "backward": [*results[-saved:], *values[count:]]}
    for which, inputs in arguments.items():
        trace, module = getattr(graphs, which), graphs.graph_module(which)
        again, parameters = from_fx(module)
        assert not parameters
        assert again.name == which
        outcomes = []
        for run in (trace.function(), module, again.function()):
            torch.manual_seed(5)
            with torch.no_grad():
                outcomes.append(run(*inputs))
        for other, what in zip(outcomes[1:], ("graph", "trace of the graph"), strict=True):
            if not all(_same(*pair) for pair in zip(outcomes[0], other, strict=True)):
                faults.append(f"{which}: the {what} computes other values")
    return faults


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left.nan_to_num(), right.nan_to_num()) and left.stride() == right.stride()


def main(names: list[str]) -> int:
    """Compare models, all by default."""
    torch.set_num_threads(1)
    right = 0
    for name in names or KINDS:
        try:
            faults = differences(name)
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        right += not faults
        print(name, "same" if not faults else "\n    ".join(["differs", *faults]), flush=True)
    print(f"{right} of {len(names or KINDS)} the same")
    return 0 if right == len(names or KINDS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

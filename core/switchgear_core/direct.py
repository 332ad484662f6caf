"""The smallest front end and runtime, and `jit` on them: the core alone, for functions of tensors.

Each kind of call is recorded anew: by structure, Python values and metadata of tensors among the arguments and of
those found during the capture. Python state is not guarded: the function must depend on nothing else. A function that
writes to its inputs or returns views is refused. No guard, cache, fallback or backward for other grad outputs is here;
the packages above the core have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.composites import splice_escaping
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.passes.programs import Programs, Training
from switchgear_core.protocols import CapturedCall, Frontend, Run, Runtime
from switchgear_core.record.attempts import compiles
from switchgear_core.record.doors import Doors
from switchgear_core.record.handler import Handlers
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import Arguments, flatten_arguments
from switchgear_core.record.structure import flatten
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.order import Executors, select
from switchgear_core.registry.plugins import installed


class DirectFrontend:
    """Records a function as it runs."""

    name = "direct"

    def capture(
        self,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        handlers: Handlers,
    ) -> CapturedCall:
        """Implement `Frontend.capture`."""
        call = flatten_arguments(args, dict(kwargs))
        names, adopted = Names(), list[torch.Tensor]()

        def enter(recorder: Recorder, tensor: torch.Tensor, name: str) -> torch.Tensor:
            proxy = metadata_proxy(names.claim(name), tensor, tensor.requires_grad)
            return recorder.enter(tensor, proxy)

        def adopt(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
            adopted.append(tensor)
            return enter(recorder, tensor, "p")

        recorder = Recorder(names, adopt)
        with Doors(recorder, handlers).open():
            with internals.DisableTorchFunction():
                wrappers = [
                    enter(recorder, leaf, f"x{index}") if isinstance(leaf, torch.Tensor) else leaf
                    for index, leaf in enumerate(call.leaves)
                ]
                own_args, own_kwargs = call.spec.unflatten(wrappers)
            result = function(*own_args, **own_kwargs)
            with internals.DisableTorchFunction():
                results, result_spec = flatten(result)
                places = _places(recorder, results)
                outputs = tuple(places.values())
                body = splice_escaping(recorder.tape.take(), outputs)
        inputs = tuple(entry.proxy for entry in recorder.inputs)
        trace = Trace("computation", inputs, outputs, body, recorder.tape.constants)
        order = [*places]
        values = [order.index(i) if i in places else leaf for i, leaf in enumerate(results)]
        is_output = [i in places for i in range(len(results))]

        def finish(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
            pairs = zip(values, is_output, strict=True)
            return result_spec.unflatten([outputs[v] if is_out else v for v, is_out in pairs])

        kind = _kind(call, adopted)

        def bind(
            args: tuple[object, ...], kwargs: dict[str, object]
        ) -> Sequence[torch.Tensor] | None:
            call = flatten_arguments(args, kwargs)
            if _kind(call, adopted) != kind:
                return None
            return [*(leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)), *adopted]

        return CapturedCall(
            trace, bind, finish, ("structure, values and metadata of the arguments",)
        )


def _places(recorder: Recorder, results: Sequence[object]) -> dict[int, TensorProxy]:
    """Return the proxies of the results by position.

    Raises:
        Unsupported: an input is written to, or a result shares memory.
    """
    for entry in recorder.inputs:
        if recorder.tracker.proxy_of(entry.wrapper).name != entry.proxy.name:
            raise Unsupported(f"the function writes to {entry.proxy.name}")
    memory = {internals.storage_key(entry.wrapper) for entry in recorder.inputs}
    places: dict[int, TensorProxy] = {}
    for index, value in enumerate(results):
        if isinstance(value, torch.Tensor):
            if internals.storage_key(value) in memory:
                raise Unsupported("the function returns an input, or tensors that share memory")
            memory.add(internals.storage_key(value))
            places[index] = recorder.tracker.proxy_of(value)
    return places


def _kind(call: Arguments, adopted: Sequence[torch.Tensor]) -> object:
    def metadata(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return type(value), value
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad

    return [*map(metadata, (*call.leaves, *adopted))], call.spec, torch.is_grad_enabled()


class DirectRuntime:
    """Runs the programs as a single node of autograd, whose backward expects a gradient for every output."""

    def run(self, captured: CapturedCall, programs: Programs) -> Run:
        """Implement `Runtime.run`."""
        expected, finish = programs.expected(), captured.finish
        if not any(expected):
            forward = programs.forward()
            return lambda inputs: finish(forward().function(*inputs), inputs)
        training = programs.training(expected)
        return lambda inputs: finish(_Node.apply(training, *inputs), inputs)  # type: ignore[no-untyped-call]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, training: Training, *inputs: torch.Tensor) -> Any:
        results = training.forward.function(*inputs)
        count = training.joint.count
        ctx.training = training
        ctx.save_for_backward(*results[count:])
        return tuple(results[:count])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        training: Training = ctx.training
        pairs = zip(grads, training.joint.grad_outputs, strict=True)
        expected = [grad for grad, proxy in pairs if proxy is not None]
        return (None, *training.backward.function([*ctx.saved_tensors, *expected]))


def jit(
    function: Callable[..., Any],
    executors: Executors = ("torch",),
    frontend: Frontend | None = None,
    runtime: Runtime | None = None,
) -> Callable[..., Any]:
    """Run a function of tensors as traces, by the core alone.

    Args:
        function: a function or a module without Python state.
        executors: names or objects, the first asked first.
        frontend: captures calls; None for `DirectFrontend`.
        runtime: runs them; None for `DirectRuntime`.

    Returns:
        A function with the same arguments. Its calls raise `CaptureError` for programs that the front end refuses.
    """
    front, run_by = frontend or DirectFrontend(), runtime or DirectRuntime()
    selection = select(installed(executors), executors)
    entries: list[tuple[CapturedCall, Run]] = []

    @compiles
    def compile_call(
        args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[CapturedCall, Run]:
        captured = front.capture(function, args, kwargs, selection.handlers)
        with torch.no_grad(), internals.autocast_off():
            return captured, run_by.run(captured, Programs(captured.trace, selection))

    def call(*args: object, **kwargs: object) -> object:
        for captured, run in entries:
            inputs = captured.bind(args, kwargs)
            if inputs is not None:
                return run(inputs)
        entries.append(compile_call(args, kwargs))
        captured, run = entries[-1]
        inputs = captured.bind(args, kwargs)
        assert inputs is not None
        return run(inputs)

    return call

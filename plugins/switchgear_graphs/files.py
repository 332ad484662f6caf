"""Traces in files: the Python of a trace; its constants and the layouts of its inputs in a file `.pt` of that name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from switchgear_core.errors import InvalidInput, SwitchgearError, Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BACKWARD, Source, changed
from switchgear_core.ir.trace import Trace
from switchgear_core.patches import replaced
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.registry.selection import Selection
from switchgear_graphs.parsing import Line, Parsed, parsed
from switchgear_graphs.recording import Input, recorded, replay, selection_of, with_names

#: The version of the files.
_FORMAT = 1


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as Python, with a file `.pt` of that name; see `Trace.save`.

    Raises:
        InvalidInput: the path does not end in `.py`.
        Unsupported: the trace has something that only this process has.
    """
    place = Path(path)
    if place.suffix != ".py":
        raise InvalidInput(
            f"{os.fspath(path)!r} does not end in .py; the constants go to a file of that name that ends in .pt"
        )
    if trace.numbers or trace.writes:
        raise Unsupported(f"trace {trace.name!r} has symbolic sizes or writes to inputs; save an earlier stage")
    text, constants = trace.python(link=False), dict(trace.constants)
    local = next((name for name, item in constants.items() if not isinstance(item, torch.Tensor)), None)
    try:
        if local is not None:
            raise InvalidInput(f"constant {local} is a {type(constants[local]).__name__}")
        parsed(text, place.name)
    except InvalidInput as error:
        raise Unsupported(f"trace {trace.name!r} is not saved; save a stage of operators alone: {error}") from None
    data = {
        "format": _FORMAT,
        "inputs": [_facts(proxy) for proxy in trace.inputs],
        "constants": constants,
        # autograd reads the mode where the trace is differentiated
        "no_grad": [
            proxy.name
            for line in trace.bound_symbols
            if not line.grad_enabled and BACKWARD not in line.tags
            for proxy in line.outputs
        ],
    }
    torch.save(data, place.with_suffix(".pt"))
    place.write_text(text)


def _facts(proxy: TensorProxy) -> list[Any]:
    layout = [*proxy.shape], [*proxy.stride], str(proxy.dtype), str(proxy.device)
    return [proxy.name, *layout, proxy.requires_grad, proxy.storage_offset, proxy.is_conj, proxy.is_neg]


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that `Trace.save` wrote, and that may have been edited since.

    The file is parsed, and nothing in it runs but calls of operators that PyTorch knows, on stand-ins without data.
    Operators of other packages are known once their packages are imported.

    Args:
        path: the file of the program.

    Returns:
        The trace, with the names in the file. Its lines refer to the lines of the file.

    Raises:
        InvalidInput: a file is missing or altered in a way that is not trusted, or a line is wrong; with its number.
    """
    place = Path(path)
    try:
        text = place.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{place} cannot be read: {error}; give the file that Trace.save wrote") from None
    selection = selection_of()  # loads the modules of features, whose checks may be in the file
    program = parsed(text, str(place))
    inputs, constants, no_grad = _data(place.with_suffix(".pt"))
    names = [proxy.name for proxy in inputs]
    if program.parameters != names:
        raise InvalidInput(
            f"{place}:{program.line}: the parameters are not those of {place.with_suffix('.pt').name}, which are "
            f"({', '.join(names)}); keep them, or save the trace again"
        )
    return _recorded(program, inputs, {**constants, **program.constants}, no_grad, place, selection)


def _data(place: Path) -> tuple[list[TensorProxy], dict[str, torch.Tensor], set[str]]:
    """Return the inputs, the constants, and the names of values made without grad mode."""
    try:
        data = torch.load(place, weights_only=True, map_location="cpu" if not torch.cuda.is_available() else None)
    except FileNotFoundError:
        raise InvalidInput(
            f"{place} is missing, which Trace.save wrote; put it into the folder of the program"
        ) from None
    except Exception as error:  # from an altered file, of many kinds
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"{place} cannot be read ({type(error).__name__}: {reason}); save the trace again") from None
    try:
        if data["format"] != _FORMAT:
            raise InvalidInput(f"{place} has format {data['format']!r}, and this version reads {_FORMAT}")
        inputs = [_proxy(*facts) for facts in data["inputs"]]
        constants = {str(name): tensor for name, tensor in data["constants"].items()}
        if not all(isinstance(tensor, torch.Tensor) for tensor in constants.values()):
            raise TypeError("a constant is no tensor")
        return inputs, constants, {str(name) for name in data["no_grad"]}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidInput(f"{place} is not as Trace.save writes it ({error}); save the trace again") from None


def _proxy(name: str, shape: list[int], stride: list[int], dtype: str, device: str, *rest: Any) -> TensorProxy:
    kind = getattr(torch, dtype.removeprefix("torch."))
    numbers = (*shape, *stride, rest[1])
    if not isinstance(kind, torch.dtype) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"input {name} has no valid layout")
    requires_grad, offset, is_conj, is_neg = rest
    flags = bool(is_conj), bool(is_neg)
    return TensorProxy(
        name, tuple(shape), tuple(stride), kind, torch.device(device), bool(requires_grad), offset, *flags
    )


def _recorded(
    program: Parsed,
    inputs: Sequence[TensorProxy],
    constants: Mapping[str, torch.Tensor],
    no_grad: set[str],
    place: Path,
    selection: Selection,
) -> Trace:
    names: dict[str, str] = {}

    def run(values: dict[str, Any]) -> list[Any]:
        recorder = active_recorder()
        assert recorder is not None
        for line in program.lines:
            with replaced(recorder.tape, "fixed_source", Source(str(place), line.number)):
                for proxy, name in _run(line, values, no_grad, place, recorder):
                    names.setdefault(name, proxy.name)
        unknown = [name for name in program.outputs if name is not None and name not in values]
        if unknown:
            raise InvalidInput(f"{place}: {unknown[0]} is returned, and defined nowhere")
        return [None if name is None else values[name] for name in program.outputs]

    every = {proxy.name for line in program.lines for proxy in line.call.outputs}
    entered = [Input(proxy) for proxy in inputs]
    trace = recorded(program.name, entered, constants, run, selection, [*every])
    fixed = {*constants, *(proxy.name for proxy in inputs), *every}
    return with_names(trace, {old: new for old, new in names.items() if old not in fixed})


def _run(
    line: Line, values: dict[str, Any], no_grad: set[str], place: Path, recorder: Recorder
) -> list[tuple[TensorProxy, str]]:
    """Run a line, and return its results with the names of their recorded values."""
    for proxy in line.call.inputs:
        if proxy.name not in values:
            raise InvalidInput(f"{place}:{line.number}: {proxy.name} is not defined above, and is no constant")
    if line.alias:
        values[line.call.output.name] = values[line.alias]
        return []
    is_on = no_grad.isdisjoint(proxy.name for proxy in line.call.outputs)
    try:
        replay(changed(line.call, grad_enabled=is_on), values)
        results = [(proxy, values[proxy.name]) for proxy in line.call.outputs]
        for proxy, result in results:
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"the result {proxy.name} is no tensor")
        # a call of numbers alone is computed, and its result adopted
        return [(proxy, recorder.tracker.proxy_of(recorder.adopted(result)).name) for proxy, result in results]
    except SwitchgearError as error:
        raise InvalidInput(f"{place}:{line.number}: {line.call.symbol.name}: {error}") from error
    except Exception as error:  # from the operator, on stand-ins
        reason = str(error).partition("\n")[0]
        raise InvalidInput(
            f"{place}:{line.number}: {line.call.symbol.name}: {type(error).__name__}: {reason}; correct the arguments"
        ) from error

"""Data: Python values and shapes from the contents of the call's tensors, and their guards, the checks.

A capture knows metadata alone. When code reads data, the necessary lines are computed on the tensors of the call; such
lines must not draw random numbers. The trace gets a check of the value, and then serves only calls that pass the check.
Indexing by a mask becomes `nonzero` and indexing by integers, so derivatives read no data. Checks stay outside
composites and are not dead code. A failing check raises `OtherData` before the call draws or writes; a check that only
decides whether to raise may fail as late as before the return. Without `specialize_on_data=True`, numbers and shapes
decided by floats are `DataDependent`: such values differ in each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import NO_DATA_IN_RULES, DataDependent
from switchgear_core.ir.composites import bind_outputs, leaves_of
from switchgear_core.ir.proxy import hint_of
from switchgear_core.ir.symbol import CHECK, LATE, BoundSymbol, Symbol, map_proxies, proxies
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import replaced
from switchgear_core.record.call import Call, Operation
from switchgear_core.record.gradients_inside import AUTOGRAD_GRAD
from switchgear_core.record.guards import FailedAssertion, OtherData
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.leaves import record_leaf
from switchgear_core.record.recorder import Recorder, active, active_recorder
from switchgear_core.record.sizes import (
    Computed,
    active_sizes,
    concrete,
    depends_on_sizes,
    has_numbers,
    map_numbers,
)
from switchgear_core.record.values import metadata_proxy
from switchgear_frontend import assertions

_aten = torch.ops.aten

_REMEDY = "use masks (torch.where), compute it outside and pass it in, or sg.jit(..., specialize_on_data=True)"
#: Arguments that PyTorch reads in C++ without calling an operator, by position and name.
_BY_VALUE: dict[str, tuple[int | str, ...]] = {
    "torch.tensor_split": (1, "tensor_indices_or_sections", "indices_or_sections"),
    "torch.ctc_loss": (2, "input_lengths", 3, "target_lengths"),
}


def check_result(expected: object, function: Callable[..., object], *args: object) -> None:
    """Raise `OtherData` unless `function` returns the same Python value as at capture."""
    if _recorded(CHECK_RESULT, (expected, function, *args)):
        return
    result = function(*args)
    if repr(result) != repr(expected):  # `nan` equals `nan`, and 0.0 differs from -0.0
        name = str(getattr(function, "__name__", function))
        name = "item(), or a branch on a tensor," if name.startswith("_local_scalar") else name
        raise OtherData(f"{name} gave {expected}, and gives {result}")


def check_layout(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Raise `OtherData` unless a tensor has the shape and strides of the capture."""
    if _recorded(CHECK_LAYOUT, (tensor, shape, stride)):
        return
    if (tensor.shape, tensor.stride()) != (shape, stride):
        raise OtherData(f"a result had shape {list(shape)}, and has {list(tensor.shape)}")


CHECK_RESULT = Symbol("switchgear.check_result", check_result)
CHECK_LAYOUT = Symbol("switchgear.check_layout", check_layout)


def _recorded(symbol: Symbol, args: tuple[object, ...]) -> bool:
    """Record a check if a capture is under way; return whether the check was recorded."""
    recorder = active_recorder()
    if recorder is None:
        return False
    with internals.DisableTorchFunction():
        operands = map_tensors(recorder.adopted, args)
        operands = map_tensors(recorder.tracker.proxy_of, operands)
    recorder.record(symbol, operands, None, CHECK)
    return True


class Data(Handler):
    """Handler of calls that need data. The state holds the values known so far."""

    def begin(self, recorder: Recorder) -> Known:
        """Return a state without values."""
        outer = recorder.enclosing
        return Known(None if outer is None else outer.states.get(self))

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Answer `tolist()`, and replace tensors that PyTorch reads in C++ by their numbers."""
        if call.fn is torch.Tensor.tolist:
            return self._read(recorder, "tolist", call.args[0])
        if call.symbol is None or call.symbol.name not in _BY_VALUE:
            return PASS
        name, places = call.symbol.name, _BY_VALUE[call.symbol.name]

        def value(place: int | str, argument: Any) -> Any:
            is_read = place in places and isinstance(argument, torch.Tensor)
            return self._read(recorder, name, argument) if is_read else argument

        call.args = tuple([value(place, argument) for place, argument in enumerate(call.args)])
        call.kwargs = {key: value(key, argument) for key, argument in call.kwargs.items()}
        return PASS

    def _read(self, recorder: Recorder, name: str, tensor: torch.Tensor) -> object:
        """Return the contents of a tensor, as numbers in nested lists."""
        recorder.tracker.reconcile(tensor)
        read: Any = torch.Tensor.tolist
        call = Operation(read, (recorder.tracker.last_fake(tensor),))
        need = f"{name} needs the data of a tensor, in {recorder.here()}"
        return self.by_data(recorder, call, need)

    def operator(self, recorder: Recorder, call: Operation) -> Any:
        """Record assertions as checks; where the gradient of a put by mask depends on the number of values, put by
        position.
        """
        if call.func._opname == "_assert_async":
            args = map_tensors(recorder.values.proxy_of, call.args)
            return recorder.record(Symbol(str(call.func), call.func), args, None, CHECK)
        if call.func is not _aten.index_put.default:
            return PASS
        if recorder.values.proxy_of(call.args[2]).requires_grad:
            with contextlib.suppress(DataDependent):
                positions = self._positions(recorder, call.args[1])
                call.args = (call.args[0], positions, *call.args[2:])
        return PASS

    def by_data(self, recorder: Recorder, call: Operation, need: str) -> object:
        """Return a Python value that a check guards, or fake results whose layout a check guards."""
        if call.func is _aten.index.Tensor:
            positions = self._positions(recorder, call.args[1])
            return _record(recorder, Operation(call.func, (call.args[0], positions)))
        args, kwargs = map_tensors(recorder.values.proxy_of, (call.args, call.kwargs))
        is_truth = call.func is _aten.equal.default or args[0].dtype is torch.bool
        expected = (
            assertions.asserted() if is_truth and recorder.reads_inputs is not False else None
        )
        tags = (CHECK,) if expected is None else (CHECK, LATE)
        values: Known = recorder.state(self)
        try:
            result, from_inputs = values.call(recorder, call.func, args, kwargs, need)
        except _Drawn as drawn:
            if expected is None:
                raise DataDependent(str(drawn)) from None
            recorder.record(CHECK_RESULT, (expected, call.func, *args), None, *tags)
            return expected
        if not any(True for _ in tensors_in(result)):
            if from_inputs:
                recorder.record(CHECK_RESULT, (result, call.func, *args), None, *tags)
            if expected is not None and result is not expected:
                # formatting the error that eager raises may read the data of stand-ins
                raise FailedAssertion(f"an assertion fails in {recorder.here()}")
            return result
        layouts = tuple([metadata_proxy("", tensor, False) for tensor in tensors_in(result)])
        with replaced(recorder.values, "known_call", (call.func, layouts)):
            fakes = recorder.values.known_results()
            record_leaf(recorder, call, fakes)
        for proxy in map(recorder.values.proxy_of, tensors_in(fakes) if from_inputs else ()):
            recorder.record(CHECK_LAYOUT, (proxy, proxy.shape, proxy.stride), None, CHECK)
        return fakes

    def _positions(self, recorder: Recorder, indices: list[Any]) -> list[object]:
        """Return indices with masks replaced by the selected positions, as PyTorch's kernels do."""
        need = f"{_aten.nonzero.default} needs the data of a tensor, in {recorder.here()}"
        positions: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                positions.append(index)
                continue
            rows = self.by_data(recorder, Operation(_aten.nonzero.default, (index,)), need)
            for column in range(index.dim()):
                select = Operation(_aten.select.int, (rows, 1, column))
                positions.append(_record(recorder, select))
        return positions


def _record(recorder: Recorder, call: Operation) -> Any:
    result = call.func(*call.args)
    record_leaf(recorder, call, result)
    return result


class _Drawn(Exception):
    """Error for a value that depends on random numbers of the same call."""


class Known:
    """Contents of the tensors of a program under capture, computed on demand.

    Unless the recorder `reads_inputs`, only constants are computed. With None, truth values are computed from inputs
    too, and numbers and shapes that no float decides. `outer` belongs to the enclosing capture.
    """

    def __init__(self, outer: Known | None) -> None:
        self._outer = outer
        self._values: dict[str, torch.Tensor] = {}
        self._from_inputs: set[str] = set()
        #: Names of float values computed from inputs, which most likely differ in the next call.
        self._floats: set[str] = set()

    def call(
        self,
        recorder: Recorder,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        need: str,
    ) -> tuple[Any, bool]:
        """Return the result of a call on proxies, and whether the result depends on an input.

        Raises `DataDependent`, with the text `need`, where the result cannot be known.
        """
        if function is _aten.masked_select.default:
            # the mask determines how many elements are selected, and the shape how often
            function, args = _select_zeros, (args[0].dtype, args[0].device, args[0].shape, args[1])
        names = {proxy.name for proxy in proxies((args, kwargs))}
        with _real():
            from_inputs = self._compute(recorder, names, need)
            arguments = map_proxies(lambda proxy: self._values[proxy.name], (args, kwargs))
            arguments = map_numbers(hint_of, arguments)
            result = function(*arguments[0], **arguments[1])
        is_told = isinstance(result, bool) or self._floats.isdisjoint(names)
        if from_inputs and recorder.reads_inputs is None and not is_told:
            raise DataDependent(f"{need}; {_REMEDY}")
        if active_sizes() is not None and not from_inputs:
            _note_sizes(recorder, function, args, kwargs, result, need)
        return result, from_inputs

    def _compute(self, recorder: Recorder, names: Set[str], need: str) -> bool:
        """Compute values by name; return whether one depends on an input."""
        missing, program = names - self._values.keys(), list[BoundSymbol]()
        lines = [*_lines(recorder)] if missing else []
        for line in reversed(lines):
            if missing.isdisjoint(proxy.name for proxy in line.outputs):
                continue
            if _is_never(line, lines):
                self._values[line.output.name] = torch.tensor(False)
                missing.remove(line.output.name)
                continue
            _refuse_unknown(line, need)
            missing.difference_update(proxy.name for proxy in line.outputs)
            missing.update(proxy.name for proxy in line.inputs if proxy.name not in self._values)
            program.append(line)
        for name in missing:
            self._fetch(recorder, name, need)
        program.reverse()
        for line in program:
            inputs = {proxy.name for proxy in line.inputs}
            for kind in (self._from_inputs, self._floats):
                kind.update(proxy.name for proxy in line.outputs if not kind.isdisjoint(inputs))
            _evaluate(line, self._values)
        return not self._from_inputs.isdisjoint(names)

    def _fetch(self, recorder: Recorder, name: str, need: str) -> None:
        """Fetch a value that no line computes: a constant or an input."""
        constants = recorder.tape.constants
        if name in constants:
            self._values[name] = constants[name]
            return
        entries = (entry for entry in recorder.inputs if entry.proxy.name == name)
        tensor = next((entry.tensor for entry in entries), None)
        outer = recorder.enclosing
        if (
            tensor is not None
            and internals.is_wrapper(tensor)
            and outer is not None
            and self._outer
        ):
            proxy = outer.values.proxy_of(outer.tracker.last_fake(tensor))
            value, from_inputs = self._outer.call(outer, lambda value: value, (proxy,), {}, need)
        elif tensor is not None and recorder.reads_inputs is not False:
            value, from_inputs = tensor.detach(), True
            if not _is_mask(recorder, tensor):
                self._floats.add(name)
        elif not recorder.tracker.follow_autograd:
            raise DataDependent(f"{need}: {NO_DATA_IN_RULES}")
        else:
            raise DataDependent(f"{need}; {_REMEDY}")
        self._values[name] = value
        if from_inputs:
            self._from_inputs.add(name)


def _is_mask(recorder: Recorder, tensor: torch.Tensor) -> bool:
    """Check whether values are specialised by default: of integers, and of tensors that modules hold, such as masks."""
    is_kept = not tensor.requires_grad and all(tensor is not leaf for leaf in recorder.leaves)
    return is_kept or not (tensor.is_floating_point() or tensor.is_complex())


def _refuse_unknown(line: BoundSymbol, need: str) -> None:
    if line.is_random:
        raise _Drawn(
            f"{need}; it depends on {line.symbol.name}, which draws random numbers in the same call"
        )
    if line.symbol == AUTOGRAD_GRAD:
        raise DataDependent(
            f"{need}; it depends on {line.symbol.name}, a backward in the same call"
        )


def _evaluate(line: BoundSymbol, values: dict[str, Any]) -> None:
    """Evaluate a line and add the results to the values by name."""
    arguments = map_proxies(lambda proxy: values[proxy.name], (line.args, dict(line.kwargs)))
    args, kwargs = map_numbers(hint_of, arguments)
    bind_outputs(line.output, line.symbol.fn(*args, **kwargs), values)


def _lines(recorder: Recorder) -> Iterator[BoundSymbol]:
    for frame in recorder.tape.frames:
        yield from leaves_of(frame.lines)


def _note_sizes(
    recorder: Recorder,
    function: Callable[..., object],
    args: object,
    kwargs: object,
    result: object,
    need: str,
) -> None:
    """Guard that constants and symbolic sizes give the same result in other calls."""
    sizes, constants = active_sizes(), dict(recorder.tape.constants)
    assert sizes is not None
    needed = {proxy.name for proxy in proxies((args, kwargs))}
    program: list[BoundSymbol] = []
    for line in reversed([*_lines(recorder)]):
        if not needed.isdisjoint(proxy.name for proxy in line.outputs):
            needed.update(proxy.name for proxy in line.inputs)
            program.append(line)
    if not has_numbers((args, kwargs)) and not any(map(depends_on_sizes, program)):
        return
    outputs = {proxy.name for line in program for proxy in line.outputs}
    if not needed <= outputs | constants.keys():
        raise DataDependent(f"{need}: sizes decide it, by calls that are not at hand any more")
    lines, expected = tuple(reversed(program)), _described(result)

    def holds(binding: Mapping[str, int]) -> bool:
        values: dict[str, Any] = dict(constants)
        with _real():
            for line in concrete(lines, binding):
                _evaluate(line, values)
            arguments = concrete((args, kwargs), binding)
            arguments = map_proxies(lambda proxy: values[proxy.name], arguments)
            return bool(_described(function(*arguments[0], **arguments[1])) == expected)

    sizes.computed.append(Computed(holds, need))


def _is_never(line: BoundSymbol, lines: list[BoundSymbol]) -> bool:
    """Check whether a line is `torch.rand([]) < p` with p <= 0: false for every draw."""
    if line.symbol.fn is not _aten.lt.Scalar or line.output.shape:
        return False
    drawn, bound = line.args
    if not isinstance(bound, (int, float)) or bound > 0:
        return False
    return any(item.symbol.fn is _aten.rand.default and item.output == drawn for item in lines)


def _select_zeros(
    dtype: torch.dtype, device: torch.device, shape: tuple[int, ...], mask: torch.Tensor
) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape).masked_select(mask)


def _described(result: object) -> str:
    """Return a text to compare results by: tensors are described by layout."""
    return repr(map_tensors(lambda tensor: (tuple(tensor.shape), tensor.stride()), result))


@contextlib.contextmanager
def _real() -> Iterator[None]:
    """Run on real tensors without autocast, whose casts are lines of the program."""
    with internals.real_dispatch(), internals.autocast_off(), active(None):
        yield

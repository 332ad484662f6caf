"""The backwards of an entry: the expected backward, and others compiled on first use as grad outputs need them.

A pattern selects the backward: layouts of the grad outputs, the inputs that need gradients, and autocast. A backward
for symbolic sizes serves all calls that meet its constraints. Where none does, one is compiled for the call's sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import CaptureError, DataDependent, NotDifferentiable, Unsupported
from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BACKWARD, DEL, proxies
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.pipeline import Program
from switchgear_core.passes.programs import (
    LazyProgram,
    Training,
    compile_backward,
    differentiable_backward,
)
from switchgear_core.record.attempts import compiles
from switchgear_core.record.sizes import Computed, Constraint, Sizes, concrete
from switchgear_core.registry.rules import Grads
from switchgear_core.registry.selection import Selection
from switchgear_runtime.execution import runner
from switchgear_runtime.fallback import fault

Jit: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
#: In a pattern: the strides of the output.
EXPECTED = "expected"
#: The limit on backwards kept for calls of particular sizes.
KEPT = 256
#: The grad outputs that arrive, None where undefined.
Arriving: TypeAlias = tuple[torch.Tensor | None, ...]


class Backwards:
    """The backwards, by pattern.

    Args:
        rejit: compiles a backward that is differentiated in its turn, as any function.
        sparse: whether the grad output of an output whose strides are all 0 may be sparse.
        constant: the positions of inputs that need no gradient.
    """

    def __init__(
        self,
        training: Training,
        selection: Selection,
        rejit: Jit,
        sizes: Sizes | None,
        *,
        sparse: bool,
        constant: frozenset[int],
    ) -> None:
        self.training = training
        self.sizes = sizes
        self._selection = selection
        self._rejit = rejit
        self._sparse = sparse
        expected: list[Any] = [
            None if p is None else (p.stride, p.dtype, False, False)
            for p in training.joint.grad_outputs
        ]
        needs = tuple(
            proxy.requires_grad and i not in constant
            for i, proxy in enumerate(training.prepared.inputs)
        )
        places = {proxy.name: place for place, proxy in enumerate(training.prepared.inputs)}
        #: The places among the inputs of saved inputs, by index among the saved tensors.
        self.places = {i: places[p.name] for i, p in enumerate(training.saved) if p.name in places}
        nothing = (None,) * len(training.inner)
        if sizes is not None:
            expected = [p and (EXPECTED if any(p[0]) else p[0], *p[1:]) for p in expected]
        #: By pattern, the backwards for calls of any sizes that meet the constraints.
        self._generals: dict[
            object, list[tuple[LazyProgram, tuple[Constraint | Computed, ...]]]
        ] = {(*expected, *nothing, needs, ()): [(training.make_backward, ())]}
        #: The backwards by pattern and sizes.
        self._backwards: dict[object, LazyProgram] = {}
        self._differentiable: dict[object, Differentiable] = {}
        self.last: Last | None = None
        #: Called with the text of an internal error: no later call may need such a backward.
        self.failed: Callable[[str], object] = lambda fault: None
        self._last_backward: LazyProgram | None = None

    def programs(self) -> list[LazyProgram]:
        """Return the compiled backwards."""
        generals = [lazy for kind in self._generals.values() for lazy, _ in kind]
        return [lazy for lazy in (*generals, *self._backwards.values()) if lazy.program is not None]

    @property
    def last_backward(self) -> Program:
        """The backward that ran last, or else the expected backward."""
        lazy = self._last_backward
        return lazy.program if lazy and lazy.program else self.training.backward

    def backward_for(
        self, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]
    ) -> Last:
        """Return the backward for the given grad outputs and for the inputs that need gradients.

        `sizes` are the sizes of the call. The expected backward takes any sizes, each other backward its own.

        Raises:
            Unsupported: a grad output is not strided, or the compilation failed; later calls run in eager mode.
        """
        last = self.last
        if last is not None and last.fits(grads, needs, sizes) and not last.program.is_outdated:
            return last
        _check_strided(grads)
        try:
            program = self._program(_pattern(grads, needs), grads, needs, sizes)
        except (CaptureError, NotDifferentiable):
            raise
        except Exception as error:
            refusal = fault(error)
            self.failed(str(refusal))
            raise Unsupported(f"{refusal}. Later calls of this kind run in eager") from error
        kinds = (lazy for lazy in self.programs() if lazy.program is program)
        self._last_backward = next(kinds, None)
        last = self.last = Last(
            program, grads, needs, sizes, sparse=self._sparse, inner=len(self.training.inner)
        )
        return last

    def _program(
        self, pattern: object, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]
    ) -> Program:
        general = pattern if self.sizes is None else self._general(pattern, sizes)
        program = self._look_up(pattern, general, sizes)
        return program or self._compile(pattern, general, grads, needs, sizes)

    @compiles
    def _compile(
        self,
        pattern: object,
        general: object,
        grads: Arriving,
        needs: tuple[bool, ...],
        sizes: tuple[int, ...],
    ) -> Program:
        with torch.no_grad():
            program = self._look_up(pattern, general, sizes)
            if (
                program is None
                and self.sizes is not None
                and general is not None
                and not self.sizes.is_narrowed
            ):
                program = self._compile_general(general, needs, sizes)
            if program is None:
                training = self._training_at(sizes)
                # regions would be compiled for the given sizes alone
                selection = self._selection.without_fusion() if self.sizes else self._selection
                grads_of = _proxies(training, pattern)
                lazy = LazyProgram(
                    partial(compile_backward, training, selection, grads_of, needs),
                    sizes=None,
                    mode=contextlib.nullcontext,
                )
                program = lazy()
                _keep(self._backwards, (pattern, sizes), lazy)
        return program

    def _look_up(self, pattern: object, general: object, sizes: tuple[int, ...]) -> Program | None:
        lazy = self._backwards.get((pattern, sizes))
        return self._for_any_sizes(general, sizes) if lazy is None else lazy()

    def _general(self, pattern: Any, sizes: tuple[int, ...]) -> object:
        """Return a pattern for calls of any sizes: strides of the outputs, or of an expanded scalar.

        None where the grad outputs have other strides.
        """
        assert self.sizes is not None
        strides = self._strides_at(sizes)
        layouts = [
            each
            if each is None or not any(each[0])
            else (EXPECTED, *each[1:])
            if each[0] == stride
            else NotImplemented
            for each, stride in zip(pattern, strides, strict=False)
        ]
        return None if NotImplemented in layouts else (*layouts, *pattern[len(strides) :])

    def _strides_at(self, sizes: tuple[int, ...]) -> tuple[object, ...]:
        assert self.sizes is not None
        ends = tuple([p and p.stride for p in self.training.ends])
        strides: tuple[object, ...] = concrete(ends, self.sizes.binding(sizes))
        return strides

    def _for_any_sizes(self, general: object, sizes: tuple[int, ...]) -> Program | None:
        binding = self.sizes.binding(sizes) if self.sizes else {}
        for lazy, constraints in self._generals.get(general, ()):
            if all(constraint.holds(binding) for constraint in constraints):
                return lazy()
        return None

    def _compile_general(
        self, general: object, needs: tuple[bool, ...], sizes: tuple[int, ...]
    ) -> Program | None:
        assert self.sizes is not None
        grads = _proxies(self.training, general)
        make = partial(compile_backward, self.training, self._selection, grads, needs)
        try:
            program, constraints = self.sizes.compile_more(make)
            lazy = LazyProgram(make, program, self.sizes, contextlib.nullcontext)
            self._generals.setdefault(general, []).append((lazy, constraints))
        except (Unsupported, DataDependent):  # a program for the sizes of the call is used
            return None
        return self._for_any_sizes(general, sizes)

    def _training_at(self, sizes: tuple[int, ...]) -> Training:
        return self.training.at(self.sizes.binding(sizes)) if self.sizes else self.training

    def differentiable_for(
        self, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]
    ) -> Differentiable:
        """Return the backward as a function of saved tensors and grad outputs, for `create_graph=True`."""
        _check_strided(grads)
        key = _pattern(grads, needs), sizes
        entry = self._differentiable.get(key)
        if entry is None:
            training = self._training_at(sizes)
            with torch.no_grad():
                trace = compiles(differentiable_backward)(
                    training, self._selection, _proxies(training, _pattern(grads, needs)), needs
                )
            entry = Differentiable(
                self._rejit(_evaluated(trace)), trace, _viewed(trace, self.places)
            )
            _keep(self._differentiable, key, entry)
        return entry

    def unread(
        self, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]
    ) -> frozenset[int]:
        """Return the positions of saved tensors unread by the backward for the given grad outputs."""
        if torch.is_grad_enabled():
            trace = self.differentiable_for(grads, needs, sizes).trace
        else:
            trace = self.backward_for(grads, needs, sizes).program.stages[-1]
        lines = [item for item in trace.bound_symbols if item.symbol != DEL]
        read = {proxy.name for proxy in proxies((trace.outputs, [item.inputs for item in lines]))}
        saved = trace.inputs[: len(self.training.saved)]
        return frozenset(index for index, proxy in enumerate(saved) if proxy.name not in read)


@dataclass(frozen=True, slots=True)
class Differentiable:
    """A backward to differentiate: a function of saved tensors and grad outputs.

    `viewed`: the saved inputs that it reads through views of the forward alone, as eager mode saves them. A gradient of
    such an input is added to its other gradients of the call, before those of other calls.
    """

    run: Callable[..., Any]
    trace: Trace
    viewed: tuple[int, ...]


def _viewed(trace: Trace, places: Iterable[int]) -> tuple[int, ...]:
    names = {
        proxy.name
        for line in trace.bound_symbols
        if BACKWARD in line.tags or not is_view(line)
        for proxy in line.inputs
    }
    return tuple([i for i in places if trace.inputs[i].name not in names])


def _keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Store a backward by its key, and drop the oldest beyond `KEPT`: the number of keys is unlimited."""
    cache[key] = value
    if len(cache) > KEPT:
        del cache[next(iter(cache))]


class Last:
    """The most recent backward, and a cheap check whether other grad outputs fit.

    `is_simple`: the backward takes the saved tensors and all grad outputs as they arrive, with autocast off, and
    returns gradients alone.
    """

    def __init__(
        self,
        program: Program,
        grads: Arriving,
        needs: tuple[bool, ...],
        sizes: tuple[int, ...],
        *,
        sparse: bool,
        inner: int,
    ) -> None:
        self.program = program
        self.run = runner(program, autocast=internals.autocast_active())
        self.takes_sizes = bool(program.stages[-1].numbers)
        self._sizes = sizes
        self._needs = needs
        self._defined = [grad is not None for grad in grads]
        self.check = internals.tensor_guards([grad for grad in grads if grad is not None])
        self._autocast = internals.autocast_key()
        self.needed = (False, *needs)
        special = sparse or sizes or self.takes_sizes or self._autocast
        outer = len(grads) - inner
        self.is_simple = program.job is None and (
            all(self._defined[:outer]) and not any(self._defined[outer:]) and not special
        )

    def fits(self, grads: Arriving, needs: tuple[bool, ...], sizes: tuple[int, ...]) -> bool:
        """Check whether the backward certainly takes the given grad outputs."""
        return (
            needs == self._needs
            and sizes == self._sizes
            # before the check, which raises for another number of tensors
            and [grad is not None for grad in grads] == self._defined
            and self.check(*[grad for grad in grads if grad is not None])
            and internals.autocast_key() == self._autocast
        )


def _proxies(training: Training, pattern: Any) -> Grads:
    """Return the grad outputs of a pattern."""
    grads: list[TensorProxy | None] = []
    for proxy, each in zip(training.ends, pattern, strict=False):
        if proxy is None or each is None:
            grads.append(None)
            continue
        stride, dtype, is_conj, is_neg = each
        layout = {
            "stride": proxy.stride if stride is EXPECTED else stride,
            "dtype": dtype,
            "storage_offset": 0,
        }
        bits = {"is_conj": is_conj, "is_neg": is_neg, "requires_grad": False}
        grads.append(replace(proxy, name=f"g_{proxy.name}", **layout, **bits))
    return tuple(grads)


def _check_strided(grads: Arriving) -> None:
    if any(grad is not None and grad.layout is not torch.strided for grad in grads):
        raise Unsupported("a grad output is not a strided tensor")


def _pattern(grads: Arriving, needs: tuple[bool, ...]) -> object:
    pattern = [None if g is None else (g.stride(), g.dtype, g.is_conj(), g.is_neg()) for g in grads]
    return (*pattern, needs, internals.autocast_key())


def _evaluated(trace: Trace) -> Callable[..., object]:
    def backward(*arguments: object) -> Any:
        values = {proxy.name: value for proxy, value in zip(trace.inputs, arguments, strict=True)}
        values.update(trace.tensors)
        evaluate(trace.bound_symbols, values)
        return tuple(None if proxy is None else values[proxy.name] for proxy in trace.outputs)

    return backward

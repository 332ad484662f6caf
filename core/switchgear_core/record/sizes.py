"""Symbolic sizes: numbers of a trace, unknown until a call, with their constraints.

They are PyTorch's `SymInt`s, each a separate symbol. A decision by Python, PyTorch or a pass that depends on a size
becomes a constraint with the user's line; a call that violates the constraints is compiled separately. Estimates use
the sizes of the captured call; no computed value may depend on them. A trace names the symbols in `numbers`, and passes
need not know of them. Some sizes are fixed, that is constrained to their value: sizes that Python takes as integers
(`len`, `range`), sizes in floats and in returned numbers, and sizes in a gradient formula that accepts numbers alone.
If anything else fails, the entry is compiled without symbols; `explain` and the `RecompileWarning` say so.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch

from switchgear_core import own
from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput, Unsupported
from switchgear_core.ir.proxy import NumberProxy, TensorProxy, is_symbolic
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.nesting import instances_in, map_instances
from switchgear_core.patches import Change, replaced
from switchgear_core.record.structure import flatten

Made = TypeVar("Made")
Part = TypeVar("Part")
#: The dynamic dimensions: of every tensor among the arguments, or by parameter name.
Dynamic: TypeAlias = bool | Mapping[str, Collection[int]]
#: The dynamic dimensions of input tensors, by place among the flattened arguments, or by path in Python objects.
Marks: TypeAlias = Mapping[int | str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the sizes of a call, as Python, and the deciding line, if any."""

    condition: str
    where: str

    def holds(self, binding: Mapping[str, object]) -> bool:
        """Check the constraint for the given sizes, by name."""
        return bool(eval(self.condition, {"torch": torch}, dict(binding)))

    def __str__(self) -> str:
        return f"{self.condition} ({self.where})" if self.where else self.condition


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A value computed from constants and sizes that must equal the captured value; `need` names the reader.

    The masks of transformers' models read such a value: whether `arange(s0)` has a gap, which is false for every size.
    """

    holds: Callable[[Mapping[str, int]], bool]
    need: str

    def __str__(self) -> str:
        return f"the same answer where {self.need}, which sizes decide"


class Sizes:
    """The symbolic sizes of a capture. `here` returns the user's line during a capture."""

    def __init__(self, here: Callable[[], str] = str, marks: Marks = MappingProxyType({})) -> None:
        self.marks = marks
        self._here = here
        self.numbers: list[NumberProxy] = []
        #: The symbolic numbers of `numbers`, by name.
        self.symbols: dict[str, torch.SymInt] = {}
        #: The templates of derived rules for the sizes.
        self.templates: dict[Any, Any] = {}
        self.is_narrowed = False
        #: Whether an integer among the arguments is symbolic.
        self.has_arguments = False
        #: Whether a float is replaced by an input.
        self.has_floats = False
        self.computed: list[Computed] = []
        self._strides: list[tuple[str, int, torch.SymInt]] = []
        self._constraints: tuple[Constraint, ...] = ()
        #: Function that measures the sizes of a call's input tensors, in the order of `numbers`; set by `close`.
        self.measure: Callable[[Sequence[torch.Tensor]], tuple[int, ...]]

    @functools.cached_property
    def env(self) -> object:
        """PyTorch's environment for symbols, needless for floats and slow to import."""
        return internals.new_shape_env(self._here)

    def layout(
        self, name: str, tensor: torch.Tensor, dims: frozenset[int]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return sizes and strides of the input `name`, with symbolic `dims`, except for sizes 0 and 1.

        Strides follow from the sizes; any other stride is symbolic if `~dim` is in `dims`.
        """
        shape: list[Any] = list(tensor.shape)
        for dim in sorted(dims):
            if 0 <= dim < len(shape) and shape[dim] > 1:
                shape[dim] = self._new(name, dim, shape[dim])
        stride: list[Any] = list(tensor.stride())
        reach: dict[int, Any] = {}
        for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], tensor.size(dim))):
            step = stride[dim]
            if step > 1 and isinstance(reach.get(step), torch.SymInt):
                stride[dim] = reach[step]
                self._strides.append((name, dim, stride[dim]))
            elif step > 1 and ~dim in dims:
                stride[dim] = self._new(name, ~dim, step)
            reach.setdefault(step * tensor.size(dim), stride[dim] * shape[dim])
        return tuple(shape), tuple(stride)

    def _new(self, name: str, dim: int, hint: int) -> torch.SymInt:
        number = NumberProxy("", name, dim)
        size = internals.new_size(self.env, number.source, hint)
        self.numbers.append(replace(number, name=str(size)))
        self.symbols[str(size)] = size
        return size

    def close(self, inputs: Sequence[TensorProxy]) -> None:
        """Close the environment: the decisions so far become the constraints on calls."""
        place = {proxy.name: index for index, proxy in enumerate(inputs)}
        terms = [Constraint(f"2 <= {number.name}", "0/1 specialisation") for number in self.numbers]
        terms += [Constraint(*decided) for decided in internals.decided(self.env)]
        internals.set_closed(self.env, True)
        for name, dim, step in self._strides:
            terms.append(Constraint(f"input[{place[name]}].stride({dim}) == {python(step)}", ""))
        self._constraints = tuple(dict.fromkeys(terms))
        self.measure = _measuring(self.numbers, place)

    def is_decided(self, number: NumberProxy) -> bool:
        """Check whether a size is fixed to its value in the captured call."""
        return not internals.names_in(self.symbols[number.name])

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise `Unsupported` unless the captured call meets the constraints."""
        if (constraint := self.violated(inputs)) is not None:
            raise Unsupported(f"the call at hand does not meet {constraint}")

    def compile_more(
        self, make: Callable[[], Made]
    ) -> tuple[Made, tuple[Constraint | Computed, ...]]:
        """Return the result of `make`, run later for the same entry, and the additional constraints on its sizes."""
        start, count = internals.guard_count(self.env), len(self.computed)
        change = Change(internals.set_closed, self.env, True)
        try:
            internals.set_closed(self.env, False)
            with symbolic(self):
                result = make()
            more = [Constraint(*decided) for decided in internals.decided(self.env, start)]
            return result, (*more, *self.computed[count:])
        finally:
            change.undo()
            del self.computed[count:]
            # the entry now assumes conditions of some calls alone
            self.is_narrowed = self.is_narrowed or internals.guard_count(self.env) > start

    @property
    def constraints(self) -> tuple[Constraint | Computed, ...]:
        """The conditions on the sizes of a call."""
        return (*self._constraints, *self.computed)

    def fits(self) -> Callable[[Sequence[torch.Tensor]], bool]:
        """Return a check of the constraints for the input tensors of a call."""
        names = "".join([f"{number.name}, " for number in self.numbers])
        condition = " and ".join([f"({constraint.condition})" for constraint in self._constraints])
        scope: dict[str, Any] = {
            "measure": self.measure,
            "torch": torch,
            "computed": functools.lru_cache(1024)(self._agree),
        }
        body = f"def fits(input):\n    {names}= values = measure(input)\n    return {condition}"
        body += " and computed(values)" if self.computed else ""
        exec(compile(body, "<switchgear sizes>", "exec"), scope)
        fits: Callable[[Sequence[torch.Tensor]], bool] = scope.pop("fits")
        return fits

    def _agree(self, values: tuple[int, ...]) -> bool:
        binding = self.binding(values)
        return all(computed.holds(binding) for computed in self.computed)

    def violated(self, inputs: Sequence[torch.Tensor]) -> Constraint | Computed | None:
        """Return the first constraint violated by the input tensors of a call."""
        binding = self.binding(self.measure(inputs))
        scope = {**binding, "input": inputs}
        for term in self._constraints:
            if not term.holds(scope):
                return term
        return next((term for term in self.computed if not term.holds(binding)), None)

    def binding(self, values: Sequence[int]) -> dict[str, int]:
        """Return the values from `measure` by name."""
        return {number.name: value for number, value in zip(self.numbers, values, strict=True)}


def _measuring(
    numbers: Sequence[NumberProxy], place: Mapping[str, int]
) -> Callable[[Sequence[torch.Tensor]], tuple[int, ...]]:
    inputs = [replace(number, tensor=f"input[{place[number.tensor]}]") for number in numbers]
    items = "".join([f"{number.source}, " for number in inputs])
    measure: Callable[[Sequence[torch.Tensor]], tuple[int, ...]] = eval(f"lambda input: ({items})")
    return measure


class _Thread(threading.local):
    def __init__(self) -> None:
        self.sizes: Sizes | None = None


_THREAD = _Thread()


def active_sizes() -> Sizes | None:
    """Return the symbolic sizes of the capture or compilation on the current thread, or None."""
    return _THREAD.sizes


@contextlib.contextmanager
def symbolic(sizes: Sizes | None) -> Iterator[None]:
    """Return a context in which captures and compilations use the given sizes."""
    memo = contextlib.nullcontext() if sizes is None else internals.arithmetic_remembered(sizes.env)
    with replaced(_THREAD, "sizes", sizes), memo:
        yield


def python(number: object) -> str:
    """Return a symbolic number as Python source over the names of sizes."""
    return internals.python_of_number(number)


def settled(value: object) -> Any:
    """Return arguments of a call without symbolic numbers that a trace does not hold: truth values and floats.

    An expression of floats might be written in another order than Python computed it, and be rounded differently.
    """
    return map_numbers(
        lambda number: number if isinstance(number, torch.SymInt) else _decide(number), value
    )


def map_numbers(function: Callable[[object], object], value: object) -> Any:
    """Return `value` with every symbolic number replaced, in nested tuples, lists, dicts and slices."""
    return map_instances(internals.SYMBOLIC, function, value)


def has_numbers(value: object) -> bool:
    """Check whether nested tuples, lists, dicts and slices contain a symbolic number."""
    return bool(instances_in(internals.SYMBOLIC, value))


def depends_on_sizes(item: BoundSymbol) -> bool:
    """Check whether a symbolic size occurs in the arguments of a call, or in the layouts of its inputs and outputs."""
    if active_sizes() is None:
        return False
    return is_symbolic(*item.inputs, *item.outputs) or has_numbers((item.args, dict(item.kwargs)))


def sizes_of(items: Iterable[BoundSymbol]) -> dict[NumberProxy, torch.SymInt]:
    """Return the symbolic sizes used by calls, in the order of the trace, as numbers of a part of the trace."""
    sizes = active_sizes()
    if sizes is None:
        return {}
    names: set[str] = set()
    for item in items:
        layouts = tuple([(proxy.shape, proxy.stride) for proxy in (*item.inputs, *item.outputs)])
        for number in instances_in(internals.SYMBOLIC, (item.args, dict(item.kwargs), layouts)):
            names |= internals.names_in(number)
    return {NumberProxy(name): symbol for name, symbol in sizes.symbols.items() if name in names}


def concrete(value: object, binding: Mapping[str, int]) -> Any:
    """Return a part of a trace, or of a related value, with the given sizes substituted."""

    @functools.cache
    def evaluated(text: str) -> object:
        return eval(text, {"torch": torch}, dict(binding))

    return _with_numbers(
        lambda number: evaluated(internals.python_of_number(number, simplified=False)), value
    )


def _decide(number: object) -> Any:
    """Return a symbolic number's value in the captured call; other calls must have the same value from now on."""
    return bool(number) if isinstance(number, torch.SymBool) else internals.decide_all(number)


def fixed(value: Part) -> Part:
    """Return a part of a trace with the sizes of the captured call; other calls must have the same from now on."""
    return _with_numbers(_decide, value)  # type: ignore[no-any-return]


def _with_numbers(number: Callable[[object], object], value: object) -> Any:
    def convert(value: object) -> Any:
        if isinstance(value, TensorProxy):
            shape, stride, offset = map_numbers(
                number, (value.shape, value.stride, value.storage_offset)
            )
            return replace(value, shape=shape, stride=stride, storage_offset=offset)
        if isinstance(value, BoundSymbol):
            parts = convert((value.args, dict(value.kwargs), value.output, value.subsymbols))
            return replace(
                value,
                **dict(zip(("args", "kwargs", "output", "subsymbols"), parts, strict=True)),
                wholes=(),
            )
        if is_dataclass(value) and type(value).__module__.partition(".")[0] in own.PACKAGES:
            changes = {
                field.name: convert(getattr(value, field.name))
                for field in fields(value)
                if field.init
            }
            return replace(value, **changes)  # type: ignore[type-var]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return type(value)([convert(item) for item in value])
        if isinstance(value, list):
            return [convert(item) for item in value]
        if isinstance(value, dict):
            return {key: convert(item) for key, item in value.items()}
        return map_numbers(number, value)

    return convert(value)


def marked(
    dynamic: Dynamic,
    signature: inspect.Signature | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    leaves: list[object],
) -> Marks:
    """Return the dynamic dimensions of the tensors in a call."""
    places = [(index, leaf) for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if isinstance(dynamic, bool) or signature is None:
        return {index: frozenset(range(leaf.dim())) for index, leaf in places if leaf.dim()}
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    dims: dict[int, set[int]] = {}
    for name, marks in dynamic.items():
        for tensor in flatten(arguments.get(name))[0]:
            for dim in marks if isinstance(tensor, torch.Tensor) else ():
                if not -tensor.dim() <= dim < tensor.dim():
                    shape = list(tensor.shape)
                    raise InvalidInput(
                        f"dynamic marks dimension {dim} of {name!r}, a tensor of shape {shape}"
                    )
                dims.setdefault(id(tensor), set()).add(dim % tensor.dim())
    return {index: frozenset(dims[id(leaf)]) for index, leaf in places if id(leaf) in dims}


def check_dynamic(dynamic: object, function: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature of a function if `dynamic` names parameters; raise `InvalidInput` for an unknown name."""
    if not isinstance(dynamic, Mapping):
        return None
    signature = inspect.signature(function)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    for name in () if takes_any else dynamic:
        if name not in signature.parameters:
            names = ", ".join(signature.parameters) or "none"
            raise InvalidInput(f"dynamic names {name!r}; the parameters are {names}")
    return signature


def is_dynamic(value: object) -> bool:
    """Check whether a value is valid as the option `dynamic` of `jit`."""
    if not isinstance(value, Mapping):
        return value is None or isinstance(value, bool)
    return all(map(_is_marking, value, value.values()))


def _is_marking(name: object, dims: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(dims, Collection)
        and all(type(dim) is int for dim in dims)
    )

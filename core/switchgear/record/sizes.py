"""Symbolic sizes: numbers of a trace that are not known until it is called, and what a trace takes for granted of them.

They are PyTorch's `SymInt`s, each a symbol of its own. Whatever Python, PyTorch or a pass decides by them becomes a
constraint with the user's line, and a call that does not meet the constraints is compiled by itself. Estimates use the
sizes of the call at hand; nothing that is computed may depend on them. A trace names the symbols in `numbers`, and no
pass knows of them. Fixed, that is constrained to their value, are sizes that Python takes as integers (`len`,
`range`), those in floats, in numbers that are returned, and those of a gradient's formula that knows numbers alone. If
anything else fails, the entry is made without symbols, which `explain` and the `RecompileWarning` say.
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

from switchgear import torch_private as internals
from switchgear.errors import InvalidInput, Unsupported
from switchgear.ir.proxy import NumberProxy, TensorProxy, is_symbolic
from switchgear.ir.symbol import BoundSymbol
from switchgear.nesting import instances_in, map_instances
from switchgear.patches import Change, replaced
from switchgear.record.structure import flatten

Made = TypeVar("Made")
Part = TypeVar("Part")
#: Which dimensions are dynamic: those of every tensor among the arguments, or those named, by parameter.
Dynamic: TypeAlias = bool | Mapping[str, Collection[int]]
#: The dynamic dimensions of input tensors, by the place among the flattened arguments, or the path in Python's objects.
Marks: TypeAlias = Mapping[int | str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the sizes of a call must be, as Python, and where that was decided, if anywhere."""

    condition: str
    where: str

    def holds(self, binding: Mapping[str, object]) -> bool:
        """Whether it does for these sizes, by name."""
        return bool(eval(self.condition, {"torch": torch}, dict(binding)))

    def __str__(self) -> str:
        return f"{self.condition} ({self.where})" if self.where else self.condition


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A value that constants and sizes alone decide, and that has to be the one that it was: `need` says who asked.

    The masks of transformers' models read such: whether `arange(s0)` has a gap, which it has for no size.
    """

    holds: Callable[[Mapping[str, int]], bool]
    need: str

    def __str__(self) -> str:
        return f"the same answer where {self.need}, which sizes decide"


class Sizes:
    """The symbolic sizes of one capture. `here` tells the user's line, where one is at work."""

    def __init__(self, here: Callable[[], str] = str, marks: Marks = MappingProxyType({})) -> None:
        self.marks = marks
        self._here = here
        self.numbers: list[NumberProxy] = []
        #: The symbolic numbers that these are, by name.
        self.symbols: dict[str, torch.SymInt] = {}
        #: The templates of derived rules, which hold these sizes.
        self.templates: dict[Any, Any] = {}
        self.is_narrowed = False
        #: Whether an integer among the arguments is one of them.
        self.has_arguments = False
        #: Whether a float is an input in its place.
        self.has_floats = False
        self.computed: list[Computed] = []
        self._strides: list[tuple[str, int, torch.SymInt]] = []
        self._constraints: tuple[Constraint, ...] = ()
        #: The sizes of a call's input tensors, in the order of `numbers`; known once the trace is.
        self.measure: Callable[[Sequence[torch.Tensor]], tuple[int, ...]]

    @functools.cached_property
    def env(self) -> object:
        """PyTorch's environment, which takes a while to import, and which floats need not."""
        return internals.new_shape_env(self._here)

    def layout(
        self, name: str, tensor: torch.Tensor, dims: frozenset[int]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Sizes and strides of the input called `name`, those of `dims` symbolic, but for 0 and 1.

        Strides go with the sizes; what does not is symbolic where `~dim` is in `dims`.
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
        """Nothing more is decided by these sizes: what was is what calls are held to."""
        place = {proxy.name: index for index, proxy in enumerate(inputs)}
        found = [Constraint(f"2 <= {number.name}", "0/1 specialisation") for number in self.numbers]
        found += [Constraint(*decided) for decided in internals.decided(self.env)]
        internals.set_closed(self.env, True)
        for name, dim, step in self._strides:
            found.append(Constraint(f"input[{place[name]}].stride({dim}) == {python(step)}", ""))
        self._constraints = tuple(dict.fromkeys(found))
        self.measure = _measuring(self.numbers, place)

    def is_decided(self, number: NumberProxy) -> bool:
        """Whether a size has to be what it is in the call at hand."""
        return not internals.names_in(self.symbols[number.name])

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise `Unsupported` unless the call that all was decided for meets the constraints."""
        if (found := self.violated(inputs)) is not None:
            raise Unsupported(f"the call at hand does not meet {found}")

    def compile_more(
        self, make: Callable[[], Made]
    ) -> tuple[Made, tuple[Constraint | Computed, ...]]:
        """What is made later on for the same entry, and what its sizes must be beyond the constraints."""
        start, known = internals.guard_count(self.env), len(self.computed)
        change = Change(internals.set_closed, self.env, True)
        try:
            internals.set_closed(self.env, False)
            with symbolic(self):
                made = make()
            more = [Constraint(*decided) for decided in internals.decided(self.env, start)]
            return made, (*more, *self.computed[known:])
        finally:
            change.undo()
            del self.computed[known:]
            # from now on it takes for granted what is true of some calls alone
            self.is_narrowed = self.is_narrowed or internals.guard_count(self.env) > start

    @property
    def constraints(self) -> tuple[Constraint | Computed, ...]:
        """What the sizes of a call must be."""
        return (*self._constraints, *self.computed)

    def fits(self) -> Callable[[Sequence[torch.Tensor]], bool]:
        """Whether the input tensors of a call meet the constraints."""
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
        """The first constraint that the input tensors of a call do not meet."""
        binding = self.binding(self.measure(inputs))
        scope = {**binding, "input": inputs}
        for one in self._constraints:
            if not one.holds(scope):
                return one
        return next((one for one in self.computed if not one.holds(binding)), None)

    def binding(self, values: Sequence[int]) -> dict[str, int]:
        """What `measure` gave, by name."""
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
    """The symbolic sizes of what is captured or compiled on this thread, if it has any."""
    return _THREAD.sizes


@contextlib.contextmanager
def symbolic(sizes: Sizes | None) -> Iterator[None]:
    """What is captured and compiled inside may have these sizes."""
    with replaced(_THREAD, "sizes", sizes):
        yield


def python(number: object) -> str:
    """A symbolic number as Python, by the names of sizes."""
    return internals.python_of_number(number)


def settled(value: object) -> Any:
    """Arguments of a call, without symbolic numbers that a trace does not hold: truth values, and floats.

    An expression of floats may be written in another order than Python computed it, and round otherwise.
    """
    return map_numbers(
        lambda number: number if isinstance(number, torch.SymInt) else _decide(number), value
    )


def map_numbers(function: Callable[[object], object], value: object) -> Any:
    """`value` with every symbolic number in its nest of tuples, lists, dicts and slices replaced."""
    return map_instances(internals.SYMBOLIC, function, value)


def has_numbers(value: object) -> bool:
    """Whether there is a symbolic number in a nest of tuples, lists, dicts and slices."""
    return bool(instances_in(internals.SYMBOLIC, value))


def depends_on_sizes(item: BoundSymbol) -> bool:
    """Whether a symbolic size is among the arguments of a call or in the layout of what it reads or makes."""
    if active_sizes() is None:
        return False
    return is_symbolic(*item.inputs, *item.outputs) or has_numbers((item.args, dict(item.kwargs)))


def sizes_of(items: Iterable[BoundSymbol]) -> dict[NumberProxy, torch.SymInt]:
    """The symbolic sizes that calls depend on, in the order of the trace's, as numbers of a part of it."""
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
    """A part of a trace, or of what hangs together with one, for calls whose sizes are these."""

    @functools.cache
    def evaluated(text: str) -> object:
        return eval(text, {"torch": torch}, dict(binding))

    return _with_numbers(
        lambda number: evaluated(internals.python_of_number(number, simplified=False)), value
    )


def _decide(number: object) -> Any:
    """A symbolic number as it is in the call at hand, to which other calls are held from now on."""
    return bool(number) if isinstance(number, torch.SymBool) else internals.decide_all(number)


def fixed(value: Part) -> Part:
    """A part of a trace with the sizes of the call at hand, to which other calls are held from now on."""
    return _with_numbers(_decide, value)  # type: ignore[no-any-return]


def _with_numbers(number: Callable[[object], object], value: object) -> Any:
    def made(value: object) -> Any:
        if isinstance(value, TensorProxy):
            shape, stride, offset = map_numbers(
                number, (value.shape, value.stride, value.storage_offset)
            )
            return replace(value, shape=shape, stride=stride, storage_offset=offset)
        if isinstance(value, BoundSymbol):
            parts = made((value.args, dict(value.kwargs), value.output, value.subsymbols))
            return replace(
                value,
                **dict(zip(("args", "kwargs", "output", "subsymbols"), parts, strict=True)),
                wholes=(),
            )
        if is_dataclass(value) and type(value).__module__.startswith("switchgear."):
            changes = {
                field.name: made(getattr(value, field.name))
                for field in fields(value)
                if field.init
            }
            return replace(value, **changes)  # type: ignore[type-var]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return type(value)([made(item) for item in value])
        if isinstance(value, list):
            return [made(item) for item in value]
        if isinstance(value, dict):
            return {key: made(item) for key, item in value.items()}
        return map_numbers(number, value)

    return made(value)


def marked(
    dynamic: Dynamic,
    signature: inspect.Signature | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    leaves: list[object],
) -> Marks:
    """The dynamic dimensions of the tensors in a call."""
    places = [(index, leaf) for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if isinstance(dynamic, bool) or signature is None:
        return {index: frozenset(range(leaf.dim())) for index, leaf in places if leaf.dim()}
    given = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    dims: dict[int, set[int]] = {}
    for name, wanted in dynamic.items():
        for tensor in flatten(given.get(name))[0]:
            for dim in wanted if isinstance(tensor, torch.Tensor) else ():
                if not -tensor.dim() <= dim < tensor.dim():
                    shape = list(tensor.shape)
                    raise InvalidInput(
                        f"dynamic marks dimension {dim} of {name!r}, a tensor of shape {shape}"
                    )
                dims.setdefault(id(tensor), set()).add(dim % tensor.dim())
    return {index: frozenset(dims[id(leaf)]) for index, leaf in places if id(leaf) in dims}


def check_dynamic(dynamic: object, function: Callable[..., object]) -> inspect.Signature | None:
    """The signature of a function whose parameters `dynamic` names, if it does; `InvalidInput` if one is none."""
    if not isinstance(dynamic, Mapping):
        return None
    signature = inspect.signature(function)
    takes_any = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )
    for name in () if takes_any else dynamic:
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise InvalidInput(f"dynamic names {name!r}; the parameters are {known}")
    return signature


def is_dynamic(value: object) -> bool:
    """Check whether a value says which sizes are dynamic, as the option of `jit` does."""
    if not isinstance(value, Mapping):
        return value is None or isinstance(value, bool)
    return all(map(_is_marking, value, value.values()))


def _is_marking(name: object, dims: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(dims, Collection)
        and all(type(dim) is int for dim in dims)
    )

"""The parts of a call: the flat leaves of its arguments, of module state, and of its return value."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.guards import HEAP, Known
from switchgear_core.record.shell import Shell, shell_of
from switchgear_core.record.structure import Structure, flatten

_PYTHON = (
    int,
    float,
    complex,
    str,
    bytes,
    types.NoneType,
    types.EllipsisType,
    enum.Enum,
    type,
    range,
)
_TORCH = (torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Types of objects that a trace is specialised on by identity, and that no call rebuilds.
_HELD = (torch.Generator, torch.nn.Module)
#: Types of Python values that a trace is specialised on.
_VALUES = (*_PYTHON, *_TORCH, types.FunctionType, types.BuiltinFunctionType, *_HELD)
_LARGEST = 1 << 62
_ONE = torch.empty(1, dtype=torch.bool, device="cpu")
#: The classes of tensors that are values of a trace themselves; parts add theirs.
PLAIN_TENSORS = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor among the flattened arguments, by position."""

    index: int

    @property
    def place(self) -> int:
        """The key of its marked dimensions."""
        return self.index

    def __str__(self) -> str:
        return f"argument {self.index}"


@dataclass(frozen=True, slots=True)
class ModuleState:
    """A parameter or buffer, by the module that holds it and its name there; `path` is its full name."""

    path: str
    holder: Known
    name: str
    tied: list[ModuleState] = field(default_factory=list, compare=False)

    def is_at(self, other: ModuleState) -> bool:
        """Check whether another source is the same place."""
        return self.name == other.name and self.holder() is other.holder()

    def fetch(self) -> torch.Tensor | None:
        """Return the current tensor of the module, or None if the places that shared it now differ."""
        tensor = self._here()
        return tensor if all(other._here() is tensor for other in self.tied) else None

    @property
    def slots(self) -> str:
        """The dictionary of the module that holds the tensor now."""
        is_parameter = self.name in getattr(self.holder(), "_parameters", ())
        return "_parameters" if is_parameter else "_buffers"

    def _here(self) -> torch.Tensor | None:
        holder = self.holder()
        if holder is None:
            return None
        state = holder._parameters
        return state[self.name] if self.name in state else holder._buffers.get(self.name)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A tensor that the function reached by itself."""

    tensor: torch.Tensor

    def __str__(self) -> str:
        return f"closed-over tensor of shape {list(self.tensor.shape)}"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A step from an object to the value of an attribute; any other step leads to an item."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A tensor in Python objects: `steps` lead to it from `owner`, or from the argument named by `owner`."""

    owner: Any
    steps: tuple[object, ...]
    path: str
    tied: list[Held] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The key of its marked dimensions."""
        return self.path

    def fetch(self, argument: object = None) -> Any:
        """Return the current value, or None if there is none or the places that shared it now differ."""
        value = self._here(argument)
        return value if all(other._here(argument) is value for other in self.tied) else None

    def _here(self, argument: object) -> object:
        try:
            return follow(argument if isinstance(self.owner, Argument) else self.owner, self.steps)
        except (LookupError, AttributeError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        return self.path


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the base of a view, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base


class HeldNumber(Held):
    """An input for a number, among the arguments or in Python objects, that has changed between calls.

    For an integer n, the input is a tensor of n elements with one element in memory; for a float, a tensor that holds
    it.
    """

    __slots__ = ()

    @classmethod
    def argument(cls, index: int) -> HeldNumber:
        """Return the source for a number that is an argument itself."""
        return cls(Argument(index), (), number_place(index))

    def fetch(self, argument: Any = None) -> Any:
        """Return the tensor for the number, or None unless it is a float, or an integer of 2 or more."""
        number = self._here(argument)
        return standing_for(number) if can_vary(number) else None


def number_place(index: int) -> str:
    """Return the key that marks a number among the flattened arguments as varying."""
    return f"argument {index}"


def can_vary(number: object) -> TypeGuard[int | float]:
    """Check whether a value is a number that may be symbolic."""
    return type(number) is float or (type(number) is int and 1 < number < _LARGEST)


def standing_for(number: int | float) -> torch.Tensor:
    """Return the input tensor for a number: n elements expanded from one for an integer n, or a float tensor."""
    if isinstance(number, float):
        return torch.tensor(number, dtype=torch.float64, device="cpu")
    return _ONE.expand(number)


@dataclass(frozen=True, slots=True)
class Base:
    """The base of the tensor from another source."""

    of: OwnSource

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the base of a tensor of the source."""
        if internals.forward_mode_active():
            raise Unsupported(
                "the function writes to memory that inputs share, under forward-mode differentiation: their base is "
                "without their tangents; pass a clone of one"
            )
        return base_of(tensor)

    def __str__(self) -> str:
        return f"the base of {self.of}"


@dataclass(frozen=True, slots=True)
class Part:
    """An inner tensor, by number, of a subclass's tensor from another source."""

    of: OwnSource
    shell: Shell
    number: int

    def fetch(self, tensor: torch.Tensor) -> Any:
        """Return the inner tensor, or None if there is none."""
        return self.shell.opening()(tensor)[self.number] if shell_of(tensor) else None

    def __str__(self) -> str:
        return f"{self.of}.{self.shell.names[self.number]}"


def tensor_of(source: InputSource, leaves: Sequence[object]) -> torch.Tensor:
    """Return the tensor for an input of a trace, given the flattened arguments of the call.

    Raises `Unsupported` if there is none.
    """
    if isinstance(source, Argument):
        tensor = leaves[source.index]
    elif isinstance(source, Base | Part):
        tensor = source.fetch(tensor_of(source.of, leaves))
    elif isinstance(source, Held) and isinstance(source.owner, Argument):
        tensor = source.fetch(leaves[source.owner.index])
    else:
        tensor = source.tensor if isinstance(source, Closure) else source.fetch()
    if not isinstance(tensor, torch.Tensor):
        raise Unsupported(f"{source} is no tensor any more")
    return tensor


def follow(value: Any, steps: Iterable[Any]) -> object:
    """Return the object after some steps; raise as `getattr` and item lookup do, without adding dict defaults."""
    for step in steps:
        if isinstance(step, Attribute):
            value = getattr(value, step.name)
        elif isinstance(value, dict) and not dict.__contains__(value, step):
            raise KeyError(step)
        else:
            value = value[step]
    return value


#: The structure of the arguments, and the numbers of dimensions of tensors among them.
Kind = tuple[Structure, tuple[int | None, ...]]
#: Sources of tensors that are not views of another input.
OwnSource = Argument | ModuleState | Closure | Held | Part
InputSource = OwnSource | Base


@dataclass(slots=True, eq=False)
class Arguments:
    """The arguments of a call, flattened once.

    Attributes:
        leaves: tensors, Python values that a trace is specialised on, and objects.
        kind: sizes are compared between calls of one kind.
        containers_are_leaves: mutable containers are leaves too, like objects.
        unread: the places of values that the function cannot read.
    """

    args: tuple[object, ...]
    kwargs: dict[str, object]
    leaves: list[object]
    spec: Structure
    kind: Kind
    containers_are_leaves: bool = False
    unread: Container[int] = ()


def flatten_arguments(
    args: tuple[object, ...], kwargs: dict[str, object], containers_are_leaves: bool = False
) -> Arguments:
    """Return the arguments of a call, flattened.

    Raises:
        Unsupported: a leaf is of a kind that a trace cannot hold.
    """
    try:
        leaves, spec = flatten((args, kwargs), root=kwargs if containers_are_leaves else None)
    except RecursionError:
        raise Unsupported(
            "a container among the arguments lies inside of itself, or is nested too deep"
        ) from None
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            check_tensor(leaf, f"argument {index}")
        elif not _is_value(leaf) and not is_object(leaf):
            if _is_scalar_of_numpy(leaf):
                raise Unsupported(
                    f"argument {index} is a {_class_name(leaf)}, a number of NumPy's; pass its .item()",
                    splits=False,
                )
            raise Unsupported(
                f"argument {index} is a {_class_name(leaf)}: neither a tensor, nor a Python value, nor an object of a "
                "class written in Python, nor a container registered with torch.utils._pytree; close over the object"
            )
    ranks = tuple([leaf.dim() if isinstance(leaf, torch.Tensor) else None for leaf in leaves])
    return Arguments(args, kwargs, leaves, spec, (spec, ranks), containers_are_leaves)


def _is_value(leaf: object) -> bool:
    parts: Iterable[object] = (leaf,)
    if isinstance(leaf, slice):
        parts = (leaf.start, leaf.stop, leaf.step)
    elif type(leaf) is frozenset:
        parts = leaf
    return all(isinstance(part, _VALUES) for part in parts)


def _is_scalar_of_numpy(leaf: object) -> bool:
    """Check whether a leaf is a NumPy scalar; TorchDynamo makes an array of it."""
    return any(
        (kind.__module__, kind.__name__) == ("numpy", "generic") for kind in type(leaf).__mro__
    )


def is_bound(leaf: Any) -> bool:
    """Check whether a leaf is a method in C bound to an object; no later call has the same."""
    owner = getattr(leaf, "__self__", None) if isinstance(leaf, types.BuiltinMethodType) else None
    return owner is not None and not isinstance(owner, (type, types.ModuleType))


def is_object(leaf: object) -> bool:
    """Check whether each call inspects an argument: an object of a class in Python, a container, a nested function."""
    if isinstance(leaf, types.FunctionType):
        return "<" in leaf.__qualname__  # <lambda>, or in the <locals> of another function
    if type(leaf) is object or isinstance(leaf, (list, dict, set, deque, types.SimpleNamespace)):
        return True
    is_written_in_python = bool(type(leaf).__flags__ & HEAP)
    return is_written_in_python and not isinstance(leaf, torch.Tensor) and not _is_value(leaf)


def has_attributes(leaf: object) -> bool:
    """Check whether a leaf is a Python value of a class from a class statement, or a class itself."""
    flags: int = type(leaf).__flags__
    return isinstance(leaf, type) or (isinstance(leaf, _PYTHON) and bool(flags & HEAP))


def _class_name(leaf: object) -> str:
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}"


def check_tensor(tensor: torch.Tensor, subject: str) -> None:
    """Refuse the kinds of tensors that a trace cannot hold, by name."""
    if type(tensor) not in PLAIN_TENSORS:
        raise Unsupported(
            f"{subject} is a {type(tensor).__qualname__}: of tensor subclasses, those are supported that "
            "__tensor_flatten__ takes to strided tensors",
            splits=False,
        )
    if internals.is_functorch_tensor(tensor):
        raise Unsupported(
            f"{subject} belongs to a torch.func transform: jit the containers_are_leaves, or use sg.grad or sg.vjp",
            splits=False,
        )
    if tensor.layout is not torch.strided:
        raise Unsupported(
            f"{subject} has layout {tensor.layout}: only strided tensors are supported",
            splits=False,
        )
    if tensor.is_quantized or tensor.is_nested:
        raise Unsupported(f"{subject} is quantised or nested: not supported", splits=False)


def check_devices(leaves: list[object]) -> None:
    """Refuse arguments on several accelerators; 0-dim CPU tensors go with any."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    devices = {tensor.device for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Unsupported(
            f"the argument tensors are on several devices ({names}); move them to one", splits=False
        )


def check_returned(leaf: object) -> None:
    """Refuse a return value that a later call could not rebuild."""
    if _is_value(leaf) and not isinstance(leaf, _HELD) and not is_bound(leaf):
        return
    hint = (
        "return a list"
        if isinstance(leaf, types.GeneratorType)
        else "register its class with torch.utils._pytree"
    )
    raise Unsupported(
        f"the function returns a {_class_name(leaf)}, which is neither a tensor, a Python value, nor a container "
        f"that PyTorch's pytree knows; {hint}",
        # TorchDynamo returns another kind of iterator, and arrays
        splits=not (hasattr(leaf, "__next__") or _is_scalar_of_numpy(leaf)),
    )


def state_of(module: torch.nn.Module, prefix: str = "") -> dict[int, ModuleState]:
    """Return every parameter and buffer of a module by id; a tied tensor has its first path."""
    states: dict[int, ModuleState] = {}
    for path, holder in module.named_modules(prefix=prefix):
        for name, tensor in (*holder._parameters.items(), *holder._buffers.items()):
            if tensor is not None:
                state = ModuleState(f"{path}.{name}" if path else name, Known(holder), name)
                first = states.setdefault(id(tensor), state)
                if first is not state:
                    first.tied.append(state)
    return states

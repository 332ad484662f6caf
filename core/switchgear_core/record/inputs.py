"""The inputs of a program under capture: tensors from outside, and their wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol


@dataclass(frozen=True, slots=True, eq=False)
class RecordedInput:
    """A tensor from outside, its wrapper, and its initial proxy and history.

    `is_view`: the wrapper is a view of another input's wrapper, and the proxy is unused. `storage` is the storage key.
    """

    tensor: torch.Tensor
    wrapper: torch.Tensor
    proxy: TensorProxy
    history: object
    is_view: bool
    storage: int
    version: int


class Inputs:
    """The inputs so far, and the in-place calls on them."""

    def __init__(self) -> None:
        self._inputs: list[RecordedInput] = []
        self._by_id: dict[int, RecordedInput] = {}
        #: Ids of outside tensors reached other than by their wrapper.
        self.reached_otherwise: set[int] = set()
        #: Calls that changed sizes or strides of an input in place, or its version alone.
        self.metadata_calls: list[BoundSymbol] = []
        #: The generators among the arguments, by the address of each and of its stand-in.
        self.generators: dict[int, torch.Generator] = {}

    def __iter__(self) -> Iterator[RecordedInput]:
        return iter(self._inputs)

    def __getitem__(self, index: int) -> RecordedInput:
        return self._inputs[index]

    def index(self, entry: RecordedInput) -> int:
        """Return the position of an input."""
        return self._inputs.index(entry)

    def of(self, tensor: object) -> RecordedInput | None:
        """Return the input for an outside tensor or its wrapper; None for any other value."""
        return self._by_id.get(id(tensor)) if isinstance(tensor, torch.Tensor) else None

    def wrapper_of(self, tensor: object) -> torch.Tensor | None:
        """Return the wrapper of an outside tensor that is an input; None for any other value."""
        entry = self.of(tensor)
        return entry.wrapper if entry else None

    def add(self, entry: RecordedInput) -> None:
        """Make an outside tensor an input."""
        if not hasattr(entry.tensor, "__tensor_flatten__"):
            entry.wrapper.__class__ = type(entry.tensor)  # a Parameter shows its class
        self._inputs.append(entry)
        self._by_id[id(entry.tensor)] = entry
        self._by_id.setdefault(id(entry.wrapper), entry)

    def generator(self, generator: torch.Generator, here: Callable[[], str]) -> torch.Generator:
        """Return the generator among the arguments for a generator or its stand-in."""
        argument = self.generators.get(internals.stream_key(generator))
        if argument is None:
            raise Unsupported(
                f"{here()} draws from a torch.Generator that is no argument of the jitted function: whether it is "
                "seeded inside, or created by each call, is not known; make it an argument"
            )
        return argument

"""The cache of a jitted function: its entries, found in constant time."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear.errors import RecompileWarning
from switchgear.structure import Structure

from .entry import Entry
from .modes import modes_key
from .module_state import module_key
from .prologue import value_key


class Cache:
    """Entries in least-recently-used order, at most `size`; warns once after more than `recompile_limit` of them."""

    def __init__(self, name: str, size: int, recompile_limit: int) -> None:
        self._name = name
        self._size = size
        self._limit = recompile_limit
        self._buckets: dict[Any, list[Entry]] = {}
        self._order: OrderedDict[Entry, Any] = OrderedDict()
        self._last_key: dict[str, Any] = {}
        self.compilations = 0

    def find(
        self, key: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Entry, Sequence[torch.Tensor]] | None:
        """The entry under a key that fits the call, and its input tensors."""
        frozen = tuple(key.values())
        for entry in self._buckets.get(frozen, ()):
            inputs = entry.prologue(args, kwargs)
            if inputs is not None and entry.fits(inputs):
                self._order.move_to_end(entry)
                return entry, inputs
        return None

    def add(self, key: dict[str, Any], make: Callable[[], Entry]) -> Entry:
        """A new entry; if making it fails the cache stays as it was."""
        entry = make()
        self.compilations += 1
        if self.compilations == self._limit + 1:
            warnings.warn(
                f"{self._name} has been compiled {self.compilations} times; {self._difference(key)}. Each kind of "
                "call is compiled by itself: keep shapes and Python arguments stable, or raise recompile_limit",
                RecompileWarning,
                stacklevel=5,
            )
        self._last_key = key
        self._order[entry] = frozen = tuple(key.values())
        self._buckets.setdefault(frozen, []).insert(0, entry)
        if len(self._order) > self._size:
            dropped, place = self._order.popitem(last=False)
            self._buckets[place].remove(dropped)
            if not self._buckets[place]:
                del self._buckets[place]
        return entry

    def _difference(self, key: dict[str, Any]) -> str:
        changed = [
            f"{what} changed from {self._last_key[what]} to {value}"
            for what, value in key.items()
            if self._last_key.get(what) != value
        ]
        return (
            "; ".join(changed) if changed else "a parameter, buffer or closed-over tensor changed, or how inputs alias"
        )

    def __len__(self) -> int:
        return len(self._order)


def call_key(leaves: list[Any], spec: Structure, module: torch.nn.Module | None) -> dict[str, Any]:
    """What a call is compiled for, by topic, each hashable."""
    return {
        "the structure of the arguments": spec,
        "the arguments": tuple([_leaf_key(leaf) for leaf in leaves]),
        "the global modes": modes_key(),
        "training flags or hooks": module_key(module),
    }


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (
            tuple(leaf.shape),
            leaf.stride(),
            leaf.dtype,
            leaf.device,
            leaf.requires_grad,
            leaf.is_conj(),
            leaf.is_neg(),
        )
    return value_key(leaf)

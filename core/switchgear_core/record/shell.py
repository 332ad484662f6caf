"""Shells: tensors of subclasses without their inner tensors, as a part of Switchgear knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class Shell(Protocol):
    """A tensor without its inner tensors, hashable; tensors with equal shells differ in their inner tensors alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes of the inner tensors."""

    @property
    def kind(self) -> type[Any]:
        """The class."""

    def closed(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a tensor with other inner tensors; its gradient flows to them."""

    def checking(self) -> Callable[[Any], bool]:
        """Return a function that checks whether a tensor has an equal shell."""

    def opening(self) -> Callable[[Any], Sequence[torch.Tensor]]:
        """Return a function from a tensor with an equal shell to its inner tensors; their gradients flow to it."""


#: Functions of parts that return the shell of a tensor, or None of any other value.
KNOWN_SHELLS: list[Callable[[object], Shell | None]] = []


def shell_of(value: object) -> Shell | None:
    """Return the shell of a tensor, or None of any other value."""
    return next((shell for owner in KNOWN_SHELLS if (shell := owner(value)) is not None), None)


def closed(shell: Shell, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a tensor from its shell and its inner tensors."""
    return shell.closed(parts)

"""The states of the random generators while a function is captured."""

from __future__ import annotations

from collections.abc import Callable

from . import torch_internals as internals
from .errors import Unsupported


class RandomStates:
    """The default random generators' states: fakes draw nothing, so a change means that the function seeds."""

    def __init__(self) -> None:
        self._states = internals.random_states()

    def check(self, here: Callable[[], str]) -> None:
        """Raise if a state is another than at the start."""
        if internals.random_states() != self._states:
            raise Unsupported(
                f"the function seeds or restores a random generator before {here()}: that would happen at capture "
                "alone. Seed outside the jitted function"
            )

    def restore(self) -> None:
        """Put the states of the start back."""
        internals.set_random_states(self._states)

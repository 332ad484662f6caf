"""Guards: what an entry takes for granted of a call, looked at before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition on a call.

    `condition` is Python over the flattened arguments `a0`, `a1`, …, the tuple `inputs` of the trace's input tensors,
    and the names in `scope`. `why` says what is otherwise in a call that does not meet it.
    """

    condition: str
    why: str
    scope: Mapping[str, Any] = field(default_factory=dict)

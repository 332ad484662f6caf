"""The `memory` option of `jit`: how much the backward makes again rather than have it saved."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: As little as takes no longer; and from saving what eager saves to making again whatever is cheap.
Memory: TypeAlias = Literal["auto", "eager", "balanced", "lean"]
MEMORY: tuple[Memory, ...] = get_args(Memory)

"""The `memory` option of `jit`: how much the backward makes again rather than have it saved."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: From saving what eager saves to making again whatever is cheap.
Memory: TypeAlias = Literal["eager", "balanced", "lean"]
MEMORY: tuple[Memory, ...] = get_args(Memory)

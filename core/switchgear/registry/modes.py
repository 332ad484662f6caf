"""The `compile` option of `jit`: when regions are compiled for executors that fuse."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: In worker processes while operators run, before the first call returns, or only as far as it was done before.
CompileMode: TypeAlias = Literal["background", "now", "never"]
COMPILE: tuple[CompileMode, ...] = get_args(CompileMode)
#: Names the mode of calls that do not say.
COMPILE_VARIABLE = "SWITCHGEAR_COMPILE"


def default_mode(is_measured: bool) -> CompileMode:
    """The mode where nobody says: a list that names who runs each region is obeyed from the first call on."""
    return "background" if is_measured else "now"

"""The `compile` option of `jit`: the time at which regions are compiled for fusion executors."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

#: In worker processes while operators run, before the first call returns, or not at all beyond earlier compilations.
CompileMode: TypeAlias = Literal["background", "now", "never"]
COMPILE: tuple[CompileMode, ...] = get_args(CompileMode)
#: Environment variable with the mode of calls without the option.
COMPILE_VARIABLE = "SWITCHGEAR_COMPILE"


def default_mode(is_measured: bool) -> CompileMode:
    """Return the default mode: an explicit list with an executor for each region is obeyed from the first call on."""
    return "background" if is_measured else "now"

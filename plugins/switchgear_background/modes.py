"""The option `compile` of `jit`: the time at which regions are compiled for fusion executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from switchgear_core.registry.selection import Selection

#: In worker processes while operators run, before the first call returns, or not at all beyond earlier compilations.
CompileMode: TypeAlias = Literal["background", "now", "never"]
COMPILE: tuple[CompileMode, ...] = get_args(CompileMode)
#: Environment variable with the mode of calls without the option.
COMPILE_VARIABLE = "SWITCHGEAR_COMPILE"


def mode_in(settings: Mapping[str, Any], is_measured: bool) -> CompileMode:
    """Return the mode of a call: an explicit list with an executor for each region is obeyed from the first call on."""
    mode: CompileMode | None = settings.get("compile")
    return mode or ("background" if is_measured else "now")


def mode_of(selection: Selection) -> CompileMode:
    """Return the mode of a call."""
    return mode_in(selection.settings, selection.is_deferred)

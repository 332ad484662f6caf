"""The options of `jit`: types of the shipped ones, defaults for a block, and their part of `help(sg.jit)`."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from switchgear_core.errors import InvalidInput, did_you_mean, warn_once
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import PassPlacement
from switchgear_core.registry.options import GROUPS, Option, check_options, defaults_set
from switchgear_core.registry.order import ExecutorOptions, Executors, order
from switchgear_core.registry.parts import installed_parts
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.preferences import PerOperator
from switchgear_core.registry.registry import Table

#: Sizes for which one program is compiled: `{"x": {0}}`.
Dynamic: TypeAlias = bool | Mapping[str, frozenset[int] | set[int]]


class Defaults(TypedDict, total=False):
    """The shipped options of `jit` that may have other defaults, for type checkers."""

    executors: Executors
    options: ExecutorOptions | None
    grad_rules: Table | str | Sequence[Table | str] | None
    prefer: PerOperator | None
    avoid: PerOperator | None
    passes: Sequence[PassPlacement | str]
    fallback: Literal["split", "eager", "error"]
    strict: bool
    check: bool
    memory: float | str
    compile: Literal["background", "now", "never"] | None
    decisions: str | os.PathLike[str] | None
    recompile_limit: int
    cache_size: int
    link: bool
    specialize_on_data: bool | None
    dynamic: Dynamic | None
    fuel: int | Fuel | None


class Options(Defaults, total=False):
    """The shipped options of `jit`, for type checkers."""

    methods: Sequence[str]


@contextlib.contextmanager
def defaults(**options: Unpack[Defaults]) -> Iterator[None]:
    """Set options of the `jit` calls in a block: `with sg.defaults(memory="lean"):`.

    An argument of `jit` wins over these. Blocks nest, and hold in their own thread. A jitted function keeps the options
    of the place where it was jitted.

    Args:
        **options: options of `jit`, by their names.

    Raises:
        TypeError: no part declares an option.
        InvalidInput: an option has an invalid value.
        UnknownExecutor: no installed executor has a listed name.
    """
    values: dict[str, Any] = {**options}
    check_options(installed_parts().options, values, for_one=False)
    if "executors" in values:
        order(installed(values["executors"]), values["executors"])
    with defaults_set(values):
        yield


_PREFIX, _VERIFY = "SWITCHGEAR_", "SWITCHGEAR_VERIFY"
#: Variables that set no option.
_OTHERS = (
    "SWITCHGEAR_CACHE_DIR",
    "SWITCHGEAR_DISABLE",
    "SWITCHGEAR_DISABLE_FEATURES",
    "SWITCHGEAR_FULL_TRACEBACK",
    _VERIFY,
)


def warn_of_unknown_variables(declared: Mapping[str, Option]) -> None:
    """Warn, once, of variables with names near the known names: `SWITCHGEAR_EXECUTOR`."""
    variables = [*(option.variable for option in declared.values() if option.variable), *_OTHERS]
    for name in os.environ:
        if name.startswith(_PREFIX) and name not in variables:
            near = did_you_mean(
                name.removeprefix(_PREFIX), [item.removeprefix(_PREFIX) for item in variables]
            )
            if near:  # others belong to plugins
                near = near.replace("'", f"'{_PREFIX}", 1)
                warn_once(f"{name} in the environment is not read{near}")
    if os.environ.get(_VERIFY, "0") not in ("0", "1", ""):
        raise InvalidInput(f"{_VERIFY}={os.environ[_VERIFY]} in the environment: it is 1 or 0")


def document(jit: Callable[..., object]) -> None:
    """Complete docstring and signature of `jit` by the options of the installed parts."""
    declared = installed_parts().options
    head, mark, rest = (jit.__doc__ or "").partition("\n    Returns:")
    text = textwrap.indent(described(declared), "    ")
    jit.__doc__ = f"{head.rstrip()}\n{text}\n{mark}{rest}"
    sections = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default)
        for option in declared.values()
    ]
    function = Parameter("function", Parameter.POSITIONAL_OR_KEYWORD, default=None)
    jit.__signature__ = Signature([function, *sections])  # type: ignore[attr-defined]


def described(declared: Mapping[str, Option]) -> str:
    """Return the options by group, as in a docstring."""
    lines = []
    for group in GROUPS:
        lines += ["", f"Args: {group}"]
        for option in declared.values():
            if option.group == group:
                text = f"{option.name}: {option.help}"
                lines += textwrap.wrap(
                    text, 108, initial_indent="    ", subsequent_indent="        "
                )
    return "\n".join(lines)

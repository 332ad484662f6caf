"""The options of `jit`: their types, and where their defaults come from.

Without an argument of `jit`, the innermost `defaults` decides, then the environment, then the default of `jit`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from switchgear_core.errors import InvalidInput, did_you_mean, warn_once
from switchgear_core.record.sizes import Dynamic, is_dynamic
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import PassPlacement
from switchgear_core.registry.modes import COMPILE, COMPILE_VARIABLE, CompileMode
from switchgear_core.registry.order import ExecutorOptions, Executors, order
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.preferences import PerOperator
from switchgear_core.registry.registry import Table
from switchgear_memory import MemoryOption, budget_of, memory_in

#: The fate of a call that cannot be captured.
FallbackTo: TypeAlias = Literal["split", "eager", "error"]


class Defaults(TypedDict, total=False):
    """The options of `jit` that may have other defaults."""

    executors: Executors
    options: ExecutorOptions | None
    grad_rules: Table | str | Sequence[Table | str] | None
    prefer: PerOperator | None
    avoid: PerOperator | None
    passes: Sequence[PassPlacement | str]
    fallback: FallbackTo
    strict: bool
    check: bool
    memory: MemoryOption
    compile: CompileMode | None
    decisions: str | os.PathLike[str] | None
    recompile_limit: int
    cache_size: int
    link: bool
    specialize_on_data: bool | None
    dynamic: Dynamic | None
    fuel: int | Fuel | None


class Options(Defaults, total=False):
    """The options of `jit`."""

    methods: Sequence[str]


_DEFAULTS: ContextVar[Mapping[str, object]] = ContextVar("defaults", default=MappingProxyType({}))
#: A check whether a value is valid for an option, and a description of valid values.
_Kind: TypeAlias = tuple[Callable[[Any], bool], str]


def _one_of(*words: str | bool | None) -> _Kind:
    return (lambda value: value in words), f"one of {', '.join(map(repr, words))}"


def _at_least(least: int) -> _Kind:
    return (lambda value: type(value) is int and value >= least), f"an integer of at least {least}"


def _instance(what: str, *kinds: type) -> _Kind:
    return (lambda value: isinstance(value, kinds)), what


def _several(what: str, *kinds: type) -> _Kind:
    def fits(value: Any) -> bool:
        is_list = isinstance(value, Collection) and not isinstance(value, str)
        return is_list and all(isinstance(item, kinds) for item in value)

    return fits, f"a list of {what}"


#: The words valid for options.
_WORDS: Mapping[str, tuple[str, ...]] = {"compile": COMPILE, "fallback": get_args(FallbackTo)}


_KINDS: Mapping[str, _Kind] = {
    "compile": _one_of(*COMPILE, None),
    "fallback": _one_of(*_WORDS["fallback"]),
    **dict.fromkeys(("strict", "check", "link"), _one_of(True, False)),
    "specialize_on_data": _one_of(True, False, None),
    "recompile_limit": _at_least(0),
    "cache_size": _at_least(1),
    "executors": (
        lambda value: value is None or bool(value),
        "a list with a name: use ['torch'], or leave it out for the default",
    ),
    **dict.fromkeys(("options", "prefer", "avoid"), _instance("a dict", Mapping, NoneType)),
    "grad_rules": _instance("a Table, a name, or a list of these", Table, Collection, NoneType),
    "dynamic": (
        is_dynamic,
        "True, False, or a dict from parameters to dimensions, such as {'x': {0}}",
    ),
    "decisions": _instance("the path of a file", str, os.PathLike, NoneType),
    "methods": _several("names, such as ['generate']", str),
    "passes": _several("sg.passes.PassPlacement or '-name'", PassPlacement, str),
}


@contextlib.contextmanager
def defaults(**options: Unpack[Defaults]) -> Iterator[None]:
    """Set options of the `jit` calls in a block: `with sg.defaults(memory="lean"):`.

    An argument of `jit` wins over these. Blocks nest, and hold in their own thread. A jitted function keeps the options
    of the place where it was jitted.

    Args:
        **options: options of `jit`, by their names.

    Raises:
        InvalidInput: an option is unknown, or has an invalid value.
        UnknownExecutor: no installed executor has a listed name.
    """
    check_options(options)
    if "executors" in options:
        order(installed(options["executors"]), options["executors"])
    token = _DEFAULTS.set({**_DEFAULTS.get(), **options})
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def with_defaults(jit: Callable[..., object]) -> Callable[..., object]:
    """Wrap `jit`, filling in the options in force that a call does not pass."""

    @functools.wraps(jit)
    def with_those_in_force(function: object = None, *rest: object, **options: object) -> object:
        if rest:
            raise TypeError(f"sg.jit takes options by name: sg.jit(f, executors={rest[0]!r})")
        in_force = {**_from_environment(), **_DEFAULTS.get(), **options}
        if in_force.get("decisions") is not None and "compile" not in options:
            in_force["compile"] = "now"
        return jit(function, **in_force)

    return with_those_in_force


def check_options(options: Mapping[str, object], names: Sequence[str] = ()) -> None:
    """Check the names and values of options.

    Raises:
        TypeError: a name is neither in `Defaults` nor in `names`.
        InvalidInput: a value is invalid.
    """
    known = *names, *Defaults.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known) or f"; its options are {', '.join(known)}"
        raise TypeError(f"sg.jit has no option {', '.join(unknown)}{hint}")
    if "memory" in options:
        budget_of(options["memory"])
    for name, (fits, what) in _KINDS.items():
        if name in options and not fits(options[name]):
            value = options[name]
            words = _WORDS.get(name, ()) if isinstance(value, str) else ()
            raise InvalidInput(f"{name}={value!r} is not {what}{did_you_mean(value, words)}")


def executors_in(text: str) -> Executors:
    """Return a list of executors from text outside of Python: `first,...,-other`, or `auto`."""
    if text == "auto":
        return "auto"
    items = [item.strip() for item in text.split(",")]
    executors = [... if item == "..." else item for item in items]
    order(installed(executors), executors)
    return executors


def _word(name: str, text: str) -> str:
    check_options({name: text})
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it is 1 or 0")
    return text == "1"


#: Environment variables that set an option, and the parsers of their text; passes read the last variable themselves.
VARIABLES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "SWITCHGEAR_EXECUTORS": ("executors", executors_in),
    "SWITCHGEAR_MEMORY": ("memory", memory_in),
    COMPILE_VARIABLE: ("compile", functools.partial(_word, "compile")),
    "SWITCHGEAR_FALLBACK": ("fallback", functools.partial(_word, "fallback")),
    "SWITCHGEAR_CHECK": ("check", _flag),
    "SWITCHGEAR_VERIFY": ("verify", _flag),
}


_PREFIX = "SWITCHGEAR_"
#: Variables read elsewhere.
_OTHERS = (
    "SWITCHGEAR_CACHE_DIR",
    "SWITCHGEAR_DISABLE",
    "SWITCHGEAR_DISABLE_FEATURES",
    "SWITCHGEAR_FULL_TRACEBACK",
)


def _warn_of_unknown() -> None:
    """Warn, once, of variables with names near the known names: `SWITCHGEAR_EXECUTOR`."""
    known = (*VARIABLES, *_OTHERS)
    for name in os.environ:
        if name.startswith("SWITCHGEAR_") and name not in known:
            near = did_you_mean(
                name.removeprefix(_PREFIX), [one.removeprefix(_PREFIX) for one in known]
            )
            if near:  # others belong to plugins
                near = near.replace("'", f"'{_PREFIX}", 1)
                warn_once(f"{name} in the environment is not read{near}")


def _from_environment() -> dict[str, object]:
    _warn_of_unknown()
    options = {}
    for variable, (name, read) in VARIABLES.items():
        text = os.environ.get(variable)
        if not text:
            continue
        try:
            options[name] = read(text)
        except ValueError as error:
            raise InvalidInput(f"{variable}={text} in the environment: {error}") from error
    options.pop("verify", None)
    return options

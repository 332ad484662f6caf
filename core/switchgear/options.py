"""The options of `jit`: their types, and where their defaults come from.

What a call of `jit` does not say is as the innermost `defaults` says, else the environment, else `jit` itself.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Literal, TypeAlias, TypedDict, Unpack, get_args

from switchgear.capture.sizes import Dynamic
from switchgear.errors import InvalidInput
from switchgear.who.fuel import Fuel
from switchgear.who.hookspecs import PassPlacement
from switchgear.who.memory import MemoryOption, budget_of, memory_in
from switchgear.who.modes import COMPILE, COMPILE_VARIABLE, CompileMode
from switchgear.who.order import ExecutorOptions, Executors, order
from switchgear.who.plugins import installed
from switchgear.who.preferences import PerOperator
from switchgear.who.registry import Table

#: What becomes of a call that cannot be captured.
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
_WORDS: Mapping[str, tuple[str | None, ...]] = {
    "compile": (*COMPILE, None),
    "fallback": get_args(FallbackTo),
}


@contextlib.contextmanager
def defaults(**options: Unpack[Defaults]) -> Iterator[None]:
    """Options for the calls of `jit` in the block that do not say otherwise: `with sg.defaults(memory="lean"):`.

    Blocks nest, and hold in their own thread. What was jitted before a block keeps its options in it, and what was
    jitted in it keeps them afterwards.
    """
    check_options(options)
    if "executors" in options:
        order(installed(), options["executors"])
    token = _DEFAULTS.set({**_DEFAULTS.get(), **options})
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def with_defaults(jit: Callable[..., object]) -> Callable[..., object]:
    """`jit`, with what is in force for the options that a call does not give."""

    @functools.wraps(jit)
    def with_those_in_force(function: object = None, **options: object) -> object:
        return jit(function, **{**_from_environment(), **_DEFAULTS.get(), **options})

    return with_those_in_force


def check_options(options: Mapping[str, object], names: Sequence[str] = ()) -> None:
    """Raise `TypeError` for names that are none of `Defaults` or `names`, `ValueError` for words that mean nothing."""
    known = *names, *Defaults.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f", did you mean {close[0]}?" if close else ";"
        raise TypeError(
            f"sg.jit has no option {', '.join(unknown)}{hint} its options are {', '.join(known)}"
        )
    if "memory" in options:
        budget_of(options["memory"])
    for name, words in _WORDS.items():
        if name in options and options[name] not in words:
            kinds = ", ".join(map(repr, words))
            raise ValueError(f"{name} is one of {kinds}, not {options[name]!r}")


def executors_in(text: str) -> Executors:
    """A list of executors as it is written outside of Python: `first,...,-other`, or `auto`."""
    if text == "auto":
        return "auto"
    items = [item.strip() for item in text.split(",")]
    executors = [... if item == "..." else item for item in items]
    order(installed(), executors)
    return executors


def _word(name: str, text: str) -> str:
    check_options({name: text})
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("it is 1 or 0")
    return text == "1"


#: Variables of the environment that set an option, and how their text is read.
VARIABLES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "SWITCHGEAR_EXECUTORS": ("executors", executors_in),
    "SWITCHGEAR_MEMORY": ("memory", memory_in),
    COMPILE_VARIABLE: ("compile", functools.partial(_word, "compile")),
    "SWITCHGEAR_FALLBACK": ("fallback", functools.partial(_word, "fallback")),
    "SWITCHGEAR_CHECK": ("check", _flag),
}


def _from_environment() -> dict[str, object]:
    options = {}
    for variable, (name, read) in VARIABLES.items():
        text = os.environ.get(variable)
        if not text:
            continue
        try:
            options[name] = read(text)
        except ValueError as error:
            raise InvalidInput(f"{variable}={text} in the environment: {error}") from error
    return options

"""Options of `jit`: each is declared by the part that implements it, and checked against all.

Without an argument of `jit`, the innermost `defaults` decides, then the environment, then the declaration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from switchgear_core.errors import InvalidInput, RegistrationError, did_you_mean

#: The groups of options in `help(sg.jit)`, in order.
Group: TypeAlias = Literal["Decide first", "Tuning", "Debugging"]
GROUPS: tuple[Group, ...] = get_args(Group)


def _anything(value: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `jit`.

    Attributes:
        name: the keyword argument of `jit`.
        default: the value without any setting.
        help: what the values do, for `help(sg.jit)`.
        group: the place in `help(sg.jit)`.
        fits: whether a value is valid; may raise `InvalidInput`.
        values: a description of the valid values: "one of ...".
        words: words among the valid values, for hints at misspelt ones.
        variable: an environment variable for the option, if any.
        parse: the value of the variable's text; raises `ValueError` for others.
        is_for_one: whether `defaults` cannot set the option, which belongs to one function.
        implies: values of other options, if this one has another value than its default.
    """

    name: str
    default: object
    help: str
    group: Group = "Tuning"
    fits: Callable[[Any], bool] = _anything
    values: str = ""
    words: Sequence[str] = ()
    variable: str = ""
    parse: Callable[[str], object] = str
    is_for_one: bool = False
    implies: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.group not in GROUPS:
            raise RegistrationError(
                f"option {self.name!r} of group {self.group!r}: a name is an identifier, and a group one of {GROUPS}"
            )

    def check(self, value: object) -> None:
        """Check a value.

        Raises:
            InvalidInput: the value is invalid.
        """
        if not self.fits(value):
            words = self.words if isinstance(value, str) else ()
            raise InvalidInput(
                f"{self.name}={value!r} is not {self.values}{did_you_mean(value, words)}"
            )

    def from_text(self, text: str) -> object:
        """Return the value of the variable's text.

        Raises:
            InvalidInput: the text is invalid.
        """
        try:
            value = self.parse(text)
            self.check(value)
        except ValueError as error:
            raise InvalidInput(f"{self.variable}={text} in the environment: {error}") from error
        return value


def one_of(*words: str | bool | None) -> dict[str, Any]:
    """Return the fields of an option with the given values."""
    texts = [word for word in words if isinstance(word, str)]
    return {
        "fits": lambda value: value in words,
        "values": f"one of {', '.join(map(repr, words))}",
        "words": texts,
    }


def at_least(least: int) -> dict[str, Any]:
    """Return the fields of an option whose values are integers."""
    return {
        "fits": lambda value: type(value) is int and value >= least,
        "values": f"an integer of at least {least}",
    }


def instance(values: str, *kinds: type) -> dict[str, Any]:
    """Return the fields of an option with values of these classes."""
    return {"fits": lambda value: isinstance(value, kinds), "values": values}


def several(items: str, *kinds: type) -> dict[str, Any]:
    """Return the fields of an option whose values are lists of such items."""

    def fits(value: Any) -> bool:
        is_list = isinstance(value, Collection) and not isinstance(value, str)
        return is_list and all(isinstance(item, kinds) for item in value)

    return {"fits": fits, "values": f"a list of {items}"}


def flag(text: str) -> bool:
    """Return the value of a variable, 1 or 0."""
    if text not in ("0", "1"):
        raise ValueError("it is 1 or 0")
    return text == "1"


_DEFAULTS: ContextVar[Mapping[str, object]] = ContextVar("defaults", default=MappingProxyType({}))


@contextlib.contextmanager
def defaults_set(values: Mapping[str, object]) -> Iterator[None]:
    """Set defaults of the current thread for a block."""
    token = _DEFAULTS.set({**_DEFAULTS.get(), **values})
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def in_force(
    declared: Mapping[str, Option], values: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, object]:
    """Return all options of a call: its values, then those of `defaults`, the environment and the declarations.

    Raises:
        InvalidInput: a variable has an invalid text, or one option implies another value of a second.
    """
    texts = {
        name: environment[option.variable]
        for name, option in declared.items()
        if option.variable and environment.get(option.variable)
    }
    settings = {name: option.default for name, option in declared.items()}
    settings |= {name: declared[name].from_text(text) for name, text in texts.items()}
    settings |= {name: value for name, value in _DEFAULTS.get().items() if name in declared}
    settings |= values
    for option in declared.values():
        if not option.implies or settings[option.name] == option.default:
            continue
        for name, value in option.implies.items():
            if values.get(name) not in (None, value):
                raise InvalidInput(
                    f"{option.name} implies {name}={value!r}, and the call has {name}={values[name]!r}; leave one out"
                )
            settings[name] = value
    return settings


def check_options(
    declared: Mapping[str, Option], values: Mapping[str, object], *, for_one: bool = True
) -> None:
    """Check the names and values of options; without `for_one`, of those that `defaults` may set.

    Raises:
        TypeError: no part declares a name.
        InvalidInput: a value is invalid.
    """
    names = [name for name, option in declared.items() if for_one or not option.is_for_one]
    unknown = [name for name in values if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], names) or f"; its options are {', '.join(names)}"
        raise TypeError(f"sg.jit has no option {', '.join(unknown)}{hint}")
    for name, value in values.items():
        declared[name].check(value)

"""Every operator and module that `jit` refuses, or whose values are not eager's to the bit, each with its cause.

The tests hold this file to the letter: what it calls refused must raise just that error, what it does not name must be
equal to eager, and an entry for what works by now is itself a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchgear.errors import SwitchgearError
from tests.databases.comparison import Exactness, Undefined


@dataclass(frozen=True, slots=True)
class Refusal:
    """`error` is raised, for `reason`; `modes` names where ("" is everywhere), `partly`: for some samples only."""

    error: type[SwitchgearError]
    reason: str
    modes: str = ""
    partly: bool = False


REFUSED_OPERATORS: dict[str, Refusal] = {}

REFUSED_MODULES: dict[str, Refusal] = {}

_UNINITIALISED = Undefined("the result is memory as it was found")

INEXACT_OPERATORS: dict[str, Exactness] = {
    "empty": _UNINITIALISED,
    "empty_like": _UNINITIALISED,
    "empty_permuted": _UNINITIALISED,
    "empty_strided": _UNINITIALISED,
    "new_empty": _UNINITIALISED,
    "new_empty_strided": _UNINITIALISED,
}

INEXACT_MODULES: dict[str, Exactness] = {}

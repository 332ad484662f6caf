"""Answers of abstract base classes about other classes: registering a class can change an answer."""

from __future__ import annotations

import abc
from typing import Any


class ClassChecks(dict[tuple[type, type], bool]):
    """The answers of a capture, by class and base, checked again after any class has been registered."""

    _token: object = None

    def read(self, function: str, names: dict[str, Any]) -> None:
        """Record a call of a function of `_abc`, whose local variables are `names`."""
        bases, value, *_ = names.values()
        if function == "get_cache_token":  # the caller, `singledispatch`, may have cached its answer
            bases, kinds = names.get("registry", ()), {bases}
        elif function == "_abc_instancecheck":
            kinds = {type(value), value.__class__}
        elif function == "_abc_subclasscheck":
            kinds = {value}
        else:
            return
        for base in [bases] if isinstance(bases, type) else bases:
            self.update({(kind, base): issubclass(kind, base) for kind in kinds})

    def stay(self) -> bool:
        """Check whether the answers are unchanged."""
        token = abc.get_cache_token()
        if token != self._token:
            if any(issubclass(*classes) is not answer for classes, answer in self.items()):
                return False
            self._token = token
        return True

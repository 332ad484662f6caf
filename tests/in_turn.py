"""Tables of cases that one test goes through."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any


def in_turn(**cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: like `pytest.mark.parametrize`, in one test; a failure notes its case.

    For cases of a few milliseconds, so that a run of one parametrization of each test meets all of them.

    Args:
        **cases: the values of an argument; of several arguments, every combination. The names of arguments that go
            together are separated by two underscores.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        names = [name.split("__") for name in cases]
        own = {*itertools.chain.from_iterable(names)}

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for values in itertools.product(*cases.values()):
                arguments = dict(fixtures)
                for group, value in zip(names, values, strict=True):
                    arguments.update(zip(group, value if len(group) > 1 else (value,), strict=True))
                try:
                    test(**arguments)
                except BaseException as error:
                    error.add_note(f"in the case {repr(values)[:400]}")
                    raise

        parameters = [one for name, one in inspect.signature(test).parameters.items() if name not in own]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate

"""The seam of capture: handlers answer calls while a function is captured.

A feature is a set of handlers. The two doors of capture ask the handlers in the order of the list, and name none of
them. The features of Switchgear are in `features`; a plugin adds features by the hook `switchgear_features`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchgear_core.errors import RegistrationError, SwitchgearError, warn_once
from switchgear_core.record.call import Call, Operation
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import InputSource
from switchgear_core.record.user_code import raising_module, user_frame

#: Environment variable with the names of disabled features, separated by commas.
DISABLE_VARIABLE = "SWITCHGEAR_DISABLE_FEATURES"
#: Methods asked only about calls of `Handler.functions`, and notifications without an answer.
_BY_FUNCTION, _TOLD = ("take", "answer"), ("opened", "closing")


class _Pass:
    def __repr__(self) -> str:
        return "PASS"


#: Answer of a handler to a call left to others.
PASS: Any = _Pass()


class Handler:
    """Part of a feature. Each method is optional: only overridden methods are called.

    Handlers have no state of their own: `recorder.state(handler)` is the state that `begin` returned for a capture.
    """

    #: The functions whose calls `take` and `answer` handle; if empty, all functions.
    functions: frozenset[object] = frozenset()

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Enter a context around the outermost capture of a thread.

        Returns:
            The context.
        """
        return contextlib.nullcontext()

    def begin(self, recorder: Recorder) -> object:
        """Begin a capture.

        Args:
            recorder: the recorder of the capture.

        Returns:
            The state of the handler, for `recorder.state`.
        """
        return None

    def running(
        self, recorder: Recorder, roots: Sequence[object], arguments: Mapping[int, object]
    ) -> contextlib.AbstractContextManager[None]:
        """Enter a context while the function runs, once for every attempt to capture it.

        Args:
            recorder: the recorder of the attempt.
            roots: the function or module, and the modules and classes among its arguments.
            arguments: the objects among the arguments, by position.

        Returns:
            The context.
        """
        return contextlib.nullcontext()

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> InputSource | None:
        """Find a tensor that is neither an argument nor in a module.

        Args:
            recorder: the recorder of the capture.
            tensor: the tensor, as the function uses it.

        Returns:
            The path to the tensor for later calls, or None.
        """
        return None

    def finish(self, recorder: Recorder, result: object) -> Any:
        """End a capture; may add to `recorder.guards` and `recorder.after`.

        Args:
            recorder: the recorder of the capture.
            result: the function's result.

        Returns:
            The result to use in its place.
        """
        return result

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Answer a call before its tensors become inputs.

        Args:
            recorder: the recorder of the capture.
            call: the call; its tensors may be from outside.

        Returns:
            The result of the call, or `PASS`.

        Raises:
            Unsupported: the call cannot be captured.
        """
        return PASS

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Answer a call with tensors that are inputs or values; `call.args` may be changed.

        Args:
            recorder: the recorder of the capture.
            call: the call.

        Returns:
            The result of the call, or `PASS`.

        Raises:
            Unsupported: the call cannot be captured.
        """
        return PASS

    def opened(self, recorder: Recorder, call: Call) -> None:
        """Note the start of recording the parts of a call.

        Args:
            recorder: the recorder of the capture.
            call: the call; `operands` are set.
        """

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Rewrite the recorded parts of a call, or clear `call.is_unit`.

        Args:
            recorder: the recorder of the capture.
            call: the call; `lines` are its parts.
        """

    def operator(self, recorder: Recorder, call: Operation) -> Any:
        """Answer the call of an operator overload; `call.args` may be changed.

        Args:
            recorder: the recorder of the capture.
            call: the call, with fake tensors.

        Returns:
            The result of the call, or `PASS`.

        Raises:
            Unsupported: the call cannot be captured.
        """
        return PASS

    def by_data(self, recorder: Recorder, call: Operation, need: str) -> object:
        """Answer a call whose result depends on tensor data.

        Args:
            recorder: the recorder of the capture.
            call: the call, with fake tensors.
            need: the reason why data is needed, for messages.

        Returns:
            The result of the call, or `PASS`.

        Raises:
            DataDependent: the trace cannot hold the result.
        """
        return PASS


@dataclass(frozen=True, slots=True)
class Feature:
    """Feature of capture.

    Attributes:
        name: the name, as in `SWITCHGEAR_DISABLE_FEATURES`.
        handlers: the handlers, asked in this order.
        replaces: features, by name, that do the same worse; they are left out.
    """

    name: str
    handlers: tuple[Handler, ...]
    replaces: tuple[str, ...] = ()


def getter(attribute: str) -> Callable[..., object]:
    """Return the function seen by a function mode where an attribute of a tensor is read."""
    return getattr(torch.Tensor, attribute).__get__  # type: ignore[no-any-return]


class Handlers:
    """The handlers of a capture by method, in the order of the features.

    Raises:
        RegistrationError: two features name one function.
    """

    def __init__(self, features: Sequence[Feature] = ()) -> None:
        owners: dict[Any, str] = {}
        for feature in features:
            for function in {
                function for handler in feature.handlers for function in handler.functions
            }:
                other = owners.setdefault(function, feature.name)
                if other != feature.name:
                    raise RegistrationError(
                        f"the features {other} and {feature.name} both answer calls of {function!r}; leave one out "
                        f"with {DISABLE_VARIABLE}={feature.name}"
                    )
        self._owner = {
            handler: feature.name for feature in features for handler in feature.handlers
        }
        #: Bound methods by name and by called function; None stands for all functions that no handler names.
        self._at_doors: dict[str, dict[Any, list[Callable[..., object]]]] = {
            name: {function: self._methods_for(name, function) for function in (*owners, None)}
            for name in _BY_FUNCTION
        }
        for name in (*_TOLD, "operator", "by_data"):
            self._at_doors[name] = {None: [getattr(item, name) for item in self._overriding(name)]}

    @functools.cached_property
    def packages(self) -> tuple[str, ...]:
        """Prefixes, with a trailing dot, of the modules of the handlers."""
        modules = {type(handler).__module__ for handler in self._owner}
        return tuple({f"{name.rpartition('.')[0] or name}." for name in modules})

    def _methods_for(self, method: str, function: object) -> list[Callable[..., object]]:
        return [
            getattr(handler, method)
            for handler in self._overriding(method)
            if not handler.functions or function in handler.functions
        ]

    def _overriding(self, method: str) -> list[Handler]:
        return [
            handler
            for handler in self._owner
            if getattr(type(handler), method) is not getattr(Handler, method)
        ]

    @contextlib.contextmanager
    def entered(self, method: str, *args: object) -> Iterator[None]:
        """Enter the contexts of all handlers, `around` a capture or `running` the function, the first outermost."""
        with contextlib.ExitStack() as stack:
            for handler in self._overriding(method):
                stack.enter_context(getattr(handler, method)(*args))
            yield

    def source(self, recorder: Recorder, tensor: torch.Tensor) -> InputSource | None:
        """Return the first answer of a handler to how later calls find a tensor."""
        sources = (handler.source(recorder, tensor) for handler in self._overriding("source"))
        return next((source for source in sources if source is not None), None)

    def finish(self, recorder: Recorder, result: object) -> Any:
        """Return the result after every handler's `finish`."""
        for handler in self._overriding("finish"):
            try:
                result = handler.finish(recorder, result)
            except Exception as error:
                self._attribute(error, handler)
                raise
        return result

    def states(self, recorder: Recorder) -> dict[Handler, Any]:
        """Return the state of each handler at the beginning of a capture."""
        return {handler: handler.begin(recorder) for handler in self._overriding("begin")}

    def ask(self, method: str, recorder: Recorder, call: Call | Operation, *more: object) -> Any:
        """Call a method of each handler until one answers; `opened` and `closing` go to all handlers."""
        callback: Any = None
        by_function = self._at_doors[method]
        function = call.fn if type(call) is Call else None
        try:
            for callback in by_function.get(function, by_function[None]):
                answer = callback(recorder, call, *more)
                if answer is not PASS and method not in _TOLD:
                    return answer
        except Exception as error:
            self._attribute(error, callback.__self__)
            raise
        return PASS

    def _attribute(self, error: Exception, handler: Handler) -> None:
        """Add a note with the feature's name, if the handler's own code raised the error."""
        is_its = raising_module(error) == type(handler).__module__
        if not is_its or isinstance(error, SwitchgearError):
            return
        name = self._owner[handler]
        frame, _ = user_frame()
        where = f" for {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        error.add_note(
            f"raised by the feature {name}{where}; {DISABLE_VARIABLE}={name} leaves it out"
        )


def enabled(features: Sequence[Feature], others: Iterable[Feature] = ()) -> tuple[Feature, ...]:
    """Return the features not left out by the environment.

    Args:
        features: the features of a call.
        others: installed features of other calls, whose names are known, too.

    Raises:
        RegistrationError: two features have one name.
    """
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise RegistrationError(
                f"two features are called {name}; leave both out with {DISABLE_VARIABLE}={name}"
            )
    out = left_out(DISABLE_VARIABLE, itertools.chain(names, (feature.name for feature in others)))
    enabled = [feature for feature in features if feature.name not in out]
    replaced = {name for feature in enabled for name in feature.replaces}
    return tuple([feature for feature in enabled if feature.name not in replaced])


def left_out(variable: str, candidates: Iterable[str]) -> set[str]:
    """Return the names in a variable of the environment, and warn once about unknown names.

    `candidates` is read no further than needed.
    """
    listed_names = {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}
    names_seen = set[str]()
    names = iter(candidates)
    while not listed_names <= names_seen and (name := next(names, None)) is not None:
        names_seen.add(name)
    if unknown := listed_names - names_seen:
        missing, there = (", ".join(sorted(group)) for group in (unknown, names_seen))
        warn_once(f"{variable} names {missing}, which is not there (there are: {there})")
    return listed_names

"""Errors and warnings of Switchgear."""

from __future__ import annotations

import difflib
import functools
import sys
import threading
import warnings
from collections.abc import Iterable

from switchgear_core import own


class SwitchgearError(Exception):
    """Base class of all errors of Switchgear."""


class CaptureError(SwitchgearError):
    """Error of a function that cannot be captured as a trace.

    Args:
        args: the message.
        splits: whether TorchDynamo may split the function; False if the call, its tensors or its context are refused.
        final: whether the function is refused even if code of C or of PyTorch catches the error.
    """

    def __init__(self, *args: object, splits: bool = True, final: bool = False) -> None:
        super().__init__(*args)
        self.splits = splits
        self.final = final
        if CAPTURE_ERRORS.errors is not None:
            CAPTURE_ERRORS.errors.append(self)


class _Thread(threading.local):
    errors: list[CaptureError] | None = None


#: The capture errors of a thread, which code in the thread may catch.
CAPTURE_ERRORS = _Thread()


class Unsupported(CaptureError):
    """Error of a function, an argument or a result refused by capture."""


class DataDependent(CaptureError):
    """Error of a Python value or an output shape that depends on the values of a tensor."""


#: The reason why a call that needs data fails inside a grad rule or a backward.
NO_DATA_IN_RULES = (
    "a grad rule or a backward has no data while it is traced; use torch.where, "
    "or have the rule's checker decline such calls"
)


class InvalidInput(SwitchgearError, ValueError):
    """Error of an invalid option or argument of `jit`, `grad` or another function of Switchgear."""


class RegistrationError(SwitchgearError):
    """Error of a malformed registration, or of a collision with another owner's."""


class UnknownExecutor(SwitchgearError, ValueError):
    """Error of a name in an executor list that no installed executor has."""


class ExecutorUnavailable(SwitchgearError):
    """Error of a listed executor that cannot run here, under `strict=True`."""


class RuleError(SwitchgearError):
    """Error of a plugin's grad rule, skip rule, checker or pass that raised or returned something invalid."""


class NotDifferentiable(SwitchgearError):
    """Error of a bound symbol without grad rule, decomposition or PyTorch formula."""


class OtherDecisions(SwitchgearError):
    """Error of a file of decisions that cannot be repeated: program, executors or machine differ."""


class StrictError(SwitchgearError):
    """Error in place of a fallback, under `strict=True`."""


class InvalidTrace(SwitchgearError):
    """Error of a faulty trace, from the verifier."""


class ExecutorFailed(SwitchgearError):
    """Error of an executor whose implementation raised, or returned a wrong result, in a call."""


class PluginWarning(UserWarning):
    """Warning of a plugin failing to load, a skipped executor, or an unknown name in the environment."""


class CacheWarning(UserWarning):
    """Warning of an unusable cache folder: nothing is stored for other processes."""


class FallbackWarning(UserWarning):
    """Warning of a call that runs the original function, split by TorchDynamo or in eager mode.

    `reason` is the whole reason with the name of its error, of which the message shows three lines.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RecompileWarning(UserWarning):
    """Warning of more compilations of a jitted function than its recompile limit."""


class VersionWarning(UserWarning):
    """Warning of a newer PyTorch than the tested versions."""


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """Make a hint at the nearest name, to end a message with.

    Args:
        name: the unknown name.
        names: the names to choose from.

    Returns:
        The hint; empty if none is near.
    """
    candidates = {str(candidate): candidate for candidate in names}
    close = difflib.get_close_matches(str(name), candidates, n=1)
    return f"; did you mean {candidates[close[0]]!r}?" if close else ""


def warn(message: str) -> None:
    """Warn about plugins or the environment, at the line that calls Switchgear."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own.PREFIX):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PluginWarning, stacklevel=level)


#: The variant of `warn` for facts about the whole process: each message appears once.
warn_once = functools.cache(warn)

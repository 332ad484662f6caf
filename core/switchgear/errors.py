"""Every error and warning that Switchgear raises on purpose."""

from __future__ import annotations

import difflib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterable


class SwitchgearError(Exception):
    """Base of all errors of this package."""


class CaptureError(SwitchgearError):
    """The function could not be captured as a trace.

    `splits`: parts of it might be; not so where what is refused is the call, its tensors or what it stands in.
    `final`: the function is refused whoever catches this, C code and PyTorch's own included.
    """

    def __init__(self, *args: object, splits: bool = True, final: bool = False) -> None:
        super().__init__(*args)
        self.splits = splits
        self.final = final
        if CAPTURE_ERRORS.made is not None:
            CAPTURE_ERRORS.made.append(self)


class _Thread(threading.local):
    made: list[CaptureError] | None = None


#: Those made in a thread, which the code that runs there may catch.
CAPTURE_ERRORS = _Thread()


class Unsupported(CaptureError):
    """The function, an argument or a result is something that capture refuses rather than gets wrong."""


class DataDependent(CaptureError):
    """A Python value or an output shape depends on the data of a tensor."""


#: Why a call that needs data fails inside a grad rule or a backward.
NO_DATA_IN_RULES = (
    "a grad rule or a backward has no data while it is traced; use torch.where, "
    "or have the rule's checker decline such calls"
)


class InvalidInput(SwitchgearError, ValueError):
    """A module or an option of `jit`, or an argument of `grad`, is not what it has to be."""


class RegistrationError(SwitchgearError):
    """A registration is malformed, or collides with another owner's."""


class UnknownExecutor(SwitchgearError, ValueError):
    """A name in an executor list belongs to no installed executor."""


class ExecutorUnavailable(SwitchgearError):
    """Under `strict=True`: a listed executor cannot run here."""


class RuleError(SwitchgearError):
    """A grad rule, skip rule, checker or pass of a plugin raised, or returned something invalid."""


class NotDifferentiable(SwitchgearError):
    """No grad rule, decomposition or PyTorch formula differentiates a bound symbol."""


class OtherDecisions(SwitchgearError):
    """A file of decisions cannot be repeated: the program, who takes part or the machine differs."""


class StrictError(SwitchgearError):
    """Under `strict=True`: a fallback that would otherwise happen with a reason in the Choice."""


class InvalidTrace(SwitchgearError):
    """The verifier found a fault in a trace."""


class ExecutorFailed(SwitchgearError):
    """An executor's implementation raised while a compiled function ran."""


class PluginWarning(UserWarning):
    """A plugin failed to load, a listed executor is skipped, or a name in the environment is not there."""


class CacheWarning(UserWarning):
    """The folder of the cache on disk cannot be used, so nothing is kept for other processes."""


class FallbackWarning(UserWarning):
    """A call that capture refuses runs the original function, split by TorchDynamo or in eager.

    `reason` is the whole reason with the name of its error, of which the message shows three lines.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RecompileWarning(UserWarning):
    """A jitted function was compiled more often than its recompile limit."""


class VersionWarning(UserWarning):
    """PyTorch is newer than those that Switchgear was tested on."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a hint at the nearest of the `known` names, to end a message with; empty if none is near."""
    shown = {str(one): one for one in known}
    close = difflib.get_close_matches(str(name), shown, n=1)
    return f"; did you mean {shown[close[0]]!r}?" if close else ""


def warn(message: str) -> None:
    """Say something about plugins or the environment, at the line that calls this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PluginWarning, stacklevel=level)


#: The folder of this package, and of those whose names begin with its own.
_PACKAGE = os.path.dirname(__file__)
#: Say it once, where it holds for the process.
warn_once = functools.cache(warn)

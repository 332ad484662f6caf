"""Every error and warning that Switchgear raises on purpose."""

from __future__ import annotations

import functools
import threading
import warnings


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
    """A plugin failed to load, a listed executor is skipped, or what is left out is not there."""


class CacheWarning(UserWarning):
    """The folder of the cache on disk cannot be used, so nothing is kept for other processes."""


class FallbackWarning(UserWarning):
    """A call that capture refuses runs the original function, split by TorchDynamo or in eager."""


class RecompileWarning(UserWarning):
    """A jitted function was compiled more often than its recompile limit."""


class VersionWarning(UserWarning):
    """PyTorch is newer than those that Switchgear was tested on."""


@functools.cache
def warn_once(message: str) -> None:
    """Say something about plugins that holds for the process."""
    warnings.warn(message, PluginWarning, stacklevel=4)

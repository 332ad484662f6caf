"""Names for parts: plugins that take part in every call of `jit`.

An entry point of the group `switchgear.parts` names the module of a part:

from switchgear import parts

@sg.hookimpl
def switchgear_options():
    return [parts.Option("mine", 0, "the meaning of its values.", **parts.at_least(0))]

A part has options, front ends, a runtime, passes and features of capture; `selection.settings` holds the options of a
call. All hooks: `switchgear_core.registry.hookspecs`.
"""

from switchgear_core.direct import DirectFrontend, DirectRuntime
from switchgear_core.passes.programs import Programs
from switchgear_core.protocols import CapturedCall, Frontend, Runtime
from switchgear_core.registry.hookspecs import Building, Job
from switchgear_core.registry.options import Option, at_least, flag, instance, one_of, several
from switchgear_core.registry.savings import AS_EAGER, Problem, Saving, Savings

__all__ = [
    "AS_EAGER",
    "Building",
    "CapturedCall",
    "DirectFrontend",
    "DirectRuntime",
    "Frontend",
    "Job",
    "Option",
    "Problem",
    "Programs",
    "Runtime",
    "Saving",
    "Savings",
    "at_least",
    "flag",
    "instance",
    "one_of",
    "several",
]

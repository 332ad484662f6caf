"""Python state: attributes, globals, closures and containers read by a function are guarded, its writes repeated.

A part, with one feature of capture, `python_state`.
"""

from switchgear_core.record.handler import Feature
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_python_state.handler import PythonState

switchgear_priority = -50


@hookimpl
def switchgear_features() -> list[Feature]:
    """Return the feature; features of other plugins come first."""
    return [Feature("python_state", (PythonState(),), replaces=("conservative_state",))]

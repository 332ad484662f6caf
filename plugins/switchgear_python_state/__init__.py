"""Python state: attributes, globals, closures and containers that a function reads are guarded, its writes repeated.

A part, with one feature of capture, `python_state`.
"""

from switchgear_core.record.handler import Feature
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_python_state.handler import PythonState

switchgear_priority = -50


@hookimpl
def switchgear_features() -> list[Feature]:
    """Bring it; asked after the features of others."""
    return [Feature("python_state", (PythonState(),), replaces=("conservative_state",))]

"""The options implemented by the runtime. A part."""

from __future__ import annotations

from switchgear_core.registry.hookspecs import hookimpl
from switchgear_core.registry.options import Option, at_least, one_of, several

switchgear_priority = 90


@hookimpl
def switchgear_options() -> list[Option]:
    """Declare the options."""
    return [
        Option(
            "fallback",
            "split",
            'the fate of a call that cannot be captured, with one `FallbackWarning` for each reason. "split": '
            "TorchDynamo splits the function, its graphs are compiled, and the rest runs in eager mode. "
            '"eager": the original function runs. "error": the call raises `CaptureError`.',
            "Decide first",
            **one_of("split", "eager", "error"),
            variable="SWITCHGEAR_FALLBACK",
        ),
        Option(
            "methods",
            (),
            "names of a module's methods that are jitted, too.",
            **several("names, such as ['generate']", str),
            is_for_one=True,
        ),
        Option(
            "recompile_limit",
            8,
            "compilations before a `RecompileWarning` names the values that keep changing.",
            **at_least(0),
        ),
        Option(
            "cache_size",
            64,
            "compiled entries; the least recently used is dropped first.",
            **at_least(1),
        ),
        Option(
            "link",
            False,
            "print each backward line with its forward line and rule.",
            "Debugging",
            **one_of(True, False),
        ),
    ]

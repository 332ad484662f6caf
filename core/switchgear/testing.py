"""Names for tests of plugins: their implementations, grad rules, regions and passes, compared with PyTorch."""

from switchgear_tools.testing import (
    Failures,
    Sample,
    check_implementation,
    check_pass,
    check_plugin,
    check_region,
    check_rule,
)

__all__ = [
    "Failures",
    "Sample",
    "check_implementation",
    "check_pass",
    "check_plugin",
    "check_region",
    "check_rule",
]

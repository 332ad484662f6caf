"""Tests of plugins: their implementations, grad rules, regions and passes, compared with PyTorch.

    from switchgear import testing

    testing.check_implementation(executor, F.softplus)
    testing.check_rule(table, F.softplus)
    testing.check_region(executor, lambda x: (x * 2).sin(), torch.rand(3))
    testing.check_pass(placement, lambda x: x.sin(), torch.rand(3))
    testing.check_plugin("name")

Each raises `Failures`, an `AssertionError` that names operator, sample and line of every failure, with the expected and
the actual result. Samples are PyTorch's, or `samples=[testing.Sample(function, args, kwargs)]`, and variants of each:
dtypes, layouts, empty, without dimensions. `switchgear test NAME` runs `check_plugin` by pytest.
"""

from switchgear_tools.testing.checks import (
    Failures,
    check_implementation,
    check_pass,
    check_plugin,
    check_region,
    check_rule,
)
from switchgear_tools.testing.samples import Sample

__all__ = [
    "Failures",
    "Sample",
    "check_implementation",
    "check_pass",
    "check_plugin",
    "check_region",
    "check_rule",
]

"""The options implemented by the core: the participants of a call. A part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import NoneType

from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import PassPlacement, hookimpl
from switchgear_core.registry.options import Option, flag, instance, one_of, several
from switchgear_core.registry.order import Executors, order
from switchgear_core.registry.plugins import installed
from switchgear_core.registry.registry import Table

switchgear_priority = 100


def executors_in(text: str) -> Executors:
    """Return a list of executors from text outside of Python: `first,...,-other`, or `auto`."""
    if text == "auto":
        return "auto"
    items = [item.strip() for item in text.split(",")]
    executors = [... if item == "..." else item for item in items]
    order(installed(executors), executors)
    return executors


_PER_OPERATOR = instance("a dict", Mapping, NoneType)


@hookimpl
def switchgear_options() -> list[Option]:
    """Declare the options."""
    return [
        Option(
            "executors",
            "auto",
            "the executors, and plugins of rules, by name or as objects, the first asked first. With "
            '["torch"] results are bit-identical to eager mode. `...` stands for the default ones, "-name" leaves '
            'one out. "auto" is [...]: all that are installed, and each region goes to the fastest, as measured. '
            "None: all that are installed, by (priority, name), without measuring.",
            "Decide first",
            fits=lambda value: value is None or bool(value),
            values="a list with a name: use ['torch'], or leave it out for the default",
            variable="SWITCHGEAR_EXECUTORS",
            parse=executors_in,
        ),
        Option(
            "strict",
            False,
            "raise instead of falling back: for a call that cannot be captured, a listed executor that is "
            "unavailable, and a claimed forward that has no gradient.",
            "Decide first",
            **one_of(True, False),
        ),
        Option(
            "options",
            None,
            'options of single executors, by their names: `{"mine": {"fast": True}}`. They are the keyword '
            "arguments of the executor's class.",
            **_PER_OPERATOR,
        ),
        Option(
            "prefer",
            None,
            'executors that are asked first about single operators: `{F.softplus: "mine"}`. An operator is a '
            "function, or a name in a trace. Executors that fuse take leaves.",
            **_PER_OPERATOR,
        ),
        Option(
            "avoid",
            None,
            "executors that are not asked about single operators: "
            '`{"aten.mm.default": ["other"]}`.',
            **_PER_OPERATOR,
        ),
        Option(
            "grad_rules",
            None,
            "tables of grad rules for this function, or names of plugins with rules, asked before any executor.",
            **instance("a Table, a name, or a list of these", Table, Collection, NoneType),
        ),
        Option(
            "passes",
            (),
            'passes for this function, after those of plugins. "-name" leaves out a pass of a plugin or a part.',
            **several("sg.passes.PassPlacement or '-name'", PassPlacement, str),
        ),
        Option(
            "check",
            False,
            "compare every result of a plugin with PyTorch's operators, in every call. Slow.",
            "Debugging",
            **one_of(True, False),
            variable="SWITCHGEAR_CHECK",
            parse=flag,
        ),
        Option(
            "fuel",
            None,
            "the number of regions that are fused, the first ones; `switchgear bisect` finds the wrong one.",
            "Debugging",
            fits=_is_fuel,
        ),
    ]


def _is_fuel(value: object) -> bool:
    if not isinstance(value, Fuel):
        Fuel(value)  # type: ignore[arg-type]
    return True

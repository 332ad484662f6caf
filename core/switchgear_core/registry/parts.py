"""Parts: plugins that take part in every call of `jit`, named by entry points of the group `switchgear.parts`.

Capture and the runtime are parts, like those of strangers. Each is loaded apart: one that fails
leaves a `PluginWarning`, and the others go on without it. `SWITCHGEAR_DISABLE` leaves one out by its name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from switchgear_core import own
from switchgear_core.errors import InvalidInput
from switchgear_core.record.attempts import undoing
from switchgear_core.record.handler import Feature
from switchgear_core.registry.hookspecs import CHOSEN, DISTRIBUTIONS, PARTS, PROJECT, PassPlacement
from switchgear_core.registry.isolation import uncaptured
from switchgear_core.registry.options import Option
from switchgear_core.registry.plugin import (
    DISABLE_VARIABLE,
    PluginStatus,
    check_priorities,
    collected,
    distribution_of,
    label_of,
    manager_of,
    passes_of,
)
from switchgear_core.registry.plugins import LOADING, Candidate, candidates_of, installed
from switchgear_core.showing import Listing


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A loaded part: its hooks and their contents. Parts of higher `priority` are asked first."""

    name: str
    label: str
    priority: float
    hook: Any
    options: tuple[Option, ...]
    features: tuple[Feature, ...]
    passes: tuple[PassPlacement, ...]

    def ask(self, hook: str, **arguments: object) -> Any:
        """Return the answer of its implementation of a hook; None without one."""
        caller = getattr(self.hook, hook)
        if not caller.get_hookimpls():
            return None
        try:
            answer = caller(**arguments)
        except Exception as error:
            remedy = f"{DISABLE_VARIABLE}={self.name} leaves it out"
            error.add_note(f"raised by {hook} of part {self.label}; {remedy}")
            raise
        return answer if caller.spec.opts.get("firstresult") else answer[0]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts in the order of asking, and the statuses of all."""

    all: tuple[Part, ...] = ()
    report: tuple[PluginStatus, ...] = ()

    @property
    def options(self) -> Mapping[str, Option]:
        """The declared options by name."""
        return {option.name: option for part in self.all for option in part.options}

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features of capture, in the order of asking."""
        return tuple([feature for part in self.all for feature in part.features])

    @property
    def passes(self) -> tuple[PassPlacement, ...]:
        """The passes, in order."""
        return tuple([placement for part in self.all for placement in part.passes])

    def answers(self, hook: str, **arguments: object) -> Iterator[Any]:
        """Yield each answer to a hook other than None."""
        answers = (part.ask(hook, **arguments) for part in self.all)
        return (answer for answer in answers if answer is not None)

    def first(self, hook: str, **arguments: object) -> Any:
        """Return the first answer to a hook other than None, if any."""
        return next(self.answers(hook, **arguments), None)

    def only(self, hook: str, **arguments: object) -> Any:
        """Return the one answer to a hook other than None, if any.

        Raises:
            InvalidInput: several parts answer.
        """
        answers = {
            part.name: answer
            for part in self.all
            if (answer := part.ask(hook, **arguments)) is not None
        }
        if len(answers) > 1:
            raise InvalidInput(
                f"the parts {' and '.join(answers)} each answer {hook}, which one may: leave the others out with "
                f"{DISABLE_VARIABLE}={min(answers)}"
            )
        return next(iter(answers.values()), None)


@undoing
def installed_parts() -> Parts:
    """Return the parts of the current process."""
    with LOADING, uncaptured():
        return _loaded_once()


@functools.cache
def _loaded_once() -> Parts:
    return load_parts(entry_points(group=PARTS))


def load_parts(entries: Iterable[EntryPoint]) -> Parts:
    """Load the parts behind entry points. A failed load leaves a `PluginWarning`."""
    candidates = candidates_of(entries, _load)
    for candidate in candidates:
        candidate.load()
    # the options of Switchgear's own parts keep their names
    owners: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda item: not item.is_own):
        for option in candidate.plugin.options if candidate.plugin else ():
            owner = owners.setdefault(option.name, candidate.label)
            if owner != candidate.label:
                error = f"it declares option {option.name}, as part {owner} does; leave one out with {DISABLE_VARIABLE}"
                candidate.fault = "conflict", error
    for candidate in candidates:
        candidate.tell(candidate.fault)
    parts = [item.plugin for item in candidates if item.plugin is not None and item.fault is None]
    parts.sort(key=lambda part: (-part.priority, part.name))
    return Parts(tuple(parts), tuple([_status(candidate) for candidate in candidates]))


def _load(entry: EntryPoint) -> Part:
    module = entry.load()
    if distribution_of(entry)[0] in DISTRIBUTIONS:
        own.add(sys.modules[module.__name__.partition(".")[0]])
    manager = manager_of(module, entry.name, CHOSEN, PROJECT)
    label, priority = label_of(entry), getattr(module, "switchgear_priority", 0)
    check_priorities(priority)
    return Part(
        entry.name,
        label,
        priority,
        manager.hook,
        collected(manager, "switchgear_options", Option),
        collected(manager, "switchgear_features", Feature),
        passes_of(manager, label),
    )


def _status(candidate: Candidate[Part]) -> PluginStatus:
    status = candidate.fault or ("loaded", "")
    return PluginStatus(
        candidate.name,
        *distribution_of(candidate.entry),
        *status,
        notes=tuple(candidate.imported.notes),
        traceback=candidate.traceback,
    )


def plugin_report() -> Listing[PluginStatus]:
    """Return the state of each installed plugin and part.

    Returns:
        One record for each: loaded, unavailable, or failed with the reason.
    """
    return Listing((*installed().report, *installed_parts().report))

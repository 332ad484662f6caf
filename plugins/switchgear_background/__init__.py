"""Compiling in the background, and decisions in a file: a part.

Its options are `compile` and `decisions`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from switchgear_background.decisions import Decision, decided, note_lines, opened
from switchgear_background.jobs import Job, objection, resettled, settle
from switchgear_background.modes import COMPILE, COMPILE_VARIABLE, mode_in, mode_of
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_core.registry.options import Option, instance, one_of
from switchgear_core.registry.selection import Selection


@hookimpl
def switchgear_options() -> list[Option]:
    """Declare the options `compile` and `decisions`."""
    return [
        Option(
            "compile",
            None,
            'when regions are compiled. "background": in a worker process, while operators run; the program is '
            'exchanged between two calls, which may change the last bits. `sg.wait` waits for it. "now": before the '
            'first call returns. "never": only code on disk is used. None: `SWITCHGEAR_COMPILE`, else "background" '
            'if regions are measured, and "now" for an explicit list.',
            "Decide first",
            **one_of(*COMPILE, None),
            variable=COMPILE_VARIABLE,
        ),
        Option(
            "decisions",
            None,
            "a file of choices. If it does not exist, it is written: the executor of each region and line. If it "
            'exists, its choices are repeated, and one seed gives the same bits. Implies compile="now".',
            **instance("the path of a file", str, os.PathLike, NoneType),
            implies={"compile": "now"},
        ),
    ]


@hookimpl
def switchgear_defers(settings: Mapping[str, Any], is_measured: bool) -> bool:
    """Defer, unless regions are compiled now."""
    if settings.get("decisions") is not None:
        opened(settings["decisions"])  # a file of other content is refused at once
    return mode_in(settings, is_measured) != "now"


class Building:
    """A program whose regions are compiled elsewhere, or as decided."""

    def __init__(self, source: Trace, selection: Selection, boxed: bool) -> None:
        self._source, self._boxed = source, boxed
        self._decision: Decision | None
        self._base_selection, self._decision = decided(source, selection)
        self.selection, self._job = settle(source, self._base_selection, boxed)

    def job(self) -> Job | None:
        """Return the job that compiles the regions, again if their code has vanished."""
        answers = self.selection.answers
        if answers is None:
            return self._job
        return resettled(self._source, self._base_selection, self._boxed, answers)

    def finished(self, trace: Trace) -> None:
        """Note the executors of the lines, or compare them with the decision."""
        note_lines(self._source, trace, self.selection, self._decision)


@hookimpl
def switchgear_build(source: Trace, selection: Selection, boxed: bool) -> Building:
    """Decide which regions are compiled now."""
    return Building(source, selection, boxed)


@hookimpl
def switchgear_remarks(selection: Selection) -> Iterator[str]:
    """Yield lines for `explain`."""
    if mode_of(selection) == "background" and (reason := objection(selection)):
        yield f"regions were compiled before the first call returned: {reason}"
    file = selection.settings.get("decisions")
    if file is not None:
        how = "repeated from" if opened(file).repeats else "noted in"
        yield f"decisions: {how} {file}"

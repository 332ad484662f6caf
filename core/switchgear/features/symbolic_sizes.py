"""Symbolic sizes among the arguments of calls."""

from __future__ import annotations

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder
from switchgear.capture.sizes import active_sizes, settled


class SymbolicSizes(Handler):
    """What a trace cannot hold of them, such as truth values, is decided before the call."""

    def answer(self, recorder: Recorder, call: Call) -> object:
        """The call with the numbers that a trace holds."""
        if active_sizes() is not None and call.symbol is not None:
            call.args, call.kwargs = settled((call.args, call.kwargs))
        return PASS

"""Generators among the arguments of calls: a trace holds those that are arguments of the jitted function."""

from __future__ import annotations

import contextlib

import torch

from switchgear.frontend.seeding import seeding_refused
from switchgear.record.call import Call
from switchgear.record.handler import Handler
from switchgear.record.recorder import Recorder

#: Their shapes are found by decompositions of PyTorch's that refuse a generator.
_NO_GENERATOR_ON_META = frozenset({"exponential_", "cauchy_", "geometric_", "log_normal_"})


class Generators(Handler):
    """A call that is given a generator; what seeds a stream, or reads or sets its state, is refused."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """What seeds is replaced."""
        return seeding_refused()

    def opened(self, recorder: Recorder, call: Call) -> None:
        """Record it with the generator that the trace holds."""
        given = call.kwargs.get("generator")
        if not isinstance(given, torch.Generator):
            return
        generator = recorder.known_generator(given)
        call.given[1]["generator"] = generator
        if getattr(call.fn, "__name__", "") in _NO_GENERATOR_ON_META:
            call.generator = generator
            call.kwargs = call.kwargs | {"generator": None}

"""Generators among the arguments of calls: a trace holds the generators passed to the jitted function."""

from __future__ import annotations

import contextlib

import torch

from switchgear_core.record.call import Call
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder
from switchgear_frontend.seeding import seeding_refused

#: Functions whose shapes come from PyTorch decompositions that refuse a generator.
_NO_GENERATOR_ON_META = frozenset({"exponential_", "cauchy_", "geometric_", "log_normal_"})


class Generators(Handler):
    """Handler of calls with a generator; seeding a stream, or reading or setting its state, is refused."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Redirect seeding functions, to refuse them."""
        return seeding_refused()

    def opened(self, recorder: Recorder, call: Call) -> None:
        """Record the call with the generator of the trace."""
        argument = call.kwargs.get("generator")
        if not isinstance(argument, torch.Generator):
            return
        generator = recorder.known_generator(argument)
        call.operands[1]["generator"] = generator
        if getattr(call.fn, "__name__", "") in _NO_GENERATOR_ON_META:
            call.generator = generator
            call.kwargs = call.kwargs | {"generator": None}

"""Seeding inside: what seeds a random stream, or reads or sets its state, is refused."""

from __future__ import annotations

import contextlib

from switchgear.capture.handler import Handler
from switchgear.capture.seeding import seeding_refused


class Seeding(Handler):
    """Functions and methods that seed, read or set a stream."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """They are replaced by what refuses."""
        return seeding_refused()

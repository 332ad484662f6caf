"""Which recorder is at work on this thread, and which sizes are symbolic."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recorder import Recorder
    from .sizes import Sizes


class Active(threading.local):
    """One per thread."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.sizes: Sizes | None = None


ACTIVE = Active()

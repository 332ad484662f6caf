"""What is at work on this thread: which recorder, which sizes are symbolic, which modes matter."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchgear.capture.recorder import Recorder
    from switchgear.capture.sizes import Sizes


class Active(threading.local):
    """One per thread."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.sizes: Sizes | None = None
        #: Whether what is being compiled may depend on `torch_private.rare_modes`.
        self.rare_modes_matter = False


ACTIVE = Active()

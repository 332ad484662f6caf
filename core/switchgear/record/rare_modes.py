"""Whether what is being compiled on this thread may depend on `torch_private.rare_modes`."""

from __future__ import annotations

import threading


class RareModes(threading.local):
    """One per thread."""

    def __init__(self) -> None:
        self.matter = False


RARE_MODES = RareModes()

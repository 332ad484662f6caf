"""A flag per thread: whether the current compilation may depend on `torch_private.rare_modes`."""

from __future__ import annotations

import threading


class RareModes(threading.local):
    """The flag of a thread."""

    matter = False


RARE_MODES = RareModes()

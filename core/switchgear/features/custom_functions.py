"""Calls of `torch.autograd.Function`, which pass every mode by."""

from __future__ import annotations

import contextlib

from switchgear.capture.custom_functions import recorded_functions
from switchgear.capture.handler import Handler


class CustomFunctions(Handler):
    """The call becomes a composite named after the class, its own backward its gradient."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """`apply` is redirected."""
        return recorded_functions()

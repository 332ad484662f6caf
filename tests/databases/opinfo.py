"""PyTorch's databases. At every sample they search the whole stack for the unittest that asks: none of ours is one."""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo import core

__all__ = ["module_db", "op_db"]


def _no_unittest() -> None:
    return None


for module in (common_utils, core):
    vars(module)["extract_test_fn"] = _no_unittest

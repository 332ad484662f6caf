"""PyTorch's operator database, which its own tests are made of: sample inputs by operator."""

from __future__ import annotations

from typing import Any


def operator_database() -> list[Any]:
    """The entries; empty where PyTorch came without them, or without what they import."""
    try:
        from torch.testing._internal import (  # noqa: PLC0415  # takes seconds
            common_methods_invocations as database,
        )
    except ImportError:
        return []
    return [*database.op_db]

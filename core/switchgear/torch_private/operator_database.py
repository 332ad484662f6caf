"""PyTorch's operator database, which its own tests are made of: sample inputs by operator."""

from __future__ import annotations

from typing import Any

from switchgear.torch_private.names import value_of

#: Not among the names that calls need: `switchgear test` alone reads it, and asks for samples where it is missing.
DATABASE = "torch.testing._internal.common_methods_invocations.op_db"


def operator_database() -> list[Any]:
    """The entries; empty where PyTorch came without them, or without what they import."""
    try:
        return [*value_of(DATABASE)]
    except (AttributeError, ImportError):
        return []

"""PyTorch's operator database, which its own tests are made of: sample inputs by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchgear.torch_private.names import value_of

#: Not among the names that calls need: `switchgear test` alone reads it, and asks for samples where it is missing.
DATABASE = "torch.testing._internal.common_methods_invocations"


def operator_database() -> list[Any]:
    """The entries; empty where PyTorch came without them, or without what they import.

    Those of random operators seed in every call, which capture refuses: from now on, that is left to the caller.
    """
    try:
        database = value_of(DATABASE)
    except (AttributeError, ImportError):
        return []
    database.wrapper_set_seed = _without_seeding
    return [*database.op_db]


def _without_seeding(op: Callable[..., object], *args: object, **kwargs: object) -> Any:
    return op(*args, **kwargs)

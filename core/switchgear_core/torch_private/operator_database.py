"""PyTorch's operator database, the source of its own tests: sample inputs by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from switchgear_core.torch_private.names import value_of

#: Not among the names needed by calls: only `switchgear test` reads the database, or asks for samples without it.
DATABASE = "torch.testing._internal.common_methods_invocations"


def operator_database() -> list[Any]:
    """Return the entries; empty if PyTorch came without the database, or without its imports.

    Entries of random operators seed in every call, which capture refuses: from now on, the caller seeds.
    """
    try:
        database = value_of(DATABASE)
    except (AttributeError, ImportError):
        return []
    database.wrapper_set_seed = _without_seeding
    return [*database.op_db]


def _without_seeding(op: Callable[..., object], *args: object, **kwargs: object) -> Any:
    return op(*args, **kwargs)

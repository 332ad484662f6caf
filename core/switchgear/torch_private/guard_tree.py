"""PyTorch's guards on Python objects, checked in C++: a tree that follows attributes, items and elements."""

from __future__ import annotations

import sys
from typing import Any

from switchgear.torch_private.names import private, value_of

#: From Python 3.13 on the version of an instance's `__dict__` does not tell of its attributes.
HAS_INLINE_VALUES = sys.version_info >= (3, 13)
RootGuardManager: Any = private("torch._C._dynamo.guards.RootGuardManager")


def guard_root() -> Any:
    """An empty tree; `check(value)` says whether a value meets it."""
    return RootGuardManager()


def guard_child(parent: Any, access: str, key: Any, value: Any) -> Any:
    """The node below `parent` of what lies at `key`: a "tuple" or "list" element, a "dict" item, an "attribute"."""
    # PyTorch refuses any other object than a member of this enumeration, which lies in what imports Dynamo
    plain = value_of("torch._dynamo.guards.GuardManagerType").GUARD_MANAGER
    method = {
        "tuple": parent.tuple_getitem_manager,
        "list": parent.list_getitem_manager,
        "dict": parent.dict_getitem_manager,
        "attribute": parent.getattr_manager,
    }[access]
    return method(key, f"[{key!r}]", value, plain)

"""PyTorch's Python pytrees, to flatten and unflatten nested containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchgear_core.torch_private.names import private

if TYPE_CHECKING:
    from torch.utils._pytree import SUPPORTED_NODES as SUPPORTED_NODES
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_unflatten as tree_unflatten
else:
    SUPPORTED_NODES = private("torch.utils._pytree.SUPPORTED_NODES")
    TreeSpec = private("torch.utils._pytree.TreeSpec")
    tree_flatten = private("torch.utils._pytree.tree_flatten")
    tree_unflatten = private("torch.utils._pytree.tree_unflatten")

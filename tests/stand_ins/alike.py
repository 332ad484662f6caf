"""What differs in two results of one call on tensors of equal data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tests.oracle import Exactness, differences

#: Compared by their text, which is all of them.
_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device, torch.layout, type, slice)


def differ(left: Any, right: Any, exactness: Exactness = None) -> str:
    """Return what differs, or an empty string; of other types than those named here, only the type is compared.

    Values of tensors may differ as `exactness` says.
    """
    if type(left) is not type(right):
        return f"{type(left).__name__} is not {type(right).__name__}: {left!r:.60} is not {right!r:.60}"
    if isinstance(left, torch.Tensor):
        is_dense = left.layout is torch.strided and not left.is_quantized and left.device.type == "cpu"
        return next(differences(left, right, "result", exactness), "") if is_dense else ""
    if isinstance(left, np.ndarray | np.generic) and left.dtype != object:
        same = (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
        return "" if same else f"{left!r:.60} is not {right!r:.60}"
    if isinstance(left, torch.UntypedStorage | torch.TypedStorage | np.ndarray):
        values: Any = left.tolist()  # type: ignore[no-untyped-call]
        return differ(values, right.tolist(), exactness)
    if isinstance(left, _PLAIN):
        return "" if repr(left) == repr(right) else f"{left!r:.60} is not {right!r:.60}"
    if isinstance(left, Mapping):
        left, right = [*left.items()], [*right.items()]
    if isinstance(left, Iterator):
        left, right = [*left], [*right]
    if isinstance(left, list | tuple):
        if len(left) != len(right):
            return f"{len(left)} items are not {len(right)}"
        return next(filter(None, (differ(*pair, exactness) for pair in zip(left, right, strict=True))), "")
    return ""

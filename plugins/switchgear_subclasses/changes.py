"""Changes of tensors of subclasses that no call repeats."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from switchgear_core.errors import Unsupported
from switchgear_subclasses.shells import REMEMBERED, has_shell


def shelled_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors with shells in a nest of tuples, lists and dicts, which may contain itself."""
    pending, parts_by_id = [value], dict[int, object]()
    while pending:
        part = pending.pop()
        if id(part) not in parts_by_id:
            parts_by_id[id(part)] = part
            if has_shell(part):
                yield part  # type: ignore[misc]
            elif isinstance(part, (tuple, list)):
                pending += part
            elif isinstance(part, dict):
                pending += dict.values(part)


#: The attributes of tensors with shells.
Attributes = list[tuple[torch.Tensor, dict[str, object]]]


def attributes_of(tensor: torch.Tensor) -> Attributes:
    """Return the attributes of a tensor with a shell."""
    return [(tensor, _attributes(tensor))]


def _attributes(tensor: torch.Tensor) -> dict[str, object]:
    # PyTorch remembers the sizes that a class computes
    return {name: value for name, value in vars(tensor).items() if name not in REMEMBERED}


def refuse_changes(before: Attributes, result: object) -> None:
    """Refuse a function that changes or returns a tensor with a shell, which stands for another one of the user."""
    for tensor, attributes in before:
        after = _attributes(tensor)
        if after.keys() != attributes.keys() or any(after[k] is not v for k, v in attributes.items()):
            raise Unsupported(
                f"the function assigns an attribute of a {type(tensor).__qualname__}; make a new tensor",
                splits=False,
            )
    ids = {id(tensor) for tensor, _ in before}
    if any(id(tensor) in ids for tensor in shelled_in(result)):
        raise Unsupported(
            "the function returns a tensor of a subclass that it gets from outside; return a new one",
            splits=False,
        )

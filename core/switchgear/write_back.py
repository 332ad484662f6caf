"""Writes through views, as functionalization brings them back to the base: made exact where it is not, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .aliasing import in_place_twin, viewed_argument
from .errors import Unsupported
from .nesting import tensors_in
from .proxy import TensorProxy
from .shared_memory import overlap_in_part, overlaps_itself
from .symbol import GRAD_OFF_INSIDE, RANDOM, SAVED, BoundSymbol, renamed
from .torch_internals import storage_key
from .writes import IN_PLACE, RESTRIDE, SET_VALUE, WRITE_STRIDED, WRITTEN_VIEW

_aten = torch.ops.aten
#: What brings a write through a view back to its base.
_INVERSES = (
    _aten.slice_scatter.default,
    _aten.select_scatter.default,
    _aten.diagonal_scatter.default,
    _aten.as_strided_scatter.default,
)
#: What an assignment to an index calls.
_ASSIGNMENTS = (_aten.copy.default, _aten.fill.Tensor, _aten.fill.Scalar, _aten.index_put.default)


def through_view(
    recorded: list[BoundSymbol], base: TensorProxy, target: TensorProxy, inside: bool, fresh: Callable[[], str]
) -> list[BoundSymbol]:
    """What a call recorded that wrote to a view of `base`, reading both through a call of `WRITTEN_VIEW`.

    The view is `target`, or if `inside`, one that the call made of it. Where it is told otherwise, nothing changes.
    """
    if any(item.symbol in (SET_VALUE, WRITTEN_VIEW) for item in recorded):
        return recorded
    views = {target.name}
    #: Made again of the base, which was written to before.
    again: set[str] = set()
    for place, item in enumerate(recorded):  # noqa: B007
        viewed = viewed_argument(item)
        if viewed is None:
            given = item.args[0] if item.args and isinstance(item.args[0], TensorProxy) else base
            told = item.symbol.fn in _ASSIGNMENTS if inside else _same_layout(given, target)
            if given.name in views or (given.name in again and told):
                break
            continue
        made = {proxy.name for proxy in item.outputs}
        views |= made if inside and viewed.name in views else set()
        again |= made if viewed.name == base.name or viewed.name in again else set()
    else:
        return recorded
    view, after = item.args[0], recorded[place:]
    if view.name == base.name or not view.requires_grad:
        return recorded
    rest, part = replace(base, name=fresh()), replace(view, name=fresh())
    reader = next((one for one in after if not _is_unread_copy(one, after)), item)
    tags = item.tags - {RANDOM, SAVED}
    split = replace(
        item, symbol=WRITTEN_VIEW, args=(base, view), kwargs={}, output=(rest, part), subsymbols=(), tags=tags
    )

    def redirected(item: BoundSymbol) -> BoundSymbol:
        viewed = viewed_argument(item)
        if item is reader and item.args[:1] == (view,):
            # an operand that is the same view is read as it was, and has a gradient of its own
            return replace(item, args=(part, *item.args[1:]))
        if viewed is None:
            env = {view.name: part} | ({base.name: rest} if _writes_back(item) else {})
        else:
            written_to = viewed.name == base.name and all(_only_written_to(proxy, after) for proxy in item.outputs)
            env = {base.name: rest} if written_to else {}
        return renamed(item, env)

    return [*recorded[:place], split, *_at_each_level([redirected(item) for item in after], rest, fresh)]


def _at_each_level(recorded: list[BoundSymbol], base: TensorProxy, fresh: Callable[[], str]) -> list[BoundSymbol]:
    """A write to a view of views of `base`, with these read through a call of `WRITTEN_VIEW`, each and its base."""
    found: list[BoundSymbol] = []
    now = {base.name: base}
    overwritten = {item.args[0].name for item in recorded if _writes_back(item)}
    for line in recorded:
        item = renamed(line, now)
        found.append(item)
        viewed, made = viewed_argument(line), line.output
        if viewed is None or viewed.name not in now or not isinstance(made, TensorProxy):
            continue
        if made.name not in overwritten:
            continue
        outputs = tuple([replace(one, name=fresh()) for one in (viewed, made)])
        args, tags = (now[viewed.name], made), item.tags - {RANDOM, SAVED}
        found.append(replace(item, symbol=WRITTEN_VIEW, args=args, kwargs={}, output=outputs, subsymbols=(), tags=tags))
        now |= dict(zip((viewed.name, made.name), outputs, strict=True))
    return found


def _same_layout(one: TensorProxy, other: TensorProxy) -> bool:
    """Whether two views of a base are of the same elements."""
    return (one.shape, one.stride, one.storage_offset) == (other.shape, other.stride, other.storage_offset)


def with_casts(recorded: list[BoundSymbol]) -> list[BoundSymbol]:
    """What an in-place call recorded, its operator and the cast to what it writes to as one.

    Autograd sees one call, so an argument of a wider dtype gets a gradient that was computed in the narrower one.
    """
    found: list[BoundSymbol] = []
    for item in recorded:
        before = found[-1] if found else item
        if item.symbol.fn is _aten._to_copy.default and before.is_leaf and item.args[0] == before.output:
            (value, *others), dtype = before.args, item.output.dtype
            twin = in_place_twin(before.symbol.fn)
            wider = any(proxy.requires_grad and proxy.dtype != dtype for proxy in before.inputs)
            if twin is not None and wider and isinstance(value, TensorProxy) and value.dtype == dtype:
                tags, parts = before.tags | {GRAD_OFF_INSIDE}, (before, item)
                found[-1] = replace(
                    before,
                    symbol=IN_PLACE,
                    args=(value, str(twin).removeprefix("aten."), *others),
                    output=item.output,
                    subsymbols=parts,
                    tags=tags,
                )
                continue
        found.append(item)
    return found


def without_copies(recorded: list[BoundSymbol]) -> list[BoundSymbol]:
    """What an in-place call of lazily conjugated numbers recorded, with no copy of its result into a copy of these.

    Autograd sees one call, and what is overwritten gets no gradient of zeros.
    """
    makers = {proxy.name: item for item in recorded for proxy in item.outputs}

    def direct(item: BoundSymbol) -> BoundSymbol:
        if item.symbol.fn is not _aten.copy.default:
            return item
        overwritten, value = (makers.get(proxy.name) for proxy in item.inputs[:2])
        cloned = overwritten is not None and overwritten.symbol.fn is _aten.clone.default
        computed = value is not None and in_place_twin(value.symbol.fn) is not None
        if cloned and computed and item.args[1].type_string == item.output.type_string:
            return replace(item, symbol=RESTRIDE, args=(item.args[1], item.output.stride), kwargs={}, subsymbols=())
        return item

    return [direct(item) for item in recorded]


def _is_unread_copy(item: BoundSymbol, recorded: Sequence[BoundSymbol]) -> bool:
    """Whether a call copies what nothing reads then: of an operand that is also written to."""
    return item.symbol.fn is _aten.clone.default and not any(item.output in other.inputs for other in recorded)


def _writes_back(item: BoundSymbol) -> bool:
    return item.symbol == WRITE_STRIDED or item.symbol.fn in _INVERSES


def _only_written_to(proxy: TensorProxy, recorded: list[BoundSymbol]) -> bool:
    """Whether all that is done to a value is to write a part of it."""
    readers = [item for item in recorded if proxy in item.inputs]
    return bool(readers) and all(
        item.args[1] != proxy
        if _writes_back(item)
        else _is_or_copies_view(item) and all(_only_written_to(made, recorded) for made in item.outputs)
        for item in readers
    )


def _is_or_copies_view(item: BoundSymbol) -> bool:
    """Whether a call makes a view, or computes what a view that is lazily conjugated or negated holds."""
    copies = item.symbol.fn is _aten.clone.default and (item.inputs[0].is_conj or item.inputs[0].is_neg)
    return copies or viewed_argument(item) is not None


def is_in_place(name: str) -> bool:
    """Whether a torch-level function of that name writes to its first argument."""
    return name.startswith("__i") or name == "__setitem__" if name.endswith("__") else name.endswith("_")


class WriteBack:
    """Watches the overloads that one call dispatches which writes to a tensor.

    Through `expand` PyTorch gives the base the value `base + sum_to(written - base)`. Where nothing is expanded that is
    what was written, in the shape of the base; where there is no element, the base. Refused are other views that have
    several elements in one place: eager refuses those of `expand`, and writes to others in an order of its own.
    """

    def __init__(self, here: Callable[[], str], target: torch.Tensor | None) -> None:
        self._here = here
        #: What is written to, if it is not the first argument: `out`.
        self._target = target
        self._base: torch.Tensor | None = None
        self._unexpanded = False

    def replaced(self, func: Any, args: tuple[Any, ...], is_new: Callable[[torch.Tensor], bool]) -> Any:
        """What takes the place of a call's result; None where the call is recorded. `is_new`: the write made it."""
        if func is _aten.unfold_backward.default:
            self._refuse("made by unfold")
        if func not in _INVERSES:
            self._refuse_overlap([*tensors_in(args)])
        if func is _aten.as_strided_scatter.default and overlaps_itself(args[0].as_strided(*args[2:])):
            self._refuse("several elements of which are in one place (as after as_strided)")
        if func is _aten.sub.Tensor and isinstance(args[1], torch.Tensor) and is_new(args[0]):
            written, self._base = args
            self._unexpanded = written.shape[written.dim() - self._base.dim() :] == self._base.shape
            self._unexpanded &= written.numel() == self._base.numel()
            if written.numel() and not self._unexpanded:
                self._refuse("several elements of which are in one place (as after expand)")
            return written
        if self._base is None:
            return None
        if func is _aten.add.Tensor and args[0] is self._base:
            self._base = None
            return args[1] if self._unexpanded else args[0]
        if self._unexpanded:
            return args[0] if func is _aten.sum.dim_IntList else None
        return func(*args)

    def _refuse_overlap(self, tensors: list[torch.Tensor]) -> None:
        """Eager refuses such a write where it can tell, and else the result depends on the order of its loops."""
        target = self._target if self._target is not None else next(iter(tensors), None)
        for tensor in tensors:
            if target is not None and storage_key(tensor) == storage_key(target) and overlap_in_part(tensor, target):
                raise Unsupported(
                    f"a write to a tensor whose memory overlaps that of another argument in part, in {self._here()}: "
                    "what is read may have been overwritten by then; read a clone"
                )

    def _refuse(self, what: str) -> None:
        raise Unsupported(
            f"a write through a view {what}, in {self._here()}: it cannot be made functional; write to a clone"
        )

"""Tracking: the value of each wrapper under capture, and writes unseen by autograd.

Such a write to an input (`no_grad`, `detach()`, `.data`) becomes the symbol `set_value(old, new)`: the value of `new`,
the history of `old`. The tracker finds it by comparing value and `grad_fn` of every tensor in every call. Autograd's
`requires_grad` is compared with the trace's own; a disagreement is an error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import Symbol
from switchgear_core.ir.writes import NEW_LEAF, RESTRIDE, SET_VALUE, restride
from switchgear_core.record.inputs import Inputs, RecordedInput
from switchgear_core.record.tape import Tape
from switchgear_core.record.values import Values

DETACH = Symbol("aten.detach.default", torch.ops.aten.detach.default)
_AS_IT_IS = contextlib.nullcontext()
_UNSEEN = object()


def history_of(tensor: torch.Tensor) -> object:
    """Return the autograd history of a tensor, for comparison by `same_history`."""
    if not tensor.requires_grad:
        return None
    try:
        return (tensor.grad_fn, tensor.output_nr)
    except (RuntimeError, IndexError):
        # autograd refuses to answer, and saw nothing: a view made under no_grad whose base was written to, or whose
        # base has become too small by a reshape in place
        return _UNSEEN


def same_history(left: object, right: object) -> bool:
    """Check whether two results of `history_of` are the same history."""
    return left is _UNSEEN or right is _UNSEEN or left == right


def is_spoiled(tensor: torch.Tensor) -> bool:
    """Check whether autograd refuses to answer about a tensor: a view whose base was written to."""
    return history_of(tensor) is _UNSEEN


def has_no_past(tensor: torch.Tensor) -> bool:
    """Check whether a tensor has no autograd history."""
    history = history_of(tensor)
    return history is None or (isinstance(history, tuple) and history[0] is None)


def version_of(tensor: torch.Tensor) -> int:
    """Return how many writes to a tensor's memory autograd has seen; 0 for inference tensors, which have no version."""
    return 0 if tensor.is_inference() else tensor._version


@dataclass(slots=True, eq=False)
class Tracked:
    """The last known state of a wrapper: the fake that it stood for, its autograd history and its version."""

    wrapper: torch.Tensor
    fake: torch.Tensor
    history: object
    is_base: bool
    version: int


@dataclass(slots=True)
class Writes:
    """The writes seen so far."""

    #: Storage keys of values written to a tensor.
    memory: set[int] = field(default_factory=set)
    #: Names of inputs that were written to unseen by autograd.
    unseen: set[str] = field(default_factory=set)
    #: Names of values that were overwritten without a new version of the tensor: through `.data`.
    hidden: set[str] = field(default_factory=set)
    #: Results of `.data`, by id: each counts its own versions.
    data_tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Views, by id, whose base was reshaped in place later, or written to unseen by autograd.
    outdated: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Views, by id, through which an operator wrote; True until their next use, which recreates them, as in eager.
    late: dict[int, bool] = field(default_factory=dict)
    #: Whether functionalization may recreate views before they are read.
    remakes_views: bool = False
    #: Whether sizes or strides of any tensor were changed in place.
    reshapes: bool = False

    def outdate_views(self, base: torch.Tensor, tracked: Iterable[Tracked]) -> None:
        """Note that the views of a tensor are outdated."""
        views = [one.wrapper for one in tracked if one.wrapper._base is base]
        self.outdated.update((id(view), view) for view in views)


class Wrappers:
    """The last known states of all wrappers."""

    def __init__(self, tape: Tape, values: Values) -> None:
        self.values = values
        self.writes = Writes()
        self._tape = tape
        self._tracked: dict[int, Tracked] = {}
        self.bases: dict[int, list[Tracked]] = {}
        #: The first wrapper of each value, by the value's name.
        self._holders: dict[str, torch.Tensor] = {}

    def __contains__(self, wrapper: torch.Tensor) -> bool:
        return id(wrapper) in self._tracked

    def last_fake(self, wrapper: torch.Tensor) -> torch.Tensor:
        """Return the fake that a wrapper stood for when last seen."""
        return self._tracked[id(wrapper)].fake

    def fake_of(self, wrapper: torch.Tensor) -> torch.Tensor:
        """Return the fake that a wrapper stands for now."""
        tracked = self._tracked.get(id(wrapper))
        # a view recreated from its base keeps its autograd state, whatever the current grad mode
        is_tracked = tracked is not None and wrapper.requires_grad and not torch.is_grad_enabled()
        with torch.enable_grad() if is_tracked and not has_no_past(wrapper) else _AS_IT_IS:
            return internals.unwrap(wrapper)

    def current_proxy(self, wrapper: torch.Tensor) -> TensorProxy:
        """Return the proxy of the fake that a wrapper stands for now; pending writes stay unrecorded."""
        return self.values.proxy_of(self.fake_of(wrapper))

    def counts_apart(self, wrapper: torch.Tensor) -> bool:
        """Check whether a wrapper is a result of `.data`, or a view of one, with its own versions."""
        return not self.writes.data_tensors.keys().isdisjoint((id(wrapper), id(wrapper._base)))

    def is_overwritten(self, proxy: TensorProxy) -> bool:
        """Check whether the tensor that first held a value has been written to since."""
        holder = self._holders.get(proxy.name)
        if holder is None:
            return False
        key = internals.storage_key
        return key(self.fake_of(holder)) != key(self.values.fake_of(proxy))

    def rebind(self, wrapper: torch.Tensor, fake: torch.Tensor, *, aliases: bool) -> None:
        """Make a wrapper, and its aliases, stand for another value."""
        internals.rebind(wrapper, fake, aliases=aliases)
        self.writes.remakes_views |= aliases

    def refuse_outdated(self, wrapper: torch.Tensor) -> None:
        """Refuse a view of a base reshaped in place later, if its history cannot be recreated for the new shape."""
        if id(wrapper) in self.writes.outdated and wrapper.requires_grad:
            raise Unsupported(
                f"in {self._tape.here()} a view is used of a tensor that changed since: its sizes or strides in place, "
                "as by transpose_(), or its values where autograd does not see it; make the view after the change",
                splits=False,  # TorchDynamo moves the write into a transform of torch.func
            )

    def _has_holder(self, proxy: TensorProxy, wrapper: torch.Tensor) -> bool:
        """Check whether another wrapper stands for `proxy`, without requires_grad: `x` and `x.data`."""
        return self._holders.get(proxy.name, wrapper) is not wrapper and not wrapper.requires_grad

    def restrided(
        self, wrapper: torch.Tensor, stride: tuple[int, ...], commit: bool
    ) -> torch.Tensor:
        """Give the value written to a wrapper the former strides of the wrapper."""
        new = self.values.proxy_of(self.fake_of(wrapper))
        make = functools.partial(restride, stride=stride)
        return self._record(wrapper, RESTRIDE, (new, stride), make, new.requires_grad, commit)

    def _record_alias(
        self, wrapper: torch.Tensor, symbol: Symbol, args: tuple[object, ...], commit: bool = False
    ) -> torch.Tensor:
        make, requires_grad = torch.Tensor.detach, wrapper.requires_grad
        return self._record(wrapper, symbol, args, make, requires_grad, commit)

    def _record(
        self,
        wrapper: torch.Tensor,
        symbol: Symbol,
        args: tuple[object, ...],
        make: Callable[[torch.Tensor], torch.Tensor],
        requires_grad: bool,
        commit: bool,
    ) -> torch.Tensor:
        """Record a call that gives a wrapper another fake; with `commit` its aliases follow."""
        with self._tape.paused(), internals.outside_autograd():
            fake = make(internals.unwrap(wrapper))
        self._tape.record(symbol, args, self.values.define(fake, requires_grad))
        self.rebind(wrapper, fake, aliases=commit)
        if not commit:
            return fake
        # a view reshaped in place is recreated at once
        with torch.enable_grad() if requires_grad else _AS_IT_IS:
            return internals.unwrap(wrapper)

    def _refuse_views(self, wrapper: torch.Tensor) -> None:
        key = internals.storage_key(wrapper)
        others = [tracked.wrapper for tracked in self._tracked.values()]
        if any(internals.storage_key(other) == key for other in others if other is not wrapper):
            raise Unsupported(
                f"detach_() inside a jitted function, in {self._tape.here()}, of a tensor that has views; "
                "use detach()"
            )


class Tracker(Wrappers):
    """Tracker that brings the trace, and the known state of each wrapper, up to date.

    `follow_autograd`: detect writes unseen by autograd, and compare its requires_grad with the trace's own.
    """

    def __init__(self, tape: Tape, values: Values, inputs: Inputs, follow_autograd: bool) -> None:
        super().__init__(tape, values)
        self._inputs = inputs
        self.follow_autograd = follow_autograd
        #: While the writes of an operator are recorded: whether its line carries the history of the written values.
        self.carries_history: bool | None = None

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """Return the proxy of a wrapper's current value."""
        self.reconcile(tensor)
        return self.values.proxy_of(internals.unwrap(tensor))

    def wrapper_for(
        self, proxy: TensorProxy, *, leaf: bool = True, autograd: bool = False
    ) -> torch.Tensor:
        """Return a wrapper for `proxy`; under `autograd` requiring grad if the proxy does."""
        with self._tape.paused(), internals.DisableTorchFunction():
            wrapper = internals.wrap(self.values.fake_of(proxy))
            if autograd and proxy.requires_grad:
                if leaf:
                    wrapper.requires_grad_()
                else:
                    internals.make_non_leaf(wrapper)
            self.track(wrapper)
        return wrapper

    def settle(self) -> None:
        """Bring the trace up to date with every pending write."""
        with internals.DisableTorchFunction():
            for tracked in tuple(self._tracked.values()):
                self.reconcile(tracked.wrapper)

    def reconcile_bases(self, target: torch.Tensor) -> None:
        """Set the value of every other autograd base of the storage, after a write."""
        for tracked in tuple(self.bases.get(internals.storage_key(target), ())):
            self.reconcile(tracked.wrapper)

    def make_again(self, view: torch.Tensor, base: torch.Tensor) -> None:
        """Recreate a view from its base, just before a write to the base."""
        self.rebind(base, self.fake_of(base), aliases=True)
        self._tracked[id(view)].fake = self.fake_of(view)

    def track(self, wrapper: torch.Tensor) -> None:
        """Start tracking a wrapper."""
        internals.hide_memory(wrapper)
        first = internals.unwrap(wrapper, synchronise=False)
        fake = internals.unwrap(wrapper)
        if self.follow_autograd:
            if first is not fake and first in self.values and _share_memory(first, fake):
                # a view made after a write to its base was recreated at once, from the base and not from another view
                internals.rebind(wrapper, first, aliases=False)
                fake = first
            proxy = self.values.proxy_of(fake)
            if proxy.requires_grad > wrapper.requires_grad or self._has_holder(proxy, wrapper):
                # `x.data` shares the fake of `x` and none of its history
                self.writes.data_tensors[id(wrapper)] = wrapper
                fake = self._record_alias(wrapper, DETACH, (proxy,))
            elif wrapper.requires_grad and not proxy.requires_grad and has_no_past(wrapper):
                fake = self._record_alias(wrapper, NEW_LEAF, (proxy,))
            self._compare(fake, wrapper)
        tracked = Tracked(
            wrapper, fake, history_of(wrapper), not wrapper._is_view(), version_of(wrapper)
        )
        self._tracked[id(wrapper)] = tracked
        self._holders.setdefault(self.values.proxy_of(fake).name, wrapper)
        if tracked.is_base:
            self.bases.setdefault(internals.storage_key(wrapper), []).append(tracked)

    def reconcile(self, wrapper: torch.Tensor, *, is_used: bool = False) -> None:
        """Bring the trace up to date with writes to a wrapper since it was last seen, before or after a use."""
        tracked = self._tracked.get(id(wrapper))
        if tracked is None:
            self.track(wrapper)
            return
        if self.writes.late.get(id(wrapper)):
            if not is_used:
                return
            self.writes.late[id(wrapper)] = False
        fake = self.fake_of(wrapper)
        if not self.follow_autograd:
            tracked.fake = self._kept_history(tracked, fake)
            return
        proxy = self.values.proxy_of(fake)
        if fake is not tracked.fake or wrapper.requires_grad != proxy.requires_grad:
            if is_used:
                self._refuse_transposed(tracked, fake)
            self._follow(tracked, fake)

    def _kept_history(self, tracked: Tracked, fake: torch.Tensor) -> torch.Tensor:
        """Return the fake of a wrapper in a grad rule after a write of `fake`, seen by autograd or not."""
        old, new = self.values.proxy_of(tracked.fake), self.values.proxy_of(fake)
        if not old.requires_grad or new.requires_grad or old.shape != new.shape:
            return fake
        return self._record_alias(tracked.wrapper, SET_VALUE, (old, new), tracked.is_base)

    def _follow(self, tracked: Tracked, fake: torch.Tensor) -> None:
        """Make a wrapper stand for `fake` from now on, with the history from autograd."""
        wrapper, entry = tracked.wrapper, self._inputs.of(tracked.wrapper)
        old = self.values.proxy_of(tracked.fake)
        is_written = not _share_memory(fake, tracked.fake)
        if is_written:
            fake = self._note_write(tracked, old, fake)
        new = self.values.proxy_of(fake)
        history = history_of(wrapper)
        # a written view gets a new history, even if autograd did not see the write
        lost = wrapper.requires_grad and not new.requires_grad
        unseen = new is not old and (lost or same_history(history, tracked.history))
        unseen &= not (self.carries_history and new.requires_grad)
        begins = new is old and has_no_past(wrapper) and entry is None
        if unseen and wrapper.requires_grad:
            fake = self._set_value(tracked, entry, old, new, is_written)
        elif new is not old and ((unseen and new.requires_grad) or self._has_holder(new, wrapper)):
            fake = self._record_alias(wrapper, DETACH, (new,))
        elif begins:
            if not wrapper.requires_grad:
                self._refuse_views(wrapper)
            fake = self._record_alias(
                wrapper, NEW_LEAF if wrapper.requires_grad else DETACH, (new,)
            )
        self._compare(fake, wrapper)
        tracked.fake, tracked.history, tracked.version = fake, history, version_of(wrapper)
        new = self.values.proxy_of(fake)
        self._holders.setdefault(new.name, wrapper)
        if begins or (new.shape, new.stride, new.dtype) != (old.shape, old.stride, old.dtype):
            self.writes.outdate_views(wrapper, self._tracked.values())

    def _refuse_transposed(self, tracked: Tracked, fake: torch.Tensor) -> None:
        """Refuse a transposed view of a tensor that was written to later.

        Autograd would go back through its strides: gradients have another layout in memory, and sums round differently.
        """
        if is_transposed(fake) and tracked.wrapper.requires_grad and not tracked.is_base:
            raise Unsupported(
                f"in {self._tape.here()} a transposed view is used of a tensor that was written to since the view was "
                "made; make the view again"
            )

    def _note_write(self, tracked: Tracked, old: TensorProxy, fake: torch.Tensor) -> torch.Tensor:
        """Return the fake of a wrapper after a write of `fake`, with the former strides and bits."""
        wrapper, new = tracked.wrapper, self.values.proxy_of(fake)
        with internals.DisableTorchFunction():
            bits = new.is_conj > wrapper.is_conj() or new.is_neg > wrapper.is_neg()
        if new.shape == old.shape and (new.stride != old.stride or bits):
            # a write keeps strides and bits; the functional operator may not
            fake = self.restrided(wrapper, old.stride, tracked.is_base)
        self.writes.memory.add(internals.storage_key(fake))
        self.writes.remakes_views = True
        aliases = self.bases.get(internals.storage_key(wrapper), ())
        if len(aliases) > 1 and version_of(wrapper) == tracked.version:
            self.writes.hidden.add(old.name)
        return fake

    def _set_value(
        self,
        tracked: Tracked,
        entry: RecordedInput | None,
        old: TensorProxy,
        new: TensorProxy,
        is_written: bool,
    ) -> torch.Tensor:
        """Record a write, unseen by autograd, to an input requiring grad."""
        wrapper, here = tracked.wrapper, self._tape.here
        if new.shape != old.shape:
            raise Unsupported(
                f"in {here()} the sizes of a tensor that requires grad ({old.name}) are changed in "
                "place where autograd does not see it; make a view instead",
                splits=False,  # TorchDynamo would continue with the old sizes
            )
        if entry is None and self.carries_history is None:
            raise Unsupported(
                f"in {here()} a tensor that requires grad and is no input ({old.name}) was written "
                "to where autograd does not see it (no_grad, .data or detach()); write to a clone, or make a new "
                "tensor",
                splits=False,  # TorchDynamo loses the history of `x.data.copy_(x)`
            )
        if entry and not is_written and entry.tensor._is_view() and not wrapper._is_view():
            raise Unsupported(
                f"in {here()} the sizes or strides of {entry.proxy.name}, an input that is itself a "
                "view, are changed in place where autograd does not see it; make a view instead"
            )
        fake = self._record_alias(wrapper, SET_VALUE, (old, new), tracked.is_base)
        if entry is not None:
            self.writes.unseen.add(entry.proxy.name)
        if self.carries_history is None:
            self.writes.outdate_views(wrapper, self._tracked.values())
        return fake

    def _compare(self, fake: torch.Tensor, wrapper: torch.Tensor) -> None:
        """Raise `Unsupported` where autograd and the trace disagree."""
        proxy = self.values.proxy_of(fake)
        if proxy.requires_grad == wrapper.requires_grad:
            return
        raise Unsupported(
            f"in {self._tape.here()} autograd says requires_grad={wrapper.requires_grad} where the trace says "
            f"requires_grad={proxy.requires_grad} ({proxy.name}): a change of requires_grad inside a jitted function, "
            "or a write through an alias that autograd does not connect, is not supported; make it outside, "
            "or on a clone"
        )


def is_detached(tracker: Tracker, wrapper: torch.Tensor) -> bool:
    """Check whether a wrapper has no gradient, but shares memory with a tensor with a gradient."""
    others = tracker.bases.get(internals.storage_key(wrapper), ())
    return not wrapper.requires_grad and any(tracked.wrapper.requires_grad for tracked in others)


def is_transposed(tensor: torch.Tensor) -> bool:
    """Check whether the dimensions of a tensor have another order than in memory."""
    strides = [n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    return strides != sorted(strides, reverse=True)


def _share_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    return internals.storage_key(left) == internals.storage_key(right)

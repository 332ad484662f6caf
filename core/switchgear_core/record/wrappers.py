"""The wrappers of a program under capture: the fake that each stood for when last seen, and its history."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import Symbol
from switchgear_core.ir.writes import RESTRIDE, restride
from switchgear_core.record.history import has_no_past
from switchgear_core.record.tape import Tape
from switchgear_core.record.values import Values

_AS_IT_IS = contextlib.nullcontext()


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
    apart: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Views, by id, whose base was reshaped in place later, or written to unseen by autograd.
    outdated: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Whether functionalization may recreate views before they are read.
    remakes_views: bool = False
    #: Whether sizes or strides of any tensor were changed in place.
    reshapes: bool = False


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

    def counts_apart(self, wrapper: torch.Tensor) -> bool:
        """Check whether a wrapper is a result of `.data`, or a view of one, with its own versions."""
        return not self.writes.apart.keys().isdisjoint((id(wrapper), id(wrapper._base)))

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

    def _outdate_views(self, base: torch.Tensor) -> None:
        wrappers = [tracked.wrapper for tracked in self._tracked.values()]
        self.writes.outdated.update((id(view), view) for view in wrappers if view._base is base)

    def _refuse_views(self, wrapper: torch.Tensor) -> None:
        key = internals.storage_key(wrapper)
        others = [tracked.wrapper for tracked in self._tracked.values()]
        if any(internals.storage_key(other) == key for other in others if other is not wrapper):
            raise Unsupported(
                f"detach_() inside a jitted function, in {self._tape.here()}, of a tensor that has views; "
                "use detach()"
            )

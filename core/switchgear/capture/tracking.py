"""Tracking: which proxy each tensor of a program under capture stands for, and the writes that autograd did not see.

Such a write to an input (`no_grad`, `detach()`, `.data`) is the symbol `set_value(old, new)`: the value of `new`, the
history of `old`. It is found by comparing value and `grad_fn` of every tensor in every call. What autograd says of
`requires_grad` is compared with the trace's own; a disagreement is an error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.gradients_inside import NEW_LEAF
from switchgear.errors import Unsupported
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import Symbol
from switchgear.ir.writes import RESTRIDE, SET_VALUE, restride

if TYPE_CHECKING:
    from switchgear.capture.recorder import RecordedInput, Recorder

DETACH = Symbol("aten.detach.default", torch.ops.aten.detach.default)


@dataclass(slots=True, eq=False)
class _Tracked:
    """What was last known of a wrapper: the fake it stood for, its autograd history and its version."""

    wrapper: torch.Tensor
    fake: torch.Tensor
    history: Any
    is_base: bool
    version: int


class Tracker:
    """Fakes and wrappers by identity, and what was last known of each wrapper."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._fakes: dict[str, torch.Tensor] = {}
        self._tracked: dict[int, _Tracked] = {}
        self._bases: dict[int, list[_Tracked]] = {}
        #: The wrapper that stood for a value first, by the value's name.
        self._holders: dict[str, torch.Tensor] = {}
        #: The memory of values that were written to a tensor.
        self._written: set[int] = set()
        #: Whether functionalization may make views anew before they are read.
        self.remakes_views = False
        #: Views, by id, of what was reshaped in place since, or written to where autograd did not see it.
        self._outdated: dict[int, torch.Tensor] = {}

    def __contains__(self, wrapper: torch.Tensor) -> bool:
        return id(wrapper) in self._tracked

    def knows(self, fake: torch.Tensor) -> bool:
        """Whether a fake stands for a recorded value."""
        return id(fake) in self._proxies

    def last_fake(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The fake that a wrapper stood for when it was last seen."""
        return self._tracked[id(wrapper)].fake

    def rebind(self, wrapper: torch.Tensor, fake: torch.Tensor, *, aliases: bool) -> None:
        """Let a wrapper, and its aliases, stand for another value."""
        internals.rebind(wrapper, fake, aliases=aliases)
        self.remakes_views |= aliases

    def is_written(self, fake: torch.Tensor) -> bool:
        """Whether a fake is in memory that was written to."""
        return internals.storage_key(fake) in self._written

    def settle(self) -> None:
        """Bring the trace up to date with every pending write."""
        with torch._C.DisableTorchFunction():
            for tracked in tuple(self._tracked.values()):
                self.reconcile(tracked.wrapper)

    def wrapper_for(
        self, proxy: TensorProxy, *, leaf: bool = True, autograd: bool = False
    ) -> torch.Tensor:
        """A wrapper that stands for `proxy`; under `autograd` it requires grad if the proxy does."""
        with self._recorder.paused(), torch._C.DisableTorchFunction():
            fake = self._fakes.get(proxy.name)
            if fake is None:
                fake = proxy.fake(self._recorder.fake_mode)
                self.know(fake, proxy)
            wrapper = internals.wrap(fake)
            if autograd and proxy.requires_grad:
                make_differentiable = (
                    torch.Tensor.requires_grad_ if leaf else internals.make_non_leaf
                )
                make_differentiable(wrapper)
            self.track(wrapper)
        return wrapper

    def proxy_of(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of what a wrapper stands for now."""
        self.reconcile(tensor)
        return self.proxy_of_fake(internals.unwrap(tensor))

    def rename(self, proxy: TensorProxy, renamed: TensorProxy) -> None:
        """Call what was recorded as `proxy` by another name from now on."""
        fake = self._fakes.pop(proxy.name)
        self.know(fake, renamed)
        self._fakes[renamed.name] = fake

    def know(self, fake: torch.Tensor, proxy: TensorProxy) -> None:
        """Let a fake be what `proxy` stands for."""
        self._proxies[id(fake)] = (fake, proxy)
        self._fakes.setdefault(proxy.name, fake)

    def fake_of(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The fake that a wrapper stands for now."""
        tracked = self._tracked.get(id(wrapper))
        # made anew of its base, a view is what it was to autograd, whatever the grad mode is by now
        known = tracked is not None and wrapper.requires_grad and not torch.is_grad_enabled()
        with torch.enable_grad() if known and not _is_leaf(wrapper) else contextlib.nullcontext():
            return internals.unwrap(wrapper)

    def proxy_of_fake(self, fake: torch.Tensor) -> TensorProxy:
        """The proxy that stands for a fake."""
        known = self._proxies.get(id(fake))
        if known is None:
            raise Unsupported(
                f"a tensor appeared that no recorded operator made, in {self._recorder.here()}; "
                "tensor subclasses and tensors made behind PyTorch's dispatcher cannot be captured"
            )
        return known[1]

    def new_proxy(
        self, fake: torch.Tensor, requires_grad: bool, name: str | None = None
    ) -> TensorProxy:
        """The proxy of a fake that an operator made, a new one unless the operator returned an argument."""
        if not self.knows(fake):
            self.know(
                fake, metadata_proxy(name or self._recorder.names.fresh(), fake, requires_grad)
            )
        return self.proxy_of_fake(fake)

    def new_gradient(self, wrapper: torch.Tensor) -> TensorProxy:
        """The proxy of a gradient that PyTorch computed unrecorded."""
        if not internals.is_wrapper(wrapper):
            raise Unsupported(f"a gradient that is no strided tensor, in {self._recorder.here()}")
        fake = internals.unwrap(wrapper)
        if self.knows(fake):
            with self._recorder.paused(), internals.outside_autograd():
                fake = fake.detach()
            internals.rebind(wrapper, fake, aliases=False)
        return self.new_proxy(fake, False)

    def track(self, wrapper: torch.Tensor) -> None:
        """Take note of a wrapper that has not been seen before."""
        made = internals.unwrap(wrapper, synchronise=False)
        fake = internals.unwrap(wrapper)
        if self._recorder.follow_autograd:
            if (
                made is not fake
                and self.knows(made)
                and internals.storage_key(made) == internals.storage_key(fake)
            ):
                # a view made after a write to its base was at once made again, of the base and not of another view
                internals.rebind(wrapper, made, aliases=False)
                fake = made
            proxy = self.proxy_of_fake(fake)
            if proxy.requires_grad > wrapper.requires_grad or self._stands_for_another(
                proxy, wrapper
            ):
                # `x.data` shares the fake of `x` and none of its history
                fake = self._record_alias(wrapper, DETACH, (proxy,), False)
            elif wrapper.requires_grad and not proxy.requires_grad and _is_leaf(wrapper):
                fake = self._record_alias(wrapper, NEW_LEAF, (proxy,), False)
            self._compare(fake, wrapper)
        tracked = _Tracked(
            wrapper, fake, history_of(wrapper), not wrapper._is_view(), version_of(wrapper)
        )
        self._tracked[id(wrapper)] = tracked
        self._holders.setdefault(self.proxy_of_fake(fake).name, wrapper)
        if tracked.is_base:
            self._bases.setdefault(internals.storage_key(wrapper), []).append(tracked)

    def _stands_for_another(self, proxy: TensorProxy, wrapper: torch.Tensor) -> bool:
        """Whether another wrapper stands for `proxy` already, where neither requires grad: `x` and `x.data`."""
        return self._holders.get(proxy.name, wrapper) is not wrapper and not wrapper.requires_grad

    def _record_alias(
        self, wrapper: torch.Tensor, symbol: Symbol, args: tuple[Any, ...], commit: bool
    ) -> torch.Tensor:
        return self._record_made(
            wrapper, symbol, args, commit, torch.Tensor.detach, wrapper.requires_grad
        )

    def _record_made(
        self,
        wrapper: torch.Tensor,
        symbol: Symbol,
        args: tuple[Any, ...],
        commit: bool,
        make: Callable[[torch.Tensor], torch.Tensor],
        requires_grad: bool,
    ) -> torch.Tensor:
        """Record a call that gives a wrapper another fake to stand for; with `commit` its aliases follow."""
        with self._recorder.paused(), internals.outside_autograd():
            fake = make(internals.unwrap(wrapper))
        output = self.new_proxy(fake, requires_grad)
        self._recorder.record(symbol, args, output)
        self.rebind(wrapper, fake, aliases=commit)
        if not commit:
            return fake
        # one that was reshaped in place is at once made again
        with torch.enable_grad() if requires_grad else contextlib.nullcontext():
            return internals.unwrap(wrapper)

    def reconcile(self, wrapper: torch.Tensor) -> None:
        """Bring the trace up to date with writes to a wrapper since it was last seen."""
        tracked = self._tracked.get(id(wrapper))
        if tracked is None:
            self.track(wrapper)
            return
        fake = self.fake_of(wrapper)
        if not self._recorder.follow_autograd:
            tracked.fake = fake
            return
        if fake is tracked.fake and wrapper.requires_grad == self.proxy_of_fake(fake).requires_grad:
            return
        new, old = self.proxy_of_fake(fake), self.proxy_of_fake(tracked.fake)
        written = internals.storage_key(fake) != internals.storage_key(tracked.fake)
        with torch._C.DisableTorchFunction():
            bits = new.is_conj > wrapper.is_conj() or new.is_neg > wrapper.is_neg()
        found = self._recorder.input_of(wrapper)
        if written and new.shape == old.shape and (new.stride != old.stride or bits):
            # a write keeps strides and bits, the functional operator in its place need not
            make, args = functools.partial(restride, stride=old.stride), (new, old.stride)
            fake = self._record_made(
                wrapper, RESTRIDE, args, tracked.is_base, make, new.requires_grad
            )
            new = self.proxy_of_fake(fake)
        if written:
            self._refuse_repeated(found)
            self._written.add(internals.storage_key(fake))
            self.remakes_views = True
        aliases = self._bases.get(internals.storage_key(wrapper), ())
        if written and len(aliases) > 1 and version_of(wrapper) == tracked.version:
            self._recorder.hidden.add(old.name)
        history = history_of(wrapper)
        # a view that is written to gets a new history, also where autograd did not see the write
        lost = wrapper.requires_grad and not new.requires_grad
        unseen = new is not old and (lost or same_history(history, tracked.history))
        begun = False
        if unseen and wrapper.requires_grad:
            if new.shape != old.shape:
                raise Unsupported(
                    f"in {self._recorder.here()} the sizes of a tensor that requires grad ({old.name}) are changed in "
                    "place where autograd does not see it; make a view instead"
                )
            if (
                found is not None
                and not written
                and found.tensor._is_view()
                and not wrapper._is_view()
            ):
                raise Unsupported(
                    f"in {self._recorder.here()} the sizes or strides of {found.proxy.name}, an input that is itself a "
                    "view, are changed in place where autograd does not see it; make a view instead"
                )
            if found is None:
                raise Unsupported(
                    f"in {self._recorder.here()} a tensor that requires grad and is no input ({old.name}) was written "
                    "to where autograd does not see it (no_grad, .data or detach()); write to a clone, or make a new "
                    "tensor"
                )
            fake = self._record_alias(wrapper, SET_VALUE, (old, new), tracked.is_base)
            self._recorder.unseen.add(found.proxy.name)
            self._outdate_views(wrapper)
        elif new is not old and (
            (unseen and new.requires_grad) or self._stands_for_another(new, wrapper)
        ):
            fake = self._record_alias(wrapper, DETACH, (new,), False)
        elif new is old and _is_leaf(wrapper) and found is None:
            begun = True
            if not wrapper.requires_grad:
                self._refuse_views(wrapper)
            fake = self._record_alias(
                wrapper, NEW_LEAF if wrapper.requires_grad else DETACH, (new,), False
            )
        self._compare(fake, wrapper)
        tracked.fake, tracked.history, tracked.version = fake, history, version_of(wrapper)
        new = self.proxy_of_fake(fake)
        self._holders.setdefault(new.name, wrapper)
        if (new.shape, new.stride, new.dtype) != (old.shape, old.stride, old.dtype) or begun:
            self._outdate_views(wrapper)

    def _refuse_repeated(self, written: RecordedInput | None) -> None:
        if written is not None and self._recorder.inside_region:
            raise Unsupported(
                f"in {self._recorder.here()} {written.proxy.name}, an input or a buffer, is written to inside a region "
                "of torch.utils.checkpoint; eager's backward runs the region, and so the write, once more (running "
                "statistics count a batch twice): move the write, such as a BatchNorm in training, out of the region"
            )

    def _outdate_views(self, base: torch.Tensor) -> None:
        views = [
            tracked.wrapper for tracked in self._tracked.values() if tracked.wrapper._base is base
        ]
        self._outdated.update((id(view), view) for view in views)

    def refuse_outdated(self, wrapper: torch.Tensor) -> None:
        """Refuse a view of what was reshaped in place since, if its history cannot be made again of the new shape."""
        if id(wrapper) in self._outdated and wrapper.requires_grad:
            raise Unsupported(
                f"in {self._recorder.here()} a view is used of a tensor that was given other sizes or strides in place "
                "(as by transpose_()) since the view was made, or written to where autograd does not see it; make the "
                "view again"
            )

    def _refuse_views(self, wrapper: torch.Tensor) -> None:
        key = internals.storage_key(wrapper)
        others = (
            tracked.wrapper for tracked in self._tracked.values() if tracked.wrapper is not wrapper
        )
        if any(internals.storage_key(other) == key for other in others):
            raise Unsupported(
                f"detach_() inside a jitted function, in {self._recorder.here()}, of a tensor that has views; "
                "use detach()"
            )

    def reconcile_bases(self, written: torch.Tensor) -> None:
        """After a write, set the value of every other autograd base that shares the storage."""
        for tracked in tuple(self._bases.get(internals.storage_key(written), ())):
            self.reconcile(tracked.wrapper)

    def _compare(self, fake: torch.Tensor, wrapper: torch.Tensor) -> None:
        """Raise where autograd and the trace disagree."""
        proxy = self.proxy_of_fake(fake)
        if proxy.requires_grad == wrapper.requires_grad:
            return
        raise Unsupported(
            f"in {self._recorder.here()} autograd says requires_grad={wrapper.requires_grad} where the trace says "
            f"requires_grad={proxy.requires_grad} ({proxy.name}): a change of requires_grad inside a jitted function, "
            "or a write through an alias that autograd does not connect, is not supported; make it outside, "
            "or on a clone"
        )


_UNSEEN = object()


def history_of(tensor: torch.Tensor) -> object:
    """What autograd knows of a tensor's past, for comparison by `same_history`."""
    if not tensor.requires_grad:
        return None
    try:
        return (tensor.grad_fn, tensor.output_nr)
    except (RuntimeError, IndexError):
        # a view made under no_grad whose base was written to, or that the base has no room for since it was reshaped:
        # autograd refuses to say, and saw nothing
        return _UNSEEN


def is_spoiled(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses to speak of a tensor, a view whose base was written to."""
    return history_of(tensor) is _UNSEEN


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd knows of no past."""
    history = history_of(tensor)
    return history is None or (isinstance(history, tuple) and history[0] is None)


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd has seen a tensor's memory written to; 0 for inference tensors, which do not say."""
    return 0 if tensor.is_inference() else tensor._version


def same_history(left: object, right: object) -> bool:
    """Whether two answers of `history_of` are the same past."""
    return left is _UNSEEN or right is _UNSEEN or left == right


def metadata_proxy(name: str, tensor: torch.Tensor, requires_grad: bool) -> TensorProxy:
    """A proxy with the metadata of a tensor."""
    layout = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
    with torch._C.DisableTorchFunction():  # of a function under capture it would be refused
        offset: Any = tensor.storage_offset()
    return TensorProxy(name, *layout, requires_grad, offset, tensor.is_conj(), tensor.is_neg())

"""Tracking: which proxy each tensor of a program under capture stands for, and the writes that autograd did not see."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from . import torch_internals as internals
from .errors import Unsupported
from .proxy import TensorProxy
from .symbol import Symbol
from .trace import Names
from .writes import SET_VALUE

_DETACH = Symbol("aten.detach.default", torch.ops.aten.detach.default)


@dataclass(slots=True)
class _Tracked:
    """What was last known of a wrapper: the fake it stood for, and its autograd history."""

    wrapper: torch.Tensor
    fake: torch.Tensor
    history: Any
    is_base: bool


class Host(Protocol):
    """What tracking needs of the recorder.

    `follow_autograd`: find writes that autograd did not see, and compare its requires_grad with the trace's own.
    """

    names: Names
    fake_mode: internals.FakeMode
    follow_autograd: bool

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Let what runs inside pass unrecorded."""

    def record(self, symbol: Symbol, args: tuple[Any, ...], output: TensorProxy) -> None:
        """Record a call."""

    def here(self) -> str:
        """The user's line."""


class Tracker:
    """Fakes and wrappers by identity, and what was last known of each wrapper."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._fakes: dict[str, torch.Tensor] = {}
        self._tracked: dict[int, _Tracked] = {}
        self._bases: dict[int, list[_Tracked]] = {}

    def __contains__(self, wrapper: torch.Tensor) -> bool:
        return id(wrapper) in self._tracked

    def knows(self, fake: torch.Tensor) -> bool:
        """Whether a fake stands for a recorded value."""
        return id(fake) in self._proxies

    def last_fake(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The fake that a wrapper stood for when it was last seen."""
        return self._tracked[id(wrapper)].fake

    def settle(self) -> None:
        """Bring the trace up to date with every pending write."""
        with torch._C.DisableTorchFunction():
            for tracked in tuple(self._tracked.values()):
                self.reconcile(tracked.wrapper)

    def wrapper_for(self, proxy: TensorProxy, *, leaf: bool = True, autograd: bool = False) -> torch.Tensor:
        """A wrapper that stands for `proxy`; under `autograd` it requires grad if the proxy does."""
        with self._host.paused(), torch._C.DisableTorchFunction():
            fake = self._fakes.get(proxy.name)
            if fake is None:
                fake = internals.make_fake(self._host.fake_mode, proxy)
                self.know(fake, proxy)
            wrapper = internals.wrap(fake)
            if autograd and proxy.requires_grad and leaf:
                wrapper.requires_grad_()
            elif autograd and proxy.requires_grad:
                internals.make_non_leaf(wrapper)
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

    def proxy_of_fake(self, fake: torch.Tensor) -> TensorProxy:
        """The proxy that stands for a fake."""
        known = self._proxies.get(id(fake))
        if known is None:
            raise Unsupported(
                f"a tensor appeared that no recorded operator made, in {self._host.here()}; "
                "tensor subclasses and tensors made behind PyTorch's dispatcher cannot be captured"
            )
        return known[1]

    def new_proxy(self, fake: torch.Tensor, requires_grad: bool, name: str | None = None) -> TensorProxy:
        """The proxy of a fake that an operator made, a new one unless the operator returned an argument."""
        known = self._proxies.get(id(fake))
        if known is not None:
            return known[1]
        proxy = metadata_proxy(name or self._host.names.fresh(), fake, requires_grad)
        self.know(fake, proxy)
        return proxy

    def track(self, wrapper: torch.Tensor) -> None:
        """Take note of a wrapper that has not been seen before."""
        fake = internals.unwrap(wrapper)
        proxy = self.proxy_of_fake(fake)
        if not self._host.follow_autograd:
            pass
        elif proxy.requires_grad and not wrapper.requires_grad:
            # `x.data` shares the fake of `x` and none of its history
            fake = self._record_alias(wrapper, _DETACH, (proxy,), False)
        elif proxy.requires_grad != wrapper.requires_grad:
            raise self._disagreement(proxy, wrapper)
        tracked = _Tracked(wrapper, fake, history_of(wrapper), not wrapper._is_view())
        self._tracked[id(wrapper)] = tracked
        if tracked.is_base:
            self._bases.setdefault(internals.storage_key(wrapper), []).append(tracked)

    def _record_alias(self, wrapper: torch.Tensor, symbol: Symbol, args: tuple[Any, ...], commit: bool) -> torch.Tensor:
        with self._host.paused(), internals.outside_autograd():
            fake = internals.unwrap(wrapper).detach()
        output = self.new_proxy(fake, wrapper.requires_grad)
        self._host.record(symbol, args, output)
        internals.rebind(wrapper, fake, aliases=commit)
        return fake

    def reconcile(self, wrapper: torch.Tensor) -> None:
        """Bring the trace up to date with writes to a wrapper since it was last seen."""
        tracked = self._tracked.get(id(wrapper))
        if tracked is None:
            self.track(wrapper)
            return
        fake = internals.unwrap(wrapper)
        if not self._host.follow_autograd:
            tracked.fake = fake
            return
        if fake is tracked.fake and wrapper.requires_grad == self.proxy_of_fake(fake).requires_grad:
            return
        new, old = self.proxy_of_fake(fake), self.proxy_of_fake(tracked.fake)
        history = history_of(wrapper)
        # a view that is written to gets a new history, also where autograd did not see the write
        lost = wrapper.requires_grad and not new.requires_grad
        unseen = new is not old and (lost or same_history(history, tracked.history))
        if unseen and (wrapper.requires_grad or new.requires_grad):
            fake = self._record_alias(wrapper, SET_VALUE, (old, new), tracked.is_base)
            new = self.proxy_of_fake(fake)
        if wrapper.requires_grad != new.requires_grad:
            raise self._disagreement(new, wrapper)
        tracked.fake, tracked.history = fake, history

    def reconcile_bases(self, written: torch.Tensor) -> None:
        """After a write, set the value of every other autograd base that shares the storage."""
        for tracked in tuple(self._bases.get(internals.storage_key(written), ())):
            if tracked.wrapper is not written:
                self.reconcile(tracked.wrapper)

    def _disagreement(self, proxy: TensorProxy, wrapper: torch.Tensor) -> Unsupported:
        return Unsupported(
            f"in {self._host.here()} autograd says requires_grad={wrapper.requires_grad} where the trace says "
            f"requires_grad={proxy.requires_grad} ({proxy.name}): a change of requires_grad inside a jitted function, "
            "or a write through an alias that autograd does not connect, is not supported; make it outside, "
            "or on a clone"
        )


_UNSEEN = object()


def history_of(tensor: torch.Tensor) -> Any:
    """What autograd knows of a tensor's past, for comparison by `_same_history`."""
    if not tensor.requires_grad:
        return None
    try:
        return (tensor.grad_fn, tensor.output_nr)
    except RuntimeError:
        # a view made under no_grad whose base was written to: autograd refuses to say, and saw nothing
        return _UNSEEN


def same_history(left: Any, right: Any) -> bool:
    """Whether two answers of `history_of` are the same past."""
    if left is _UNSEEN or right is _UNSEEN:
        return True
    if left is None or right is None:
        return left is right
    return left[0] is right[0] and left[1] == right[1]


def metadata_proxy(name: str, tensor: torch.Tensor, requires_grad: bool) -> TensorProxy:
    """A proxy with the metadata of a tensor."""
    return TensorProxy(
        name,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        requires_grad,
        int(tensor.storage_offset()),
        tensor.is_conj(),
        tensor.is_neg(),
    )

"""The values of a program under capture: which proxy each fake tensor stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.errors import Unsupported
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.trace import Names


class Values:
    """Fakes and their proxies. `here` tells the user's line."""

    def __init__(
        self, names: Names, fake_mode: internals.FakeMode, here: Callable[[], str]
    ) -> None:
        self.fake_mode = fake_mode
        self._names = names
        self._here = here
        # with the fakes, so that an id is of one as long as it is known
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._fakes: dict[str, torch.Tensor] = {}
        #: An overload whose results' shapes depend on data, and what it is known to make.
        self.known_call: tuple[Any, tuple[TensorProxy, ...]] = (None, ())
        #: Views, by name: the calls that make them. As text they are alike, by the sizes that are decided by then.
        self.views: dict[str, object] = {}

    def __contains__(self, fake: torch.Tensor) -> bool:
        return id(fake) in self._proxies

    def proxy_of(self, fake: torch.Tensor) -> TensorProxy:
        """The proxy that stands for a fake."""
        known = self._proxies.get(id(fake))
        if known is None:
            raise Unsupported(
                f"a tensor appeared that no recorded operator made, in {self._here()}; "
                "tensor subclasses and tensors made behind PyTorch's dispatcher cannot be captured"
            )
        return known[1]

    def fake_of(self, proxy: TensorProxy) -> torch.Tensor:
        """The first fake that stood for a proxy; made where there is none."""
        if proxy.name not in self._fakes:
            self.know(proxy.fake(self.fake_mode), proxy)
        return self._fakes[proxy.name]

    def know(self, fake: torch.Tensor, proxy: TensorProxy) -> None:
        """Let a fake be what `proxy` stands for."""
        self._proxies[id(fake)] = (fake, proxy)
        self._fakes.setdefault(proxy.name, fake)

    def known_results(self) -> object:
        """What the overload makes whose results are known."""
        overload, layouts = self.known_call
        results = tuple([proxy.fake(self.fake_mode) for proxy in layouts])
        return results if len(overload._schema.returns) > 1 else results[0]

    def rename(self, proxy: TensorProxy, renamed: TensorProxy) -> None:
        """Call what was recorded as `proxy` by another name from now on."""
        fake = self._fakes.pop(proxy.name)
        self._fakes[renamed.name] = fake
        self.know(fake, renamed)

    def define(self, fake: torch.Tensor, requires_grad: bool) -> TensorProxy:
        """The proxy of a fake that an operator made, a new one unless the operator returned an argument."""
        if fake not in self:
            self.know(fake, metadata_proxy(self._names.fresh(), fake, requires_grad))
        return self.proxy_of(fake)


def metadata_proxy(name: str, tensor: torch.Tensor, requires_grad: bool) -> TensorProxy:
    """A proxy with the metadata of a tensor."""
    layout = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
    with internals.DisableTorchFunction():  # of a function under capture it would be refused
        offset: Any = tensor.storage_offset()
    return TensorProxy(name, *layout, requires_grad, offset, tensor.is_conj(), tensor.is_neg())

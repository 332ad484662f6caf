"""The values of a program under capture: the proxy of each fake tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.trace import Names


class Values:
    """A map between fakes and their proxies. `here` returns the user's line."""

    def __init__(
        self, names: Names, fake_mode: internals.FakeMode, here: Callable[[], str]
    ) -> None:
        self.fake_mode = fake_mode
        self._names = names
        self._here = here
        # the fakes stay alive, so their ids stay valid
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._fakes: dict[str, torch.Tensor] = {}
        #: An overload with data-dependent result shapes, and proxies of its known results.
        self.known_call: tuple[Any, tuple[TensorProxy, ...]] = (None, ())
        #: The calls creating views, by name, compared as text, with the sizes decided so far.
        self.views: dict[str, object] = {}

    def __contains__(self, fake: torch.Tensor) -> bool:
        return id(fake) in self._proxies

    def proxy_of(self, fake: torch.Tensor) -> TensorProxy:
        """Return the proxy of a fake."""
        entry = self._proxies.get(id(fake))
        if entry is None:
            raise Unsupported(
                f"a tensor appeared that no recorded operator made, in {self._here()}; "
                "tensor subclasses and tensors made behind PyTorch's dispatcher cannot be captured"
            )
        return entry[1]

    def fake_of(self, proxy: TensorProxy) -> torch.Tensor:
        """Return the first fake of a proxy, created if there is none."""
        if proxy.name not in self._fakes:
            self.know(proxy.fake(self.fake_mode), proxy)
        return self._fakes[proxy.name]

    def know(self, fake: torch.Tensor, proxy: TensorProxy) -> None:
        """Make `proxy` the proxy of a fake."""
        self._proxies[id(fake)] = (fake, proxy)
        self._fakes.setdefault(proxy.name, fake)

    def known_results(self) -> object:
        """Return fakes of the known results of the known overload."""
        overload, layouts = self.known_call
        results = tuple([proxy.fake(self.fake_mode) for proxy in layouts])
        return results if len(overload._schema.returns) > 1 else results[0]

    def rename(self, proxy: TensorProxy, renamed: TensorProxy) -> None:
        """Rename a recorded proxy from now on."""
        fake = self._fakes.pop(proxy.name)
        self._fakes[renamed.name] = fake
        self.know(fake, renamed)

    def define(self, fake: torch.Tensor, requires_grad: bool) -> TensorProxy:
        """Return the proxy of an operator's output fake: a new proxy, unless the operator returned an argument."""
        if fake not in self:
            self.know(fake, metadata_proxy(self._names.fresh(), fake, requires_grad))
        return self.proxy_of(fake)


def metadata_proxy(name: str, tensor: torch.Tensor, requires_grad: bool) -> TensorProxy:
    """Return a proxy with the metadata of a tensor."""
    layout = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
    with internals.DisableTorchFunction():  # a read by a function under capture would be refused
        offset: Any = tensor.storage_offset()
    return TensorProxy(name, *layout, requires_grad, offset, tensor.is_conj(), tensor.is_neg())

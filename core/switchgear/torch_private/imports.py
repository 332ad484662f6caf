"""What PyTorch imports on first use: TorchDynamo and sympy, which take longer than all else of a first call."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from switchgear.patches import redirected


def import_aside(name: str) -> None:
    """Import a module on a thread of its own, where nothing is captured, redirected or dispatched."""
    if name not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=(name,))
        thread.start()
        thread.join()


@contextlib.contextmanager
def imports_aside() -> Iterator[None]:
    """What PyTorch's own code imports here, on this thread, is imported aside."""
    if "torch._dynamo" in sys.modules:
        yield
        return

    def statement(
        original: Callable[..., object],
        name: str,
        scope: Mapping[str, object] | None = None,
        variables: Mapping[str, object] | None = None,
        names: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        if not level and str((scope or {}).get("__name__")).partition(".")[0] == "torch":
            import_aside(name)
        return original(name, scope, variables, names, level)

    def function(original: Callable[..., object], name: str, package: str | None = None) -> object:
        full = f"{package}{name}" if name.startswith(".") else name
        if full.startswith("torch."):
            import_aside(full)
        return original(name, package)

    def in_place(
        original: Callable[..., None], shape: Sequence[int], *others: Sequence[int]
    ) -> None:
        # PyTorch's own check imports sympy
        if any(other not in (shape, ()) for other in others):
            original(shape, *others)

    with (
        redirected(torch._meta_registrations, "check_inplace_broadcast", in_place),
        redirected(builtins, "__import__", statement),
        redirected(importlib, "import_module", function),
    ):
        yield

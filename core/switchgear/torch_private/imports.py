"""What PyTorch imports on first use: TorchDynamo and sympy, which take longer than all else of a first call."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.util import resolve_name

import torch

from switchgear.patches import redirected


def import_aside(name: str) -> None:
    """Import a module on a thread of its own, where nothing is captured, redirected or dispatched."""
    if name not in sys.modules:
        _aside(importlib.import_module, name)


def _aside(function: Callable[..., object], *args: object) -> object:
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(function(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run).start()
    return done.result()


@contextlib.contextmanager
def imports_aside() -> Iterator[None]:
    """What PyTorch's own code imports here, on this thread, is imported aside.

    Each import as a whole: this thread would hold the locks of modules that the other waits for.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return

    def statement(
        original: Callable[..., object],
        name: str,
        scope: Mapping[str, object] | None = None,
        variables: Mapping[str, object] | None = None,
        names: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        scope = scope or {}
        full = resolve_name("." * level + name, str(scope.get("__package__"))) if level else name
        if "torch" in [place.partition(".")[0] for place in (full, str(scope.get("__name__")))]:
            module = sys.modules.get(full)
            if module is None or not all(hasattr(module, one) for one in names or ()):
                return _aside(original, name, scope, variables, names, level)
        return original(name, scope, variables, names, level)

    def function(original: Callable[..., object], name: str, package: str | None = None) -> object:
        full = f"{package}{name}" if name.startswith(".") else name
        if full.startswith("torch.") and full not in sys.modules:
            return _aside(original, name, package)
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

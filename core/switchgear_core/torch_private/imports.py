"""Imports of PyTorch on first use: TorchDynamo and sympy take longer than the rest of a first call."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import torch

from switchgear_core.patches import caller, redirected


def import_aside(name: str) -> None:
    """Import a module on a separate thread, where nothing is captured, redirected or dispatched."""
    if name not in sys.modules:
        _aside(importlib.import_module, name)


def _aside(function: Callable[..., object], *args: object) -> object:
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run).start()
    return future.result()


@contextlib.contextmanager
def imports_aside() -> Iterator[None]:
    """Import modules on a separate thread when PyTorch's own code imports them here.

    Each import runs as a whole: this thread would hold locks of modules for which the other thread waits.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return

    def load(original: Callable[..., object], name: str, *importing: object) -> object:
        if "torch" in (name.partition(".")[0], caller(2, "importlib").partition(".")[0]):
            return _aside(original, name, *importing)
        return original(name, *importing)

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
        # not `builtins.__import__`: PyTorch 2.13 calls it from C++, and crashes if an interrupt arrives there
        # (test_capture_leaves_the_import_function_alone)
        redirected(importlib._bootstrap, "_find_and_load", load),
        redirected(importlib, "import_module", function),
    ):
        yield

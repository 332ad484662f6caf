"""Attempts to capture: what a function changes while it runs on fakes is put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.recorder import Recorder
from switchgear.errors import Unsupported
from switchgear.nesting import tensors_in

#: A capture puts a stand-in where `torch` has it.
_DEFAULT_STREAM = torch.default_generator
#: Global modes that a function may change for a while: what they are called, how to ask, and how to set them.
_MODES: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
    ("grad mode", torch.is_grad_enabled, internals.set_grad_enabled),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the default device", internals.global_default_device, torch.set_default_device),
    (
        "the float32 matmul precision",
        internals.float32_precision,
        torch.set_float32_matmul_precision,
    ),
    ("the attention backends", internals.attention_backends, internals.set_attention_backends),
    ("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)


@contextlib.contextmanager
def modes_kept() -> Iterator[None]:
    """Refuse a function that leaves a global mode other than it found it."""
    before = [ask() for _, ask, _ in _MODES]
    changed: list[str] = []
    try:
        yield
        changed = [
            name for (name, ask, _), value in zip(_MODES, before, strict=True) if ask() != value
        ]
    finally:
        for (_, ask, put), value in zip(_MODES, before, strict=True):
            if ask() != value:
                put(value)
    if changed:
        raise Unsupported(
            f"the function leaves {changed[0]} changed; change it back at its end, or change it outside"
        )


@contextlib.contextmanager
def undone_on(
    errors: tuple[type[Exception], ...], modules: list[torch.nn.Module]
) -> Iterator[None]:
    """After one of these errors the modules' attributes and the random streams are what they were."""
    holders = [(holder, holder.copy()) for _, _, holder in _holders(modules)]
    streams = _random_streams()
    try:
        yield
    except errors:
        for holder, content in holders:
            if isinstance(holder, list):
                holder[:] = content
                continue
            for name in holder.keys() - content.keys():
                del holder[name]
            for name, value in content.items():
                if holder.get(name, holder) is not value:
                    holder[name] = value
        for put_back, state in streams:
            put_back(state)
        raise


def _random_streams() -> list[tuple[Callable[[Any], object], Any]]:
    """The state of every process-wide random stream of the CPU, each with what puts it back."""
    streams: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (_DEFAULT_STREAM.set_state, _DEFAULT_STREAM.get_state()),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        streams.append((numpy.random.set_state, numpy.random.get_state()))
    return streams


def _holders(modules: list[torch.nn.Module]) -> Iterator[tuple[str, str, Any]]:
    """The `__dict__` of each module and what it holds that can be changed in place, its buffers for one.

    Each with the class of the module and the name of the attribute, empty for the `__dict__` itself.
    """
    for module in modules:
        for part in module.modules():
            for name, holder in (("", vars(part)), *vars(part).items()):
                if isinstance(holder, (dict, list)):
                    yield type(part).__name__, name, holder


@contextlib.contextmanager
def tensors_taken_out(modules: list[torch.nn.Module], recorder: Recorder) -> Iterator[None]:
    """Take the tensors of a capture out of modules that the function put them into, and refuse that."""
    before = [(owner, name, holder, holder.copy()) for owner, name, holder in _holders(modules)]
    changed: list[str] = []
    try:
        yield
    finally:
        for owner, name, holder, content in before:
            changed += [f"{owner}.{key}" for key in _restored(name, holder, content, recorder)]
    if changed:
        raise Unsupported(
            f"the function puts a tensor into the module's {changed[-1]}; write into a buffer in place"
        )


def _restored(name: str, holder: Any, content: Any, recorder: Recorder) -> list[str]:
    """Undo the changes of a dict or list that hold tensors of the capture; the names of those to refuse."""
    if isinstance(holder, list):
        if not _holds_wrappers(holder):
            return []
        holder[:] = content
        return [name]
    written = {
        key: value
        for key, value in holder.items()
        if value is not content.get(key) and _holds_wrappers(value)
    }
    for key in written:
        if key in content:
            holder[key] = content[key]
        else:
            del holder[key]
    # `self.steps += 1` assigns the buffer that it wrote to
    return [
        key for key, value in written.items() if not _is_itself(value, content.get(key), recorder)
    ]


def _holds_wrappers(value: Any) -> bool:
    return any(map(internals.is_wrapper, tensors_in(value)))


def _is_itself(value: Any, old: Any, recorder: Recorder) -> bool:
    return isinstance(old, torch.Tensor) and recorder.known_input(old) is value

"""Repeated random numbers: symbols to save and to replace the state of a generator."""

from __future__ import annotations

from typing import Any

import torch

from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import RANDOM, Symbol
from switchgear_core.record.recorder import active_recorder


def random_state(device: torch.device) -> torch.Tensor:
    """Return the state of a device's default generator."""
    recorder = active_recorder()
    if recorder is not None:
        return recorder.recorded(
            RANDOM_STATE, (device,), state_proxy(recorder.tape.names.fresh(), device), RANDOM
        )
    return default_stream(device).get_state()


def swap_random_state(state: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Set the state of a device's default generator; return the previous state."""
    recorder = active_recorder()
    if recorder is not None:
        return recorder.recorded(
            SWAP_RANDOM_STATE,
            (state, device),
            state_proxy(recorder.tape.names.fresh(), device),
            RANDOM,
        )
    generator = default_stream(device)
    before = generator.get_state()
    generator.set_state(state)
    return before


def state_proxy(name: str, device: torch.device) -> TensorProxy:
    """Return a proxy for a state of a device's default generator."""
    size = default_stream(device).get_state().numel()
    return TensorProxy(name, (size,), (1,), torch.uint8, torch.device("cpu"))


#: The original generator: a capture replaces the attribute of `torch`.
_DEFAULT_STREAM = torch.default_generator


def default_stream(device: torch.device) -> torch.Generator:
    """Return the default random stream of a device."""
    if device.type == "cpu":
        return _DEFAULT_STREAM
    generators: Any = torch.get_device_module(device).default_generators
    generator: torch.Generator = generators[device.index or 0]
    return generator


RANDOM_STATE = Symbol("switchgear.random_state", random_state)
SWAP_RANDOM_STATE = Symbol("switchgear.swap_random_state", swap_random_state)

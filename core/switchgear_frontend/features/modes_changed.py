"""Modes of the surrounding call hold for the trace: changing such a mode is refused."""

from __future__ import annotations

from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.call import Call
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.rare_modes import RARE_MODES
from switchgear_core.record.recorder import Recorder


class ModesChanged(Handler):
    """Handler of the default dtype, the default device, and the backends of attention."""

    def begin(self, recorder: Recorder) -> tuple[object, object, object]:
        """Return the modes around the call."""
        if recorder.enclosing is not None:
            return recorder.enclosing.state(self)  # type: ignore[no-any-return]
        return (
            torch.get_default_dtype(),
            internals.default_devices(),
            internals.attention_backends(),
        )

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Refuse a call under another default."""
        dtype, devices, _ = recorder.state(self)
        if torch.get_default_dtype() is not dtype:
            self._refuse(recorder, "the default dtype")
        # `torch.set_default_device` sets a device below the mode, which is not on the stack here
        if internals.default_devices() != devices:
            self._refuse(recorder, "the default device")
        return PASS

    def opened(self, recorder: Recorder, call: Call) -> None:
        """Note attention. Guard the switch of the library of norms on a GPU: PyTorch picks the kernel by the switch."""
        name = getattr(call.fn, "__name__", "")
        if name.endswith("_norm") and torch.cuda.is_initialized():
            library = torch.backends.cudnn
            condition = f"norms.enabled is {library.enabled}"
            if all(guard.condition != condition for guard in recorder.guards):
                scope = {"norms": library}
                recorder.guards.append(Guard(condition, "torch.backends.cudnn.enabled", scope))
        if "attention" not in name:
            return
        RARE_MODES.matter = True

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Record the kernel of an attention call whose backends differ from those around the jitted function."""
        is_attention = "attention" in getattr(call.fn, "__name__", "")
        if is_attention and internals.attention_backends() != recorder.state(self)[2]:
            call.is_unit = False

    def _refuse(self, recorder: Recorder, subject: str) -> None:
        raise Unsupported(
            f"the function has changed {subject} by the call in {recorder.here()}, but a trace runs under those around "
            "the call; change them outside the jitted function"
        )

"""Changes of sizes or strides in place: on an input, repeated after the call."""

from __future__ import annotations

from dataclasses import replace

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.aliasing import viewed_argument
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.symbol import BoundSymbol, proxies
from switchgear_core.nesting import tensors_in
from switchgear_core.record.call import Call
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.sizes import active_sizes

#: In-place calls without a change of data; autograd counts each as a write, even a call without an effect.
_METADATA_ONLY = frozenset({"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"})


class Reshapes(Handler):
    """Handler of calls such as `transpose_()`, and of writes that make an input a view of its former self."""

    def closing(self, recorder: Recorder, call: Call) -> None:
        """Record the calls to be repeated."""
        assert call.symbol is not None
        metadata_only = call.symbol.name.rpartition(".")[2] in _METADATA_ONLY
        recorder.tracker.writes.reshapes |= metadata_only
        if call.wrote or metadata_only:
            _note(recorder, call, metadata_only)
        if metadata_only:
            # autograd creates the view with the new layout in every grad mode
            call.lines = [replace(line, grad_enabled=True) for line in call.lines]


def _note(recorder: Recorder, call: Call, metadata_only: bool) -> None:
    assert call.symbol is not None
    tracker = recorder.tracker
    for tensor, before in zip(
        tensors_in((call.args, call.kwargs)), proxies(call.operands), strict=True
    ):
        entry, now = recorder.inputs.of(tensor), recorder.values.proxy_of(tracker.last_fake(tensor))
        # a call without an effect counts too, such as `t_()` of a vector: the tensor has a new version
        if entry is None:
            key = internals.storage_key(tensor)
            owner = next(
                (item for item in recorder.inputs if metadata_only and item.storage == key), None
            )
            if owner is not None and not tracker.counts_apart(tensor):
                raise Unsupported(
                    f"{call.symbol.name} of a view of {owner.proxy.name}, an input, in {recorder.here()}: the input "
                    "has a new version then; make a view instead",
                    splits=False,  # TorchDynamo would continue with the old sizes
                )
            continue
        viewed = any(
            now in leaf.outputs and viewed_argument(leaf) == before
            for leaf in leaves_of(call.lines)
        )
        if metadata_only or viewed or (now.shape, now.stride) != (before.shape, before.stride):
            if active_sizes() is not None:  # symbolic sizes are measured after the call
                raise Unsupported(
                    f"{call.symbol.name} gives {entry.proxy.name}, an input, other sizes or strides in place, in "
                    f"{recorder.here()}, where sizes are symbolic; make a view instead"
                )
            args, kwargs = (entry.proxy, *call.operands[0][1:]), call.operands[1]
            if len(proxies((args, kwargs))) > 1:
                raise Unsupported(
                    f"{call.symbol.name} gives {entry.proxy.name}, an input, the sizes of another tensor in place, in "
                    f"{recorder.here()}; make a new tensor instead"
                )
            line = BoundSymbol(
                call.symbol, args, kwargs, None, grad_enabled=torch.is_grad_enabled()
            )
            recorder.inputs.metadata_calls.append(line)

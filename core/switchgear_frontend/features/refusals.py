"""Torch-level calls that capture would record wrongly, and therefore refuses."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.overrides import resolve_name

from switchgear_core import own
from switchgear_core.errors import Unsupported
from switchgear_core.nesting import tensors_in
from switchgear_core.patches import redirected
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler, getter
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.stand_ins import asker
from switchgear_core.record.user_code import is_own_file

#: Torch-level functions that would be captured wrongly, with a remedy for each.
_REFUSED = {
    "torch.autograd.backward": "use torch.autograd.grad inside, or call backward() on the jitted function's result",
    "torch.Tensor.backward": "use torch.autograd.grad inside, or call backward() on the jitted function's result",
    "torch.Tensor.register_hook": "register the hook outside the jitted function, on its inputs or outputs",
    "torch.Tensor.register_post_accumulate_grad_hook": "register the hook outside the jitted function",
    "torch.Tensor.retain_grad": "call retain_grad() outside the jitted function",
    "torch._fused_adam_": "use it with fused=False",
    "torch._fused_adamw_": "use it with fused=False",
    "torch._fused_sgd_": "use it with fused=False",
    "torch.Tensor.set_": "assign a new tensor instead",
    **dict.fromkeys(
        ("torch.Tensor.resize_", "torch.Tensor.resize_as_", "torch.resize_as_"),
        "make a new tensor instead",
    ),
}
#: Attributes of tensors that would be captured wrongly, with a remedy for each.
_REFUSED_ATTRIBUTES = {
    torch.Tensor.grad: "pass the gradient as an argument, or call it outside (an optimizer: its step)",
    torch.Tensor.grad_fn: "read it, and hook to it (as a backward hook on a module does), outside the jitted function",
    torch.Tensor._base: "pass the base as an argument",
    torch.Tensor._version: "read it outside the jitted function",
    torch.Tensor.output_nr: "read it outside the jitted function",
    torch.Tensor.retains_grad: "read it outside the jitted function",
}
#: Verbs for the accessors of attributes.
_ACCESS = {"__get__": "reads", "__set__": "writes to", "__delete__": "deletes"}
#: Prefixes of functions that create sparse, quantised or nested tensors, foreign to traces.
_STRANGE = ("sparse_", "to_sparse_", "quantize_per_", "_nested_tensor", "to_mkldnn", "as_subclass")
_REFUSED_NAMES = frozenset(name.rpartition(".")[2] for name in _REFUSED)


_OF_LINALG = (
    *("cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "ldl_factor", "lstsq", "lu_factor"),
    *("pinv", "solve", "svd", "svdvals", "tensorinv", "tensorsolve"),
)
_OTHERS = ("cholesky", "cholesky_inverse", "inverse", "multinomial", "pinverse", "svd")
#: Functions that raise depending on the data of their arguments.
_RAISING = {getattr(torch.linalg, name) for name in _OF_LINALG}
_RAISING |= {getattr(holder, name) for holder in (torch, torch.Tensor) for name in _OTHERS}
#: The accessor that tells whether a tensor is a leaf of autograd; the answer is guarded.
_IS_LEAF = getter("is_leaf")
#: The module that calls the function.
_START = "switchgear_frontend.session"


class Refusals(Handler):
    """Handler of calls and attributes that are refused by name."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Refuse hooks on saved tensors, such as `save_on_cpu`: they would see the tensors of the capture, once."""
        return redirected(torch.autograd.graph.saved_tensors_hooks, "__enter__", _refuse_hooks)

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Refuse the call, or pass."""
        refuse(call.fn, call.args, call.kwargs, recorder.here)
        recorder.matters.leaves |= call.fn == _IS_LEAF  # PyTorch answers
        if call.fn in _RAISING and recorder.tracker.follow_autograd:
            _refuse_caught(call.fn, recorder.here)
        return PASS


def _refuse_hooks(original: Callable[..., object], hooks: object) -> NoReturn:
    raise Unsupported(
        f"{type(hooks).__module__}.{type(hooks).__name__} inside a jitted function: it would see tensors that the "
        "capture saves, once; set it around the call",
        splits=False,
    )


def _refuse_caught(fn: Any, here: Callable[[], str]) -> None:
    """Refuse a call whose error a function catches, as with jitter for `cholesky`: a trace could only raise it."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != _START:
        if not is_own_file(frame.f_code.co_filename) and _catches(frame.f_code):
            raise Unsupported(
                f"the function catches the error that {fn.__name__} raises for its data, in {here()}; ask for it "
                "otherwise, as torch.linalg.cholesky_ex tells",
                splits=False,
            )
        frame = frame.f_back


@functools.cache
def _catches(code: types.CodeType) -> bool:
    """Check whether a function has an `except` clause anywhere, or uses `contextlib.suppress`."""
    names = [line.opname for line in dis.get_instructions(code)]
    return (
        "CHECK_EXC_MATCH" in names
        or ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
        or "suppress" in code.co_names
    )


_NESTED_FILES = str(Path(torch.nested.__file__).parent)


def refuse(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], here: Callable[[], str]
) -> None:
    """Raise `Unsupported` for a call that would be captured wrongly; `here` returns the user's line for the message."""
    name = getattr(func, "__name__", "")
    if name in _ACCESS and func.__self__ in _REFUSED_ATTRIBUTES and not own.is_own(asker()):
        attribute = func.__self__
        if attribute is torch.Tensor.grad_fn and not args[0].requires_grad:
            return  # the attribute is None
        subject = f"the function {_ACCESS[name]} .{attribute.__name__} of a tensor"
        # TorchDynamo would split the function, and the nodes would differ
        splits = attribute is not torch.Tensor.grad_fn
        raise Unsupported(
            f"{subject}, in {here()}; {_REFUSED_ATTRIBUTES[attribute]}", splits=splits
        )
    if (
        func is torch.Tensor.requires_grad_
        and args[0].requires_grad
        and (args[1:] or (True,), kwargs) == ((True,), {})
    ):
        return  # no change; transformers makes this call when gradient checkpointing is on
    if name.startswith(_STRANGE):
        raise Unsupported(
            f"{name} inside a jitted function, in {here()}: it makes a tensor of another kind; call it, and code that "
            "uses its result, outside the jitted function",
            # TorchDynamo creates no nested tensors, and padding differs
            splits="nested" not in name,
        )
    if func is torch.fused_moving_avg_obs_fake_quant and not all(
        tensor.numel() for tensor in tensors_in((args[1:], kwargs))
    ):
        raise Unsupported(
            f"{name} of empty statistics, which it resizes, in {here()}; call the original once before"
        )
    if name in _REFUSED_NAMES:
        full = resolve_name(func) or f"{getattr(func, '__module__', '')}.{name}"
        if full in _REFUSED and not own.is_own(caller := asker()):
            if caller.startswith(_NESTED_FILES):
                raise Unsupported(
                    f"a nested tensor made inside a jitted function, in {here()}: make it, and use it, outside"
                )
            raise Unsupported(
                f"{full} inside a jitted function, in {here()}; {_REFUSED[full]}",
                # TorchDynamo puts a hook on an input at the start of the graph, before writes to the input; it also
                # forgets earlier writes to an attribute
                splits=name != "register_hook",
            )

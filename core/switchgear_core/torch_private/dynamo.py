"""TorchDynamo: code that TorchDynamo must not touch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.patches import redirected, replaced
from switchgear_core.torch_private.names import check_names, private

Function = TypeVar("Function", bound=Callable[..., Any])

_set_strategy = private("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_Action = private("torch._C._dynamo.eval_frame._FrameAction")
_Strategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy")


def opaque(function: Function) -> Function:
    """Return the function, marked against inlining and inspection by TorchDynamo, together with its callees.

    `torch.compiler.disable` would return a wrapper, which costs as much as a call of the compiled function.
    """
    function.__dict__["_torchdynamo_disable"] = True
    function.__dict__["_torchdynamo_disable_msg"] = "it is compiled by Switchgear already"
    with contextlib.suppress(
        AttributeError, Unsupported
    ):  # without these names, nothing is compiled
        _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP))
    return function


@contextlib.contextmanager
def compiled_run_plainly() -> Iterator[None]:
    """Run functions of `torch.compile` uncompiled inside; otherwise TorchDynamo would remember a failure there.

    Eager `flex_attention` compiles a part of itself, and would fail from then on.
    """
    # without TorchDynamo imported, nothing is compiled, and no stance is set
    loaded = sys.modules.get("torch._dynamo.eval_frame")
    if loaded is not None:
        check_names(dynamo=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(redirected(torch, "compile", _as_it_is))
        if loaded is not None:
            plainly = loaded.DynamoStance("force_eager")
            stack.enter_context(replaced(loaded, "_stance", plainly))
        yield


def _as_it_is(original: Any, model: Any = None, **options: Any) -> Any:
    return (lambda model: model) if model is None else model


def tracing() -> bool:
    """Check whether `torch.compile`, `torch.export`, a `torch.func` transform or a dispatch mode is active here."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )

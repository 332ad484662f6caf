"""TorchDynamo: what it is to leave alone, and what it makes of a function, part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from switchgear.torch_private.names import private

Function = TypeVar("Function", bound=Callable[..., Any])

_set_strategy = private("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_Action = private("torch._C._dynamo.eval_frame._FrameAction")
_Strategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy")


def opaque(function: Function) -> Function:
    """The function itself, which TorchDynamo neither inlines nor looks into, nor what it calls.

    That of `torch.compiler.disable` is a wrapper, which costs as much as a call of what was compiled.
    """
    function.__dict__["_torchdynamo_disable"] = True
    function.__dict__["_torchdynamo_disable_msg"] = "it is compiled by Switchgear already"
    if not issubclass(_Action, Exception):  # where it is missing, nothing is compiled
        _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP))
    return function

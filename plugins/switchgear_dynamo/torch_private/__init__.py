"""Private names of PyTorch that splitting uses: TorchDynamo's conversion of a function into graphs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.patches import replaced
from switchgear_core.torch_private.names import check_names, private

_Action = private("torch._C._dynamo.eval_frame._FrameAction")
_Strategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy")


def can_take_apart() -> bool:
    """Check whether this PyTorch's TorchDynamo has the names for `taken_apart`."""
    try:
        check_names(dynamo=True)
    except Unsupported:
        return False
    return True


def taken_apart(
    function: Callable[..., object],
    backend: Callable[[torch.fx.GraphModule, Sequence[object]], Callable[..., object]],
    note: Callable[[str], None],
    dynamic: bool | None,
    guarded: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda convert: convert,
    distrusts: Callable[[Any], bool] = lambda frame: False,
) -> Callable[..., Any]:
    """Return the function as run by TorchDynamo: each graph by `backend`; each break calls `note(reason)`.

    `guarded` decorates the conversion of a frame. A frame in which TorchDynamo itself fails runs in eager from then on.
    So does a frame for which `distrusts` returns True, before or after its conversion, with all its callees.
    """
    dynamo = importlib.import_module("torch._dynamo")
    # TorchDynamo switches the checks of torch.distributions off for the process (2.10 to 2.13): wrong arguments would
    # give NaN where eager raises; tests/test_assertions.py
    distribution: Any = torch.distributions.Distribution
    with replaced(distribution, "_validate_args", distribution._validate_args):
        context = dynamo.optimize(backend, dynamic=dynamic)
    if hasattr(context, "callback"):  # otherwise TorchDynamo is switched off
        context.callback = _Conversion(guarded(context.callback), note, distrusts)
    result: Callable[..., object] = context(function)
    return result


def traced_code() -> list[types.CodeType]:
    """Return the code of the frame under conversion, and all code inlined into it so far."""
    return importlib.import_module("torch._dynamo.utils").get_traced_code() or []


#: Floats are specialised, as by capture: otherwise they are tensors whose `item()` no trace holds. NumPy runs
#: unchanged:
#: TorchDynamo would use PyTorch's operators, with other bits and types. `addcmul_` is not decomposed: an `fma` rounds
#: once. An `assert` of a tensor stays, and raises AssertionError. Hooks added to a module later are noticed.
#: `distrusts` limits the conversions of code: a limit here would be shared by functions that share code.
_FAITHFUL = {
    "specialize_float": True,
    "trace_numpy": False,
    "enable_dynamo_decompositions": False,
    "rewrite_assert_with_torch_assert": False,
    "skip_nnmodule_hook_guards": False,
    "recompile_limit": sys.maxsize,
    "accumulated_recompile_limit": sys.maxsize,
}


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Return a context that converts as eager would run, and quietly.

    Optimizers run in eager. Seen with PyTorch 2.13: TorchDynamo takes Adam's path for captured graphs, which rounds
    differently, and gives NaN if the learning rate is 0, as at the start of a warm-up. `is_compiling()` is False, as in
    eager and under capture: code that asks for it computes something else.
    """
    config, rules = map(importlib.import_module, ("torch._dynamo.config", "torch._dynamo.trace_rules"))
    answers = private("torch._dynamo.variables.torch.tracing_state_functions")()
    before, logger = dict(answers), logging.getLogger("torch._dynamo")
    files = map(str, Path(torch.optim.__file__).parent.glob("*.py"))
    with (
        private("torch._dynamo.convert_frame.compile_lock"),
        config.patch({key: value for key, value in _FAITHFUL.items() if hasattr(config, key)}),
        replaced(rules, "FORCE_SKIP_FILES", {*rules.FORCE_SKIP_FILES, *files}),
        warnings.catch_warnings(),
        contextlib.ExitStack() as stack,
    ):
        answers.update(dict.fromkeys([fn for fn in before if "compiling" in fn.__name__], False))
        stack.callback(answers.update, before)
        # warnings about tracing, which the caller did not request; users of TORCH_LOGS still see logs
        warnings.filterwarnings("ignore", module=r"torch\._dynamo")
        if logger.getEffectiveLevel() == logging.WARNING:
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


class _Conversion:
    """TorchDynamo's conversion of a frame, once per kind of call; PyTorch finds the backend by the attribute."""

    def __init__(
        self,
        convert: Callable[..., object],
        note: Callable[[str], None],
        distrusts: Callable[[Any], bool],
    ) -> None:
        self._torchdynamo_orig_backend = convert
        self._note = note
        self._distrusts = distrusts
        self._counters = importlib.import_module("torch._dynamo.utils").counters
        self._frame_return = importlib.import_module("torch._dynamo.types").ConvertFrameReturn

    def __call__(self, frame: Any, *rest: object) -> object:
        strategy = _Strategy(_Action.SKIP, _Action.SKIP)
        # other functions with the same code are still converted
        original = self._frame_return(frame_exec_strategy=strategy, apply_to_code=False)
        if self._distrusts(frame):
            return original
        before = self._counters["graph_break"].copy()
        try:
            with _own_settings():
                result = self._torchdynamo_orig_backend(frame, *rest)
        except Exception as error:
            # an exception here would abort a call that is half done
            reason = str(error).strip().partition("\n\n")[0].replace("\n", " ")
            self._note(f"{type(error).__name__}: {reason}")
            result = self._frame_return()
        for reason in self._counters["graph_break"] - before:
            self._note(reason.strip().partition("\n")[0])
            if "torch.autograd.grad`" in reason:
                # for two results of one graph, autograd does not know a dependence between them
                result = self._frame_return(frame_exec_strategy=strategy)
        return original if self._distrusts(None) else result

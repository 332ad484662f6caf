"""PyTorch's module database through `jit`, against eager: `python -m tests.databases.modules --help`."""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests import under_test
from tests.databases.operators import judge_spread, seed_everything
from tests.databases.opinfo import module_db
from tests.databases.refused import INEXACT_MODULES, REFUSED_MODULES
from tests.databases.report import run_command
from tests.databases.verdict import Case, Jit, Verdict
from tests.oracle import in_mode

MODES = ("train forward", "eval forward", "train gradient", "eval gradient")


@functools.cache
def modules() -> dict[str, Any]:
    """The database by name."""
    return {module.name: module for module in module_db}


def examine(name: str, jit: Jit) -> list[Verdict]:
    """The verdicts on one module class: train and eval, forward and gradients."""
    return [verdict for mode in MODES for verdict in examine_mode(name, mode, jit)]


def examine_mode(name: str, mode: str, jit: Jit) -> list[Verdict]:
    """Up to four samples that eager supports, and those that it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = list(_cases(modules()[name], mode))
    return judge_spread(cases, jit, in_mode(INEXACT_MODULES.get(name), mode))


def _cases(info: Any, mode: str) -> Iterator[Case]:
    gradient, training = "gradient" in mode, "train" in mode
    dtype = torch.float64 if gradient else torch.float32
    seed_everything()
    samples = info.module_inputs_func(info, str(under_test.device()), dtype, gradient, training)
    for index, sample in enumerate(samples):
        described = f"sample {index}: {sample.desc or 'plain'}, built from {_text(sample.constructor_input)}"
        module = _built(info, sample, dtype).train(training)
        forward = sample.forward_input
        yield Case(info.name, mode, described, module, forward.args, forward.kwargs, gradient)


def _built(info: Any, sample: Any, dtype: torch.dtype) -> torch.nn.Module:
    made = sample.constructor_input
    module: torch.nn.Module = info.module_cls(*made.args, **made.kwargs).to(under_test.device(), dtype)
    if info.is_lazy:
        # A lazy module has no parameters to speak of before it was called once; its documentation says to do just that.
        with torch.no_grad():
            module(*copy.deepcopy(sample.forward_input.args), **copy.deepcopy(sample.forward_input.kwargs))
    return module


def _text(call: Any) -> str:
    return ", ".join([*map(str, call.args), *(f"{name}={value}" for name, value in call.kwargs.items())])[:200]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the database and report."""
    return run_command(arguments, __doc__ or "", list(modules()), examine, REFUSED_MODULES)


if __name__ == "__main__":
    sys.exit(main())

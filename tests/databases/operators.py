"""PyTorch's operator database through `jit`, against eager: `python -m tests.databases.operators --help`."""

from __future__ import annotations

import functools
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch.testing._internal import common_methods_invocations

from tests import under_test
from tests.databases.opinfo import op_db
from tests.databases.refused import INEXACT_OPERATORS, REFUSED_OPERATORS
from tests.databases.report import run_command
from tests.databases.verdict import Case, Jit, Outcome, Verdict, judge
from tests.oracle import Exactness, in_mode

SAMPLES = 4
#: How many samples eager may refuse before another place in the database's list is tried.
TRIES = 12

# The first that an operator knows: a few are for integers, complex numbers or 8-bit floats only.
_FORWARD_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
_GRADIENT_DTYPES = (torch.float64, torch.complex128)


@functools.cache
def operators() -> dict[str, Any]:
    """The database by unique name.

    Its entries for random operators seed inside the function under test, which `jit` refuses; here the caller seeds.
    """
    common_methods_invocations.wrapper_set_seed = _without_seeding  # type: ignore[attr-defined]
    return {operator.full_name: operator for operator in op_db}


def _without_seeding(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def examine(name: str, jit: Jit) -> list[Verdict]:
    """The verdicts on one operator, in each of its modes."""
    return [verdict for mode in modes_of(name) for verdict in examine_mode(name, mode, jit)]


def modes_of(name: str) -> list[str]:
    """Forward, and gradient where the operator has one; none where it is for accelerators only."""
    return [mode for mode in ("forward", "gradient") if _dtype(operators()[name], mode) is not None]


def examine_mode(name: str, mode: str, jit: Jit) -> list[Verdict]:
    """Up to four samples that eager supports, spread over the database's list, and those that it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = list(_cases(operators()[name], mode))
    return judge_spread(cases, jit, in_mode(INEXACT_OPERATORS.get(name), mode))


def judge_spread(cases: Sequence[Case], jit: Jit, exactness: Exactness) -> list[Verdict]:
    """Judge a few cases, from evenly spaced places on; where eager refuses one, the next one takes its place."""
    verdicts: dict[int, Verdict] = {}
    count = min(SAMPLES, len(cases))
    for start in (place * (len(cases) - 1) // max(count - 1, 1) for place in range(count)):
        for offset in range(min(TRIES, len(cases))):
            index = (start + offset) % len(cases)
            if index not in verdicts:
                verdicts[index] = judge(cases[index], jit, exactness)
                if verdicts[index].outcome is not Outcome.SKIPPED:
                    break
    return [verdicts[index] for index in sorted(verdicts)]


def _cases(operator: Any, mode: str) -> Iterator[Case]:
    gradient = mode == "gradient"
    dtype = _dtype(operator, mode)

    def call(*args: Any, **kwargs: Any) -> Any:
        return operator.op(*args, **kwargs)

    seed_everything()
    device = str(under_test.device())
    for index, sample in enumerate(operator.sample_inputs(device, dtype, requires_grad=gradient, set_seed=False)):
        described = f"sample {index}: {sample.summary()!s:.300}"
        args = (sample.input, *sample.args)
        narrow = sample.output_process_fn_grad if gradient else None
        yield Case(operator.full_name, mode, described, call, args, sample.kwargs, gradient, narrow)


def _dtype(operator: Any, mode: str) -> torch.dtype | None:
    if mode == "forward":
        return _first(_FORWARD_DTYPES, operator.supported_dtypes(under_test.device().type))
    if not operator.supports_autograd:
        return None
    return _first(_GRADIENT_DTYPES, operator.supported_backward_dtypes(under_test.device().type))


def _first(wanted: Iterable[torch.dtype], supported: set[torch.dtype]) -> torch.dtype | None:
    return next((dtype for dtype in wanted if dtype in supported), None)


def seed_everything() -> None:
    """The databases draw their samples from three random streams."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the database and report."""
    return run_command(arguments, __doc__ or "", list(operators()), examine, REFUSED_OPERATORS)


if __name__ == "__main__":
    sys.exit(main())

"""First and second gradients over PyTorch's operator database, through `jit` and in eager, against finite differences.

Every operator that PyTorch says supports the gradient of a gradient goes through `torch.autograd.gradcheck` and
`gradgradcheck` with the operator's own settings (`gradcheck_wrapper`, `gradcheck_fast_mode`, `gradcheck_nondet_tol`),
in fast mode where it has none, as in PyTorch's own tests; batched gradients are left out. What passes in eager has to
pass through `jit`, specialised on data where a value or a shape depends on it. Per operator and check: three samples
of at most 300 elements, none of them empty, evenly spread over the database's list.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError
from torch.utils import _pytree as pytree

from switchgear.errors import CaptureError, DataDependent, NotDifferentiable
from tests.databases.operators import operators, seed_everything
from tests.databases.refused import REFUSED_OPERATORS
from tests.databases.report import applies, describe, examine_all, summary, unexpected
from tests.databases.verdict import Jit, Outcome, Target, Verdict, global_state, jit_on_data
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import fraction, part

SAMPLES = 3
#: How many more samples eager may fail before an operator's check counts as one that eager does not pass.
TRIES = 6
#: Elements of all tensors of a sample; where every sample has more, the smallest one is taken.
SIZE = 300

# `Refusal.modes` is a part of the mode's name: what `refused.py` says of "gradient" holds of both.
MODES = ("gradient", "gradient of gradient")

#: What `refused.py` has, less what data decides: here the operators are compiled for their data.
REFUSED = {name: refusal for name, refusal in REFUSED_OPERATORS.items() if refusal.error is not DataDependent}

_PASSED = frozenset({Outcome.EQUAL, Outcome.SKIPPED})


@dataclass(frozen=True, slots=True)
class Check:
    """One sample of an operator: `function(target)` maps the inputs to outputs through `target`."""

    operator: Any
    mode: str
    sample: str
    function: Callable[[Target], Target]
    inputs: tuple[torch.Tensor, ...]

    def run(self, target: Target) -> None:
        """Raise a `GradcheckError` if a gradient through `target` is not what finite differences say."""
        function = self.function(target)
        fast = self.operator.gradcheck_fast_mode
        options: dict[str, Any] = {
            "fast_mode": True if fast is None else fast,
            "nondet_tol": self.operator.gradcheck_nondet_tol,
            "check_grad_dtypes": True,
        }
        torch.manual_seed(0)  # the grad outputs are drawn
        if self.mode == MODES[0]:
            torch.autograd.gradcheck(function, self.inputs, **options)
            return
        for strided in (False, True):
            torch.autograd.gradgradcheck(function, self.inputs, gen_non_contig_grad_outputs=strided, **options)


@functools.cache
def names() -> list[str]:
    """The operators that PyTorch says support the gradient of a gradient."""
    return [name for name, operator in operators().items() if operator.supports_gradgrad and _dtype(operator)]


def _dtype(operator: Any) -> torch.dtype | None:
    """float64; complex128 for the few that know complex numbers only."""
    supported = operator.supported_backward_dtypes("cpu")
    return next((dtype for dtype in (torch.float64, torch.complex128) if dtype in supported), None)


def examine(name: str, jit: Jit) -> list[Verdict]:
    """The verdicts on one operator, first and second gradients."""
    return [verdict for mode in MODES for verdict in examine_mode(name, mode, jit)]


def examine_mode(name: str, mode: str, jit: Jit) -> list[Verdict]:
    """Judge a few samples that eager passes, and those that it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = _small(list(_checks(operators()[name], mode)))
        verdicts: dict[int, Verdict] = {}
        count = min(SAMPLES, len(checks))
        for start in (place * (len(checks) - 1) // max(count - 1, 1) for place in range(count)):
            for index in [*range(start, len(checks)), *range(start)]:
                failed = sum(verdict.outcome is Outcome.SKIPPED for verdict in verdicts.values())
                if index not in verdicts and failed < TRIES:
                    verdicts[index] = judge(checks[index], jit)
                    if verdicts[index].outcome is not Outcome.SKIPPED:
                        break
    return [verdicts[index] for index in sorted(verdicts)]


def _small(checks: list[tuple[int, Check]]) -> list[Check]:
    limit = max(SIZE, min((size for size, _ in checks), default=0))
    return [check for size, check in checks if size <= limit]


def _checks(operator: Any, mode: str) -> Iterator[tuple[int, Check]]:
    """Every sample that has something to differentiate by, with its size."""
    seed_everything()
    samples = operator.sample_inputs("cpu", _dtype(operator), requires_grad=True, set_seed=False)
    for index, sample in enumerate(samples):
        described = f"sample {index}: {sample.summary()!s:.300}"
        leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        inputs = tuple(tensor for tensor in tensors.values() if tensor.requires_grad)
        if any(tensor.numel() for tensor in inputs):
            function = functools.partial(
                _recomposed, operator, sample.output_process_fn_grad, leaves, structure, inputs
            )
            yield (
                sum(tensor.numel() for tensor in tensors.values()),
                Check(operator, mode, described, function, inputs),
            )


def _recomposed(
    operator: Any,
    narrow: Callable[[Any], Any] | None,
    leaves: list[Any],
    structure: pytree.TreeSpec,
    inputs: tuple[torch.Tensor, ...],
    target: Target,
) -> Target:
    """`target` as a function of a sample's differentiable tensors alone, with what PyTorch's tests put around it.

    The database wraps operators that ask for a symmetric input, say, so that any input will do; outputs that depend on
    a gauge are narrowed to what has a gradient.
    """
    place = {id(tensor): index for index, tensor in enumerate(inputs)}

    @functools.wraps(operator.op, updated=())  # the wrapper of the masked operators asks for the name
    def named(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    def function(*given: torch.Tensor) -> Any:
        args, kwargs = pytree.tree_unflatten(
            [given[place[id(leaf)]] if id(leaf) in place else leaf for leaf in leaves], structure
        )
        torch.manual_seed(0)  # what the operator draws has to be the same in every call
        output = operator.gradcheck_wrapper(named, *args, **kwargs)
        return output if narrow is None else narrow(output)

    return function


def judge(check: Check, jit: Jit) -> Verdict:
    """Check in eager, then compiled."""

    def verdict(outcome: Outcome, error: BaseException | None = None, detail: str = "") -> Verdict:
        kind = type(error).__name__ if error is not None else ""
        return Verdict(outcome, check.operator.full_name, check.mode, check.sample, kind, detail or str(error or ""))

    def target(*args: Any, **kwargs: Any) -> Any:
        return check.operator.op(*args, **kwargs)

    try:
        check.run(target)
    except Exception as error:
        return verdict(Outcome.SKIPPED, error)
    before = global_state()
    outcome, detail = Outcome.EQUAL, ""
    raised: Exception | None = None
    try:
        with fallbacks_recorded() as fallbacks:
            check.run(jit(target))
        if fallbacks:
            (kind, detail), *_ = fallbacks
            return replace(verdict(Outcome.FELL_BACK, None, detail), error=kind)
    except (CaptureError, NotDifferentiable) as error:
        outcome, raised = Outcome.REFUSED, error
    except GradcheckError as error:
        outcome, raised = Outcome.WRONG, error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outcome, raised, detail = Outcome.CRASH, error, f"{error}\n  at {frame.filename}:{frame.lineno} {frame.name}"
    faults = list(differences(before, global_state(), "left behind in the global state"))
    if faults:
        return verdict(Outcome.WRONG, raised, "\n".join([*faults, str(raised or "")]))
    return verdict(outcome, raised, detail)


def _examine_aloud(numbers: dict[str, int], name: str, jit: Jit) -> list[Verdict]:
    begin = time.monotonic()
    verdicts = examine(name, jit)
    worst = max((list(Outcome).index(verdict.outcome) for verdict in verdicts), default=0)
    progress = f"{numbers[name]:>4}/{len(numbers)} {time.monotonic() - begin:6.1f} s  {list(Outcome)[worst]:<8} {name}"
    print(progress, file=sys.stderr, flush=True)
    return verdicts


def main(arguments: Sequence[str] | None = None, jit: Jit = jit_on_data) -> int:
    """Run the checks and report; the exit status says whether all that eager passes passes, or is refused as stated."""
    options = _parser().parse_args(arguments)
    k, parts = options.fraction
    chosen = [name for name in names() if re.search(options.filter, name) and part(name, parts) == k]
    begin = time.monotonic()
    numbers = {name: number for number, name in enumerate(chosen, 1)}
    verdicts = examine_all(chosen, functools.partial(_examine_aloud, numbers), jit, options.jobs)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts], indent=1))
    for verdict in verdicts:
        if verdict.outcome not in _PASSED:
            print(describe(verdict))
    print(f"\n{len(chosen)} of {len(names())} operators in {time.monotonic() - begin:.0f} s\n{summary(verdicts)}")
    for mode in MODES:
        print(_beside_eager(mode, [group for (_, found), group in _grouped(verdicts).items() if found == mode]))
    found = faults(verdicts)
    print(f"neither passed nor refused as stated: {len(found)} operators {found or ''}")
    return 1 if found else 0


def faults(verdicts: Sequence[Verdict]) -> list[str]:
    """The operators that eager passes and `jit` neither passes nor refuses as stated."""
    groups = _grouped(verdicts).items()
    return sorted({name for (name, mode), group in groups if unexpected(group, applies(REFUSED.get(name), mode))})


def _beside_eager(mode: str, groups: list[list[Verdict]]) -> str:
    """How many operators eager passes, and how many of them `jit` does."""
    eager = [group for group in groups if {verdict.outcome for verdict in group} != {Outcome.SKIPPED}]
    ours = [group for group in eager if {verdict.outcome for verdict in group} <= _PASSED]
    left = sorted(group[0].name for group in groups if group not in eager)
    line = f"{mode}: eager passes {len(eager)} of {len(groups)}, jit {len(ours)} of these"
    return f"{line}\n    not passed by eager: {', '.join(left) or 'none'}"


def _grouped(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.name, verdict.mode), []).append(verdict)
    return groups


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.databases.gradgrad",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--filter", default="", metavar="REGEX", help="only operators whose name matches")
    parser.add_argument(
        "--fraction", type=fraction, default=(0, 1), metavar="K/N", help="only part K, from 0, of N; CI runs 0/48"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every verdict there")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

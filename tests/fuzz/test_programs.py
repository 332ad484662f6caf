"""A hundred random programs against eager, the same in each run; `python -m tests.fuzz` draws others."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fuzz.__main__ import summary
from tests.fuzz.compare import Outcome
from tests.fuzz.processes import over_processes
from tests.fuzz.programs import Program, write_program
from tests.fuzz.search import Setup, examine, examine_all, seeds, skeleton, smallest

PROGRAMS = 100
#: Set it to draw other programs.
SEED_VARIABLE = "SWITCHGEAR_FUZZ_SEED"
SETUP = Setup()


def test_random_programs(record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_VERIFY", "1")
    seed = int(os.environ.get(SEED_VARIABLE) or 11)
    record_property("fuzz_seed", seed)
    print(f"{SEED_VARIABLE}={seed}")
    findings = [finding for group in examine_all(seeds(seed, PROGRAMS), 1, SETUP) for finding in group]
    print(summary(findings))
    different = [finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT]
    if different:
        first = different[0]
        ((_, small),) = over_processes(smallest, [(first.seed, first.verdict.kind, SETUP)], 1)
        program, verdict = small or (write_program(first.seed, frozenset(SETUP.without)), first.verdict)
        pytest.fail(
            f"{len(different)} of {len(findings)} programs differ from eager; again with {SEED_VARIABLE}={seed}. "
            f"One of them, made small:\n\n{verdict.detail}\n\n{program}"
        )


def test_enough_programs_are_compared() -> None:
    """A fuzzer whose programs all do nothing or all raise finds nothing, and says so here."""
    findings = examine([f"0:{number}" for number in range(60)], Setup(jit=lambda function: function))
    assert all(finding.verdict.outcome in (Outcome.EQUAL, Outcome.BOTH_RAISE) for finding in findings)
    assert sum(finding.verdict.outcome is Outcome.EQUAL for finding in findings) > 50


def test_a_seed_makes_the_same_program() -> None:
    assert str(write_program("3:4")) == str(write_program("3:4"))
    assert sorted(sum(seeds(3, 600), ())) == sorted(f"3:{number}" for number in range(600))
    assert seeds(3, 600) == seeds(3, 600)


@pytest.mark.parametrize("number", range(8))
def test_a_printed_program_runs(number: int, tmp_path: Path) -> None:
    setup = Setup()
    program = write_program(f"1:{number}")
    if setup.judge(program).outcome is not Outcome.EQUAL:
        pytest.skip("it raises when it is run, as the program does")
    file = tmp_path / "program.py"
    file.write_text(str(program))
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")  # eager's own, about what programs do
        runpy.run_path(str(file))
    assert printed.getvalue().endswith("\n\n")  # `judge` finds nothing to say


def adds_for_times(f: Callable[..., Any]) -> Callable[..., Any]:
    """A wrong jit."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _AddForTimes():
            return f(*args, **kwargs)

    return run


class _AddForTimes(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.add if func in (Tensor.mul, Tensor.__mul__) else func)(*args, **(kwargs or {}))


def test_a_difference_is_made_small() -> None:
    setup = Setup(jit=adds_for_times)
    findings = examine([f"3:{number}" for number in range(15)], setup)
    first = next(finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT)
    program, verdict = smallest(first.seed, first.verdict.kind, setup)
    assert verdict.outcome is Outcome.DIFFERENT
    assert len(program.function.splitlines()) <= 6, program.function
    assert len(program.function) < len(write_program(first.seed).function)


def test_programs_that_differ_in_names_and_numbers_are_alike() -> None:
    one = Program("def f(a0):\n    t1 = a0.cos()\n    a0.data.mul_(2)\n    return t1", ())
    two = Program("def f(a1):\n    t7 = a1.cos()\n    a1.data.mul_(-0.5)\n    return t7", ())
    assert skeleton(one) == skeleton(two)


def test_a_process_that_dies_loses_its_own_work_only() -> None:
    assert list(over_processes(os._exit, [(3,)], 1)) == [((3,), None)]
    assert sorted(over_processes(abs, [(-1,), (-2,)], 1)) == [((-2,), 2), ((-1,), 1)]

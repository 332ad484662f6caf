"""Programs of 20 libraries beside eager: `python -m tests.libraries.survey [--case NAME] [--executors NAME ...]`.

`pip install -r tests/libraries/requirements.txt` installs the libraries, but for those of `requirements-no-deps.txt`.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import switchgear as sg
from switchgear.errors import FallbackWarning
from tests.libraries.survey_cases import CASES
from tests.oracle import Tolerance
from tests.stand_ins.alike import differ

#: Where a function is split, autograd sums the gradients of its graphs.
_ROUNDING = Tolerance(1e-5, 1e-6, "sums of gradients are rounded otherwise")


def compare(name: str, executors: Sequence[str]) -> tuple[str, str]:
    """How a case ends, in one word, and what shows it: the difference, the error, or why it falls back."""
    jitted: list[Any] = []

    def jit(target: Any) -> Any:
        jitted.append(sg.jit(target, executors=[*executors]))
        return jitted[-1]

    try:
        torch.manual_seed(0)
        expected = CASES[name].run(lambda target: target)
    except Exception:
        return "not run", f"eager raises: {_last_line()}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            torch.manual_seed(0)
            ours = CASES[name].run(jit)
        except Exception:
            return "raises", _last_line()
    difference = differ(expected, ours)
    (function,) = jitted
    info = sg.cache_info(function)
    if difference and (not info.fallbacks or differ(expected, ours, _ROUNDING)):
        return "differs", difference
    if not info.calls:
        return "not used", "the jitted function is never called: something assigned another forward to it"
    messages = [one.message.reason for one in said if isinstance(one.message, FallbackWarning)]
    if info.fallbacks or messages:
        reasons = " | ".join(messages) or f"{info.fallbacks} calls"
        return ("near" if difference else "falls back"), reasons
    return "compiled", f"{info.entries} entries"


def _last_line() -> str:
    return traceback.format_exc().strip().rpartition("\n")[2]


def _in_child(names: Sequence[str], executors: Sequence[str], size: int = 300) -> Iterator[tuple[str, str, str]]:
    """Name, outcome and detail of some cases of one library, each from a child of this process as soon as it ends."""
    ours, its = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(its, "w") as out, open(os.devnull, "w") as nowhere:
                for number in (1, 2):
                    os.dup2(nowhere.fileno(), number)
                for name in names:
                    outcome, detail = compare(name, executors)
                    out.write("\t".join((name, outcome, " ".join(detail.split())[:size])) + "\n")
                    out.flush()
        finally:
            os._exit(0)
    os.close(its)
    missing = [*names]
    with os.fdopen(ours) as lines:
        for line in lines:
            name, outcome, detail = line.rstrip("\n").split("\t")
            missing.remove(name)
            yield name, outcome, detail
    os.waitpid(child, 0)
    yield from ((name, "raises", "the process ended") for name in missing)


def main() -> int:
    """Print each case and totals; 1 if one differs, raises or is not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.libraries.survey", description=__doc__)
    parser.add_argument("--case", nargs="+", default=[""], help="only cases whose name, or library, holds one of these")
    parser.add_argument("--executors", nargs="+", default=["torch"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    libraries: dict[str, list[str]] = {}
    for name, case in CASES.items():
        if any(part in name or part in case.library for part in options.case):
            libraries.setdefault(case.library, []).append(name)
    counts: collections.Counter[str] = collections.Counter()
    for library, names in libraries.items():
        for name, outcome, detail in _in_child(names, options.executors):
            counts[outcome] += 1
            print(f"{library:28} {name:28} {outcome:10} {detail}", flush=True)
    print(f"\n{counts.total()} cases: " + ", ".join(f"{count} {text}" for text, count in counts.most_common()))
    return int(not counts.keys() <= {"compiled", "falls back", "near", "not used"})


if __name__ == "__main__":
    sys.exit(main())

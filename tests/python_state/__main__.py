"""A table of the cases and how they end: `python -m tests.python_state [--peer] [part of a name]`.

With `--programs N`, random programs of the families instead: `--seed S` runs the same again.
"""

from __future__ import annotations

import argparse
import collections
import secrets

import torch

from tests.python_state.cases import CASES
from tests.python_state.families.running import print_all
from tests.python_state.running import examine, examine_peer


def main() -> int:
    """Print the table; 1 if a case is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.python_state", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="only cases whose name holds this")
    parser.add_argument("--peer", action="store_true", help='torch.compile(backend="eager") in our place')
    parser.add_argument("--details", action="store_true", help="print what shows each outcome")
    parser.add_argument("--programs", type=int, help="random programs in place of the cases, so many")
    parser.add_argument("--seed", type=int, help="of the programs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.programs:
        seed = secrets.randbelow(2**31) if options.seed is None else options.seed
        return print_all(options.programs, seed, options.name, options.details)
    counts: collections.Counter[str] = collections.Counter()
    bad = False
    for name, case in CASES.items():
        if options.name not in name:
            continue
        finding = (examine_peer if options.peer else examine)(case)
        counts[finding.outcome.value] += 1
        bad |= not finding.is_good
        print(f"{name:56} {finding.outcome.value}", flush=True)
        if options.details and finding.detail:
            print(f"    {finding.detail[:400]}")
    print(f"\n{counts.total()} cases: " + ", ".join(f"{count} {text}" for text, count in counts.most_common()))
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())

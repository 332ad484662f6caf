"""No call reads memory of what stands for a tensor: `python -m tests.stand_ins [--fallback split] [part of a name]`."""

from __future__ import annotations

import argparse
import itertools

import torch

from tests.stand_ins.calls import of_numpy, of_other_ways, of_tensors
from tests.stand_ins.walk import walk


def main() -> int:
    """Print what is wrong, and totals; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.stand_ins", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="only functions whose name holds this")
    parser.add_argument("--fallback", default="eager", choices=("eager", "split"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for kind, groups in (("Tensor", of_tensors()), ("NumPy", of_numpy()), ("other ways", of_other_ways())):
        chosen, counted = itertools.tee((name, cases) for name, cases in groups if options.name in name)
        count, sums = len([*counted]), [0, 0, 0]
        for finding in walk(chosen, options.fallback):
            for line in finding.wrong:
                print(f"WRONG {line}", flush=True)
            wrong += bool(finding.wrong)
            sums = [a + b for a, b in zip(sums, (finding.compiled, finding.fell_back, finding.raised), strict=True)]
        print(
            f"{kind}: {count} functions; calls compiled {sums[0]}, fallen back {sums[1]}; eager raises in {sums[2]}",
            flush=True,
        )
    print(f"{wrong} functions wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())

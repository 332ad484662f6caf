"""Random programs, jitted against eager: `python -m tests.fuzz --programs 2000`."""

from __future__ import annotations

import argparse
import collections
import os
import secrets
import sys
import time
from collections.abc import Sequence

from tests.fuzz.compare import Outcome
from tests.fuzz.processes import over_processes
from tests.fuzz.search import Finding, Setup, differs_alone, examine_all, seeds, skeleton, smallest
from tests.fuzz.templates import TEMPLATES
from tests.under_test import UnderTest, names

#: So many reasons are printed of each outcome.
REASONS = 30


def main() -> int:
    """Run the fuzzer; 1 if any program differs from eager."""
    options = _parser().parse_args()
    os.environ.setdefault("SWITCHGEAR_VERIFY", "1")
    if options.seed is None:
        options.seed = secrets.randbelow(2**31)
    again = f"python -m tests.fuzz --programs {options.programs} --seed {options.seed}"
    print(f"{options.programs} programs; again with: {again}")
    groups = seeds(options.seed, options.programs) if options.group is None else []
    groups = groups or [seeds(options.seed, options.programs)[options.group]]
    setup = Setup(UnderTest(options.executors), options.without, tuple(options.ignore))
    findings: list[Finding] = []
    start = time.monotonic()
    for results in examine_all(groups, options.jobs, setup):
        findings += results
        for finding in results:
            if finding.verdict.outcome is Outcome.DIFFERENT:
                print(f"\n{finding.seed}: {finding.verdict.kind}")
        _progress(findings, sum(map(len, groups)), start)
    print(f"\n\n{summary(findings)}")
    different = [finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT]
    alone = [(finding.seed, setup) for finding in different]
    repeated = {
        seed: differs is not False for (seed, *_), differs in over_processes(differs_alone, alone, options.jobs)
    }
    for finding in different:
        if not repeated[finding.seed]:
            group = next(place for place, group in enumerate(groups) if finding.seed in group)
            print(f"\n== {finding.seed} depends on history: {again} --group {options.group or group}")
            print(finding.verdict.detail)
    _show([finding for finding in different if repeated[finding.seed]], options, setup)
    return int(bool(different))


def _show(different: Sequence[Finding], options: argparse.Namespace, setup: Setup) -> None:
    """Print small programs, one of those that look alike once they are small."""
    work = [(finding.seed, finding.verdict.kind, setup) for finding in different[: options.shrink]]
    alike: dict[str, list[str]] = {}
    for (seed, kind, *_), small in over_processes(smallest, work, options.jobs):
        if small is None:
            print(f"\n== {seed}: {kind}: the process died while the program was made smaller")
            continue
        program, verdict = small
        group = alike.setdefault(skeleton(program), [])
        group.append(seed)
        if len(group) == 1:
            print(f"\n== {seed}: {kind}\n{verdict.detail}\n\n{program}", flush=True)
    for group in sorted(alike.values(), key=len, reverse=True):
        print(f"{len(group):6}  as {' '.join(group)}")
    if len(different) > options.shrink:
        print(f"\n{len(different)} differ, of which {options.shrink} are made small and shown (--shrink)")


def summary(findings: Sequence[Finding]) -> str:
    """How many programs had which outcome, and why."""
    counts = collections.Counter(finding.verdict.outcome for finding in findings)
    lines = [f"{len(findings):6}         programs"]
    lines += [f"{counts[outcome]:6} {counts[outcome] / max(len(findings), 1):7.2%} {outcome}" for outcome in Outcome]
    rounded = sum(finding.verdict.rounded for finding in findings if finding.verdict.outcome is Outcome.FALLBACK)
    lines += [f"{rounded:6}         are split, with sums of gradients that differ in rounding"] * bool(rounded)
    regions = [finding.verdict.fused for finding in findings if finding.verdict.fused]
    lines += [f"{len(regions):6}         have regions that were fused: {sum(regions)} regions"] * bool(regions)
    for outcome in (Outcome.FALLBACK, Outcome.BOTH_RAISE, Outcome.DIFFERENT):
        kinds = collections.Counter(finding.verdict.kind for finding in findings if finding.verdict.outcome is outcome)
        lines += [f"\n{outcome}:"] * bool(kinds) + [f"{n:6}  {kind}" for kind, n in kinds.most_common(REASONS)]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Writes random programs as real code has them, runs each in eager and jitted, and compares values, "
        "gradients, arguments, memory that is shared and the random stream. Values are equal as torch.equal says, or "
        "within rounding where the executors fuse. Exit status 1 if any differs.",
    )
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="how many programs (default: 2000)")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of a run to repeat (default: a fresh one)")
    parser.add_argument("--group", type=int, metavar="N", help="only the programs that share process N of that run")
    parser.add_argument(
        "--executors",
        type=names,
        default=("torch",),
        metavar="NAMES",
        help="whom to run the programs on, such as inductor,torch, or auto, whom jit asks by default (default: torch)",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument("--shrink", type=int, default=20, metavar="N", help="differences to make small (default: 20)")
    parser.add_argument(
        "--without", type=names, default=(), metavar="NAMES", help=f"templates to leave out, of {', '.join(TEMPLATES)}"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="TEXT",
        help="facts not to compare, such as 'version has risen'",
    )
    return parser


def _progress(findings: Sequence[Finding], programs: int, start: float) -> None:
    outcomes = collections.Counter(finding.verdict.outcome for finding in findings)
    rate = len(findings) / (time.monotonic() - start)
    counts = f"{outcomes[Outcome.DIFFERENT]} different, {outcomes[Outcome.FALLBACK]} fallen back"
    print(f"\r{len(findings)} of {programs} programs, {counts}, {rate:.1f} per second", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())

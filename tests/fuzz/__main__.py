"""Random programs, jitted against eager: `python -m tests.fuzz --programs 2000`."""

from __future__ import annotations

import argparse
import collections
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.compare import Outcome, Verdict
from tests.fuzz.processes import over_processes
from tests.fuzz.search import Finding, examine, shrink
from tests.under_test import UnderTest, names

#: Programs that one seed draws: chunk i of seed s is the first chunk of seed s + i.
CHUNK = 25


def main() -> int:
    """Run the fuzzer; 1 if any program differs from eager."""
    options = _parser().parse_args()
    os.environ.setdefault("SWITCHGEAR_VERIFY", "1")
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"{options.programs} programs; again with: python -m tests.fuzz --programs {options.programs} --seed {seed}")
    start = time.monotonic()
    firsts = range(0, options.programs, CHUNK)
    jit = UnderTest(options.executors, strict=True)
    chunks = [(seed + place, min(CHUNK, options.programs - first), jit) for place, first in enumerate(firsts)]
    findings: dict[int, list[Finding]] = {}
    for chunk, found in over_processes(examine, chunks, options.jobs):
        findings[chunk[0]] = found if found is not None else [_lost(*chunk[:2])]
        _progress(findings, start)
    every = [finding for number in sorted(findings) for finding in findings[number]]
    print(f"\n\n{summary(every)}")
    # Each kind of difference with the first chunk that has it: the chunk is drawn once more, and the program shrunk.
    kinds: dict[str, tuple[int, int, UnderTest]] = {}
    for chunk in chunks:
        for finding in findings[chunk[0]]:
            if finding.verdict.outcome is Outcome.DIFFERENT and finding.text:
                kinds.setdefault(finding.verdict.kind, chunk)
    if len(kinds) > options.kinds:
        print(f"\n{len(kinds)} kinds of differences, of which {options.kinds} are shrunk and shown (--kinds)")
    wanted = [(*chunk[:2], kind, jit) for kind, chunk in kinds.items()][: options.kinds]
    smallest: dict[str, Finding] = {}
    for (number, _, kind, _), shrunk in over_processes(shrink, wanted, options.jobs):
        # Where nothing comes back, the process died or the program differs in one run only: shown as it was drawn.
        smallest[kind] = shrunk or next(one for one in findings[number] if one.verdict.kind == kind)
        print(f"\n== {kind}\n{smallest[kind].verdict.detail}\n\n{smallest[kind].text}")
    if options.json:
        options.json.write_text(json.dumps(_report(seed, every, smallest), indent=1))
    return int(any(finding.verdict.outcome is Outcome.DIFFERENT for finding in every))


def summary(findings: Sequence[Finding]) -> str:
    """How many programs had which outcome, and of refusals and differences how many of each kind."""
    lines = []
    counts = collections.Counter(finding.verdict.outcome for finding in findings)
    for outcome in Outcome:
        lines.append(f"{counts[outcome]:6} {counts[outcome] / max(len(findings), 1):6.1%}  {outcome}")
    regions = [finding.verdict.fused for finding in findings if finding.verdict.fused]
    lines += [f"{len(regions):6} programs have regions that were fused: {sum(regions)} regions"] * bool(regions)
    lines.append(f"{sum(finding.steps for finding in findings) / max(len(findings), 1):6.1f} steps in a program")
    for outcome in (Outcome.REFUSED, Outcome.BOTH_RAISE, Outcome.EXCEPTED, Outcome.BROKEN, Outcome.DIFFERENT):
        kinds = collections.Counter(finding.verdict.kind for finding in findings if finding.verdict.outcome is outcome)
        lines += [f"\n{outcome}:"] * bool(kinds) + [f"{number:6}  {kind}" for kind, number in kinds.most_common()]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Writes random programs, runs each eagerly and jitted, and compares values, metadata, aliasing, "
        "arguments, random stream and gradients: exactly, or values within rounding where the executors fuse. "
        "Exit status 1 if any differs.",
    )
    parser.add_argument("--programs", type=int, default=2000, metavar="N", help="how many programs (default: 2000)")
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of a run to repeat (default: a fresh one)")
    parser.add_argument(
        "--executors",
        type=names,
        default=("torch",),
        metavar="NAMES",
        help="whom to run the programs on, such as inductor,torch (default: torch)",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument(
        "--kinds", type=int, default=12, metavar="N", help="kinds of differences to shrink (default: 12)"
    )
    parser.add_argument("--json", type=Path, metavar="F", help="write everything found to this file")
    return parser


def _lost(seed: int, count: int) -> Finding:
    detail = f"a process died or hung; run it alone: python -m tests.fuzz --seed {seed} --programs {count} --jobs 1"
    return Finding(Verdict(Outcome.DIFFERENT, detail, "a process died or hung"), 0)


def _progress(findings: dict[int, list[Finding]], start: float) -> None:
    outcomes = [finding.verdict.outcome for chunk in findings.values() for finding in chunk]
    rate = len(outcomes) / (time.monotonic() - start)
    counts = f"{outcomes.count(Outcome.DIFFERENT)} different, {outcomes.count(Outcome.REFUSED)} refused"
    print(f"\r{len(outcomes)} programs, {counts}, {rate:.1f} per second", end="", flush=True)


def _report(seed: int, findings: Sequence[Finding], smallest: dict[str, Finding]) -> dict[str, Any]:
    counts = collections.Counter(finding.verdict.outcome for finding in findings)
    kinds = collections.Counter((one.verdict.outcome, one.verdict.kind) for one in findings if one.verdict.kind)
    return {
        "seed": seed,
        "torch": torch.__version__,
        "outcomes": {str(outcome): counts[outcome] for outcome in Outcome},
        "kinds": [{"outcome": str(outcome), "kind": kind, "programs": n} for (outcome, kind), n in kinds.most_common()],
        "smallest": {kind: {"differs": one.verdict.detail, "program": one.text} for kind, one in smallest.items()},
        "different": [
            {"kind": one.verdict.kind, "differs": one.verdict.detail, "program": one.text}
            for one in findings
            if one.verdict.outcome is Outcome.DIFFERENT
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

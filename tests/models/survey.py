"""Small models of every kind through `jit`, beside eager: `python -m tests.models.survey --help`.

Each runs in eval, for two steps of training, padded and not, and writes 32 tokens with a growing and with a
static cache.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import transformers

import switchgear as sg
from switchgear import errors
from tests import under_test
from tests.models.small import KINDS, Batch, Kind
from tests.oracle import differences, fallbacks_recorded
from tests.under_test import fraction, part

TOKENS = 32
#: How many entries generating may compile.
LIMITS = {"growing": 4, "static": 3}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one model in one mode; `ratio` is the time of a token to eager's."""

    model: str
    mode: str
    outcome: str
    faults: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    entries: int = 0
    ratio: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether it is equal to eager, and compiled within the limits."""
        return self.outcome == "right" and not self.refusals and self.entries <= LIMITS.get(self.mode, 2)

    def __str__(self) -> str:
        how = "fell back" if self.refusals else "compiled"
        times = f"{self.ratio:.2f} of eager's time" if self.ratio is not None else ""
        head = f"{self.model:<12}{self.mode:<10}{self.outcome:<9}{how:<11}{self.entries:>3} entries  {times}"
        return "\n    ".join([head.rstrip(), *self.faults, *self.refusals])


Jit = Callable[[torch.nn.Module], torch.nn.Module]


def jit_with(executors: Sequence[str | sg.Executor] | None) -> Jit:
    """A jit on these executors, or on those that are so by default; what capture refuses runs in eager."""
    if executors is None:
        return lambda model: sg.jit(model, fallback="eager")
    return lambda model: sg.jit(model, executors=list(executors), fallback="eager")


def examine(name: str, jit: Jit) -> Iterator[Report]:
    """The reports on one model."""
    kind = KINDS[name]
    torch.manual_seed(0)
    place = under_test.device()
    model, batch = kind.build().to(place), {name: value.to(place) for name, value in kind.batch().items()}
    yield _judged(name, "eval", lambda jitted, base: _evaluate(kind, jitted, base, batch), model.eval(), jit)
    yield _judged(name, "train", lambda jitted, base: _train(kind, jitted, base, batch), model.train(), jit)
    prompt = _unpadded(batch)
    if "attention_mask" in batch:
        whole = {**prompt, "labels": batch["labels"]} if "labels" in batch else prompt
        yield _judged(name, "unpadded", lambda jitted, base: _train(kind, jitted, base, whole), model, jit)
    if not kind.generates:
        return
    model.eval()
    yield _judged(name, "growing", lambda jitted, base: _generate(jitted, prompt), model, jit)
    try:
        _generate(model, prompt, cache_implementation="static")
    except Exception:
        return  # eager knows no such cache of that model
    yield _judged(
        name, "static", lambda jitted, base: _generate(jitted, prompt, cache_implementation="static"), model, jit
    )


def _unpadded(batch: Batch) -> Batch:
    """A batch without labels; none of it is padding."""
    prompt = {name: value for name, value in batch.items() if name != "labels"}
    if "attention_mask" in prompt:
        prompt["attention_mask"] = torch.ones_like(prompt["attention_mask"])
    return prompt


Run = Callable[[torch.nn.Module, torch.nn.Module], object]


def _judged(name: str, mode: str, run: Run, model: torch.nn.Module, jit: Jit) -> Report:
    """Run a copy of the model in eager and one jitted, and compare."""
    twin = copy.deepcopy(model)
    jitted = jit(twin)
    base = copy.deepcopy(model)
    expected = run(base, base)
    with fallbacks_recorded() as reasons, warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.RecompileWarning)
        try:
            found = run(jitted, twin)
        except Exception as error:
            return Report(name, mode, "error", (f"{type(error).__name__}: {error}",))
    faults = list(differences(expected, found, mode))
    refusals = tuple(f"{kind}: {reason}" for kind, reason in reasons)
    outcome = "differs" if faults else "right"
    ratio = None
    if mode in LIMITS and not faults:
        ratio = _fastest(lambda: run(jitted, twin)) / _fastest(lambda: run(base, base))
    entries = sg.cache_info(jitted).entries  # with those of the runs that were timed
    return Report(name, mode, outcome, tuple(faults[:4]), refusals, entries, ratio)


def _evaluate(kind: Kind, model: torch.nn.Module, base: torch.nn.Module, batch: Batch) -> object:
    with torch.no_grad():
        return [dict(model(**batch, **kind.always)) for _ in range(2)]


def _train(kind: Kind, model: torch.nn.Module, base: torch.nn.Module, batch: Batch) -> object:
    """Losses, gradients and parameters of two steps, and where the random stream is after them."""
    optimizer = torch.optim.SGD(base.parameters(), lr=0.1)
    torch.manual_seed(11)
    steps = []
    for _ in range(2):
        optimizer.zero_grad()
        output = model(**batch, **kind.always)
        output.loss.backward()
        gradients = {name: parameter.grad for name, parameter in base.named_parameters()}
        steps.append(copy.deepcopy((output.loss.detach(), gradients)))
        optimizer.step()
    return steps, dict(base.state_dict()), under_test.random_state()


def _generate(model: torch.nn.Module, prompt: Batch, **options: object) -> object:
    torch.manual_seed(12)
    assert isinstance(model, transformers.GenerationMixin)
    return model.generate(
        **prompt, do_sample=False, min_new_tokens=TOKENS, max_new_tokens=TOKENS, disable_compile=True, **options
    )


def _fastest(run: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        if under_test.device().type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey the models and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(KINDS)}; all by default")
    parser.add_argument("--executors", type=under_test.names, help="such as torch; those that are so by default")
    parser.add_argument("--device", type=under_test.run_on, metavar="NAME", help="such as cuda (default: cpu)")
    parser.add_argument("--fraction", type=fraction, default=(0, 1), metavar="K/N", help="only part K, from 0, of N")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - KINDS.keys()
    if unknown:
        parser.error(f"no models: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    under_test.EXECUTORS[:] = options.executors or ["auto"]
    k, parts = options.fraction
    names = [name for name in options.names or KINDS if part(name, parts) == k]
    reports: list[Report] = []
    for name in names:
        for report in examine(name, jit_with(options.executors)):
            print(report, flush=True)
            reports.append(report)
    for mode in dict.fromkeys(report.mode for report in reports):
        of_mode = [report for report in reports if report.mode == mode]
        print(f"{mode}: {sum(report.is_right for report in of_mode)} of {len(of_mode)} as they ought to be")
    return 0 if all(report.outcome == "right" for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Which executors a suite runs jitted functions on, how near to eager those have to be, and what they fused."""

from __future__ import annotations

import argparse
import functools
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import switchgear as sg
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.order import Executors

Target = Callable[..., Any]
Names = tuple[str | sg.Executor, ...]


#: Whom the suites run on that compare with eager whatever is jitted: an option of pytest's says.
EXECUTORS: list[str | sg.Executor] = ["torch"]
#: Parts that take no part in any test: an option of pytest's says.
WITHOUT: list[str] = []
#: Names the device of the suites that can run on another than the CPU; worker processes inherit it.
DEVICE_VARIABLE = "SWITCHGEAR_TEST_DEVICE"


def device() -> torch.device:
    """Where the databases and the models run: an option of a command line says."""
    return torch.device(os.environ.get(DEVICE_VARIABLE, "cpu"))


def run_on(named: str) -> str:
    """Let the suites run there."""
    if torch.device(named).type == "cuda":
        # eager itself adds up in another order at every call, unless it is told not to
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ[DEVICE_VARIABLE] = named
    return named


def random_state() -> tuple[torch.Tensor, ...]:
    """Where the random streams are that the suites draw from."""
    cuda = (torch.cuda.get_rng_state(device()),) if device().type == "cuda" else ()
    return torch.get_rng_state(), *cuda


@dataclass(frozen=True, slots=True)
class UnderTest:
    """A jit whose executors are those under test; calls of it count the regions that are fused."""

    executors: Names = ("torch",)
    specialize_on_data: bool | None = None
    strict: bool = False
    fuel: Fuel = field(default_factory=Fuel, compare=False)

    @property
    def asked(self) -> Executors:
        """The option of `jit`; auto alone is the default."""
        return "auto" if self.executors == ("auto",) else list(self.executors)

    def __call__(self, target: Target) -> Target:
        """Jit a function or module."""
        jitted: Target = sg.jit(
            target,
            executors=self.asked,
            specialize_on_data=self.specialize_on_data,
            strict=self.strict,
            fuel=self.fuel,
        )
        return jitted


def is_exact(jit: Callable[..., Any]) -> bool:
    """Whether what it makes of a function gives eager's results to the bit: whoever fuses does not."""
    return not isinstance(jit, UnderTest) or jit.executors == ("torch",)


def fused_since(jit: Callable[..., Any]) -> int:
    """How many regions were fused since this was last asked; they are let go."""
    if not isinstance(jit, UnderTest):
        return 0
    count = len(jit.fuel.regions)
    jit.fuel.regions.clear()
    return count


def names(text: str) -> tuple[str, ...]:
    """The executors that an option of a command line names."""
    found = tuple(text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as inductor,torch")
    return found


def part(name: str, parts: int) -> int:
    """Which of so many parts `name` belongs to, the same on every machine."""
    return zlib.crc32(name.encode()) % parts


@functools.cache
def slow_tests() -> tuple[tuple[str, int], ...]:
    """The beginnings of names in `tests/slow.txt`, each with how many parts there are of which one runs; 0 for none."""
    lines = Path(__file__).with_name("slow.txt").read_text().splitlines()
    matches = (re.fullmatch(r"(?:1/(\d+) )?(tests/.*)", line) for line in lines)
    return tuple([(match[2], int(match[1] or 0)) for match in matches if match is not None])


def is_slow(name: str) -> bool:
    """Whether `make test` leaves out a test of this name."""
    found = next((parts for start, parts in slow_tests() if name.startswith(start)), 1)
    return not found or part(name, found) != 0


def fraction(text: str) -> tuple[int, int]:
    """The K and N of an option K/N."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K from 0 to N-1")
    return int(match[1]), int(match[2])


def is_near(expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether what a fusion executor computes is as good as eager's: what Inductor's own tests ask.

    Either each value is within the tolerance that `torch.testing.assert_close` has for the dtype; or the worst is no
    further from `exact`, eager's in float64, than three times eager's own worst, and a rounding more. Where eager is
    off by more than a fiftieth, `exact` is another function's result, and proves nothing. Values that are no floating
    point numbers, infinities and NaNs are the same.
    """
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, actual)
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError:
        pass
    else:
        return True
    finite = expected.isfinite()
    if exact is None or not finite.any() or not torch.equal(finite, actual.isfinite()):
        return False
    if not torch.equal(expected[~finite].nan_to_num(), actual[~finite].nan_to_num()):
        return False
    wide = torch.complex128 if expected.is_complex() else torch.float64
    off, ours = ((one.to(wide) - exact)[finite].abs().max().item() for one in (expected, actual))
    largest = exact[finite].abs().max().item()
    return off < largest / 50 and ours <= 3 * off + torch.finfo(expected.dtype).eps * largest


def in_float64(value: Any) -> Any:
    """A tensor, wider; its copy requires grad as it does. Anything else as it is."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    return wide.requires_grad_(value.requires_grad)

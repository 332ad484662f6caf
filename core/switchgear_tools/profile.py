"""`sg.profile`: the time and the bytes of each line of a program, as PyTorch's profiler measures them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from switchgear.jitting import jit
from switchgear_core.errors import InvalidInput
from switchgear_core.ir.symbol import BACKWARD, BoundSymbol
from switchgear_core.nesting import tensors_in
from switchgear_core.showing import Shown, shortened
from switchgear_runtime.last_call import compiler_of
from switchgear_tools.before_call import compiler_for
from switchgear_tools.columns import table
from switchgear_tools.explain import explain
from switchgear_tools.page import write_page
from switchgear_tools.page.payload import Measured
from switchgear_tools.ranges import ranged

#: Limits of the measurement: the fewest calls, the seconds to reach, and the most calls.
_LEAST, _SECONDS, _MOST = 3, 0.5, 50
_ROWS = 24
_WIDTH = 62


@dataclass(frozen=True, slots=True)
class ProfiledLine:
    """Line of a program; lines with equal labels are merged.

    Attributes:
        label: the user's line and module, and the operator; for a backward line also the line of the forward.
        is_backward: whether the line belongs to the backward.
        executor: the executor that runs the line.
        calls: number of runs in a call of the function.
        seconds: time in a call of the function; on the device, if the line runs on one.
        bytes: bytes allocated in a call of the function, less bytes freed.
    """

    label: str
    is_backward: bool
    executor: str
    calls: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile(Shown):
    """Result of `profile`; prints as a table.

    Attributes:
        lines: lines of the program, the longest first.
        seconds: time of a call, forward and backward.
        calls: number of measured calls.
    """

    lines: tuple[ProfiledLine, ...]
    seconds: float
    calls: int
    _profiler: Any = field(repr=False, compare=False)
    _jitted: Any = field(repr=False, compare=False)
    _peaks: dict[str, list[int]] = field(repr=False, compare=False)

    def __repr__(self) -> str:
        total = self.seconds or 1
        header = (" share", "      ms", "      bytes", "executor", "pass", "line")
        rows = [
            (
                f"{line.seconds / total:.1%}",
                f"{line.seconds * 1e3:.3f}",
                f"{line.bytes:,}",
                line.executor,
                "backward" if line.is_backward else "forward",
                shortened(line.label, _WIDTH),
            )
            for line in self.lines[:_ROWS]
        ]
        inside = sum(line.seconds for line in self.lines) / total
        end = [
            f"{self.seconds * 1e3:.3f} ms a call, {inside:.0%} of it in these lines; {self.calls} calls measured"
        ]
        if len(self.lines) > _ROWS:
            rest = sum(line.seconds for line in self.lines[_ROWS:])
            end.insert(0, f"... {len(self.lines) - _ROWS} more lines, {rest * 1e3:.3f} ms")
        return "\n".join([table(header, rows, range(3)), *end])

    def as_dict(self) -> dict[str, object]:
        """Return the figures as plain values."""
        lines = [asdict(line) for line in self.lines]
        return {"seconds": self.seconds, "calls": self.calls, "lines": lines}

    def chrome(self, path: str | os.PathLike[str]) -> None:
        """Write a trace of the calls for `chrome://tracing` or Perfetto.

        Args:
            path: the file, which is overwritten.
        """
        self._profiler.export_chrome_trace(os.fspath(path))

    def html(self, path: str | os.PathLike[str] = "trace.html") -> Path:
        """Write the page of `sg.explain` with each line's share of time, and with buffers inside regions in its plot.

        Args:
            path: the file, which is overwritten.

        Returns:
            The path.

        Raises:
            InvalidInput: the file cannot be written.
        """
        explanation = explain(self._jitted)
        total = self.seconds or 1
        shares = {line.label: line.seconds / total / (line.calls or 1) for line in self.lines}
        summary = f"{explanation.text(80)}\n\n{self!r}"
        return write_page(explanation.facts, summary, path, Measured(shares, self._peaks))


def profile(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Profile:
    """Measure each line of a function's program: the forward, and the backward if results require grad.

    The function is recompiled with the same options and called 5 to 50 times, within about half a second if calls are
    short. Each call repeats the function's writes. Gradients are computed and dropped: `.grad` does not change.

    Args:
        function: a jitted function or module, or one to jit with the default options.
        *args: arguments of the measured call.
        **kwargs: keyword arguments of the call.

    Returns:
        The lines with their times and bytes; `print` shows a table, `.html(path)` writes a page, and `.chrome(path)` a
        trace of the calls.

    Raises:
        InvalidInput: the call falls back, so there is no program.
    """
    origins: dict[str, tuple[bool, str]] = {}

    def note(item: BoundSymbol, label: str) -> None:
        owner = item.implementation.owner if item.implementation else "torch"
        is_backward = (
            bool(item.links) or BACKWARD in item.tags or any(part.links for part in item.subsymbols)
        )
        origins[label] = is_backward, owner

    compiler = compiler_for(function)
    options = {**compiler.options, "compile": "now"}
    options["passes"] = [*compiler.options["passes"], ranged(note)]
    target = compiler.module if compiler.module is not None else compiler.function
    jitted = jit(target, **options)

    def step() -> None:
        results = [tensor for tensor in tensors_in(jitted(*args, **kwargs)) if tensor.requires_grad]
        if not results:
            return
        inputs = [tensor for tensor in _inputs(jitted, args, kwargs) if tensor.requires_grad]
        torch.autograd.grad(results, inputs, [*map(torch.ones_like, results)], allow_unused=True)

    step()
    if compiler_of(jitted).last is None:
        raise InvalidInput(
            f"{compiler.name} is not compiled for these arguments, it runs in eager; print(sg.explain(f)) says why"
        )
    step()
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] * torch.cuda.is_available()
    calls, begin = 0, time.perf_counter()
    with torch_profile(activities=activities, profile_memory=True) as profiler:
        while calls < _LEAST or (calls < _MOST and time.perf_counter() - begin < _SECONDS):
            step()
            calls += 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / calls
    with torch_profile(activities=activities, profile_memory=True) as once:
        step()
    return Profile(_lines(profiler, origins, calls), seconds, calls, profiler, jitted, _peaks(once))


def _inputs(jitted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    entry = compiler_of(jitted).last
    inputs = None if entry is None else entry.prologue(args, kwargs)
    return tuple(inputs or tensors_in((args, kwargs)))


def _lines(
    profiler: Any, origins: dict[str, tuple[bool, str]], calls: int
) -> tuple[ProfiledLine, ...]:
    lines = []
    for event in profiler.key_averages():
        if event.key in origins:
            is_backward, owner = origins[event.key]
            spent = (event.device_time_total or event.cpu_time_total) / calls * 1e-6
            memory = event.device_memory_usage or event.cpu_memory_usage
            row = ProfiledLine(
                event.key, is_backward, owner, event.count / calls, spent, round(memory / calls)
            )
            lines.append(row)
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _peaks(profiler: Any) -> dict[str, list[int]]:
    """Return the peak bytes allocated inside each run of a line, by label, in order of the runs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    peaks = defaultdict[str, list[int]](list)
    open_ranges: list[list[Any]] = []
    total = 0
    for time_of, event in sorted(_moments(events), key=lambda pair: pair[0]):
        while open_ranges and time_of > open_ranges[-1][0]:
            _, label, before, most = open_ranges.pop()
            peaks[label].append(most - before)
        if event["name"] == "[memory]":
            total += event["args"]["Bytes"]
            for open_range in open_ranges:
                open_range[3] = max(open_range[3], total)
        else:
            open_ranges.append([time_of + event["dur"], event["name"], total, total])
    for _, label, before, most in reversed(open_ranges):
        peaks[label].append(most - before)
    return peaks


def _moments(events: list[dict[str, Any]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield ranges and memory changes with their times; device memory alone if a device was used, else the CPU's."""
    memory = [event for event in events if event.get("name") == "[memory]"]
    ranges = [row for row in events if row.get("cat") == "user_annotation" and row.get("ph") == "X"]
    device = max((event["args"]["Device Type"] for event in memory), default=0)
    changes = [event for event in memory if event["args"]["Device Type"] == device]
    yield from ((event["ts"], event) for event in (*ranges, *changes))

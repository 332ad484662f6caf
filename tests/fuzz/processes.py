"""Work spread over processes, of which any may die."""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
#: Work that takes longer than this hangs, and its process ends.
SECONDS = 600


def over_processes(
    work: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[tuple[Any, ...], Result | None]]:
    """Results as they come, each with its arguments; None for work whose process dies."""
    left = dict.fromkeys(arguments)
    with contextlib.suppress(BrokenProcessPool), _pool(jobs) as pool:
        futures = {pool.submit(_limited, work, *given): given for given in left}
        for future in concurrent.futures.as_completed(futures):
            result = future.result()
            del left[futures[future]]
            yield futures[future], result
    for given in left:
        # A process died, and took the pool with it: run alone, what was left shows whether it was the cause.
        with _pool(1) as pool:
            try:
                yield given, pool.submit(_limited, work, *given).result()
            except BrokenProcessPool:
                yield given, None


def _pool(jobs: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker)


def _limited(work: Callable[..., Result], *given: Any) -> Result:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        return work(*given)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _start_worker() -> None:
    faulthandler.enable()
    logging.disable(logging.ERROR)  # PyTorch logs what it then raises
    torch.set_num_threads(1)  # a sum split among threads is not bit-equal

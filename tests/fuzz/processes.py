"""Work spread over processes, of which any may die: each piece of work has a process of its own, without history."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import multiprocessing.connection
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

#: Processes are forked from one that has imported these and done nothing else. Checkpoints import torch._dynamo.
PRELOADED = ["tests.fuzz.search", "switchgear", "torch._dynamo"]


def over_processes(
    work: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[tuple[Any, ...], Result | None]]:
    """Results as they come, each with its arguments; None for work whose process dies."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting = list(reversed(arguments))
    running: dict[Any, tuple[multiprocessing.context.ForkServerProcess, tuple[Any, ...]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            parameters = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(sender, work, parameters), daemon=True)
            process.start()
            sender.close()
            running[receiver] = (process, parameters)
        connections: list[Any] = list(multiprocessing.connection.wait(list(running)))
        for ready in connections:
            process, parameters = running.pop(ready)
            result: Result | None = None
            with contextlib.suppress(EOFError):
                result = ready.recv()
            process.join()
            yield parameters, result


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """End the process, with its stack printed, if this takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _work(sender: multiprocessing.connection.Connection, work: Callable[..., Any], parameters: tuple[Any, ...]) -> None:
    faulthandler.enable()
    logging.disable(logging.ERROR)  # PyTorch logs what it then raises
    torch.set_num_threads(1)  # a sum split among threads is not bit-equal
    sender.send(work(*parameters))

"""The progress of a long compilation or export."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TypeVar

_Item = TypeVar("_Item")
_WIDTH = 24
#: Seconds between two updates of a terminal's bar.
_PAUSE = 0.5


class Progress:
    """Progress of a long task: a bar on a terminal, lines in a log elsewhere, after `patience` seconds.

    Args:
        count: the number of items.
        name: the name of the task, at the start of each line.
        is_shown: whether to show anything.
        patience: seconds before the first line, and between two lines of a log.
        unit: the plural noun for the items.
    """

    def __init__(
        self, count: int, name: str, *, is_shown: bool, patience: float = 1.0, unit: str = "regions"
    ) -> None:
        self.count, self.name, self.unit = count, name, unit
        self.is_shown, self.patience = is_shown, patience
        self.position = 0
        self._terminal = sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_ticking, daemon=True)

    def after(self, item: _Item) -> _Item:
        """Count one more item as done.

        Args:
            item: the item.

        Returns:
            The same item.
        """
        self.position += 1
        self._tick()
        return item

    def _tick(self) -> None:
        now = time.monotonic()
        if (
            not self.is_shown
            or now - (self._begun if self._terminal else self._last) <= self.patience
        ):
            return
        self._last = now
        text = f"{self.position}/{self.count} {self.unit}, {now - self._begun:.0f} s"
        if self._terminal:
            bar = ("#" * (_WIDTH * self.position // self.count)).ljust(_WIDTH, ".")
            print(f"\r{self.name} [{bar}] {text}", end="", file=sys.stderr, flush=True)
        else:
            logging.getLogger("switchgear").info("%s: %s", self.name, text)

    def _keep_ticking(self) -> None:
        while not self._ended.wait(_PAUSE):
            self._tick()

    def __enter__(self) -> Progress:
        if self.is_shown:  # a single item may take a minute
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self.is_shown:
            self._thread.join()
        if self._terminal and self._last > self._begun:
            print(file=sys.stderr)

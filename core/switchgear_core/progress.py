"""The progress of a long compilation or export."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
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
        self.count = count
        self.name = name
        self.is_shown = is_shown
        self.patience = patience
        self.unit = unit
        self.position = 0
        self._terminal = sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._ended = threading.Event()
        self._ticking: threading.Thread | None = None

    def after(self, item: _Item) -> _Item:
        """Count one more item as done.

        Args:
            item: the item.

        Returns:
            The same item.
        """
        self.position += 1
        self.tick()
        return item

    def tick(self) -> None:
        """Show the progress, if the task takes long."""
        now = time.monotonic()
        is_late = now - self._begun > self.patience
        if self.is_shown and is_late and (self._terminal or now - self._last > self.patience):
            self._last = now
            self._show(f"{self.position}/{self.count} {self.unit}, {now - self._begun:.0f} s")

    def __enter__(self) -> Progress:
        if self.is_shown and self._terminal:  # a single item may take a minute
            self._ticking = threading.Thread(target=self._keep_ticking, daemon=True)
            self._ticking.start()
        return self

    def _keep_ticking(self) -> None:
        while not self._ended.wait(_PAUSE):
            self.tick()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._ticking is not None:
            self._ticking.join()
        if self._terminal and self._last > self._begun:
            print(file=sys.stderr)

    def _show(self, text: str) -> None:
        if self._terminal:
            filled = _WIDTH * self.position // self.count
            bar = "#" * filled + "." * (_WIDTH - filled)
            print(f"\r{self.name} [{bar}] {text}", end="", file=sys.stderr, flush=True)
        else:
            logging.getLogger("switchgear").info("%s: %s", self.name, text)

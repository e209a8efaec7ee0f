"""The progress of a long task: one line on a terminal; elsewhere, a line now and then."""

from __future__ import annotations

import time
from typing import TextIO

_WIDTH = 30
_EVERY_S = 10.0


class ProgressBar:
    """what: the unit that is counted. now_s: passed in by tests."""

    def __init__(self, output: TextIO, what: str) -> None:
        self._output = output
        self._what = what
        self._is_watched = output.isatty()
        self._started_s = time.monotonic()
        self._shown_s = self._started_s
        self._num_at_start: int | None = None

    def show(self, num_done: int, num_failed: int, total: int) -> None:
        """num_failed: of those that are done."""
        now_s = time.monotonic()
        if self._num_at_start is None:
            self._num_at_start = num_done
        if not self._is_watched and now_s - self._shown_s < _EVERY_S:
            return
        self._shown_s = now_s
        rate = (num_done - self._num_at_start) / max(1e-9, now_s - self._started_s)
        text = f"{num_done}/{total} {self._what}, {rate:.1f} a second"
        if num_failed:
            text += f", {num_failed} failed"
        if self._is_watched:
            num_full = _WIDTH * num_done // max(1, total)
            text = f"\r[{'#' * num_full}{' ' * (_WIDTH - num_full)}] {text}\x1b[K"
        else:
            text += "\n"
        self._output.write(text)
        self._output.flush()

    def end(self) -> None:
        if self._is_watched:
            self._output.write("\n")

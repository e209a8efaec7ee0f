"""A progress bar on a terminal; nothing elsewhere."""

import sys
import time
from typing import TextIO

_WIDTH = 30


class ProgressBar:
    """Call it with the number of finished requests. Draws on `stream` if that is a terminal."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._began = time.perf_counter()

    def __call__(self, finished: int) -> None:
        """Redraw the bar."""
        if not self._shown:
            return
        filled = _WIDTH * finished // self._total
        elapsed = time.perf_counter() - self._began
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write(f"\r[{bar}] {finished}/{self._total}  {elapsed:.0f} s")
        self._stream.flush()

    def close(self) -> None:
        """End the bar's line."""
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()

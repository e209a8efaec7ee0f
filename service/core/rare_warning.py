"""A rate-limited warning, for what clients can cause at will: it must not fill the log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

EVERY_S = 60.0


class RareWarning:
    """Logged at most once in EVERY_S. message: its last `%d` gets the number of occurrences since it was last logged.
    of_fault: `tell` is called in an exception handler; the traceback is logged, too."""

    def __init__(
        self,
        logger: logging.Logger,
        message: str,
        now_s: Callable[[], float] = time.monotonic,
        *,
        of_fault: bool = False,
    ) -> None:
        self._logger = logger
        self._message = message
        self._now_s = now_s
        self._of_fault = of_fault
        self._num_untold = 0
        self._told_s = -math.inf

    def tell(self, *args: object) -> None:
        """It occurred again. args: for all placeholders of the message but the last."""
        self._num_untold += 1
        if self._now_s() - self._told_s > EVERY_S:
            self._logger.warning(self._message, *args, self._num_untold, exc_info=self._of_fault)
            self._told_s, self._num_untold = self._now_s(), 0

"""The loss of a rank: nothing can be computed from then on, and the service ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.errors import ServerError

logger = logging.getLogger(__name__)


class RankLoss:
    """Any thread. on_loss(reason): called once, on the thread that noticed the loss first."""

    def __init__(self, on_loss: Callable[[str], None]) -> None:
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self.reason: str | None = None

    def declare(self, reason: str) -> None:
        """Only the first reason counts; later ones are its consequences."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
        logger.critical("%s", reason)
        self._on_loss(reason)

    def check(self) -> None:
        """Raises ServerError if a rank is lost."""
        if self.reason is not None:
            raise ServerError(self.reason)

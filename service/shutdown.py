"""How the process ends: at the first SIGTERM or SIGINT in order, at the second at once, at a fault with status 1.

SIGHUP comes from a terminal that closes, often twice: in order, and never at once. Under nohup it is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from enum import IntEnum

logger = logging.getLogger(__name__)


class ExitStatus(IntEnum):
    OK = 0
    FAULT = 1


class Shutdown:
    """Waits for the reason to end. Event-loop thread only."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._hurry = asyncio.Event()
        self.status = ExitStatus.OK

    def listen(self) -> None:
        """Take SIGTERM and SIGINT over, and SIGHUP if it is not ignored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._on_signal, number)

    def fail(self, reason: str) -> None:
        """End the process with a status that says so."""
        logger.critical("shutting down: %s", reason)
        self.status = ExitStatus.FAULT
        self._requested.set()
        self._hurry.set()

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    async def requested(self) -> None:
        await self._requested.wait()

    async def hurry(self) -> None:
        """Returns once there is no more time to be polite."""
        await self._hurry.wait()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._requested.is_set():
            logger.info("%s: no new requests; running ones may finish", name)
            self._requested.set()
        elif number != signal.SIGHUP:
            logger.warning("%s again: ending at once", name)
            self._hurry.set()

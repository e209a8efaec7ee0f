"""The end of the process: at the first SIGTERM or SIGINT in order, at the second at once, after a fault with status 1.

SIGHUP comes from a terminal that closes, often twice: it ends the process in order, never at once. Under nohup it is
ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from enum import IntEnum

logger = logging.getLogger(__name__)

AT_ONCE_S = 0.4
"""Seconds. After the second signal streams are told, as far as possible; then the process ends, whatever threads do."""


class ExitStatus(IntEnum):
    OK = 0
    FAULT = 1


class Shutdown:
    """Waits for the reason to end. Event-loop thread only.

    exit_now: ends the process; called with the status, on another thread, AT_ONCE_S after the second signal.
    """

    def __init__(self, exit_now: Callable[[int], object] = os._exit) -> None:
        self._exit_now = exit_now
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()
        self._is_ending_at_once = False
        self.status = ExitStatus.OK

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT, and SIGHUP if it is not ignored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._on_signal, number)

    def request(self, reason: str) -> None:
        """End in order, as at the first signal."""
        logger.info("%s: ending in order; running requests may finish", reason)
        self._requested.set()

    def fail(self, reason: str) -> None:
        """End the process with status 1."""
        logger.critical("shutting down: %s", reason)
        self.status = ExitStatus.FAULT
        self._requested.set()
        self._forced.set()

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    async def requested(self) -> None:
        await self._requested.wait()

    async def forced(self) -> None:
        """Returns at the second signal, or when the time to drain is over."""
        await self._forced.wait()

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if not self._requested.is_set():
            self.request(name)
        elif number != signal.SIGHUP and not self._is_ending_at_once:
            logger.warning("%s again: ending at once", name)
            self._is_ending_at_once = True
            self._forced.set()
            end = threading.Timer(AT_ONCE_S, lambda: self._exit_now(int(self.status)))
            end.daemon = True
            end.start()

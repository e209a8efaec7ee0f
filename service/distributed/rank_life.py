"""A rank's process ends when rank 0 does, in whatever way; signals and other ranks' faults do not end it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from service.distributed.rank_status import Fact, RankStatuses

_SIGN_EVERY_S = 0.1


def leave_signals_to_parent() -> None:
    """Ignore signals that a terminal or a service manager sends to every process: rank 0 drains, and then ends this
    one."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class LifeSigns:
    """A thread that counts a heartbeat until the lifeline closes. Then it calls `last_words` and ends the process,
    whatever the other threads do."""

    def __init__(
        self, rank: int, lifeline: Connection, statuses: RankStatuses, last_words: Callable[[], None] = lambda: None
    ) -> None:
        self._rank = rank
        self._lifeline = lifeline
        self._statuses = statuses
        self._last_words = last_words

    def start(self) -> None:
        threading.Thread(target=self._run, name="life signs", daemon=True).start()

    def _run(self) -> None:
        while not self._is_released():
            self._statuses.add(self._rank, Fact.HEARTBEAT, 1)
        self._last_words()
        os._exit(0)

    def _is_released(self) -> bool:
        """Wait _SIGN_EVERY_S. Rank 0 sends nothing more, so anything to read means that the lifeline is closed."""
        try:
            return self._lifeline.poll(_SIGN_EVERY_S)
        except OSError:
            return True

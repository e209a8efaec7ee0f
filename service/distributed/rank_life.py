"""How a rank's process lives: it ends with rank 0, whatever that ends by, and for no other reason of others."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from service.distributed.rank_status import Fact, RankStatuses

_SIGN_EVERY_S = 0.1
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """From now on the kernel kills this process with its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which has ended before
        os._exit(0)


def leave_signals_to_parent() -> None:
    """A terminal, or a service manager, sends them to every process: rank 0 drains, and then ends this one."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class LifeSigns:
    """A thread: signs of life for rank 0, until the lifeline is closed; then it ends the process, whatever the
    others do, as soon as `last_words` has returned."""

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
        """After a while; rank 0 says nothing more."""
        try:
            return self._lifeline.poll(_SIGN_EVERY_S)
        except OSError:
            return True

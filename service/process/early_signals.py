"""Termination signals while no event loop handles them: during the imports before it, and in the moments after it.

Uses little of the standard library only, since it runs before the other imports.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STANDARD_ERROR = 2


def hold_signals() -> None:
    """Signals are held from now on, also while the process executes another program, until `end_at_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def end_at_signals(status: int = 0) -> None:
    """From now on each signal, also one that was held, ends the process with this status and a message. SIGHUP is left
    ignored if it is (nohup).

    By default they would not end the first process of a container at all, and SIGINT would show a traceback.
    """

    def end(number: int, frame: FrameType | None) -> None:
        _say(f"headrace: {signal.Signals(number).name}: ending\n")
        os._exit(status)

    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)
    release_signals()


def _say(line: str) -> None:
    """Writes to standard error, unless that would block."""
    if select.select([], [_STANDARD_ERROR], [], 0)[1]:
        os.write(_STANDARD_ERROR, line.encode())

"""Makes sure that standard input, output and error are open."""

from __future__ import annotations

import os

_STANDARD_ERROR = 2


def open_standard_streams() -> None:
    """Closed streams become the null device, also for programs that are executed later. Otherwise the first socket
    would get such a number, and a client would receive what a library prints."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:  # the lowest number that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)

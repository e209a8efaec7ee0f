"""Standard input, output and error are open, whoever started the process."""

from __future__ import annotations

import os

_STANDARD_ERROR = 2


def open_standard_streams() -> None:
    """What is closed becomes the null device, for programs executed later too. Otherwise the first socket would take
    the number, and a client would be sent what a library prints."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:  # the lowest number that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)

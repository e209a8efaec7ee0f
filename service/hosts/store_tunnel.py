"""How ranks of another host reach the store in which all ranks meet: through a connection that the head has admitted.

torch.distributed's store lets anyone write who can connect. So it listens on the head's loopback interface only, and
every other host has a port on its own loopback interface that leads to it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

logger = logging.getLogger("headrace")

_PART_BYTES = 1 << 16


def join(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes both ways until one side ends, then close both. Returns at once."""
    for source, sink in ((one, other), (other, one)):
        source.settimeout(None)
        threading.Thread(target=_pump, args=(source, sink), name="store tunnel", daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(_PART_BYTES):
            sink.sendall(part)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class StoreTunnel:
    """Another host's side, from `open` to the end of the process. connect: opens a connection to the store through the
    head."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect

    def open(self) -> int:
        """Returns the port on the loopback interface."""
        listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._run, args=(listening,), name="store tunnels", daemon=True).start()
        port: int = listening.getsockname()[1]
        return port

    def _run(self, listening: socket.socket) -> None:
        while True:
            local, _ = listening.accept()
            try:
                join(local, self._connect())
            except Exception as fault:  # the rank that connected reports it, too
                logger.error("the head's store cannot be reached: %s", fault)
                local.close()

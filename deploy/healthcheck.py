"""HEALTHCHECK of the container: ends with status 0 if and only if GET /health is answered with 200 in time.

/health is 503 while the model loads, while the server drains and when an iteration is stuck; a process that hangs
altogether does not answer. Standard library only, and no proxy on the way.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

WITHIN_S = 4.0
ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class UnixConnection(HTTPConnection):
    """HTTP over the socket at `path`."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WITHIN_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connect() -> HTTPConnection:
    """To where the service was told to listen. Its certificate need not be for this address."""
    host, port = os.environ.get("HEADRACE_HOST", ""), int(os.environ.get("HEADRACE_PORT", "8000"))
    host = ALL_ADDRESSES.get(host, host)
    if path := os.environ.get("HEADRACE_UDS"):
        return UnixConnection(path)
    if os.environ.get("HEADRACE_SSL_CERTFILE"):
        return HTTPSConnection(host, port, timeout=WITHIN_S, context=ssl._create_unverified_context())
    return HTTPConnection(host, port, timeout=WITHIN_S)


def main() -> int:
    """The exit status; what is wrong goes to stdout, which `docker inspect` shows."""
    connection = connect()
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        print(answer.status, answer.read(200).decode())
    except (OSError, HTTPException) as fault:
        print(f"no answer: {fault!r}")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())

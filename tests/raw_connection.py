"""A connection to a server, byte by byte, where an HTTP client would be too well-behaved."""

from __future__ import annotations

import socket

from tests.api.running_server import RunningServer

POST_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connect(server: RunningServer, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(5)
    connection.connect(("127.0.0.1", int(server.base_url.rpartition(":")[2])))
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server closes or cuts the connection."""
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer

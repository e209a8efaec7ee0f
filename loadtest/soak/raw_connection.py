"""A raw connection, for clients that misbehave."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from typing import Any, Self

from loadtest.strict_http import MAX_LINE_BYTES, Answer, read_answer


class RawConnection:
    """Open with `to`, end with `leave`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int, receive_buffer: int | None = None) -> Self:
        """Connect to 127.0.0.1. receive_buffer: bytes that the kernel accepts for a client that does not read."""
        wire = socket.socket()
        if receive_buffer is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        wire.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
            return cls(*await asyncio.open_connection(sock=wire, limit=receive_buffer or MAX_LINE_BYTES))
        except BaseException:
            wire.close()
            raise

    async def answer(self, *, method: str = "GET", http_1_0: bool = False, pause_s: float = 0.0) -> Answer | None:
        """As `read_answer`."""
        return await read_answer(self.reader, method=method, http_1_0=http_1_0, pause_s=pause_s)

    def leave(self, chance: random.Random) -> None:
        """Close the connection, either properly or with a reset."""
        if chance.random() < 0.5:
            wire = self.writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # the server has closed it already
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def post_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A complete POST request."""
    content = json.dumps(body).encode()
    line = " ".join(("POST", path, "HTTP/1.1"))
    head = f"{line}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def get_bytes(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

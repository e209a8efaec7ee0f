"""Answers to HTTP/1.0 clients, which do not know chunks. uvicorn writes chunks to every client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


async def send_without_chunks(
    cycle: RequestResponseCycle, send: Callable[[Any], Awaitable[None]], message: Any
) -> None:
    """`cycle.send` for such a client: a body without a length ends with the connection."""
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    elif message["type"] == "http.response.body" and not cycle.expected_content_length:
        cycle.expected_content_length = len(message["body"])
    await send(message)

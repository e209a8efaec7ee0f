"""Server-sent events as bytes."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which readers of events skip."""


def data_frame(json: bytes) -> bytes:
    """One event. `json` must be a single line."""
    return b"data: " + json + b"\n\n"

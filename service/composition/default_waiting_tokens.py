"""The default of max-waiting-tokens: what waiting prompts may take of the host's memory. How long they may wait is
max-waiting-seconds' to say, since a token takes a microsecond on one device and a millisecond on another."""

from __future__ import annotations

SHARE = 16
"""One part in so many is for waiting prompts; four, if they are alike (MAX_SHARED_FACTOR in engine/async_engine.py)."""

BYTES_A_TOKEN = 64
"""Of host memory that a waiting prompt's token takes: its id as an object of 32 bytes and three lists with its address,
of the call, the request and the sequence. Measured: 60 (loadtest/LOG.md)."""


def default_waiting_tokens(host_bytes: int) -> int:
    """host_bytes: of the host's memory, or of what the process's control group may use of it."""
    return max(1, host_bytes // SHARE // BYTES_A_TOKEN)

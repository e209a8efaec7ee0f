"""A server as an operator sees it: its health, its gauges, and the resources of its processes."""

import asyncio
import json
import random
import time
from typing import NamedTuple

from loadtest.process_tree import Holdings, holdings_of
from loadtest.soak.raw_connection import RawConnection, get_bytes

GAUGES_AT_REST = (
    "headrace_requests_running",
    "headrace_requests_waiting",
    "headrace_requests_swapped",
    "headrace_waiting_tokens",
    "headrace_kv_blocks_used",
)
_POLL_S = 0.05


class NotAtRestError(Exception):
    """Something of ended requests is still held."""


class Health(NamedTuple):
    status: int
    said: str
    took_s: float


class ServerView:
    """One server on 127.0.0.1, and its process."""

    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self._pid = pid

    def holdings(self) -> Holdings:
        return holdings_of(self._pid)

    async def health(self) -> Health:
        """Raises TimeoutError after 30 s."""
        began_s = time.monotonic()
        status, body = await self._get("/health")
        return Health(status, str(json.loads(body)["status"]), time.monotonic() - began_s)

    async def metrics(self) -> dict[str, float]:
        """Every series, by its name and labels as /metrics writes them."""
        _, body = await self._get("/metrics")
        lines = (line.rpartition(" ") for line in body.decode().splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def rest(self, within_s: float) -> float:
        """Wait until nothing of any request is left. Returns the seconds waited. Raises NotAtRestError."""
        began_s = time.monotonic()
        while True:
            metrics = await self.metrics()
            left = {name: metrics[name] for name in GAUGES_AT_REST if metrics[name]}
            waited_s = time.monotonic() - began_s
            if not left:
                return waited_s
            if waited_s > within_s:
                raise NotAtRestError(f"after {waited_s:.1f} s: {left}")
            await asyncio.sleep(_POLL_S)

    async def _get(self, path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(30):
            connection = await RawConnection.to(self._port)
            try:
                connection.writer.write(get_bytes(path))
                answer = await connection.answer()
            finally:
                connection.leave(random.Random(0))
        if answer is None:
            raise ConnectionResetError(f"{path}: closed without an answer")
        return answer.status, answer.body

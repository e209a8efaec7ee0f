"""The deployment that Ray Serve starts, scales and replaces: a server, and the few methods that Serve calls."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from service.ray_serve.call import AnswerHead, Call
from service.ray_serve.server_process import ServerProcess

WAITING, BUSY = "waiting", "busy"
"""What a replica reports to the autoscaler: waiting requests, and how much of it is in use, 0 to 1."""

_LAST_RESORT_S = 60.0


class Others(NamedTuple):
    """Other hosts of a replica's model. flags, environment: what its server needs to know of them. held: keeps them
    alive as long as the replica."""

    flags: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})
    held: object = None


StartOthers = Callable[[Sequence[str], Sequence[str]], Others]
"""Called with the command of a server and its flags."""


def start_none(run: Sequence[str], flags: Sequence[str]) -> Others:
    return Others()


class Replica:
    """Lives as long as its server: when that ends, this process ends too, with status 1, and Serve starts another.

    max_running: `--max-num-seqs`, if it is set; running requests are counted against it. Serve makes the replica, and
    calls it on the thread of its event loop. start_others: for a model on several hosts.
    """

    def __init__(
        self,
        run: Sequence[str],
        flags: Sequence[str],
        max_running: int | None,
        start_others: StartOthers = start_none,
    ) -> None:
        self._max_running = max_running
        self._is_stopping = False
        self._others = start_others(run, flags)
        self._server = ServerProcess(run, [*flags, *self._others.flags], self._others.environment)
        threading.Thread(target=self._end_with_server, name="server's end", daemon=True).start()

    async def answer(self, call: Call) -> AsyncIterator[AnswerHead | bytes]:
        """The head, then the body in pieces. Raises httpx.TransportError if the server is lost."""
        async for part in self._server.exchange(call):
            yield part

    async def check_health(self) -> None:
        """Called by Serve: raises if a short new request would not complete."""
        await self._server.text("/health")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve: the metrics for autoscaling.py."""
        return load_of(await self._server.text("/metrics"), self._max_running)

    def __del__(self) -> None:
        """Called by Serve when it has taken the replica out of service and its calls are done."""
        self._is_stopping = True
        self._server.stop(_LAST_RESORT_S)

    def _end_with_server(self) -> None:
        self._server.wait()
        if not self._is_stopping:
            os._exit(1)


def load_of(metrics: str, max_running: int | None) -> dict[str, float]:
    """From the text of /metrics."""
    values = {
        sample.name: sample.value for family in text_string_to_metric_families(metrics) for sample in family.samples
    }
    running = values["headrace_requests_running"] / max_running if max_running else 0.0
    return {
        WAITING: values["headrace_requests_waiting"],
        BUSY: min(1.0, max(values["headrace_kv_blocks_used_ratio"], running)),
    }

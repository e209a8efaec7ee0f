"""uvicorn, run inside our event loop and under our signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from service.config import ConnectionLimits
from service.errors import ConfigError
from service.http_protocol import bounded_protocol

BACKLOG = 4096
LAST_WORDS_S = 5
"""After the drain every stream has had its final event; so long may its last bytes take."""


class HttpServer(uvicorn.Server):
    """Listens from `bind` on, serves while `serve_forever` runs, ends in order after `finish`.

    uvicorn would close its listeners at SIGTERM and then either wait for ever or cut streams; here the signals
    belong to `main.py`, which drains the engine first, while late clients still get a proper 503.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, limits: ConnectionLimits | None = None) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="none",
                # uvicorn's type asks for a class; all that it does with it is to call it.
                http=cast(type[asyncio.Protocol], bounded_protocol(limits)),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nobody asks who the client is but by its key
                timeout_keep_alive=cast(int, limits.idle_timeout_s),  # a float will do
                timeout_graceful_shutdown=LAST_WORDS_S,
                backlog=BACKLOG,
            )
        )
        self._sockets: list[socket.socket] = []

    def bind(self) -> str:
        """Take the address, so that connections queue from now on; returns the base URL.

        Raises ConfigError if the address cannot be had.
        """
        host, port = self.config.host, self.config.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as fault:
            listener.close()
            raise ConfigError(f"cannot listen on {host} port {port}: {fault.strerror}") from fault
        self._sockets = [listener]
        shown = f"[{host}]" if family is socket.AF_INET6 else host
        return f"http://{shown}:{listener.getsockname()[1]}"

    async def serve_forever(self) -> None:
        """Serve until `finish`; returns when the last connection is done or has run out of time."""
        await self.serve(self._sockets)

    def finish(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No signal is uvicorn's."""
        yield

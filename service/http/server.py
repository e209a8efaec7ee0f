"""uvicorn, run inside our event loop and under our signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from service.config import ConnectionLimits, ListenAddress
from service.errors import ConfigError
from service.http.protocol import bounded_protocol

BACKLOG = 4096
LAST_WORDS_S = 5
"""Seconds. After the drain every stream has had its final event; this is the time for its last bytes."""


class HttpServer(uvicorn.Server):
    """Listens from `bind` on, serves while `serve_forever` runs, ends in order after `finish`.

    uvicorn would close its listeners at SIGTERM and then either wait for ever or cut streams. Here `process` handles
    the signals, and `main.py` drains the engine first, while late clients still get a proper 503.
    """

    def __init__(self, app: ASGIApp, address: ListenAddress, limits: ConnectionLimits | None = None) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                app,
                host=address.host,
                port=address.port,
                ssl_certfile=address.certificate,
                ssl_keyfile=address.private_key,
                loop="none",
                # uvicorn's type asks for a class, but it only calls it.
                http=cast(type[asyncio.Protocol], bounded_protocol(limits)),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # clients are identified by their keys only
                timeout_keep_alive=cast(int, limits.idle_timeout_s),  # a float works
                timeout_graceful_shutdown=LAST_WORDS_S,
                backlog=BACKLOG,
            )
        )
        self._address = address
        self._sockets: list[socket.socket] = []
        self._finished = asyncio.Event()

    def bind(self) -> str:
        """Bind the address, so that connections queue from now on. Returns the base URL.

        ConfigError if the address is not available, or the certificate cannot be read.
        """
        address = self._address
        try:
            self.config.load()
        except OSError as fault:  # also what ssl raises
            raise ConfigError(f"ssl-certfile, ssl-keyfile: {fault.strerror or fault}") from fault
        if address.uds is not None:
            self._sockets = [_listen_on_path(address.uds)]
            return f"unix:{address.uds}"
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
            listener.listen(BACKLOG)
        except OSError as fault:
            listener.close()
            raise ConfigError(f"cannot listen on {address.host} port {address.port}: {fault.strerror}") from fault
        self._sockets = [listener]
        shown = f"[{address.host}]" if family is socket.AF_INET6 else address.host
        return f"{'https' if self.config.is_ssl else 'http'}://{shown}:{listener.getsockname()[1]}"

    async def serve_forever(self) -> None:
        """Serve until `finish`; returns when the last connection is done or has run out of time."""
        try:
            await self.serve(self._sockets)
        finally:
            if self._address.uds is not None:
                self._address.uds.unlink(missing_ok=True)

    def finish(self) -> None:
        """To be called on the event loop's thread."""
        self.should_exit = True
        self._finished.set()

    async def main_loop(self) -> None:
        """Ticks once a second, for the Date header; uvicorn's ticks ten times as often to see whether it should end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._finished.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, without its pause when nobody is connected."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves all signals to `process`."""
        yield


def _listen_on_path(path: Path) -> socket.socket:
    """A Unix socket that listens there. A socket left behind by a dead server is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as fault:
        listener.close()
        raise ConfigError(f"uds: cannot listen on {path}: {fault.strerror or fault}") from fault
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True

"""HAProxy with the file that is shipped, in front of replicas; where there is none, a stand-in with the same rules."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from loadtest.routers import HAPROXY_FILE, program, running_haproxy
from loadtest.server_process import free_port

CHECK_EVERY_S = float(re.search(r"server-template .* inter (\d+)s", HAPROXY_FILE.read_text())[1])
BUFFER_BYTES = 16384


@contextmanager
def balanced(urls: list[str]) -> Iterator[str]:
    """Its URL, once it passes calls on."""
    with running_haproxy(urls) if program("haproxy") else _stand_in(urls) as url:
        yield url


@dataclass
class _Replica:
    host: str
    port: int
    is_ready: bool = False
    num_open: int = 0


class _StandIn:
    """A connection a call. leastconn, GET /ready every `inter` with `fall 1`, and another replica for a call that the
    first one did not take: no connection, or 503 while all of the call is still in the buffer."""

    def __init__(self, urls: list[str]) -> None:
        addresses = [url.removeprefix("http://").partition(":") for url in urls]
        self._replicas = [_Replica(host, int(port)) for host, _, port in addresses]
        self.port = free_port()

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            await stack.enter_async_context(await asyncio.start_server(self._call, "127.0.0.1", self.port))
            for replica in self._replicas:
                group.create_task(self._check(replica))

    async def _check(self, replica: _Replica) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(replica.host, replica.port)
                writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
                replica.is_ready = b" 200 " in await reader.readline()
                writer.close()
            except OSError:
                replica.is_ready = False
            await asyncio.sleep(CHECK_EVERY_S)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.I)
        body = await reader.readexactly(int(length[1])) if length else b""
        call = re.sub(rb"connection: keep-alive", b"connection: close", head, flags=re.I) + body
        tried: list[_Replica] = []
        while not await self._pass_on(call, writer, tried):
            pass
        writer.close()

    async def _pass_on(self, call: bytes, writer: asyncio.StreamWriter, tried: list[_Replica]) -> bool:
        """To a replica that was not tried; whether the client has had an answer."""
        ready = [replica for replica in self._replicas if replica.is_ready and replica not in tried]
        if not ready:
            writer.write(b"HTTP/1.1 503 No server\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return True
        replica = min(ready, key=lambda replica: replica.num_open)
        tried.append(replica)
        replica.num_open += 1
        try:
            answer, onward = await asyncio.open_connection(replica.host, replica.port)
            onward.write(call)
            first = await answer.readline()
            if b" 503 " in first and len(call) <= BUFFER_BYTES and len(tried) < len(self._replicas):
                return False
            while first:
                writer.write(first)
                await writer.drain()
                first = await answer.read(65536)
            onward.close()
        except ConnectionRefusedError:
            return False
        finally:
            replica.num_open -= 1
        return True


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def _stand_in(urls: list[str]) -> Iterator[str]:
    proxy = _StandIn(urls)
    loop = asyncio.new_event_loop()
    task = loop.create_task(proxy.run())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    url = f"http://127.0.0.1:{proxy.port}"
    try:
        deadline_s = time.monotonic() + 10
        while not _answers(url):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield url
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()

"""HAProxy with the file that is shipped, in front of replicas; where there is none, a stand-in with the same rules."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.deploy.deployment import DEPLOY

CONFIGURATION = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
CHECK_EVERY_S = float(re.search(r"server-template .* inter (\d+)s", CONFIGURATION)[1])
BUFFER_BYTES = 16384


@contextmanager
def balanced(urls: list[str], folder: Path) -> Iterator[str]:
    """Its URL, once it knows of every replica that it is ready."""
    addresses = [url.removeprefix("http://") for url in urls]
    with _haproxy(addresses, folder) if shutil.which("haproxy") else _stand_in(addresses) as url:
        deadline_s = time.monotonic() + 10
        while not _answers(url):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _haproxy(addresses: list[str], folder: Path) -> Iterator[str]:
    """The shipped file, but for where it listens and how it finds the replicas."""
    port = _free_port()
    template = re.compile(
        r"^    server-template replica \d+ headrace:8000 (.*?) resolvers docker init-addr none$", re.M
    )
    lines = [f"    server replica{i} {address} \\1" for i, address in enumerate(addresses)]
    text = template.sub("\n".join(lines), CONFIGURATION).replace("bind :8000", f"bind 127.0.0.1:{port}")
    text = re.sub(r"^resolvers docker\n(    .*\n)+", "", text, flags=re.M)
    text = text.replace("headrace-0:8000", addresses[0]).replace(" resolvers docker init-addr none", "")
    file = folder / "haproxy.cfg"
    file.write_text(text)
    process = subprocess.Popen(["haproxy", "-f", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@dataclass
class _Replica:
    host: str
    port: int
    is_ready: bool = False
    num_open: int = 0


class _StandIn:
    """A connection a call. leastconn, GET /ready every `inter` with `fall 1`, and another replica for a call that the
    first one did not take: no connection, or 503 while all of the call is still in the buffer."""

    def __init__(self, addresses: list[str]) -> None:
        self._replicas = [_Replica(host, int(port)) for host, _, port in (a.partition(":") for a in addresses)]
        self.port = _free_port()

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


@contextmanager
def _stand_in(addresses: list[str]) -> Iterator[str]:
    proxy = _StandIn(addresses)
    loop = asyncio.new_event_loop()
    task = loop.create_task(proxy.run())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.port}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()

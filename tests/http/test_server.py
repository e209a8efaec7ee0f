from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.config import ListenAddress
from service.errors import ConfigError
from service.http.server import HttpServer
from tests.certificates import make_certificate


async def hello(request: object) -> PlainTextResponse:
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", hello)])


def serve_while(address: ListenAddress, ask: Callable[[str], Awaitable[None]]) -> None:
    """`ask` is told the server's URL."""

    async def scenario() -> None:
        server = HttpServer(APP, address)
        url = server.bind()
        serving = asyncio.create_task(server.serve_forever())
        await ask(url)
        server.finish()
        await asyncio.wait_for(serving, 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_it_serves_from_bind_to_finish():
    async def ask(url: str) -> None:
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "hello"

    serve_while(ListenAddress(), ask)


def test_it_ends_at_once_where_nobody_is_connected(monkeypatch: pytest.MonkeyPatch):
    ticks: list[int] = []

    class Ticking(HttpServer):
        async def on_tick(self, counter: int) -> bool:
            ticks.append(counter)
            return await super().on_tick(counter)

    async def scenario() -> None:
        server = Ticking(APP, ListenAddress())
        server.bind()
        serving = asyncio.create_task(server.serve_forever())
        while not server.started:
            await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", None)  # nobody pauses
            server.finish()
            await asyncio.wait_for(serving, 10)

    asyncio.run(scenario())
    assert len(ticks) == 2


def test_a_unix_socket_is_there_while_it_serves(tmp_path: Path):
    path = tmp_path / "headrace.sock"

    async def ask(url: str) -> None:
        assert url == f"unix:{path}"
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
            assert (await client.get("http://headrace/")).text == "hello"
        with pytest.raises(ConfigError, match=r"uds: cannot listen on .*Address already in use"):
            HttpServer(APP, ListenAddress(uds=path)).bind()

    serve_while(ListenAddress(uds=path), ask)
    assert not path.exists()


def test_a_unix_socket_that_a_dead_server_left_is_replaced(tmp_path: Path):
    path = tmp_path / "headrace.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def ask(url: str) -> None:
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
            assert (await client.get("http://headrace/")).text == "hello"

    serve_while(ListenAddress(uds=path), ask)


def test_a_file_is_no_unix_socket_and_stays(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="uds: cannot listen on"):
        HttpServer(APP, ListenAddress(uds=path)).bind()
    assert path.read_text() == "mine"


def test_with_a_certificate_it_speaks_tls(certificate: tuple[Path, Path]):
    file, key = certificate

    async def ask(url: str) -> None:
        assert url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=trusting(file)) as client:
            assert (await client.get(url)).text == "hello"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=trusting(file))
        writer.write(b"no http\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 400 ")
        writer.close()

    serve_while(ListenAddress(certificate=file, private_key=key), ask)


def trusting(file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path, certificate: tuple[Path, Path]):
    file, key = certificate
    for address in (
        ListenAddress(certificate=tmp_path / "nowhere.pem"),
        ListenAddress(certificate=key, private_key=key),
        ListenAddress(certificate=file),
    ):
        with pytest.raises(ConfigError, match="ssl-certfile, ssl-keyfile: "):
            HttpServer(APP, address).bind()


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            HttpServer(APP, ListenAddress(port=port)).bind()

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from service.errors import ConfigError
from service.http_server import HttpServer


async def hello(request: object) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_it_serves_from_bind_to_finish():
    async def scenario() -> None:
        server = HttpServer(Starlette(routes=[Route("/", hello)]), "127.0.0.1", 0)
        url = server.bind()
        serving = asyncio.create_task(server.serve_forever())
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).text == "hello"
        server.finish()
        await asyncio.wait_for(serving, 5)

    asyncio.run(scenario())


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            HttpServer(Starlette(), "127.0.0.1", port).bind()

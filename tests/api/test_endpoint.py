from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.api.endpoint import Endpoint


async def answer(http: Request) -> Response:
    if http.query_params:
        raise KeyError("surprise")
    return Response(http.method + str(await http.body()))


async def ask(method: str, url: str) -> httpx.Response:
    app = Starlette(routes=[Route("/x", Endpoint(answer), methods=["POST"])])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        return await client.request(method, url, content=b"body")


def test_what_a_handler_returns_is_the_answer_to_its_methods() -> None:
    assert asyncio.run(ask("POST", "/x")).text == "POSTb'body'"
    assert asyncio.run(ask("GET", "/x")).status_code == 405


def test_what_it_raises_is_for_others() -> None:
    with pytest.raises(KeyError, match="surprise"):
        asyncio.run(ask("POST", "/x?y=1"))

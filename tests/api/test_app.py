from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.api.app import Endpoint
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, error_of


@pytest.mark.parametrize("path", ["/nope", "/v2", "/v1/models/", "/health/", "/v1/completions/x", "/%00", "/..%2f"])
def test_unknown_routes(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 404
    assert error_of(response)["type"] == "invalid_request_error"
    assert path not in response.text


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/conversations"])
def test_who_asks_elsewhere_is_told_the_routes(http: httpx.Client, path: str) -> None:
    assert (
        "/v1/chat/completions, /v1/completions, /v1/responses and /v1/models"
        in error_of(http.post(path, json={}))["message"]
    )


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", COMPLETIONS, "POST"), ("DELETE", CHAT, "POST"), ("POST", "/v1/models", "GET"), ("PUT", "/health", "GET")],
)
def test_wrong_methods(http: httpx.Client, method: str, path: str, allow: str) -> None:
    response = http.request(method, path)
    assert response.status_code == 405
    error_of(response)
    assert allow in response.headers["allow"]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v1/files", "GET, HEAD, POST"),
        ("/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("/v1/responses/compact", "POST"),
        ("/v1/fine_tuning/jobs", "GET, HEAD, POST"),
        ("/ping", "GET, HEAD, POST"),
    ],
)
def test_all_methods_of_a_path_are_told(http: httpx.Client, path: str, allow: str) -> None:
    told = http.put(path).headers["allow"]
    assert ", ".join(sorted(told.split(", "))) == allow


def test_head_is_answered_without_a_body(http: httpx.Client) -> None:
    response = http.head("/health")
    assert (response.status_code, response.content) == (200, b"")


def test_no_redirects_are_built_from_the_host_header(http: httpx.Client) -> None:
    assert http.get("/health/", headers={"Host": "evil.example"}).status_code == 404


def test_an_unread_stream_does_not_hold_up_others(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.001
    body = {"model": "alias", "prompt": "x", "max_tokens": 300, "stream": True}
    with http.stream("POST", COMPLETIONS, json=body):
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models").status_code == 200
        assert http.get("/metrics").status_code == 200


PAGE = {"Origin": "http://page.example"}
PREFLIGHT = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_pages_of_other_origins_may_not_call(http: httpx.Client) -> None:
    assert http.options(CHAT, headers=PREFLIGHT).status_code == 405
    assert not [name for name in http.get("/v1/models", headers=PAGE).headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [("http://page.example",), ("*",)])
def test_pages_of_allowed_origins_may_call_and_stream(origins: tuple[str, ...]) -> None:
    config = replace(Scene().config, allowed_origins=origins, api_keys=("sk-1",))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        asked = http.options(CHAT, headers=PREFLIGHT)
        assert asked.status_code == 200, "a browser asks without the key"
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = http.post(CHAT, headers=PAGE, json={})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origins[0], "else the page cannot read the error"
        body = {"model": "alias", "prompt": "x", "max_tokens": 3, "stream": True, "surprise": 1}
        streamed = http.post(COMPLETIONS, headers={**PAGE, "Authorization": "Bearer sk-1"}, json=body)
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert streamed.headers["access-control-allow-origin"] == origins[0]
        assert "x-ignored-params" in streamed.headers["access-control-expose-headers"]
        other = http.options(CHAT, headers={**PREFLIGHT, "Origin": "http://other.example"})
        assert (other.status_code == 200) == (origins == ("*",))


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

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from tests.api.messages_wire import MESSAGES
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, chat, events_of


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = replace(Scene().config, root_path="/llm/a", api_keys=("secret",), guard_metrics=False)
    with running(Scene(config=config)) as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, headers={"Authorization": "Bearer secret"}) as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "/llm/a"])
def test_every_path_is_known_with_it_and_without_it(server: RunningServer, http: httpx.Client, prefix: str) -> None:
    server.say("hello")
    assert len(events_of(http.post(f"{prefix}{CHAT}", json=chat(stream=True)).text)) > 1
    for path in ("/health", "/v1/models", "/", "/playground/main.js", "/metrics"):
        assert http.get(f"{prefix}{path}").status_code == 200
    assert http.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": "/llm/a"}]


@pytest.mark.parametrize("prefix", ["", "/llm/a"])
def test_keys_are_asked_for_under_both(server: RunningServer, prefix: str) -> None:
    assert httpx.post(f"{server.base_url}{prefix}{CHAT}", json=chat()).status_code == 401
    refused = httpx.post(f"{server.base_url}{prefix}{MESSAGES}", json=chat())
    assert refused.status_code == 401
    assert refused.json()["type"] == "error", "Anthropic's shape"
    assert httpx.get(f"{server.base_url}{prefix}/health").status_code == 200


def test_the_page_is_below_it(http: httpx.Client) -> None:
    """Its own paths are relative."""
    answer = http.get("/llm/a")
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/a/")


@pytest.mark.parametrize("path", ["/llm", "/llm/ab/health", "/x/llm/a/health", "/llm/a/llm/a/health", "/llm/a//health"])
def test_nothing_else_is(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404

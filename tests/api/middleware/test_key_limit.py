from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import openai
import pytest
from openai import OpenAI

from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of

ANN, ALSO_ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in ("sk-a", "sk-b", "sk-c"))


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Answers without end, for two requests of Ann's two keys together and two of Bob's."""
    keys = ("ann:sk-a", "ann:sk-b", "bob:sk-c")
    with running(Scene(config=replace(Scene().config, api_keys=keys, max_requests_per_key=2))) as server:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.002
        yield server


def test_one_too_many_of_a_key_is_refused_and_others_are_not(server: RunningServer) -> None:
    endless, short = completion(max_tokens=2000, stream=True), completion(max_tokens=2)
    with (
        httpx.Client(base_url=server.base_url) as http,
        http.stream("POST", COMPLETIONS, json=endless, headers=ANN),
        http.stream("POST", COMPLETIONS, json=endless, headers=ALSO_ANN),
    ):
        refused = http.post(COMPLETIONS, content=b"{", headers=ANN)
        assert refused.status_code == 429, "before its body is looked at"
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
        assert http.get("/v1/models", headers=ANN).status_code == 200, "what does not generate is not counted"
        assert http.post(COMPLETIONS, json=short, headers=BOB).status_code == 200
        with (
            OpenAI(base_url=f"{server.base_url}/v1", api_key="sk-a", max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.completions.create(model=MODEL, prompt="x")
    assert server.metric("headrace_rejections_total", reason="rate_limit_exceeded") == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_gives_its_place_back(server: RunningServer, stream: bool) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.base_url, headers=ANN) as http:
            body = completion(max_tokens=2000, stream=stream)
            calls = [asyncio.create_task(http.post(COMPLETIONS, json=body)) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert (await http.post(COMPLETIONS, json=body)).status_code == 429
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(leave())
    with httpx.Client(base_url=server.base_url, headers=ANN) as http:
        deadline_s = time.monotonic() + 5
        while http.post(COMPLETIONS, json=completion(max_tokens=1)).status_code == 429:
            assert time.monotonic() < deadline_s
    server.check_idle()


def test_refused_requests_are_not_counted(server: RunningServer) -> None:
    with httpx.Client(base_url=server.base_url, headers=ANN) as http:
        for _ in range(4):
            assert http.post(COMPLETIONS, json={}).status_code == 400
        assert http.post(COMPLETIONS, json=completion(max_tokens=1)).status_code == 200

from __future__ import annotations

import threading
from dataclasses import replace

import httpx

from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of


def test_a_body_is_answered_as_at_its_own_route(server: RunningServer, http: httpx.Client) -> None:
    server.say("well said")
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat("hi"))):
        there, here = http.post(path, json=body).json(), http.post("/invocations", json=body).json()
        assert {**here, "id": 0, "created": 0} == {**there, "id": 0, "created": 0}
    assert (
        events_of(http.post("/invocations", json=chat("hi", stream=True)).text)[0]["object"] == "chat.completion.chunk"
    )


def test_what_is_neither_or_both_is_refused(http: httpx.Client) -> None:
    for body in ({}, {**completion(), **chat("hi")}):
        assert error_of(http.post("/invocations", json=body))["param"] == "prompt"


def test_it_counts_against_a_keys_limit() -> None:
    config = replace(Scene().config, api_keys=("ann:sk-a",), max_requests_per_key=1)
    with running(Scene(config=config)) as server:
        server.executor.gate.clear()
        with httpx.Client(base_url=server.base_url, headers={"Authorization": "Bearer sk-a"}) as http:
            waiting = threading.Thread(target=lambda: http.post("/invocations", json=completion()))
            waiting.start()
            while not server.engine.num_live:
                pass
            assert http.post("/invocations", json=completion()).status_code == 429
            server.executor.gate.set()
            waiting.join(10)

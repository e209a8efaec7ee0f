from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.config import ApiConfig
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


def trace_of(http: httpx.Client, call_id: str) -> dict[str, Any]:
    response = http.get(f"/v1/requests/{call_id}/trace")
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, completion(prompt=["a", "b"])), (CHAT, chat("hi"))])
def test_tells_where_the_time_went(server: RunningServer, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    ids = server.say("four words are here")
    server.executor.delay_s = 0.01
    answer = http.post(path, json={**body, "max_tokens": 100}).json()
    trace = trace_of(http, answer["id"])
    assert (trace["id"], trace["model"], trace["outcome"]) == (answer["id"], MODEL, "finished")
    assert trace["created"] == answer["created"]
    assert sum(prompt["prompt_tokens"] for prompt in trace["prompts"]) == answer["usage"]["prompt_tokens"]
    for prompt in trace["prompts"]:
        assert prompt["output_tokens"] == len(ids)
        assert 0 <= prompt["first_scheduled_s"] < prompt["first_token_s"] < prompt["finished_s"]
        assert prompt["finished_s"] - prompt["first_token_s"] >= 0.01 * (len(ids) - 1)
        assert (prompt["preemptions"], prompt["preempted"]) == (0, [])
        assert prompt["iterations"] == len(ids)
        assert prompt["grammar_s"] is None
        (wait,) = prompt["waits"]
        assert (wait["since_s"], wait["until_s"]) == (0, prompt["first_scheduled_s"])
        assert sum(chunk["tokens"] for chunk in prompt["chunks"]) == prompt["prompt_tokens"]
        assert prompt["num_chunks"] == len(prompt["chunks"])


def test_tells_what_a_request_waited_for(server: RunningServer, http: httpx.Client) -> None:
    """The places are taken by a first call; the second starts when one is free. And the grammar's time is told."""
    ids = server.say("some words to be said here")
    server.executor.delay_s = 0.02
    taken = {"n": server.scene.scheduler.max_num_seqs, "max_tokens": len(ids)}
    with ThreadPoolExecutor() as threads:
        first = threads.submit(http.post, COMPLETIONS, json=completion(**taken))
        while server.engine.snapshot.num_running == 0:
            time.sleep(0.001)
        second = http.post(COMPLETIONS, json=completion(max_tokens=3, regex="ab"))
        first.result()
    (prompt,) = trace_of(http, second.json()["id"])["prompts"]
    assert [wait["reason"] for wait in prompt["waits"]] == ["sequences"]
    assert prompt["grammar_s"] > 0


def test_of_a_running_and_of_an_abandoned_call(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.005
    with httpx.stream("POST", f"{server.base_url}{COMPLETIONS}", json=completion(stream=True, max_tokens=1000)) as left:
        lines = left.iter_lines()
        call_id = json.loads(next(lines).removeprefix("data: "))["id"]
        assert trace_of(http, call_id)["outcome"] == "running"
    server.check_idle()
    assert trace_of(http, call_id)["outcome"] == "aborted"


def test_an_unknown_id(http: httpx.Client) -> None:
    response = http.get("/v1/requests/cmpl-0/trace")
    assert response.status_code == 404
    assert error_of(response)["param"] == "request_id"


def test_a_trace_is_its_keys_own() -> None:
    config = ApiConfig(served_model_names=(MODEL,), api_keys=("one", "two"))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        headers = {key: {"Authorization": f"Bearer {key}"} for key in ("one", "two")}
        call_id = http.post(COMPLETIONS, json=completion(), headers=headers["one"]).json()["id"]
        path = f"/v1/requests/{call_id}/trace"
        assert [http.get(path, headers=headers[key]).status_code for key in ("one", "two")] == [200, 404]
        assert http.get(path).status_code == 401

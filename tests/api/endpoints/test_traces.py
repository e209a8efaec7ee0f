from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.api.endpoints.traces import MAX_FOLLOWED
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
    http.post(COMPLETIONS, json=completion(max_tokens=3, regex="cd"))  # the process that compiles is there from now on
    server.executor.delay_s = 0.05
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
        trace = trace_of(http, call_id)
        assert trace["outcome"] == "running"
        (prompt,) = trace["prompts"]
        assert (prompt["outcome"], prompt["finished_s"]) == ("running", None)
        assert prompt["first_scheduled_s"] <= prompt["first_token_s"]
        assert prompt["output_tokens"] >= 1
    server.check_idle()
    assert trace_of(http, call_id)["outcome"] == "aborted"


class Following:
    """A followed trace, event by event."""

    def __init__(self, server: RunningServer, call_id: str, headers: dict[str, str] | None = None) -> None:
        self._stream = httpx.stream(
            "GET",
            f"{server.base_url}/v1/requests/{call_id}/trace",
            params={} if headers else {"follow": "true"},
            headers=headers or {},
            timeout=10,
        )
        self.response = self._stream.__enter__()
        self._lines = self.response.iter_lines()

    def next(self) -> dict[str, Any] | None:
        """The next trace; None at [DONE]."""
        for line in self._lines:
            if line.startswith("data: "):
                return None if line == "data: [DONE]" else dict(json.loads(line.removeprefix("data: ")))
            assert line in ("", "event: trace", ": keep-alive")
        raise AssertionError("the stream has ended without [DONE]")

    def last(self) -> dict[str, Any]:
        """The trace before [DONE]."""
        last: dict[str, Any] = {}
        while (trace := self.next()) is not None:
            last = trace
        return last

    def close(self) -> None:
        self._stream.__exit__(None, None, None)


@contextlib.contextmanager
def started_call(server: RunningServer) -> Iterator[tuple[str, httpx.Response]]:
    """A streamed call that runs for many seconds: its id, and the response, which may be closed."""
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.01
    body = completion(stream=True, max_tokens=2000)
    with httpx.stream("POST", f"{server.base_url}{COMPLETIONS}", json=body) as response:
        lines = response.iter_lines()
        yield json.loads(next(lines).removeprefix("data: "))["id"], response


@pytest.mark.parametrize("headers", [None, {"Accept": "text/event-stream"}])
def test_a_followed_trace_grows_until_its_call_has_ended(server: RunningServer, headers: dict[str, str] | None) -> None:
    with started_call(server) as (call_id, call):
        following = Following(server, call_id, headers)
        assert following.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, second = following.next(), following.next()
        assert first is not None
        assert second is not None
        assert (first["outcome"], second["outcome"]) == ("running", "running")
        assert second["prompts"][0]["output_tokens"] > first["prompts"][0]["output_tokens"]
        call.close()
        assert following.last()["outcome"] == "aborted"
    following.close()


def test_a_trace_of_a_call_that_has_ended_is_told_once(server: RunningServer, http: httpx.Client) -> None:
    call_id = http.post(COMPLETIONS, json=completion()).json()["id"]
    following = Following(server, call_id)
    assert following.next() == trace_of(http, call_id)
    assert following.next() is None
    following.close()


def test_who_leaves_a_followed_trace_makes_room_and_disturbs_nothing(server: RunningServer, http: httpx.Client) -> None:
    with started_call(server) as (call_id, _):
        path = f"/v1/requests/{call_id}/trace"
        followers = [Following(server, call_id) for _ in range(MAX_FOLLOWED)]
        refused = http.get(path, params={"follow": "true"})
        assert (refused.status_code, error_of(refused)["code"]) == (503, "overloaded")
        assert http.get(path).json()["outcome"] == "running"
        for follower in followers:
            assert follower.next() is not None
            follower.close()
        deadline_s = time.monotonic() + 10
        while http.head(path, params={"follow": "true"}).status_code != 200 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        following = Following(server, call_id)
        assert following.next() is not None
        following.close()
        assert trace_of(http, call_id)["outcome"] == "running"


@pytest.mark.parametrize("timeout_s", [0.0, 10.0])
def test_draining_lets_a_followed_trace_tell_the_end_of_its_call(timeout_s: float) -> None:
    with running() as server:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.005
        body = completion(stream=True, max_tokens=200)
        with httpx.stream("POST", f"{server.base_url}{COMPLETIONS}", json=body) as call:
            lines = call.iter_lines()
            call_id = json.loads(next(lines).removeprefix("data: "))["id"]
            following = Following(server, call_id)
            assert following.next() is not None
            server.drain(timeout_s)
            list(lines)
        assert following.last()["outcome"] == ("finished" if timeout_s else "failed")
        following.close()


def test_what_follow_may_be(server: RunningServer, http: httpx.Client) -> None:
    path = f"/v1/requests/{http.post(COMPLETIONS, json=completion()).json()['id']}/trace"
    refused = http.get(path, params={"follow": "perhaps"})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "follow")
    plain = http.get(path, params={"follow": "false"}, headers={"Accept": "text/event-stream"})
    assert plain.headers["content-type"] == "application/json"
    assert http.get("/v1/requests/none/trace", params={"follow": "true"}).status_code == 404


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

from __future__ import annotations

import threading
from collections import defaultdict
from functools import partial, partialmethod

import httpx
import pytest

from service.api.answers.answering import ignored_header
from service.api.call_trace import TraceStore
from service.config import ApiConfig
from service.core.host_times import HostTimes
from service.errors import Overloaded
from service.text.tokenizer import Tokenizer
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of


@pytest.mark.parametrize(("names", "header"), [((), None), (("a", "b.c"), "a,b.c"), (("x y", "ä\n"), "x?y,??")])
def test_the_header_of_ignored_fields(names: tuple[str, ...], header: str | None) -> None:
    assert ignored_header(names).get("x-ignored-params") == header


def test_a_failed_request_is_a_json_error(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: -1)
    response = http.post(COMPLETIONS, json=completion())
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"


def test_one_failing_prompt_fails_the_call_and_aborts_the_rest(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: -1 if prompt[-1] == 76 else 75)
    server.executor.delay_s = 0.002
    aborts = server.metric("headrace_aborts_total", reason="call_failed")
    response = http.post(COMPLETIONS, json=completion(prompt=[[75], [76], [75]], max_tokens=1000))
    assert response.status_code == 500
    server.check_idle()
    assert server.executor.num_iterations < 20
    assert server.metric("headrace_aborts_total", reason="call_failed") == aborts + 1


def test_an_executor_that_fails_fails_only_what_it_ran(server: RunningServer, http: httpx.Client) -> None:
    server.executor.fault = RuntimeError("/secret")
    response = http.post(CHAT, json=chat("hi"))
    assert response.status_code == 500
    assert "secret" not in response.text
    server.reset()
    server.say("fine again")
    assert http.post(COMPLETIONS, json=completion()).json()["choices"][0]["text"] == "fine again"


def test_each_part_of_the_hosts_time_has_one_writing_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would lose some of it. Long prompts are read, and many logprobs whole_json, in threads of the pool."""
    writers: dict[str, set[str]] = defaultdict(set)

    class Watched(HostTimes):
        def __setattr__(self, name: str, value: float) -> None:
            writers[name].add(threading.current_thread().name)
            super().__setattr__(name, value)

    monkeypatch.setattr("service.metrics.recorder.HostTimes", Watched)
    with running() as server, httpx.Client(base_url=server.base_url, timeout=10) as http:
        writers.clear()
        server.say("so it is")
        for stream in (False, True):
            assert http.post(CHAT, json=chat("hello", stream=stream)).status_code == 200
            body = completion(prompt="hello " * 300, echo=True, logprobs=2, max_tokens=9, stream=stream)
            answer = http.post(COMPLETIONS, json=body)
        assert "".join(e["choices"][0]["text"] for e in events_of(answer.text)) == "hello " * 300 + "so it is"
        assert http.post("/tokenize", json={"prompt": "hello " * 2000}).status_code == 200
    of_engine = ("schedule", "launch", "wait", "apply", "device", "commands")
    of_loop = ("tokenize", "detokenize", "sse")
    assert dict(writers) == {**{part: {"engine"} for part in of_engine}, **{part: {"server"} for part in of_loop}}


@pytest.mark.parametrize(
    ("path", "body", "prefix"), [(COMPLETIONS, completion(), "cmpl-"), (CHAT, chat("hi"), "chatcmpl-")]
)
def test_a_call_reaches_the_engine_and_its_trace_under_its_keys_name(path, body, prefix):
    config = ApiConfig(served_model_names=(MODEL,), api_keys=("ann:key-a", "bob:key-b"))
    with running(Scene(config=config)) as server:
        submit, seen = server.engine.submit, []
        server.engine.submit = lambda request: (seen.append(request), submit(request))[1]
        ann = {"authorization": "Bearer key-a"}
        answer = httpx.post(server.base_url + path, json=body, headers=ann).json()
        trace = f"{server.base_url}/v1/requests/{answer['id']}/trace"
        assert httpx.get(trace, headers=ann).json()["created"] == answer["created"]
        assert httpx.get(trace, headers={"authorization": "Bearer key-b"}).status_code == 404
    assert answer["id"].startswith(prefix)
    assert [(request.request_id, request.client) for request in seen] == [(f"{answer['id']}-0", "ann")]


def test_a_call_that_the_engine_refuses_leaves_no_trace(server, http, monkeypatch):
    def refuse(request):
        raise Overloaded("the queue is full")

    kept = []
    monkeypatch.setattr(TraceStore, "add", lambda store, trace: kept.append(trace))
    assert http.post(COMPLETIONS, json=completion()).status_code == 200
    monkeypatch.setattr(server.engine, "submit", refuse)
    assert http.post(COMPLETIONS, json=completion()).status_code == 503
    assert len(kept) == 1


@pytest.fixture
def tokenizing_threads(monkeypatch):
    """Names of the threads in which text becomes ids, or ids text."""
    threads = []

    def noted(work, *arguments, **options):
        threads.append(threading.current_thread().name)
        return work(*arguments, **options)

    for name in ("encode", "decode"):
        monkeypatch.setattr(Tokenizer, name, partialmethod(partial(noted, getattr(Tokenizer, name))))
    return threads


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1], "bad_words": [f"{number} {'word ' * 100}" for number in range(20)]},
        {"prompt": [[5] * 600] * 10, "echo": True},
    ],
    ids=["bad words", "echoed ids"],
)
def test_long_work_is_not_done_on_the_event_loop(http, tokenizing_threads, fields):
    assert http.post(COMPLETIONS, json=completion(**fields)).status_code == 200
    assert len(tokenizing_threads) >= 10
    assert all(name.startswith("headrace-text") for name in tokenizing_threads)

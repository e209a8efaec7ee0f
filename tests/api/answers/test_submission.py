"""What is drawn and said is tested with the two endpoints that generate; here, who and when."""

from __future__ import annotations

import threading
import time
from functools import partial, partialmethod

import httpx
import pytest
from starlette.requests import Request as HttpRequest

from service.api.answers.submission import call_head
from service.api.random_ids import RandomIds
from service.api.trace_store import TraceStore
from service.config import ApiConfig
from service.errors import Overloaded
from service.text.tokenizer import Tokenizer
from tests.api.running_server import MODEL, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion


def test_every_call_has_an_id_of_its_own():
    ids, http = RandomIds(), HttpRequest({"type": "http", "headers": []})
    first, second = call_head(ids, http, "cmpl", 1.5), call_head(ids, http, "cmpl", 1.5)
    assert first.call_id.startswith("cmpl-")
    assert first.call_id != second.call_id
    assert (first.arrival_s, first.client) == (1.5, "")
    assert abs(first.created - time.time()) < 5


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

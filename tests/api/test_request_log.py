from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx
import pytest

from service.api.http_exchange import PROBES
from service.api.request_log import log_exchange
from service.config import ApiConfig
from service.process.log_format import make_formatter
from tests.api.running_server import MODEL, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion

SECRET = "nobody may read this"
KEYS = ApiConfig(served_model_names=(MODEL,), api_keys=("team:secret-key",))


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    """As JSON, once there are so many: they are written behind the answers."""
    deadline_s = time.monotonic() + 10
    while len(records := [r for r in caplog.records if r.name == "headrace.access"]) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    formatter = make_formatter("json", is_terminal=False)
    return [json.loads(formatter.format(record)) for record in records]


def test_a_line_says_who_asked_and_where_the_time_went_and_never_what_was_said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "headrace.access")
    headers = {"authorization": "Bearer secret-key", "x-request-id": "mine"}
    with running(Scene(config=KEYS, watchers=[log_exchange])) as server:
        server.say(SECRET)
        with httpx.Client(base_url=server.base_url, headers=headers) as http:
            answer = http.post(COMPLETIONS, json=completion(prompt=SECRET, n=2, max_tokens=64)).json()
            with http.stream("POST", CHAT, json=chat(SECRET, stream=True)) as streamed:
                streamed.read()
    whole, stream = lines(caplog, 2)
    asked = {"request_id": "mine", "key": "team", "method": "POST", "route": COMPLETIONS, "status": 200}
    assert asked.items() <= whole.items()
    usage = answer["usage"]
    assert (whole["prompt_tokens"], whole["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (whole["id"], whole["model"], whole["outcome"]) == (answer["id"], MODEL, "finished")
    assert (whole["finish"], stream["finish"]) == ({"stop": 2}, {"stop": 1})
    for line in (whole, stream):
        assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["seconds"] + 0.01
        assert 0 < line["tpot_s"] < line["seconds"]
        assert (line["preemptions"], line["deferral_s"], line["prompts"]) == (0, 0, 1)
    shown = caplog.text + json.dumps([whole, stream])
    assert SECRET not in shown and "secret-key" not in shown
    assert "finished (stop 2)" in caplog.text, "for people, too"


def test_a_refusal_says_why_and_a_client_that_left_is_told(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "headrace.access")
    with running(Scene(watchers=[log_exchange])) as server, httpx.Client(base_url=server.base_url) as http:
        http.post(COMPLETIONS, json=completion(model="another"))
        server.executor.gate.clear()
        with pytest.raises(httpx.ReadTimeout):
            http.post(COMPLETIONS, json=completion(), timeout=0.3)
        refused, left = lines(caplog, 2)
        server.executor.gate.set()
    assert (refused["status"], refused["error"]) == (404, "model_not_found")
    assert "model" not in refused, "an unknown name is the client's text"
    assert (left["outcome"], left["prompts"], left["output_tokens"]) == ("aborted", 1, 0)


def test_probes_and_scrapes_are_counted_and_not_told(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "headrace.access")
    with running(Scene(watchers=[log_exchange])) as server, httpx.Client(base_url=server.base_url) as http:
        for path in PROBES:
            assert http.get(path).status_code == 200
        http.get("/v1/models")
        assert server.metric("headrace_http_requests_total", route="/ready", method="GET", status="200") == 1
    assert [line["route"] for line in lines(caplog, 1)] == ["/v1/models"]

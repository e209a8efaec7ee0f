"""Threads that are interrupted anywhere, under a load of every kind: whatever two of them change at once shows here."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.examples import examples

NUM_CLIENTS = 10
CALLS_A_CLIENT = examples(3)
MOST_RETRIES = 10

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "How do I watch the batch size?"}]
LONG = "Keys and values stay in a paged cache. " * 130
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "name_it", "parameters": SCHEMA}}
ALWAYS = {"model": "headrace-quickstart", "temperature": 0.0}

CALLS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": QUESTION, "max_tokens": 40}),
    (CHAT, {"messages": QUESTION, "n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 20}),
    (CHAT, {"messages": QUESTION, "response_format": FORMAT, "max_tokens": 40}),
    (CHAT, {"messages": QUESTION, "tools": [TOOL], "tool_choice": "required", "max_tokens": 40}),
    (CHAT, {"messages": [{"role": "user", "content": f"{LONG} What is it?"}], "max_tokens": 8}),
    (COMPLETIONS, {"prompt": ["What is ORCA?", "And what is a block?"], "stop": ["the"], "max_tokens": 20}),
    (COMPLETIONS, {"prompt": LONG, "echo": True, "logprobs": 2, "max_tokens": 8}),
    (COMPLETIONS, {"prompt": "It is", "ignore_eos": True, "logprobs": 1, "max_tokens": 60}),
    (COMPLETIONS, {"prompt": "Yes?", "structured_outputs": {"regex": "(yes|no)[a-z ]{0,20}"}, "max_tokens": 20}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """In float32: rounded to 16 bits, the same request may be answered otherwise beside others."""
    arguments = (*short_quickstart(), "--device", "cpu", "--dtype", "float32")
    with ServerProcess(*arguments, module="tests.e2e.hasty_server") as server:
        yield server


def whole(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Asks again if the server says later, as a loaded machine's does where many grammars are to be compiled."""
    for _ in range(MOST_RETRIES):
        response = http.post(path, json={**ALWAYS, **body})
        if response.status_code != 503:
            break
        time.sleep(float(response.headers["retry-after"]))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events(http: httpx.Client, path: str, body: dict[str, Any], most: int | None = None) -> list[dict[str, Any]]:
    """Of the call as a stream, asked again likewise; the client leaves after `most`."""
    for _ in range(MOST_RETRIES):
        with http.stream("POST", path, json={**ALWAYS, **body, "stream": True}) as response:
            if response.status_code != 503:
                return _events(response, most)
        time.sleep(float(response.headers["retry-after"]))
    raise AssertionError(f"{MOST_RETRIES} times the server said later")


def _events(response: httpx.Response, most: int | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    assert response.status_code == 200
    for line in (line for line in response.iter_lines() if line and not line.startswith(":")):  # comments: pings
        if line == "data: [DONE]":
            break
        found.append(json.loads(line.removeprefix("data: ")))
        assert "error" not in found[-1]
        if len(found) == most:
            break
    else:
        raise AssertionError("a stream has no end")
    return found


def said(choices: list[dict[str, Any]]) -> dict[int, tuple[str, str, list[str], str]]:
    """Of an answer, or of all events of a stream: each choice's text, its calls' arguments, the tokens that it shows,
    and what ends it."""
    told: dict[int, tuple[str, str, list[str], str]] = {}
    for choice in choices:
        text, arguments, tokens, reason = told.get(choice["index"], ("", "", [], ""))
        news = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        text += news.get("content") or ""
        arguments += "".join(call["function"].get("arguments") or "" for call in news.get("tool_calls") or [])
        tokens = tokens + ((choice["logprobs"] or {}).get("tokens") or [])
        told[choice["index"]] = (text, arguments, tokens, reason + (choice["finish_reason"] or ""))
    return told


def test_answers_are_what_they_are_alone_and_all_is_accounted_for(server: ServerProcess):
    def client(number: int) -> int:
        """Calls at random; how many requests it has sent."""
        chance, num_requests = random.Random(number), 0
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for _ in range(CALLS_A_CLIENT):
                call = chance.randrange(len(CALLS))
                path, body = CALLS[call]
                num_requests += len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
                match chance.randrange(3):
                    case 0:
                        answer = whole(http, path, body)
                        assert said(answer["choices"]) == alone[call]
                        assert http.get(f"/v1/requests/{answer['id']}/trace").json()["outcome"] == "finished"
                    case 1:
                        news = events(http, path, body)
                        assert said([choice for event in news for choice in event["choices"]]) == alone[call]
                    case 2:
                        events(http, path, body, most=chance.choice([1, 2, 5]))
        return num_requests

    def scrape() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not is_over.wait(0.02):
                assert http.get("/metrics").status_code == 200
                assert http.post("/tokenize", json={"prompt": LONG}).status_code == 200

    is_over = Event()
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
        alone = [said(whole(http, *call)["choices"]) for call in CALLS]
        scraping = pool.submit(scrape)
        try:
            num_requests = sum(pool.map(client, range(NUM_CLIENTS)))
        finally:
            is_over.set()
        scraping.result()
    num_requests += len(CALLS) + 1  # one of them has two prompts
    for gauge in ("requests_running", "requests_waiting", "kv_blocks_used"):
        server.wait_for_gauge(f"headrace_{gauge}", 0)
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    ended = [float(line.split()[1]) for line in lines if line.startswith("headrace_requests_total{")]
    assert sum(ended) == num_requests
    server.terminate()
    assert server.wait(30) == 0
    assert not [line for line in server.log if "Traceback" in line or "ERROR" in line]

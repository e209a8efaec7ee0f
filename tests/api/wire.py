"""Small readers of what the server sends."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.api.running_server import MODEL

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def completion(**fields: Any) -> dict[str, Any]:
    """A request body; None takes a field away."""
    body = {"model": MODEL, "prompt": "hello", **fields}
    return {name: value for name, value in body.items() if value is not None}


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents or ("hello",)]
    return {"model": MODEL, "messages": messages, **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, its shape checked."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["code"] is None or isinstance(body["error"]["code"], str)
    return dict(body["error"])


def events_of(text: str) -> list[Any]:
    """The events of a finished stream, framing checked; the last is [DONE] and is left out."""
    assert "\r" not in text
    frames = text.split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    data = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data)
    return [json.loads(frame.removeprefix("data: ")) for frame in data]


def post(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A completion's whole answer."""
    response = http.post(COMPLETIONS, json=completion(**fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def stream(http: httpx.Client, **fields: Any) -> list[Any]:
    """A completion's events."""
    response = http.post(COMPLETIONS, json=completion(stream=True, **fields))
    assert response.status_code == 200, response.text
    return events_of(response.text)


def response_events(text: str) -> list[Any]:
    """The events of a response's finished stream, framing and numbers checked; it has no [DONE]."""
    assert "\r" not in text
    frames = text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    return events

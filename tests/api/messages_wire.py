"""Small readers of what the server sends on the routes of Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

import httpx

from service.protocol.messages import MessageEvent
from service.protocol.messages_error import MessagesErrorBody
from tests.api.running_server import MODEL, RunningServer

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


def ask(*contents: Any, **fields: Any) -> dict[str, Any]:
    """A request body; the user says one thing after the other."""
    messages = [{"role": "user", "content": content} for content in contents or ("hello",)]
    return {"model": MODEL, "max_tokens": 500, "messages": messages, **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of the whole body, whose shape is checked, and that it names the request."""
    assert response.headers["content-type"] == "application/json"
    body = MessagesErrorBody.model_validate(response.json(), strict=True, extra="forbid")
    assert body.request_id == response.headers["request-id"] == response.headers["x-request-id"]
    return body.error.model_dump()


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, framing and shapes checked: each repeats its type, and none is OpenAI's [DONE]."""
    assert "\r" not in text
    frames = text.split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        shape = MessagesErrorBody if event["type"] == "error" else MessageEvent
        assert shape.model_validate(event, strict=True).model_dump() == event
        events.append(event)
    return events


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from a stream, whose order is checked: one block at a time is open, and
    their numbers go up by one."""
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    blocks: list[dict[str, Any]] = message["content"]
    assert (blocks, message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    open_index = None
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert (open_index, event["index"]) == (None, len(blocks))
            open_index = event["index"]
            blocks.append(event["content_block"])
            continue
        assert event["index"] == open_index
        if event["type"] == "content_block_stop":
            open_index = None
        else:
            _add(blocks[-1], event["delta"])
    assert open_index is None
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    place = {
        ("text", "text_delta"): "text",
        ("thinking", "thinking_delta"): "thinking",
        ("thinking", "signature_delta"): "signature",
        ("tool_use", "input_json_delta"): "input",
    }[block["type"], delta["type"]]
    (news,) = (value for name, value in delta.items() if name != "type")
    block[place] = (block[place] or "") + news


def whole(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.base_url}{MESSAGES}", json=ask(**fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    response = httpx.post(f"{server.base_url}{MESSAGES}", json=ask(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what is new in each."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": None, "content": blocks}

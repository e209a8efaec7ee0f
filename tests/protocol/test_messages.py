from __future__ import annotations

from typing import Any, get_args

import pytest
from anthropic import types
from anthropic.types.message_create_params import MessageCreateParamsBase
from pydantic import TypeAdapter

from service.protocol.messages import (
    CountTokensRequest,
    Message,
    MessageEvent,
    MessagesRequest,
    StopReason,
    TokensCount,
)

USAGE = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 2,
    "output_tokens": 1,
    "output_tokens_details": {"thinking_tokens": 1},
}
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "a"},
    {"type": "thinking", "thinking": "b", "signature": "c"},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}},
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": BLOCKS,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}
DELTAS = [
    {"type": "text_delta", "text": "a"},
    {"type": "input_json_delta", "partial_json": '{"a'},
    {"type": "thinking_delta", "thinking": "b"},
    {"type": "signature_delta", "signature": "c"},
]
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    *({"type": "content_block_start", "index": index, "content_block": block} for index, block in enumerate(BLOCKS)),
    *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in DELTAS),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
]


def test_the_message_is_anthropics() -> None:
    json = Message.model_validate(MESSAGE, strict=True).model_dump_json()
    types.Message.model_validate_json(json, strict=True)
    assert types.MessageTokensCount.model_validate(TokensCount(input_tokens=3).model_dump()).input_tokens == 3


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["type"])
def test_the_events_are_anthropics(event: dict[str, Any]) -> None:
    json = MessageEvent.model_validate(event, strict=True).model_dump_json()
    TypeAdapter(types.RawMessageStreamEvent).validate_json(json, strict=True)


def test_its_reasons_to_stop_are_anthropics() -> None:
    assert set(get_args(StopReason)) < set(get_args(types.StopReason))


def test_what_is_not_declared_is_what_this_server_has_nothing_for() -> None:
    known = set(MessageCreateParamsBase.__annotations__)
    undeclared = known - set(MessagesRequest.model_fields)
    assert undeclared <= {"container", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id"}


def test_what_is_counted_is_described_as_what_is_sent() -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "a"}], "system": "s"}
    counted = CountTokensRequest.model_validate(fields)
    sent = MessagesRequest.model_validate({**fields, "max_tokens": 1})
    assert counted.messages == sent.messages
    assert set(CountTokensRequest.model_fields) < set(MessagesRequest.model_fields)

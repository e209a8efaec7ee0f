"""More members than are honoured are refused by their number, whatever they are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.calls.member_limits import check_members
from service.config import ApiConfig
from service.errors import InvalidRequest
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of

CONFIG = ApiConfig(
    served_model_names=("m",),
    max_tools=3,
    max_messages=3,
    max_logit_bias=3,
    max_stop_token_ids=3,
    max_prompts_per_call=3,
)
TEXT = {"type": "text", "text": "a"}
SAID = {"role": "user", "content": [TEXT, TEXT]}
CALLED = {"role": "assistant", "tool_calls": [{}, {}]}


@pytest.mark.parametrize(
    "fits", [{}, {"messages": [SAID], "tools": [0] * 3}, {"messages": 5, "tools": "abcd"}, {"prompt": [7] * 9}]
)
def test_as_many_as_may_be_pass(fits: dict[str, Any]) -> None:
    check_members(fits, CONFIG)


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"messages": [0] * 4}, "messages", "messages may hold at most 3 messages."),
        ({"messages": [SAID, SAID]}, "messages", "at most 3 content parts and tool calls in all"),
        ({"messages": [SAID, CALLED]}, "messages", "at most 3 content parts and tool calls in all"),
        ({"input": [0] * 4}, "input", "input may hold at most 3 items."),
        ({"input": [SAID, {"output": [0, 0]}]}, "input", "at most 3 content parts and output and summary in all"),
        ({"tools": [{"tools": [0, 0]}, {"tools": [0, 0]}]}, "tools", "tools may hold at most 3 tools."),
        ({"tools": [0] * 4}, "tools", "tools may hold at most 3 tools."),
        ({"stop_token_ids": [7] * 4}, "stop_token_ids", "stop_token_ids may hold at most 3 ids."),
        ({"allowed_token_ids": [7] * 65_537}, "allowed_token_ids", "at most 65536 ids"),
        ({"prompt": ["a"] * 4}, "prompt", "prompt may hold at most 3 prompts."),
        ({"prompt": [[7]] * 4}, "prompt", "prompt may hold at most 3 prompts."),
        ({"logit_bias": {str(i): "x" for i in range(4)}}, "logit_bias", "logit_bias may hold at most 3 tokens."),
    ],
)
def test_more_are_refused_with_the_number(body: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_members(body, CONFIG)
    assert refusal.value.param == param
    assert told in refusal.value.message


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize"])
def test_every_endpoint_counts_before_it_looks(http: httpx.Client, path: str) -> None:
    if path == COMPLETIONS:
        body = completion(logit_bias={str(index): "no number" for index in range(1025)})
    else:
        body = chat("hi") | {"messages": [0] * 8193}
    error = error_of(http.post(path, json=body))
    assert "may hold at most" in error["message"]

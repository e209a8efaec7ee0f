from __future__ import annotations

import json
from typing import Any

import pytest

from service.finetune.dataset_line import (
    MAX_LINE_BYTES,
    MAX_MESSAGES,
    DatasetError,
    PromptCompletion,
    TrainingChat,
    read_line,
)

SAID: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PAIR = {"prompt": "a", "completion": "b"}


def said(**fields: Any) -> dict[str, Any]:
    """The chat with fields of the assistant's message."""
    return {"messages": [SAID[0], SAID[1] | fields]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"messages": [', "is not JSON: .*column"),
        ('{"prompt": "\\ud800", "completion": "x"}', "is not JSON"),
        ('{"prompt": NaN, "completion": "x"}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b'{"prompt": "\xff", "completion": "x"}', "is not JSON"),
        ("[]", "is not a JSON object"),
        ({}, "either messages, or prompt and completion"),
        ({"messages": SAID, **PAIR}, "either messages, or prompt and completion"),
        ({"prompt": "x"}, "completion: Field required"),
        ({"prompt": 5, "completion": "x"}, "prompt: Input should be a valid string"),
        ({"prompt": "x", "completion": ""}, "completion must not be empty"),
        (PAIR | {"id": 7}, "id is not a known field"),
        ({"messages": []}, "an assistant message whose weight is not 0"),
        ({"messages": "hello"}, "messages: "),
        ({"messages": [SAID[0]]}, "an assistant message whose weight is not 0"),
        (said(weight=0), "an assistant message whose weight is not 0"),
        (said(weight=0.5), r"messages\[1\].weight: "),
        (said(weight=True), r"messages\[1\].weight: "),
        ({"messages": [SAID[0] | {"weight": 1}, SAID[1]]}, r"messages\[0\].weight: only"),
        (said(mood="glad"), r"messages\[1\].mood is not a known field"),
        (
            said(function_call={"name": "f", "arguments": "{}"}),
            r"messages\[1\].function_call is deprecated and not supported",
        ),
        ({"messages": [{"content": "a"}, SAID[1]]}, r"messages\[0\].role: Field required"),
        ({"messages": SAID * MAX_MESSAGES}, f"at most {MAX_MESSAGES}"),
        ({"messages": SAID, "tools": [{"type": "function"}]}, r"tools\[0\].function: Field required"),
        (PAIR | {"prompt": "x" * MAX_LINE_BYTES}, f"is longer than {MAX_LINE_BYTES} bytes"),
    ],
)
def test_a_wrong_line_is_refused_by_number_and_field(line: object, reason: str):
    written = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
    with pytest.raises(DatasetError, match=f"^line 7: {reason}|^line 7: .*{reason}") as refusal:
        read_line(written, 7)
    assert refusal.value.line == 7
    assert len(str(refusal.value)) < 300


def test_chats_and_pairs_are_told_apart():
    assert isinstance(read_line(json.dumps({"messages": SAID}).encode(), 1), TrainingChat)
    assert isinstance(read_line(json.dumps(PAIR).encode(), 1), PromptCompletion)


def test_fields_of_a_tool_are_the_templates_business():
    tool = {"type": "function", "x": 1, "function": {"name": "f", "parameters": {"a": 1}, "y": 2}}
    chat = read_line(json.dumps({"messages": SAID, "tools": [tool], "parallel_tool_calls": False}).encode(), 1)
    assert isinstance(chat, TrainingChat)
    assert chat.tools is not None
    assert chat.tools[0].model_dump(exclude_unset=True) == tool


def test_a_byte_order_mark_may_begin_the_file_alone():
    line = b"\xef\xbb\xbf" + json.dumps(PAIR).encode()
    assert read_line(line, 1)
    with pytest.raises(DatasetError):
        read_line(line, 2)

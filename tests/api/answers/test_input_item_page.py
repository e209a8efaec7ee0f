from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from service.api.answers.input_item_page import listed_items, page_of
from service.errors import InvalidRequest
from service.storage.listing import PageQuery

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "assistant", "content": "yes"},
    {"type": "message", "role": "assistant", "id": "msg_9", "content": [{"type": "output_text", "text": "b"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}], "id": None},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "7"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "8"}]},
]


def test_each_is_of_openais_types_and_keeps_its_id() -> None:
    listed = listed_items(ITEMS, "resp_1")
    for item in listed:
        TypeAdapter(ResponseItem).validate_python(item)
    assert listed == listed_items(ITEMS, "resp_1")
    assert len({item["id"] for item in listed}) == len(ITEMS)
    assert listed[3]["id"] == "msg_9"
    assert [item["content"] for item in listed[:4]] == [
        [{"type": "input_text", "text": "hi"}],
        [{"type": "input_text", "text": "a"}],
        [{"type": "output_text", "text": "yes", "annotations": []}],
        [{"type": "output_text", "text": "b", "annotations": []}],
    ]


@given(num=st.integers(0, 30), limit=st.integers(1, 12), order=st.sampled_from(["asc", "desc"]))
def test_the_pages_are_all_items_in_order(num: int, limit: int, order: str) -> None:
    items = [{"id": f"i{number}"} for number in range(num)]
    seen: list[str] = []
    after = None
    while True:
        page = page_of(items, PageQuery(after, limit, order == "asc"))
        seen += [item["id"] for item in page["data"]]
        assert len(page["data"]) <= limit
        if not page["has_more"]:
            break
        after = page["last_id"]
    expected = [item["id"] for item in items]
    assert seen == (expected if order == "asc" else expected[::-1])


def test_a_place_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="after"):
        page_of([{"id": "a"}], PageQuery("b", 5, True))

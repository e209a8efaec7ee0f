from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.calls.compaction_item import compaction_item, summary_of
from service.errors import InvalidRequest


@given(summary=st.text(st.characters(exclude_categories=["Cs"])))
def test_there_and_back(summary: str) -> None:
    item = compaction_item(summary, "x")
    assert item["type"] == "compaction"
    assert summary_of(item["encrypted_content"], "p") == summary


@pytest.mark.parametrize(
    "content",
    ["", "abc", "ä", "Zm9v", "Zm 9v", base64.b64encode(b"headrace:\xff").decode(), "gAAAAABo" * 9],
)
def test_what_others_have_encrypted_is_refused_by_name(content: str) -> None:
    with pytest.raises(InvalidRequest, match="was not made by this server") as refused:
        summary_of(content, "input[1].encrypted_content")
    assert refused.value.param == "input[1].encrypted_content"

from __future__ import annotations

from service.api.answers.call_ids import new_call_id
from service.text.tool_calls import ToolStyle


def test_ids_of_calls() -> None:
    assert len(new_call_id(ToolStyle.MISTRAL)) == 9
    assert new_call_id(ToolStyle.MISTRAL).isalnum()
    assert len({new_call_id(ToolStyle.HERMES) for _ in range(100)}) == 100
    assert new_call_id(None, "toolu_").startswith("toolu_")

from __future__ import annotations

import json
from typing import Any

from service.text.taught_tools import with_tools_as_text

TOOL = {"type": "function", "function": {"name": "now", "description": "Ünit", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "what is the time"},
    {"role": "assistant", "content": "let me see", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "noon", "tool_call_id": "1"},
]
CALLED = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'


def test_what_knows_no_tools_stays_as_it_is() -> None:
    talk = [{"role": "system", "content": "a"}, {"role": "user", "content": "b", "name": "c"}]
    assert with_tools_as_text(talk, [TOOL])[1:] == talk[1:]


def test_calls_and_results_become_text() -> None:
    _, asked, called, told = with_tools_as_text(TALK, [TOOL])
    assert asked == TALK[0]
    assert called == {"role": "assistant", "content": f"let me see\n{CALLED}\n{CALLED}"}
    assert told == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}
    alone = with_tools_as_text([{**TALK[1], "content": None}], [TOOL])
    assert alone[1:] == [{"role": "assistant", "content": f"{CALLED}\n{CALLED}"}]


def test_the_functions_stand_in_the_system_message_a_line_each() -> None:
    for before in ([], [{"role": "system", "content": "Be brief."}]):
        first, *rest = with_tools_as_text([*before, TALK[0]], [TOOL, TOOL])
        content = str(first["content"])
        assert first["role"] == "system"
        assert content.startswith("Be brief.\n\nYou may call" if before else "You may call")
        shown = content.split("\n<tools>\n")[1].split("\n</tools>")[0].splitlines()
        assert [json.loads(line) for line in shown] == [TOOL["function"]] * 2
        assert "Ünit" in content
        assert rest == [TALK[0]]

from __future__ import annotations

from service.text.chat_output import ChatOutput, ReasoningDelta
from service.text.reasoning import ReasoningSplitter
from service.text.tool_calls import CallDelta, TextDelta, ToolStyle, make_router


def hermes() -> ChatOutput:
    return ChatOutput(ReasoningSplitter(starts_inside=False), make_router(ToolStyle.HERMES, ["now"]))


def test_reasoning_then_content_then_a_call() -> None:
    output = hermes()
    assert output.push("<think>I <tool_call>") == [ReasoningDelta("I <tool_call>")]
    assert output.is_thinking
    assert output.push("</think>\nWell, ") == [TextDelta("Well,")]
    assert not output.is_thinking
    assert not output.has_calls
    assert output.push('<tool_call>{"name": "now"}') == [CallDelta(0, "now", "{}")]
    assert output.has_calls
    assert output.push("</tool_call>") == []
    assert output.flush() == []


def test_it_is_in_a_call_from_its_name_to_its_last_bracket() -> None:
    output = hermes()
    seen = []
    for piece in ('a<tool_call>{"name"', ': "now",', ' "arguments": {}', "}", "</tool_call>b"):
        output.push(piece)
        seen.append(output.is_in_call)
    assert seen == [False, True, True, False, False]
    assert not ChatOutput(None, None).is_in_call


def test_what_was_held_back_comes_out() -> None:
    output = hermes()
    assert output.push("<thi") == []
    assert output.flush() == [TextDelta("<thi")]
    output = hermes()
    output.push("<think>a")
    assert output.push("</th") == []
    assert output.flush() == [ReasoningDelta("</th")]
    output = hermes()
    assert output.push("a <tool") == [TextDelta("a")]
    assert output.flush() == [TextDelta(" <tool")]


def test_without_splitter_and_router_all_is_content() -> None:
    output = ChatOutput(None, None)
    assert output.push("<think><tool_call>") == [TextDelta("<think><tool_call>")]
    assert output.push("") == []
    assert not output.is_thinking
    assert output.flush() == []

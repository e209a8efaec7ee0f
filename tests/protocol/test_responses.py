from __future__ import annotations

from typing import get_args

from openai.types.responses import Response

from service.protocol.responses import OutputItem, ResponseBody, ResponseFault, ResponsesRequest, Status

ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {},
    "safety_identifier": None,
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
    "status": "completed",
    "completed_at": 2,
    "error": None,
    "incomplete_details": None,
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
        }
    ],
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    },
}


def test_an_item_without_a_type_is_a_message_and_what_nobody_knows_is_kept_apart() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}], "mood": 1}]}
    request = ResponsesRequest.model_validate(body)
    assert isinstance(request.input, list)
    assert (request.input[0].type, request.input[0].model_extra) == (None, {"mood": 1})


def test_a_tool_may_hold_others() -> None:
    tools = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    (tool,) = ResponsesRequest.model_validate({"model": "m", "tools": tools}).tools or ()
    assert [each.name for each in tool.tools or ()] == ["f"]


def test_the_response_is_openais() -> None:
    json = ResponseBody.model_validate(ANSWER).model_dump_json(exclude_unset=True)
    theirs = Response.model_validate_json(json, strict=True)
    assert (theirs.output_text, theirs.output[0].type) == ("a", "message")


def test_our_words_are_among_theirs() -> None:
    fields = Response.model_fields
    assert set(get_args(Status)) <= set(get_args(get_args(fields["status"].annotation)[0]))
    fault = get_args(fields["error"].annotation)[0]
    codes = get_args(ResponseFault.model_fields["code"].annotation)
    assert set(codes) <= set(get_args(fault.model_fields["code"].annotation))
    assert set(OutputItem.model_fields) >= {"id", "type", "status"}

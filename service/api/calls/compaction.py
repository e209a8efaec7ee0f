"""POST /v1/responses/compact: a conversation -> the call that asks the model for its summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.api.calls.response_call import ResponseCall, input_items
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.compaction import CompactRequest
from service.protocol.responses import InputItem, InputPart, ResponsesRequest

MOST_SUMMARY_TOKENS = 2048
"""With the reasoning. A longer summary would be of no use."""

_ASK = (
    "Write a summary of our conversation so far, for somebody who has to go on with it and has not seen it: what is "
    "wanted, what was said, done and found out, with names, numbers, files and results, and what is still to be done. "
    "Write nothing but the summary."
)
_SAME = ("model", "input", "instructions", "previous_response_id", "service_tier", "prompt_cache_key", "request_id")
_HINTS = frozenset({"prompt_cache_options", "prompt_cache_retention", "image"})
"""OpenAI's fields that have no effect on a server like this one."""
_REFUSED = ("stream", "background", "conversation")


def as_response(fields: CompactRequest) -> dict[str, Any]:
    """The fields that mean the same in a response."""
    for name in _REFUSED:
        if (fields.model_extra or {}).get(name):
            raise UnsupportedParameter(f"{name} is not supported for a compaction.", param=name)
    if not fields.input and fields.previous_response_id is None:
        raise InvalidRequest(
            "input or previous_response_id is required.", param="input", code="missing_required_parameter"
        )
    return {name: getattr(fields, name) for name in _SAME}


def unread_fields(fields: CompactRequest) -> tuple[str, ...]:
    return tuple(name for name, value in (fields.model_extra or {}).items() if value is not None and name not in _HINTS)


def asking_for_summary(fields: ResponsesRequest, history: Sequence[InputItem]) -> ResponsesRequest:
    """The response whose text is the summary of `history` and of the input. If the last message is the user's, the
    request for the summary is appended to it, since many templates do not allow two user messages in a row."""
    items, ask = list(input_items(fields)), InputPart(type="input_text", text=_ASK)
    last = items[-1] if items else None
    if last is not None and last.role == "user" and last.content:
        said = [InputPart(type="input_text", text=last.content)] if isinstance(last.content, str) else last.content
        items[-1] = last.model_copy(update={"content": [*said, ask]})
    else:
        items.append(InputItem(type="message", role="user", content=[ask]))
    return fields.model_copy(update={"input": items})


def within_bounds(call: ResponseCall) -> ResponseCall:
    """Limits the summary to what the context leaves, and to MOST_SUMMARY_TOKENS."""
    prompts = replace(call.prepared.prompts, default_max_tokens=MOST_SUMMARY_TOKENS)
    return replace(call, prepared=replace(call.prepared, prompts=prompts))

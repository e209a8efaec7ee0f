"""The conversation that `previous_response_id` refers to, and what is kept of a conversation for the next call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.api.calls.large_json import LARGE_BYTES, parse_large
from service.api.calls.member_limits import check_members
from service.api.calls.response_call import ResponseCall
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.errors import InvalidRequest, NotFound, UnsupportedParameter
from service.protocol.responses import InputItem, ResponsesRequest

_PARAM = "previous_response_id"
_CHARACTERS_OF_A_TOKEN = 4


async def read_history(fields: ResponsesRequest, client: str, context: ApiContext) -> list[dict[str, Any]]:
    """The items of the conversation so far, as JSON; empty without `previous_response_id`.

    Refused if that response does not exist, is not complete, or is larger than a client's own body may be.
    """
    response_id, config = fields.previous_response_id, context.config
    if response_id is None:
        return []
    if not context.responses.keeps:
        raise UnsupportedParameter(
            f"{_PARAM} is not supported: this server stores no responses (--responses-store).", param=_PARAM
        )
    try:
        stored = context.responses.get(response_id, client)
    except NotFound as error:
        message = f"Previous response with id '{response_id[:64]}' not found."
        raise InvalidRequest(message, param=_PARAM, code="previous_response_not_found") from error
    if stored.is_running:
        raise InvalidRequest(f"{_PARAM}: that response is still in progress.", param=_PARAM)
    num_bytes = len(stored.items) + len(stored.response)
    if num_bytes > config.max_body_bytes:
        raise InvalidRequest(
            f"{_PARAM}: its conversation has {num_bytes} bytes; the limit is {config.max_body_bytes}.", param=_PARAM
        )
    items, response = stored.items, stored.response
    return await context.texts.run(num_bytes, lambda: [*_loads(items), *_loads(response)["output"]])


def parsed_history(
    history: Sequence[Mapping[str, Any]], body: Mapping[str, Any], context: ApiContext
) -> Sequence[InputItem]:
    """The items in their wire shapes; refused if there are too many together with the request's own."""
    if not history:
        return ()
    new = body.get("input")
    check_members({"input": [*history, *new] if isinstance(new, list) else history}, context.config)
    items = parse(ResponsesRequest, {"input": history}).input
    assert isinstance(items, list)
    return items


async def conversation_json(
    history: Sequence[Mapping[str, Any]], text: object, call: ResponseCall, context: ApiContext
) -> bytes:
    """What is kept of a call's conversation. text: the request's `input`, unchanged."""
    items = [*history, *items_of(text)]
    return await context.texts.run(num_characters_of(call), lambda: orjson.dumps(items))


def num_characters_of(call: ResponseCall) -> int:
    """The approximate number of characters of a call's conversation."""
    return _CHARACTERS_OF_A_TOKEN * sum(map(len, call.prepared.prompts.token_ids))


def items_of(text: object) -> Sequence[Mapping[str, Any]]:
    """A request's `input`, unchanged, as items."""
    if isinstance(text, str):
        return [{"type": "message", "role": "user", "content": text}]
    return text if isinstance(text, list) else ()


def _loads(json: bytes) -> Any:
    return parse_large(json) if len(json) > LARGE_BYTES else orjson.loads(json)

"""POST /v1/responses/compact: shortens a conversation to a summary that the model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import ignored_header, respond, submit
from service.api.answers.input_item_page import listed_items
from service.api.answers.response_answer import ResponseAnswer
from service.api.call_head import call_head
from service.api.calls.compaction import as_response, asking_for_summary, unread_fields, within_bounds
from service.api.calls.compaction_item import compaction_item
from service.api.calls.field_names import fields_named
from service.api.calls.json_body import read_json_object
from service.api.calls.response_call import prepare_response
from service.api.calls.response_history import items_of, num_characters_of, parsed_history, read_history
from service.api.calls.validation import ignored_fields
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.errors import InvalidRequest
from service.protocol.compaction import CompactRequest
from service.protocol.responses import ResponsesRequest

_KEPT_ROLES = frozenset({"user", "system", "developer"})


class Compaction:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model = context.state.check_generates()
        arrival_s = model.clock.now_s()
        body = await read_json_object(http, context.texts, context.config)
        asked = parse(CompactRequest, body)
        fields = parse(ResponsesRequest, as_response(asked))
        ignored = ignored_fields(unread_fields(asked), context.config)
        head = call_head(context.ids, http, "resp_", arrival_s, own_id=fields.request_id)
        history = await read_history(fields, head.client, context)
        items = parsed_history(history, body, context)
        call = within_bounds(
            await prepare_response(
                asking_for_summary(fields, items), items, head, http.receive, model, context, may_store=False
            )
        )
        with fields_named(call.name_of):
            generation = await submit(call.prepared, context)
        response = await respond(
            http,
            call.prepared,
            generation,
            lambda _, own: ResponseAnswer(call, own, is_stored=False, keep=lambda _: None),
            context,
        )
        if response.status_code != HTTPStatus.OK:
            return response
        whole = orjson.loads(response.body)
        conversation = [*history, *items_of(body.get("input"))]
        json = await context.texts.run(num_characters_of(call), lambda: _compacted(whole, conversation))
        headers = ignored_header([*call.prepared.checked.ignored, *ignored])
        return Response(json, headers=headers, media_type="application/json")


def _compacted(response: Mapping[str, Any], conversation: Sequence[Mapping[str, Any]]) -> bytes:
    """response: its text is the summary. InvalidRequest if it has no text, since no conversation could continue from
    that."""
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    summary = "".join(texts).strip()
    if not summary:
        raise InvalidRequest("The model wrote no summary of this conversation.", code="no_summary", param="input")
    listed = listed_items(conversation, response["id"])
    kept = [item for item in listed if item["type"] == "message" and item.get("role") in _KEPT_ROLES]
    return orjson.dumps(
        {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [*kept, compaction_item(summary, response["id"].partition("_")[2])],
            "usage": response["usage"],
        }
    )

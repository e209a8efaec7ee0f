"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import ignored_header, respond, submit
from service.api.answers.background import begin_events_in_background, begin_in_background
from service.api.answers.followed_events import following
from service.api.answers.generation import Generation
from service.api.answers.response_answer import ResponseAnswer
from service.api.call_head import call_head
from service.api.calls.field_names import fields_named
from service.api.calls.json_body import read_json_object
from service.api.calls.response_call import ResponseCall, count_input, prepare_response
from service.api.calls.response_history import conversation_json, parsed_history, read_history
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.http_exchange import note_call
from service.api.kept_events import KeptEvents
from service.api.response_store import StoredResponse
from service.api.scope import client_of
from service.errors import InvalidRequest, RateLimited, UnsupportedParameter
from service.protocol.responses import InputTokenCount, ResponsesRequest


class Responses:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model = context.state.check_generates()
        arrival_s = model.clock.now_s()
        body = await read_json_object(http, context.texts, context.config)
        fields = parse(ResponsesRequest, body)
        head = call_head(context.ids, http, "resp_", arrival_s, own_id=fields.request_id)
        is_stored = context.responses.keeps and fields.store is not False
        if fields.background:
            self._check_background(fields, head.client)
        history = await read_history(fields, head.client, context)
        items = parsed_history(history, body, context)
        call = await prepare_response(
            fields, items, head, http.receive, model, context, may_store=context.responses.keeps
        )
        conversation = await conversation_json(history, body.get("input"), call, context) if is_stored else b""

        def keep(response: bytes) -> None:
            if is_stored:
                context.responses.put(head.call_id, StoredResponse(head.client, conversation, response))

        with fields_named(call.name_of):
            generation = await submit(call.prepared, context)
        if fields.background:
            note_call(http.scope["state"], context.traces.get(head.call_id, head.client))
            begin = self._begin_events if fields.stream else self._begin
            return begin(call, generation, conversation)
        response = await respond(
            http, call.prepared, generation, lambda _, own: ResponseAnswer(call, own, is_stored, keep), context
        )
        if not fields.stream and response.status_code == HTTPStatus.OK:
            keep(bytes(response.body))
        return response

    async def count_input_tokens(self, http: Request) -> Response:
        """Works without the engine, as `Tokenize`."""
        context = self._context
        model = context.state.check_ready()
        body = await read_json_object(http, context.texts, context.config)
        fields = parse(ResponsesRequest, body)
        history = await read_history(fields, client_of(http.scope), context)
        items = parsed_history(history, body, context)
        num_tokens, ignored = await count_input(fields, items, http.receive, model, context)
        json = InputTokenCount(input_tokens=num_tokens).model_dump_json()
        return Response(json, headers=ignored_header(ignored), media_type="application/json")

    def _check_background(self, fields: ResponsesRequest, client: str) -> None:
        most = self._context.config.max_requests_per_key
        if not self._context.responses.keeps:
            raise UnsupportedParameter(
                "background is not supported: this server stores no responses (--responses-store).", param="background"
            )
        if fields.store is False:
            raise InvalidRequest("background is only allowed when store is true.", param="background")
        if client and most is not None and self._context.responses.num_running(client) >= most:
            raise RateLimited(f"This API key has {most} responses running in the background, which is its limit.")

    def _begin(self, call: ResponseCall, generation: Generation, conversation: bytes) -> Response:
        """The response is made by a task; the client asks for it later."""
        context, head, checked = self._context, call.prepared.head, call.prepared.checked
        form = ResponseAnswer(call, generation, is_stored=True, keep=lambda response: None)
        task = begin_in_background(head.call_id, form, generation, context)
        stored = StoredResponse(head.client, conversation, form.unfinished("in_progress"), task)
        context.responses.put(head.call_id, stored)
        headers = ignored_header(checked.ignored)
        return Response(form.unfinished("queued"), headers=headers, media_type="application/json")

    def _begin_events(self, call: ResponseCall, generation: Generation, conversation: bytes) -> Response:
        """The response is made by a task, which keeps its events; the client may disconnect and follow them later."""
        context, head, checked = self._context, call.prepared.head, call.prepared.checked

        def keep(response: bytes) -> None:
            context.responses.complete(head.call_id, response)

        events, form = KeptEvents(), ResponseAnswer(call, generation, is_stored=True, keep=keep)
        task = begin_events_in_background(head.call_id, form, generation, context, events)
        stored = StoredResponse(head.client, conversation, form.unfinished("in_progress"), task, events)
        context.responses.put(head.call_id, stored)
        return following(events, -1, context, ignored_header(checked.ignored))

"""POST /v1/responses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import respond, submit
from service.api.answers.response_answer import ResponseAnswer
from service.api.call_head import call_head
from service.api.calls.field_names import fields_named
from service.api.calls.json_body import read_json_object
from service.api.calls.response_call import prepare_response
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.errors import UnsupportedParameter
from service.protocol.responses import ResponsesRequest


class Responses:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model = context.state.check_ready()
        head = call_head(context.ids, http, "resp_", model.clock.now_s())
        fields = parse(ResponsesRequest, await read_json_object(http, context.texts, context.config))
        for name in ("background", "previous_response_id"):
            if getattr(fields, name):
                raise UnsupportedParameter(f"{name} is not supported: this server stores no responses.", param=name)
        call = await prepare_response(fields, [], head, http.receive, model, context, is_stored=False)
        with fields_named(call.name_of):
            generation = await submit(call.prepared, context)
        return await respond(
            http,
            call.prepared,
            generation,
            lambda _, generation: ResponseAnswer(call, generation, False, lambda _: None),
            context,
        )

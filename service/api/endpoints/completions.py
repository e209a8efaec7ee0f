"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import respond, submit
from service.api.answers.completion_answer import CompletionAnswer
from service.api.call_head import call_head
from service.api.calls.completion_call import prepare_completion
from service.api.calls.json_body import read_json_object
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.protocol.completions import CompletionRequest


class Completions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model = context.state.check_ready()
        arrival_s = model.clock.now_s()
        fields = parse(CompletionRequest, await read_json_object(http, context.texts, context.config))
        head = call_head(context.ids, http, "cmpl-", arrival_s, own_id=fields.request_id)
        call = await prepare_completion(fields, head, http.receive, model, context)
        generation = await submit(call, context)
        return await respond(http, call, generation, CompletionAnswer, context)

"""POST /v1/chat/completions/batch: several conversations in one call, as in vLLM."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import respond, submit
from service.api.answers.chat_answer import ChatAnswer
from service.api.call_head import call_head
from service.api.calls.chat_batch_call import prepare_chat_batch
from service.api.calls.json_body import read_json_object
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.protocol.chat import ChatBatchRequest


class ChatBatch:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        """A chat's answer in which choice i belongs to conversation i."""
        context, model = self._context, self._context.state.check_generates()
        arrival_s = model.clock.now_s()
        fields = parse(ChatBatchRequest, await read_json_object(http, context.texts, context.config))
        head = call_head(context.ids, http, "chatcmpl-", arrival_s, own_id=fields.request_id)
        call = await prepare_chat_batch(fields, head, http.receive, model, context)
        return await respond(http, call, await submit(call, context), ChatAnswer, context)

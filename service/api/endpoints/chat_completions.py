"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import respond, submit
from service.api.answers.chat_answer import ChatAnswer
from service.api.call_head import call_head
from service.api.calls.chat_call import prepare_chat
from service.api.calls.json_body import read_json_object
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.protocol.chat import ChatRequest


class ChatCompletions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        arrival_s = context.state.check_generates().clock.now_s()
        return await self.answer(http, await read_json_object(http, context.texts, context.config), arrival_s)

    async def answer(self, http: Request, body: dict[str, Any], arrival_s: float) -> Response:
        """The answer to a body that has been read. arrival_s: when the request came, on the engine's clock."""
        context = self._context
        model = context.state.check_generates()
        fields = parse(ChatRequest, body)
        head = call_head(context.ids, http, "chatcmpl-", arrival_s, own_id=fields.request_id)
        call = await prepare_chat(fields, head, http.receive, model, context)
        generation = await submit(call, context)
        make_form = partial(ChatAnswer, calls_functions=bool(fields.functions))
        return await respond(http, call, generation, make_form, context)

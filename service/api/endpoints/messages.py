"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API. Its calls are chats in another wire form."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import ignored_header, respond, submit
from service.api.answers.message_answer import MessageAnswer
from service.api.call_head import call_head
from service.api.calls.json_body import read_json_object
from service.api.calls.messages_call import count_prompt, in_anthropics_names, prepare_messages
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.protocol.messages import CountTokensRequest, MessagesRequest, TokensCount


class Messages:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model = context.state.check_generates()
        head = call_head(context.ids, http, "msg_", model.clock.now_s())
        fields = parse(MessagesRequest, await read_json_object(http, context.texts, context.config))
        call = await prepare_messages(fields, head, http.receive, model, context)
        with in_anthropics_names():
            generation = await submit(call, context)
        shows_thinking = fields.thinking is None or fields.thinking.display != "omitted"
        make_form = partial(MessageAnswer, shows_thinking=shows_thinking)
        return await respond(http, call, generation, make_form, context)

    async def count_tokens(self, http: Request) -> Response:
        """Works without the engine, as `Tokenize`."""
        context = self._context
        model = context.state.check_ready()
        fields = parse(CountTokensRequest, await read_json_object(http, context.texts, context.config))
        num_tokens, ignored = await count_prompt(fields, http.receive, model, context)
        json = TokensCount(input_tokens=num_tokens).model_dump_json()
        return Response(json, headers=ignored_header(ignored), media_type="application/json")

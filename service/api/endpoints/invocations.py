"""POST /invocations: a completion or a chat, under the one name that SageMaker calls, as in vLLM."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.calls.json_body import read_json_object
from service.api.context import ApiContext
from service.api.endpoints.chat_completions import ChatCompletions
from service.api.endpoints.completions import Completions
from service.errors import InvalidRequest

INVOCATIONS_PATH = "/invocations"


class Invocations:
    """With `messages` it is a chat, with `prompt` a completion; the answer is the same as there."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._chats = ChatCompletions(context)
        self._completions = Completions(context)

    async def invoke(self, http: Request) -> Response:
        context = self._context
        arrival_s = context.state.check_ready().clock.now_s()
        body = await read_json_object(http, context.texts, context.config)
        if ("prompt" in body) == ("messages" in body):
            raise InvalidRequest("Exactly one of prompt and messages is required.", param="prompt")
        endpoint = self._chats if "messages" in body else self._completions
        return await endpoint.answer(http, body, arrival_s)

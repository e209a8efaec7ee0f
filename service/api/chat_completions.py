"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.answering import answer_stream, answer_whole
from service.api.chat_messages import check_messages, template_messages, unknown_fields
from service.api.choice_text import Piece
from service.api.chunk_frames import ChunkFrames
from service.api.context import ApiContext
from service.api.generation import CollectedChoice, Generation
from service.api.json_body import read_json_object
from service.api.middleware import client_of
from service.api.request_building import build_requests
from service.api.serving_state import ServedModel
from service.api.validation import check_call, parse, tier_of
from service.errors import InvalidRequest
from service.protocol.chat import AssistantMessage, ChatChoice, ChatRequest, ChatResponse
from service.text.chat_prompt import encode_chat
from service.text.chat_template import TemplateRefusal


class ChatCompletions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        model = self._context.state.check_ready()
        arrival_s = model.clock.now_s()
        fields = parse(ChatRequest, await read_json_object(http, self._context.texts))
        call = check_call(fields, self._context.config, model.defaults, unknown_fields(fields.messages))
        check_messages(fields.messages)
        model.engine.check_accepts()
        prompt = await self._prompt_ids(fields, model)
        call_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        requests = build_requests(
            call,
            [prompt],
            model,
            call_id=call_id,
            arrival_s=arrival_s,
            prompt_param="messages",
            default_max_tokens=None,
            client=client_of(http.scope),
        )
        generation = Generation(model.engine, model.tokenizer, requests, call.stops)
        if call.stream:
            chunks = ChunkFrames(b"chat.completion.chunk", call, generation, call_id, created, model.system_fingerprint)
            return answer_stream(self._context, generation, call.ignored, partial(_frames, chunks), chunks.usage)

        def body(choices: list[CollectedChoice]) -> ChatResponse:
            return ChatResponse(
                id=call_id,
                object="chat.completion",
                created=created,
                model=call.model,
                system_fingerprint=model.system_fingerprint,
                choices=[_choice(choice, with_ids=call.return_token_ids) for choice in choices],
                usage=generation.usage,
                **tier_of(call),
            )

        return await answer_whole(http, self._context, generation, call.ignored, body)

    async def _prompt_ids(self, fields: ChatRequest, model: ServedModel) -> list[int]:
        template = model.chat_template
        if template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        messages = template_messages(fields.messages, template)
        num_characters = sum(len(text) for message in messages for text in message.values())
        try:
            return await self._context.texts.run(
                num_characters, lambda: encode_chat(model.tokenizer, template, messages)
            )
        except TemplateRefusal as error:
            raise InvalidRequest(
                f"The chat template refuses these messages: {str(error)[:200]}", param="messages"
            ) from error


def _frames(chunks: ChunkFrames, piece: Piece) -> bytes:
    """A choice begins with its role and ends with an empty delta; its ids go with the first frame after the role."""
    frames = []
    ids = chunks.ids_of(piece)
    if piece.is_first:
        frames.append(chunks.choice(piece.index, b'"delta":{"role":"assistant","content":""}'))
    if piece.text:
        delta = b'"delta":{"content":%s}' % orjson.dumps(piece.text)
        frames.append(chunks.choice(piece.index, delta, ids=ids))
        ids = b""
    if piece.finish_reason is not None:
        frames.append(chunks.choice(piece.index, b'"delta":{}', chunks.end_of(piece), ids))
    return b"".join(frames)


def _choice(choice: CollectedChoice, *, with_ids: bool) -> ChatChoice:
    shape = ChatChoice(
        index=choice.index,
        message=AssistantMessage(role="assistant", content=choice.text, refusal=None),
        logprobs=None,
        finish_reason=choice.finish_reason.value,
        stop_reason=choice.stop_reason,
    )
    if with_ids:
        shape.token_ids = choice.token_ids
        shape.prompt_token_ids = choice.prompt_token_ids
    return shape

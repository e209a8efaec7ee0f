"""POST /tokenize: text or messages -> ids, exactly as in a call. POST /detokenize: ids -> text."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from service.api.answers.answering import ignored_header
from service.api.calls.chat_prompting import chat_prompt_ids, check_chat
from service.api.calls.field_names import fields_named
from service.api.calls.json_body import read_json_object
from service.api.calls.legacy_functions import legacy_names, with_tools
from service.api.calls.prompt_ids import MOST_COUNTED, PromptBound, text_ids
from service.api.calls.token_checks import check_token_ids
from service.api.calls.unknown_fields import unknown_fields
from service.api.calls.unsupported import check_extra_fields
from service.api.calls.validation import check_name, ignored_fields
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.errors import InvalidRequest
from service.protocol.generation import WireRequest
from service.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeResponse,
)


class Tokenize:
    """Both work without the engine, and answer while long prompts are computed."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def tokenize(self, http: Request) -> Response:
        model = self._context.state.check_ready()
        body = await read_json_object(http, self._context.texts, self._context.config)
        if ("prompt" in body) == ("messages" in body):
            raise InvalidRequest("Exactly one of prompt and messages is required.", param="prompt")
        read = self._chat_ids if "messages" in body else self._text_ids
        ids, ignored, with_strings = await read(body, model, http.receive)

        def answer() -> str:
            spelled = [model.tokenizer.token_text(token_id) for token_id in ids] if with_strings else None
            shape = TokenizeResponse(count=len(ids), max_model_len=model.max_model_len, tokens=ids, token_strs=spelled)
            return shape.model_dump_json()

        return _json(await self._context.texts.run(len(ids), answer), ignored)

    async def detokenize(self, http: Request) -> Response:
        model = self._context.state.check_ready()
        fields = parse(DetokenizeRequest, await read_json_object(http, self._context.texts, self._context.config))
        ignored = self._check(fields, fields.model)
        most = max(MOST_COUNTED, model.max_model_len)
        if len(fields.tokens) > most:
            raise InvalidRequest(f"tokens may hold at most {most}, but there are {len(fields.tokens)}.", param="tokens")

        def answer() -> str:
            check_token_ids(fields.tokens, model.vocab_size, "tokens")
            text = model.tokenizer.decode(fields.tokens, skip_special_tokens=False)
            return DetokenizeResponse(prompt=text).model_dump_json()

        return _json(await self._context.texts.run(len(fields.tokens), answer), ignored)

    async def _text_ids(
        self, body: dict[str, Any], model: ServedModel, receive: Receive
    ) -> tuple[list[int], tuple[str, ...], bool]:
        fields = parse(TokenizeRequest, body)
        ignored = self._check(fields, fields.model)
        special = fields.add_special_tokens is not False
        bound = PromptBound(model, "prompt", must_fit=False)
        bound.check_characters(len(fields.prompt))
        ids = await self._context.texts.run_prompt(
            receive,
            len(fields.prompt),
            lambda check_cancelled: text_ids(fields.prompt, bound, special, check_cancelled),
        )
        return ids, ignored, bool(fields.return_token_strs)

    async def _chat_ids(
        self, body: dict[str, Any], model: ServedModel, receive: Receive
    ) -> tuple[list[int], tuple[str, ...], bool]:
        fields = parse(TokenizeChatRequest, body)
        ignored = self._check(fields, fields.model, unknown_fields(fields))
        with fields_named(legacy_names(fields)):
            chat = check_chat(with_tools(fields), model, self._context)
            ids = await chat_prompt_ids(chat, model, self._context, receive, must_fit=False)
        return ids, ignored, bool(fields.return_token_strs)

    def _check(self, fields: WireRequest, model: str | None, deeper: tuple[str, ...] = ()) -> tuple[str, ...]:
        if model is not None:
            check_name(model, self._context.state.check_ready().adapters, self._context.config)
        return ignored_fields((*check_extra_fields(fields.model_extra or {}), *deeper), self._context.config)


def _json(json: str, ignored: tuple[str, ...]) -> Response:
    return Response(json, headers=ignored_header(ignored), media_type="application/json")

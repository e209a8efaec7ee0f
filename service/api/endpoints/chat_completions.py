"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import abandon, answer_stream, answer_whole
from service.api.answers.chat_deltas import PLAIN_CONTENT, assemble_message, chat_frames, new_call_id
from service.api.answers.choice_text import Piece
from service.api.answers.chunk_frames import ChunkFrames
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.submission import call_head, submit
from service.api.answers.token_logprobs import chat_logprobs, prompt_logprobs
from service.api.calls.chat_messages import unknown_fields
from service.api.calls.chat_prompting import CheckedChat, chat_prompt_ids, check_chat
from service.api.calls.json_body import read_json_object
from service.api.calls.member_limits import check_members
from service.api.calls.output_form import compile_form
from service.api.calls.request_building import CallHead, CallPrompts, truncated
from service.api.calls.token_checks import check_range
from service.api.calls.tools import output_form
from service.api.calls.validation import CheckedCall, check_call, tier_of
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.grammar import Reasoning
from service.errors import InvalidRequest
from service.protocol.chat import ChatChoice, ChatLogprobs, ChatRequest, ChatResponse
from service.text.chat_output import ChatOutput
from service.text.reasoning import ReasoningSplitter, begins_inside
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import make_router

_END_OF_PROMPT = 8
"""Ids at the end of a prompt that are looked at to see whether the reasoning is open."""


class ChatCompletions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        model = self._context.state.check_ready()
        arrival_s = model.clock.now_s()
        config = self._context.config
        body = await read_json_object(http, self._context.texts)
        check_members(body, config)
        fields = parse(ChatRequest, body)
        logprobs = _check_top_logprobs(fields, config)
        call = check_call(fields, config, model.defaults, logprobs=logprobs, unknown=unknown_fields(fields))
        chat = check_chat(fields, model, self._context)
        model.engine.check_accepts()
        must_fit = call.truncate_prompt_tokens is None
        prompt_ids = await chat_prompt_ids(chat, model, self._context, http.receive, must_fit=must_fit)
        prompt = truncated(prompt_ids, call, model)
        thinking = self._reasoning(chat, prompt, model)
        form = await compile_form(output_form(chat.tools, call.form, model.tokenizer), model, thinking)
        may_think = form.grammar is None or form.grammar.follows_reasoning
        if not may_think and (call.form is not None or chat.tools.must_call):
            thinking = Reasoning.NONE  # else the grammar is for calls alone, and the text beside them may think
        head = call_head(self._context.ids, http, "chatcmpl", arrival_s)
        prompts = CallPrompts([prompt], "messages", num_logprobs=call.prompt_logprobs)
        make_output = self._output_maker(chat, thinking)
        generation = await submit(self._context, model, call, prompts, head, form, make_output)
        try:
            make_call_id = partial(new_call_id, chat.tools.style)
            return await self._answered(http, generation, call, head, model, make_call_id)
        except BaseException:
            abandon(self._context, generation)
            raise

    async def _answered(
        self,
        http: Request,
        generation: Generation,
        call: CheckedCall,
        head: CallHead,
        model: ServedModel,
        make_call_id: Callable[[], str],
    ) -> Response:
        if call.stream:
            chunks = ChunkFrames(
                b"chat.completion.chunk", call, generation, head.call_id, head.created, model.system_fingerprint
            )
            frame = partial(chat_frames, chunks, make_call_id)
            if call.logprobs is not None:
                frame = partial(frame, logprobs_of=partial(_logprobs_json, model.tokenizer))
            around_text = chunks.around_text(PLAIN_CONTENT)
            return answer_stream(self._context, generation, call.ignored, frame, chunks.usage, around_text)
        answer = partial(_answer, generation, call, head, model, make_call_id)
        return await answer_whole(http, self._context, generation, call.ignored, answer)

    def _reasoning(self, chat: CheckedChat, prompt: Sequence[int], model: ServedModel) -> Reasoning:
        if self._context.config.reasoning_parser != "auto" or not chat.template.knows_reasoning:
            return Reasoning.NONE
        inside = begins_inside(model.tokenizer.decode(prompt[-_END_OF_PROMPT:]))
        return Reasoning.BEGUN if inside else Reasoning.MAY_BEGIN

    def _output_maker(self, chat: CheckedChat, thinking: Reasoning) -> Callable[[], ChatOutput] | None:
        """Makes what tells a choice's output apart; None if it can only be content."""
        tools = chat.tools
        thinks = thinking is not Reasoning.NONE
        if not thinks and tools.style is None:
            return None
        starts_inside = thinking is Reasoning.BEGUN

        def make() -> ChatOutput:
            return ChatOutput(
                ReasoningSplitter(starts_inside=starts_inside) if thinks else None,
                None if tools.style is None else make_router(tools.style, tools.names),
            )

        return make


def _check_top_logprobs(fields: ChatRequest, config: ApiConfig) -> int | None:
    """Chat's spelling: whether, and how many of the most probable tokens."""
    check_range("top_logprobs", fields.top_logprobs, 0, config.max_logprobs)
    if not fields.logprobs:
        if fields.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        return None
    return fields.top_logprobs or 0


def _logprobs_json(tokenizer: Tokenizer, piece: Piece) -> bytes:
    return orjson.dumps(chat_logprobs(tokenizer, piece.scored)) if piece.scored else b"null"


def _answer(
    generation: Generation,
    call: CheckedCall,
    head: CallHead,
    model: ServedModel,
    make_call_id: Callable[[], str],
    choices: list[CollectedChoice],
) -> ChatResponse:
    """The whole answer."""
    answer = ChatResponse(
        id=head.call_id,
        object="chat.completion",
        created=head.created,
        model=call.model,
        system_fingerprint=model.system_fingerprint,
        choices=[_choice(choice, make_call_id, call, model.tokenizer) for choice in choices],
        usage=generation.usage,
        **tier_of(call),
    )
    if call.prompt_logprobs is not None:
        prompt, scores = generation.prompt_token_ids(0), generation.prompt_logprobs(0)
        answer.prompt_logprobs = prompt_logprobs(model.tokenizer, prompt, scores)
    return answer


def _choice(
    choice: CollectedChoice, make_call_id: Callable[[], str], call: CheckedCall, tokenizer: Tokenizer
) -> ChatChoice:
    message = assemble_message(choice, make_call_id)
    called = message.tool_calls is not None and choice.finish_reason.value == "stop"
    shape = ChatChoice(
        index=choice.index,
        message=message,
        logprobs=None if call.logprobs is None else ChatLogprobs(**chat_logprobs(tokenizer, choice.scored)),
        finish_reason="tool_calls" if called else choice.finish_reason.value,
        stop_reason=choice.stop_reason,
    )
    if call.return_token_ids:
        shape.token_ids = choice.token_ids
        shape.prompt_token_ids = choice.prompt_token_ids
    return shape

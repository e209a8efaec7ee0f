"""The fields of a chat -> a prepared call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.chat_prompting import CheckedChat, chat_prompt_ids, check_chat
from service.api.calls.field_names import fields_named
from service.api.calls.legacy_functions import legacy_names, with_tools
from service.api.calls.output_form import compile_form
from service.api.calls.prepared_call import CallPrompts, PreparedCall
from service.api.calls.prompt_ids import truncated
from service.api.calls.thinking_budget import check_thinking_budget
from service.api.calls.token_checks import check_asked_tokens, check_num_logprobs
from service.api.calls.tools import output_form
from service.api.calls.unknown_fields import unknown_fields
from service.api.calls.validation import check_call, find_adapter
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.grammar import Reasoning
from service.errors import InvalidRequest
from service.protocol.chat import ChatRequest
from service.text.chat_messages import text_of
from service.text.chat_output import ChatOutput
from service.text.reasoning import ReasoningSplitter, begins_inside
from service.text.tool_calls import make_router

_END_OF_PROMPT = 8
"""How many ids at the end of a prompt are checked for an open reasoning block."""


async def prepare_chat(
    fields: ChatRequest,
    head: CallHead,
    receive: Receive,
    model: ServedModel,
    context: ApiContext,
    *,
    also_unknown: Sequence[str] = (),
) -> PreparedCall:
    """As `prepare_completion`. Another wire form of a chat is converted to these fields first; also_unknown: its
    unknown fields."""
    unknown = (*unknown_fields(fields), *also_unknown)
    return await prepare_chats([Conversation(fields)], head, receive, model, context, unknown)


class Conversation:
    """One conversation of a call. fields: of a chat, with tools instead of the older functions. name_of: maps a path in
    these fields to the path that the client wrote; outer_name does the same for another wire form."""

    def __init__(self, fields: ChatRequest, outer_name: Callable[[str], str] = str) -> None:
        legacy_name = legacy_names(fields)
        self.name_of = lambda path: outer_name(legacy_name(path))
        with fields_named(self.name_of):
            self.fields = with_tools(fields)


async def prepare_chats(
    conversations: Sequence[Conversation],
    head: CallHead,
    receive: Receive,
    model: ServedModel,
    context: ApiContext,
    unknown: Sequence[str],
) -> PreparedCall:
    """A call of one or several conversations, whose fields are the same except for the messages. unknown: unknown
    fields."""
    fields = conversations[0].fields
    with fields_named(conversations[0].name_of):
        logprobs = _check_top_logprobs(fields, context.config)
        adapter = await find_adapter(fields.model, model.adapters, context.config)
        call = check_call(fields, context.config, model.defaults, logprobs=logprobs, unknown=unknown, adapter=adapter)
    chats = []
    for conversation in conversations:
        with fields_named(conversation.name_of):
            chats.append(check_chat(conversation.fields, model, context))
    limit = check_thinking_budget(fields, model)
    model.engine.check_accepts(len(conversations))
    must_fit = call.truncate_prompt_tokens is None
    prompts = []
    for conversation, chat in zip(conversations, chats, strict=True):
        with fields_named(conversation.name_of):
            ids = await chat_prompt_ids(chat, model, context, receive, must_fit=must_fit)
            prompts.append(truncated(ids, call, model))
    chat, thinking = chats[0], _reasoning_of_all(chats[0], prompts, model, context.config)
    with fields_named(conversations[0].name_of):
        form = await compile_form(output_form(chat.tools, call.form, model.tokenizer), model, thinking)
    may_think = form.grammar is None or form.grammar.follows_reasoning
    if not may_think and (call.form is not None or chat.tools.must_call):
        thinking = Reasoning.NONE  # else the grammar is for calls only, and the text beside them may have reasoning
    echoes = [_echo(conversation.fields) for conversation in conversations] if fields.echo else None
    to_submit = CallPrompts(prompts, "messages", num_logprobs=call.prompt_logprobs, echoes=echoes)
    make_output = _output_maker(fields, chat, thinking)
    return PreparedCall(head, model, call, to_submit, form, limit, make_output, chat.tools.style)


def _reasoning_of_all(
    chat: CheckedChat, prompts: Sequence[Sequence[int]], model: ServedModel, config: ApiConfig
) -> Reasoning:
    """The same for all prompts, as they share a template; it differs only if a last message that is continued ends with
    a mark."""
    first, *others = (_reasoning(chat, prompt, model, config) for prompt in prompts)
    if any(other is not first for other in others):
        raise InvalidRequest(
            "messages: some conversations end inside a reasoning block and others do not; send them in separate "
            "requests.",
            param="messages",
        )
    return first


def _echo(fields: ChatRequest) -> str:
    """With `echo` the answer begins with the last message, if that is the assistant's; else empty."""
    last = fields.messages[-1]
    return text_of(last.content) if last.role == "assistant" else ""


def _reasoning(chat: CheckedChat, prompt: Sequence[int], model: ServedModel, config: ApiConfig) -> Reasoning:
    if config.reasoning_parser != "auto" or not chat.template.knows_reasoning:
        return Reasoning.NONE
    inside = begins_inside(model.tokenizer.decode(prompt[-_END_OF_PROMPT:]))
    return Reasoning.BEGUN if inside else Reasoning.MAY_BEGIN


def _output_maker(fields: ChatRequest, chat: CheckedChat, thinking: Reasoning) -> Callable[[], ChatOutput] | None:
    """See PreparedCall.make_output. With `separate_reasoning` false the reasoning stays in the content, as the model
    wrote it."""
    tools = chat.tools
    thinks = thinking is not Reasoning.NONE and fields.separate_reasoning is not False
    if not thinks and tools.style is None:
        return None
    starts_inside = thinking is Reasoning.BEGUN
    shows_reasoning = fields.include_reasoning is not False

    def make() -> ChatOutput:
        return ChatOutput(
            ReasoningSplitter(starts_inside=starts_inside) if thinks else None,
            None if tools.style is None else make_router(tools.style, tools.names),
            shows_reasoning=shows_reasoning,
        )

    return make


def _check_top_logprobs(fields: ChatRequest, config: ApiConfig) -> int | None:
    """The number of top log probabilities in chat's spelling; None: no log probabilities."""
    num_top = check_num_logprobs("top_logprobs", fields.top_logprobs, config.max_logprobs)
    if not fields.logprobs:
        if num_top:
            raise InvalidRequest("top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
        return check_asked_tokens(fields.logprob_token_ids, None, "logprobs to be true")
    return check_asked_tokens(fields.logprob_token_ids, num_top or 0, "logprobs")

"""The fields of a response -> those of a chat, and a prepared call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.chat_call import prepare_chat
from service.api.calls.chat_prompting import chat_prompt_ids, check_chat
from service.api.calls.field_names import fields_named
from service.api.calls.prepared_call import PreparedCall
from service.api.calls.response_items import ChatMessages
from service.api.calls.response_tools import ResponseTools, chat_choice, read_tools
from service.api.calls.unsupported import extra_fields
from service.api.calls.validation import check_name, ignored_fields
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields, ChatRequest
from service.protocol.generation import SamplingFields
from service.protocol.responses import InputItem, ResponsesRequest

_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        _LOGPROBS,
        "reasoning.encrypted_content",  # reasoning is shown in plain text, so there is nothing to encrypt
        "file_search_call.results",  # these are of item types that do not exist here
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
_PASSED_ON = frozenset(
    {
        *SamplingFields.model_fields,
        *("seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
        *("skip_special_tokens", "logit_bias", "bad_words", "allowed_token_ids", "structured_outputs"),
        *("chat_template_kwargs", "cache_salt", "priority", "model", "stream", "parallel_tool_calls"),
        *("service_tier", "user", "top_logprobs", "deterministic", "thinking_token_budget"),
    }
)
"""Fields that are the same in a chat."""
_OF_A_CHAT = frozenset(
    {
        *("include_reasoning", "separate_reasoning", "documents", "no_stop_trim", "regex", "ebnf", "json_schema"),
        *("choice", "grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    }
)
"""Fields of a chat that mean the same here. Any other chat field could make an answer that a response cannot
express."""
_REFUSED = ("conversation", "prompt", "context_management", "moderation", "background_options")
_HINTS = frozenset({"prompt_cache_options", "access_programs", "image", "client_metadata"})
"""Fields of OpenAI's and of Codex that have no effect on a server like this one."""
_MOST_METADATA = 16
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "truncate_prompt_tokens": "truncation",
    "logprobs": "include",
    "messages": "input",
}
"""A chat's fields -> a response's."""
_PATH = re.compile(r"(messages|tools)\[(\d+)\](?:\.tool_calls\[(\d+)\])?(?:\.function)?(.*)")


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A prepared response. tools: how its calls are shown."""

    prepared: PreparedCall
    fields: ResponsesRequest
    tools: ResponseTools
    conversation: _Conversation

    def name_of(self, path: str) -> str:
        """Maps the path of a field of the chat that the response was converted to, to the path in the response."""
        return self.conversation.name_of(path)


async def prepare_response(
    fields: ResponsesRequest,
    history: Sequence[InputItem],
    head: CallHead,
    receive: Receive,
    model: ServedModel,
    context: ApiContext,
    *,
    may_store: bool,
) -> ResponseCall:
    """As `prepare_chat`. history: the conversation that `previous_response_id` refers to.

    may_store: whether this server stores responses; if not, `store` is named among the ignored fields.
    """
    _check(fields)
    tools = read_tools(fields.tools or ())
    conversation = _Conversation(fields, history, tools)
    unread = [*conversation.messages.unread, *_unread(fields), *tools.ignored]
    if fields.store and not may_store:
        unread.append("store")
    with fields_named(conversation.name_of):
        chat = parse(ChatRequest, _chat(fields, conversation, tools))
        call = await prepare_chat(chat, head, receive, model, context, also_unknown=tuple(dict.fromkeys(unread)))
    call = replace(call, checked=replace(call.checked, max_tokens_param="max_output_tokens"))
    return ResponseCall(call, fields, tools, conversation)


async def count_input(
    fields: ResponsesRequest, history: Sequence[InputItem], receive: Receive, model: ServedModel, context: ApiContext
) -> tuple[int, tuple[str, ...]]:
    """The number of prompt tokens that a response with these fields has, and the names of ignored fields. history: see
    `prepare_response`."""
    if fields.model is not None:
        check_name(fields.model, model.adapters, context.config)
    _check(fields)
    tools = read_tools(fields.tools or ())
    conversation = _Conversation(fields, history, tools)
    body = _chat(fields, conversation, tools)
    nobody_knows = [name for name in fields.model_extra or {} if name in body and name not in ChatRequest.model_fields]
    unread = dict.fromkeys([*conversation.messages.unread, *_unread(fields), *tools.ignored, *nobody_knows])
    with fields_named(conversation.name_of):
        shape = parse(ChatPromptFields, {name: body[name] for name in body if name in ChatPromptFields.model_fields})
        prompt = await chat_prompt_ids(check_chat(shape, model, context), model, context, receive, must_fit=False)
    return len(prompt), ignored_fields(tuple(unread), context.config)


class _Conversation:
    """The messages of a response, and where in the request each of them comes from."""

    def __init__(self, fields: ResponsesRequest, history: Sequence[InputItem], tools: ResponseTools) -> None:
        self._tool_places = tools.places
        self.messages = ChatMessages(fields.instructions)
        for item in history:
            self.messages.add(item, "previous_response_id")
        for index, item in enumerate(input_items(fields)):
            self.messages.add(item, "input" if isinstance(fields.input, str) else f"input[{index}]")

    def name_of(self, path: str) -> str:
        if (found := _PATH.fullmatch(path)) is not None:
            where, index, call, rest = found.groups()
            if where == "tools":
                return self._tool_places[int(index)] + rest
            return self.messages.place_of(int(index), None if call is None else int(call)) + rest
        for name, own in _NAMES.items():
            if path == name or path.startswith((f"{name}.", f"{name}[")):
                return own + path[len(name) :]
        return path


def input_items(fields: ResponsesRequest) -> Sequence[InputItem]:
    """A text is one message of the user."""
    if isinstance(fields.input, str):
        return [InputItem(type="message", role="user", content=fields.input)]
    return fields.input or ()


def _check(fields: ResponsesRequest) -> None:
    for name, value in (fields.model_extra or {}).items():
        if value is not None and (name in _REFUSED or (name in ChatRequest.model_fields and name not in _OF_A_CHAT)):
            raise UnsupportedParameter(f"{name} is not supported for responses.", param=name)
    for index, each in enumerate(fields.include or ()):
        if each not in _INCLUDABLE:
            raise InvalidRequest(f"include[{index}] must be one of {', '.join(sorted(_INCLUDABLE))}.", param="include")
    if fields.top_logprobs and _LOGPROBS not in (fields.include or ()):
        raise InvalidRequest(f"top_logprobs is only allowed when include holds {_LOGPROBS}.", param="top_logprobs")
    if len(fields.metadata or {}) > _MOST_METADATA:
        raise InvalidRequest(f"metadata may hold at most {_MOST_METADATA} pairs.", param="metadata")


def _unread(fields: ResponsesRequest) -> list[str]:
    """Names of ignored and unknown fields in the request's own parts."""
    names: list[str] = []
    if (text := fields.text) is not None:
        names += extra_fields("text", text)
        names += extra_fields("text.format", text.format) if text.format is not None else ()
    if (reasoning := fields.reasoning) is not None:
        names += extra_fields("reasoning", reasoning)
        names += [f"reasoning.{name}" for name in ("summary", "generate_summary") if getattr(reasoning, name)]
    if fields.stream_options is not None:
        names += extra_fields("stream_options", fields.stream_options)
    return names


def _chat(fields: ResponsesRequest, conversation: _Conversation, tools: ResponseTools) -> dict[str, Any]:
    """The chat as JSON. Unknown fields are passed on, to be treated as a chat's."""
    body = {name: value for name, value in (fields.model_extra or {}).items() if name not in _HINTS}
    body |= {name: getattr(fields, name) for name in _PASSED_ON}
    if fields.structured_outputs is not None:
        body["structured_outputs"] = fields.structured_outputs.model_dump(exclude_unset=True, by_alias=True)
    body["messages"] = conversation.messages.messages
    body["tools"] = tools.functions
    body["tool_choice"] = chat_choice(fields.tool_choice, tools)
    body["max_completion_tokens"] = fields.max_output_tokens
    body["logprobs"] = _LOGPROBS in (fields.include or ())
    if fields.reasoning is not None:
        body["reasoning_effort"] = fields.reasoning.effort
    if fields.text is not None:
        body["verbosity"] = fields.text.verbosity
        body["response_format"] = _response_format(fields)
    if fields.truncation == "auto":
        body["truncate_prompt_tokens"] = -1
    return body


def _response_format(fields: ResponsesRequest) -> dict[str, Any] | None:
    """Converts `text.format`, one flat object, to a chat's nested response_format."""
    if fields.text is None or fields.text.format is None:
        return None
    format_ = fields.text.format.model_dump(include={"type", "name", "schema_", "strict"}, by_alias=True)
    kind = format_.pop("type")
    return {"type": kind, "json_schema": format_} if kind == "json_schema" else {"type": kind}

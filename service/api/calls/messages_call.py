"""The fields of Anthropic's API -> a prepared call, by way of a chat's fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.chat_call import prepare_chat
from service.api.calls.chat_prompting import chat_prompt_ids, check_chat, thinking_switches
from service.api.calls.field_names import fields_named
from service.api.calls.message_turns import chat_messages, check_continued
from service.api.calls.prepared_call import PreparedCall
from service.api.calls.thinking_budget import end_think_id
from service.api.calls.token_checks import INT64_MAX, check_range
from service.api.calls.unsupported import extra_fields
from service.api.calls.validation import check_name, ignored_fields
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields, ChatRequest, FunctionDefinition, Tool
from service.protocol.generation import JsonSchemaFormat, ResponseFormat, WireRequest
from service.protocol.messages import (
    CountTokensRequest,
    MessagesPromptFields,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    OutputFormat,
)
from service.text.chat_template import ChatTemplate

Member = TypeVar("Member")

_REFUSED: dict[str, tuple[object, ...]] = {"mcp_servers": ([],), "container": ()}
"""Fields that would change the answer and are not supported -> the values, besides null, at which they have no
effect."""
_NAMES = (
    (re.compile(r"^stop$"), "stop_sequences"),
    (re.compile(r"^(tools\[\d+\])\.function\.parameters"), r"\1.input_schema"),
    (re.compile(r"^(tools\[\d+\])\.function"), r"\1"),
    (re.compile(r"^response_format\.json_schema"), "output_config.format"),
    (re.compile(r"^reasoning_effort$"), "output_config.effort"),
    (re.compile(r"^thinking_token_budget$"), "thinking.budget_tokens"),
)


class _Prompt(NamedTuple):
    """fields: of a chat's prompt. unheeded: names of fields for which this model's template has no option."""

    fields: dict[str, Any]
    unheeded: Sequence[str]


class _Thinking(NamedTuple):
    """options: template variables that turn thinking on or off. effort: as a chat names it. unheeded: see `_Prompt`."""

    options: dict[str, object]
    effort: str | None
    unheeded: Sequence[str]


async def prepare_messages(
    fields: MessagesRequest, head: CallHead, receive: Receive, model: ServedModel, context: ApiContext
) -> PreparedCall:
    """As `prepare_chat`. `max_tokens` is an upper limit: where the context leaves less, the answer gets less."""
    check_range("max_tokens", fields.max_tokens, 0, INT64_MAX)
    prompt = _prompt(fields, model.chat_template, context.config)
    budget, unheeded = _budget(fields, model)
    chat = ChatRequest(
        **prompt.fields,
        stop=fields.stop_sequences,
        stream=fields.stream,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        seed=fields.seed,
        deterministic=fields.deterministic,
        thinking_token_budget=budget,
        user=fields.metadata.user_id if fields.metadata else None,
        response_format=_response_format(_format(fields)),
    )
    unknown = (*_unknown_fields(fields), *prompt.unheeded, *unheeded)
    with in_anthropics_names():
        call = await prepare_chat(chat, head, receive, model, context, also_unknown=unknown)
    return replace(call, prompts=replace(call.prompts, default_max_tokens=fields.max_tokens))


async def count_prompt(
    fields: CountTokensRequest, receive: Receive, model: ServedModel, context: ApiContext
) -> tuple[int, tuple[str, ...]]:
    """The number of prompt tokens that a call with these fields has, and the names of ignored fields."""
    check_name(fields.model, model.adapters, context.config)
    prompt = _prompt(fields, model.chat_template, context.config)
    _, unheeded = _budget(fields, model)
    ignored = ignored_fields((*_unknown_fields(fields), *prompt.unheeded, *unheeded), context.config)
    with in_anthropics_names():
        chat = check_chat(ChatPromptFields(**_without_model(prompt.fields)), model, context)
        return len(await chat_prompt_ids(chat, model, context, receive, must_fit=False)), ignored


def in_anthropics_names() -> AbstractContextManager[None]:
    """Within this context, refusals of a chat's fields name Anthropic's fields."""
    return fields_named(_name_of)


def _name_of(param: str) -> str:
    for pattern, name in _NAMES:
        param = pattern.sub(name, param)
    return param


def _without_model(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "model"}


def _prompt(fields: MessagesPromptFields, template: ChatTemplate | None, config: ApiConfig) -> _Prompt:
    thinking = _thinking(fields, template)
    choice = fields.tool_choice
    continues = check_continued(fields.messages)
    values = {
        "model": fields.model,
        "messages": chat_messages(fields, config),
        "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or ())] or None,
        "tool_choice": None if choice is None else _tool_choice(choice),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "chat_template_kwargs": {**thinking.options, **(fields.chat_template_kwargs or {})} or None,
        "reasoning_effort": thinking.effort,
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
    }
    return _Prompt(values, thinking.unheeded)


def _tool(tool: MessagesTool, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedParameter(
            f"{where}.type: only client tools, of type 'custom', are supported.", param=f"{where}.type"
        )
    if tool.input_schema is None:
        param = f"{where}.input_schema"
        raise InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
    known: dict[str, Any] = {"description": tool.description, "strict": tool.strict}
    given = {name: value for name, value in known.items() if value is not None}
    function = FunctionDefinition(name=tool.name, parameters=tool.input_schema, **given)
    return Tool(type="function", function=function)


def _tool_choice(choice: MessagesToolChoice) -> str | dict[str, Any]:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if not choice.name:
                param = "tool_choice.name"
                raise InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
            return {"type": "function", "function": {"name": choice.name}}
        case "auto" | "none":
            return choice.type


def _thinking(fields: MessagesPromptFields, template: ChatTemplate | None) -> _Thinking:
    """The template's options for `thinking` and `effort`. With a model that always thinks, or never, a field that asks
    for just that counts as heeded."""
    if template is None:
        return _Thinking({}, None, ())
    options: dict[str, object] = {}
    unheeded = []
    if (thinking := fields.thinking) is not None:
        switches = thinking_switches(template)
        wanted = {"enabled": True, "adaptive": True, "disabled": False}.get(thinking.type)
        if wanted is None or (not switches and wanted is not template.knows_reasoning):
            unheeded.append("thinking")
        else:
            options = dict.fromkeys(switches, wanted)
    effort = fields.output_config.effort if fields.output_config else None
    if effort is not None and not template.takes("reasoning_effort"):
        unheeded.append("output_config.effort")
        effort = None
    return _Thinking(options, "xhigh" if effort == "max" else effort, unheeded)


def _budget(fields: MessagesPromptFields, model: ServedModel) -> tuple[int | None, Sequence[str]]:
    """The number of thinking tokens allowed, and the names of fields without effect: there is no limit for a model that
    does not think, or whose thinking does not end with a single token."""
    thinking = fields.thinking
    if thinking is None or thinking.budget_tokens is None:
        return None, ()
    check_range("thinking.budget_tokens", thinking.budget_tokens, 1, INT64_MAX)
    template = model.chat_template
    thinks = template is not None and template.knows_reasoning and end_think_id(model) is not None
    if thinking.type != "enabled" or not thinks:
        return None, ("thinking.budget_tokens",)
    return thinking.budget_tokens, ()


def _format(fields: MessagesPromptFields) -> OutputFormat | None:
    config = fields.output_config
    return fields.output_format if config is None or config.format is None else config.format


def _response_format(form: OutputFormat | None) -> ResponseFormat | None:
    if form is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema_))


def _unknown_fields(fields: MessagesPromptFields) -> tuple[str, ...]:
    """Names of unknown fields, each once. Refuses unsupported fields that would change the answer."""
    for name, nothing in _REFUSED.items():
        value = (fields.model_extra or {}).get(name)
        if value is not None and value not in nothing:
            raise UnsupportedParameter(f"{name} is not supported.", param=name)
    shapes: list[tuple[str, WireRequest | None]] = [
        ("tool_choice", fields.tool_choice),
        ("thinking", fields.thinking),
        ("output_config", fields.output_config),
        ("output_config.format", _format(fields)),
        *(("system", part) for part in _members(fields.system)),
        *(("tools", tool) for tool in fields.tools or ()),
    ]
    for message in fields.messages:
        shapes.append(("messages", message))
        for block in _members(message.content):
            shapes.append(("messages.content", block))
            shapes += [("messages.content.content", part) for part in _members(block.content)]
    names = [name for name in (fields.model_extra or {}) if name not in _REFUSED]
    names += [name for where, shape in shapes if shape is not None for name in extra_fields(where, shape)]
    return tuple(dict.fromkeys(names))


def _members(content: str | Sequence[Member] | None) -> Sequence[Member]:
    return () if content is None or isinstance(content, str) else content

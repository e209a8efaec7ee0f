"""Chat fields -> prompt ids. Checks messages, tools and template options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive

from service.api.calls.prompt_ids import PromptBound, checked_by, undivided
from service.api.calls.token_checks import check_token_ids
from service.api.calls.tools import ToolUse, check_tools
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatMessage, ChatPromptFields
from service.text.chat_messages import check_messages, num_characters, num_content_characters, template_messages
from service.text.chat_prompt import PromptOptions, encode_chat
from service.text.chat_template import ChatTemplate, TemplateRefusal
from service.text.long_text import UndividedTextTooLong

TEMPLATE_OPTIONS = frozenset(
    {"enable_thinking", "thinking", "preserve_thinking", "reasoning_effort", "date_string", "builtin_tools"}
)
"""The options of published templates that clients may set. Others could be the names of our own template variables."""
_THINKING_SWITCHES = ("enable_thinking", "thinking")
_MAX_OPTION_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class CheckedChat:
    """A checked chat prompt, ready to be rendered."""

    template: ChatTemplate
    messages: Sequence[ChatMessage]
    options: PromptOptions
    tools: ToolUse
    num_characters: int


def check_chat(fields: ChatPromptFields, model: ServedModel, context: ApiContext) -> CheckedChat:
    """Refuses what the model's template cannot take. Does not render, nor parse the arguments of calls."""
    template = model.chat_template
    if template is None:
        raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
    check_messages(fields.messages, template)
    _check_documents(fields.documents, template)
    tools = check_tools(fields, template, context.config)
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true.", param="continue_final_message"
        )
    last = fields.messages[-1]
    if continues and (last.tool_calls or last.content is None):
        raise InvalidRequest(
            "continue_final_message: the last message has no text to continue.", param="continue_final_message"
        )
    options = PromptOptions(
        tools=tools.definitions,
        documents=fields.documents or None,
        template_options={
            **context.config.default_chat_template_kwargs,
            **_effort_options(fields.reasoning_effort, template),
            **_check_options(fields.chat_template_kwargs or {}),
        },
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=continues,
    )
    num_shown = num_characters(fields.messages) + _num_characters_of_tools(tools)
    num_shown += sum(len(text) for document in fields.documents or () for text in document.values())
    return CheckedChat(template, fields.messages, options, tools, num_shown)


async def chat_prompt_ids(
    chat: CheckedChat, model: ServedModel, context: ApiContext, receive: Receive, *, must_fit: bool
) -> list[int]:
    """Ids of the rendered prompt. InvalidRequest with the template's words if it refuses, or if the arguments of a call
    are too long. See `TextPool.run_prompt`.

    must_fit: see PromptBound. Its checks run before rendering, before tokenizing, and during tokenizing.
    """
    bound = PromptBound(model, "messages", must_fit=must_fit)
    bound.check_characters(num_content_characters(chat.messages))

    def encoded(check_cancelled: Callable[[], None]) -> list[int]:
        messages = template_messages(chat.messages, chat.template, context.config.max_arguments_characters)
        check = checked_by(bound, check_cancelled)
        ids = encode_chat(model.tokenizer, chat.template, messages, chat.options, bound.check_characters, check)
        if not must_fit:  # else max_tokens_for checks the whole
            bound.check_tokens(len(ids))
        check_token_ids(ids, model.vocab_size, "messages")  # some tokenizers have ids that the model lacks
        return ids

    try:
        return await context.texts.run_prompt(receive, chat.num_characters, encoded)
    except UndividedTextTooLong as error:
        raise undivided(error, bound) from error
    except TemplateRefusal as error:
        raise InvalidRequest(
            f"The chat template refuses these messages: {str(error)[:200]}", param="messages"
        ) from error


def thinking_switches(template: ChatTemplate) -> list[str]:
    """The template's variables that turn thinking on and off."""
    return [name for name in _THINKING_SWITCHES if template.takes(name)]


def _check_documents(documents: Sequence[Mapping[str, str]] | None, template: ChatTemplate) -> None:
    if documents and not template.knows_documents:
        raise UnsupportedParameter(
            "documents is not supported: this model's chat template does not use them.", param="documents"
        )


def _num_characters_of_tools(tools: ToolUse) -> int:
    return len(orjson.dumps(tools.definitions or []))


def _effort_options(effort: str | None, template: ChatTemplate) -> Mapping[str, object]:
    """The template's own variable for OpenAI's reasoning_effort; a template that can only turn thinking on and off gets
    that.

    Refused if the template has neither, except for `none` with a model that does not think.
    """
    if effort is None:
        return {}
    if template.takes("reasoning_effort"):
        return {"reasoning_effort": effort}
    switches = thinking_switches(template)
    if not switches and (effort != "none" or template.knows_reasoning):
        raise UnsupportedParameter(
            "reasoning_effort is not supported: this model's chat template does not use it.",
            param="reasoning_effort",
        )
    return dict.fromkeys(switches, effort != "none")


def _check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in options.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name not in TEMPLATE_OPTIONS:
            allowed = ", ".join(sorted(TEMPLATE_OPTIONS))
            raise InvalidRequest(f"{param} is not allowed; allowed are {allowed}.", param=param)
        if not isinstance(value, bool | int | float | str | None):
            raise InvalidRequest(f"{param} must be a string, a number, a boolean or null.", param=param)
        if isinstance(value, str) and len(value) > _MAX_OPTION_CHARACTERS:
            raise InvalidRequest(f"{param} may have at most {_MAX_OPTION_CHARACTERS} characters.", param=param)
    return options

"""Several conversations in one call -> a prepared call with one prompt each, as vLLM has it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.chat_call import Conversation, prepare_chats
from service.api.calls.prepared_call import PreparedCall
from service.api.calls.unknown_fields import unknown_fields
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatBatchRequest, ChatRequest

_REFUSED: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("stream", "use_beam_search"), (False,)),
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("tools", "functions", "documents"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "prompt_logprobs": (),
}
"""Chat fields that a batch does not support -> the values, besides null, at which they have no effect. Documents would
be repeated in every prompt."""


async def prepare_chat_batch(
    fields: ChatBatchRequest, head: CallHead, receive: Receive, model: ServedModel, context: ApiContext
) -> PreparedCall:
    """As `prepare_chat`, with one choice per conversation, in their order."""
    _check(fields, context.config)
    conversations = [Conversation(_chat(fields, index), _name_in_batch(index)) for index in range(len(fields.messages))]
    unknown = (name for index in range(len(conversations)) for name in unknown_fields(_chat(fields, index)))
    return await prepare_chats(conversations, head, receive, model, context, tuple(dict.fromkeys(unknown)))


def _check(fields: ChatBatchRequest, config: ApiConfig) -> None:
    for name, nothing in _REFUSED.items():
        value = getattr(fields, name)
        if value is not None and value not in nothing:
            raise UnsupportedParameter(f"{name} is not supported for a batch of conversations.", param=name)
    most = min(config.max_prompts_per_call, config.max_sequences_per_call)
    if not 1 <= len(fields.messages) <= most:
        raise InvalidRequest(f"messages must hold 1 to {most} conversations.", param="messages")


def _chat(fields: ChatBatchRequest, index: int) -> ChatRequest:
    """One of the conversations, with the parameters that all share, which are checked as they are."""
    return ChatRequest.model_construct(fields.model_fields_set, **{**dict(fields), "messages": fields.messages[index]})


def _name_in_batch(index: int) -> Callable[[str], str]:
    def name_of(path: str) -> str:
        is_of_conversation = path == "messages" or path.startswith("messages[")
        return f"messages[{index}]{path.removeprefix('messages')}" if is_of_conversation else path

    return name_of

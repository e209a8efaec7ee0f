"""Turns a chat into training texts, divided at the borders of the assistant's turns.

An assistant's turn is what the template adds to the prompt that the model gets for this turn. So the rendered messages
up to and including the turn must begin with the rendered messages before it plus the generation prompt; the rest is the
turn. If they do not, it is unknown which tokens the model itself would have written, and the chat is refused.

A template may render a turn differently once another one follows (Qwen3's drops the reasoning). Such a turn gets a
training text of its own that ends with it, since that is what the model sees when it is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from service.errors import HeadraceError, InvalidRequest
from service.finetune.dataset_line import MAX_LINE_BYTES, PromptCompletion, TrainingChat
from service.text.chat_messages import check_messages, template_messages
from service.text.chat_template import ChatTemplate, Message, TemplateRefusal
from service.text.special_text import Shield
from service.text.tokenizer import Tokenizer

Check = Callable[[], None]


class UntrainableText(HeadraceError):
    """A chat or a pair that cannot be trained on; the message says why."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """How a model reads text. template: None if it has none. end_id: appended to a completion (a chat template does
    that itself). vocab_size: number of ids. template_options: those with which the server renders every chat."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_id: int | None
    vocab_size: int
    template_options: Mapping[str, object] = field(default_factory=dict)


class TextPart(NamedTuple):
    text: str
    is_trained: bool


class TrainingText(NamedTuple):
    """parts: in order. literals: as in `Tokenizer.encode_rendered`; None: not from a template, so the text may spell
    special tokens, and the tokenizer adds its own at the start. end_id: an id after the text, trained on."""

    parts: Sequence[TextPart]
    literals: Mapping[str, str] | None
    end_id: int | None = None


def training_texts(chat: TrainingChat, model: ModelText, max_length: int, check: Check) -> list[TrainingText]:
    """At least one text. Turns that begin beyond `max_length` tokens are left out. check: called often; may raise.

    Raises UntrainableText.
    """
    if model.template is None:
        raise UntrainableText("the model has no chat template; use prompt and completion")
    shield = Shield(model.tokenizer.special_texts)
    try:
        check_messages(chat.messages, model.template)
        plain = template_messages(chat.messages, model.template, MAX_LINE_BYTES)
        return _Rendering(chat, plain, model, model.template, shield).texts(max_length, check)
    except InvalidRequest as error:
        raise UntrainableText(error.message) from error
    except TemplateRefusal as error:
        reason = shield.reveal(str(error))[:200]
        raise UntrainableText(f"the chat template refuses these messages: {reason}") from error
    except RecursionError as error:
        raise UntrainableText("tools or arguments of calls are nested too deeply") from error


def completion_text(pair: PromptCompletion, model: ModelText) -> TrainingText:
    return TrainingText([TextPart(pair.prompt, False), TextPart(pair.completion, True)], None, model.end_id)


class _Rendering:
    """Renders one chat and its prefixes."""

    def __init__(
        self,
        chat: TrainingChat,
        messages: Sequence[Message],
        model: ModelText,
        template: ChatTemplate,
        shield: Shield,
    ) -> None:
        self._chat = chat
        self._shield = shield
        self._tokenizer = model.tokenizer
        self._template = template
        self._options = model.template_options
        self._messages = [{key: shield.cover(value) for key, value in message.items()} for message in messages]
        tools = chat.tools or None
        self._tools = None if tools is None else [shield.cover(tool.model_dump(exclude_unset=True)) for tool in tools]

    def texts(self, max_length: int, check: Check) -> list[TrainingText]:
        whole = self._text(len(self._messages), asks=False)
        borders: list[int] = []  # begin and end of each trained turn in the whole text
        apart: list[TrainingText] = []
        for index in filter(self._chat.is_trained, range(len(self._messages))):
            check()
            before = self._text(index, asks=True)
            if (apart or borders) and self._tokenizer.least_num_tokens(len(before)) >= max_length:
                break
            after = self._text(index + 1, asks=False)
            self._check_turn(before, after, index)
            if whole.startswith(after) and len(before) >= (borders[-1] if borders else 0):
                borders += [len(before), len(after)]
            else:
                apart.append(self._training_text(after, [len(before), len(after)]))
        return [*([self._training_text(whole, borders)] if borders else []), *apart]

    def _text(self, num_messages: int, *, asks: bool) -> str:
        """The first messages, rendered. asks: with the generation prompt."""
        return self._template.render(
            self._messages[:num_messages], add_generation_prompt=asks, tools=self._tools, options=self._options
        )

    def _check_turn(self, before: str, after: str, index: int) -> None:
        if not after.startswith(before):
            raise UntrainableText(
                f"messages[{index}]: cannot tell which tokens are the assistant's, since the chat template renders "
                "this turn differently from its generation prompt"
            )
        message, turn = self._messages[index], after[len(before) :]
        content = str(message["content"] or "").strip()
        if content and content not in turn and not self._template.knows_reasoning:
            raise UntrainableText(f"messages[{index}]: the chat template does not show its content as it is")
        calls = self._chat.messages[index].tool_calls or ()
        if any(str(self._shield.cover(call.function.name)) not in turn for call in calls):
            raise UntrainableText(f"messages[{index}]: the chat template does not show its tool_calls")

    def _training_text(self, text: str, borders: Sequence[int]) -> TrainingText:
        """The text up to the last border. Assistant parts are between borders 0 and 1, 2 and 3, ..."""
        places = zip([0, *borders], borders, strict=False)
        parts = [TextPart(text[start:end], at % 2 == 1) for at, (start, end) in enumerate(places)]
        return TrainingText(parts, self._shield.literals)

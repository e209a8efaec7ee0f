"""Messages -> prompt ids: template and tokenizer together, such that clients' text never becomes special tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from service.text.chat_template import ChatTemplate, Message, TemplateRefusal
from service.text.special_text import Shield
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """What a request can set in its prompt besides the messages.

    tools, documents: shown by the template. template_options: further variables of the template.
    add_generation_prompt: the prompt ends with the beginning of the assistant's turn. continue_final_message: instead,
        it ends with the last message, left open for the model to continue.
    """

    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, str]] | None = None
    template_options: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    options: PromptOptions | None = None,
    check_length: Callable[[int], None] | None = None,
    check_num_ids: Callable[[int], None] | None = None,
) -> list[int]:
    """Ids of the rendered messages; `options` say how they end.

    The template writes the special tokens, so none are added again (no double BOS). check_length: called with the
    number of rendered characters before they are tokenized; may raise. check_num_ids: `check` of `Tokenizer.encode`.
    Raises TemplateRefusal, UndividedTextTooLong.
    """
    options = options or PromptOptions()
    shield = Shield(tokenizer.special_texts)
    end = f"\ue004{secrets.token_hex(8)}"
    try:
        covered = [{key: shield.cover(value) for key, value in message.items()} for message in messages]
        if options.continue_final_message:
            covered[-1]["content"] = f"{covered[-1]['content']}{end}"
        text = template.render(
            covered,
            add_generation_prompt=options.add_generation_prompt and not options.continue_final_message,
            tools=None if options.tools is None else [shield.cover(tool) for tool in options.tools],
            documents=None if options.documents is None else [shield.cover(dict(each)) for each in options.documents],
            options={name: shield.cover(value) for name, value in options.template_options.items()},
        )
    except TemplateRefusal as error:
        raise TemplateRefusal(shield.reveal(str(error))) from error
    except RecursionError as error:
        raise TemplateRefusal("tools or arguments of calls are nested too deeply") from error
    if options.continue_final_message:
        text, found, _ = text.rpartition(end)
        if not found:
            raise TemplateRefusal("the final message cannot be continued")
    if check_length is not None:
        check_length(len(shield.reveal(text)))
    return tokenizer.encode_rendered(text, shield.literals, check_num_ids)

"""Messages -> prompt ids: template and tokenizer together, special tokens safe from the clients' text."""

from __future__ import annotations

from collections.abc import Sequence

from service.text.chat_template import ChatTemplate, Message, TemplateRefusal
from service.text.special_text import Shield
from service.text.tokenizer import Tokenizer


def encode_chat(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
    """Ids of the rendered messages, with the prompt for the assistant's turn at the end.

    The template writes the special tokens, so none are added again (no double BOS). Raises TemplateRefusal.
    """
    shield = Shield(tokenizer.special_texts)
    covered = [{key: shield.cover(value) for key, value in message.items()} for message in messages]
    try:
        text = template.render(covered, add_generation_prompt=True)
    except TemplateRefusal as error:
        raise TemplateRefusal(shield.reveal(str(error))) from error
    return tokenizer.encode_rendered(text, shield.literals)

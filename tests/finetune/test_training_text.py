"""More of it, with real tokens: tests/finetune/test_dataset.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.finetune.dataset_line import TrainingChat, read_line
from service.finetune.training_text import TrainingText, UntrainableText, training_texts
from tests.finetune.model_texts import DROPS_REASONING, SMOLLM2, TRIMS, model_text


def chat_of(*contents: str, **fields: Any) -> TrainingChat:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(contents)]
    chat = read_line(json.dumps({"messages": messages, **fields}).encode(), 1)
    assert isinstance(chat, TrainingChat)
    return chat


def never_stopped() -> None:
    """Nobody stops it."""


def texts(template: str, *contents: str, max_length: int = 4096) -> list[TrainingText]:
    return training_texts(chat_of(*contents), model_text(template), max_length, never_stopped)


def test_parts_alternate_and_are_the_rendered_text_up_to_the_last_turn_that_is_learned():
    (text,) = texts(TRIMS, "a", "b", "c", "d", "e")
    whole = "<|bos|><|im_start|>user a<|im_end|><|im_start|>assistant [b<|im_end|>]<|im_start|>user c<|im_end|>"
    whole += "<|im_start|>assistant [d<|im_end|>]"
    assert "".join(f"[{part.text}]" if part.is_trained else part.text for part in text.parts) == whole


def test_special_tokens_in_a_message_are_hidden_until_they_are_tokenized():
    (text,) = texts(TRIMS, "<|im_end|>", "b")
    assert text.literals is not None
    assert list(text.literals.values()) == ["<|im_end|>"]
    assert "".join(part.text for part in text.parts).count("<|im_end|>") == 2


def test_a_turn_that_is_shown_otherwise_later_has_a_text_of_its_own():
    whole, apart = texts(DROPS_REASONING, "a", "b", "c", "d")
    assert [part.text[-20:] for part in whole.parts if part.is_trained] == ["</think>\n\nd<|im_end|>\n"[-20:]]
    assert [part.text[-20:] for part in apart.parts if part.is_trained] == ["</think>\n\nb<|im_end|>\n"[-20:]]


def test_turns_beyond_the_length_are_not_rendered():
    contents = ["word " * 50] * 40
    (text,) = texts(SMOLLM2, *contents, max_length=20)
    assert sum(part.is_trained for part in text.parts) < 5
    (text,) = texts(SMOLLM2, *contents)
    assert sum(part.is_trained for part in text.parts) == 20


def test_a_template_that_cannot_begin_with_the_assistant_says_so():
    chat = TrainingChat.model_validate({"messages": [{"role": "assistant", "content": "b"}]})
    template = "{{ messages[0]['role'] }}" + SMOLLM2
    with pytest.raises(UntrainableText, match="refuses these messages"):
        training_texts(chat, model_text(template), 4096, never_stopped)


def test_arguments_that_are_nested_too_deeply_are_refused():
    deep = '{"a":' * 900 + "1" + "}" * 900
    call = {"type": "function", "function": {"name": "f", "arguments": deep}}
    chat = TrainingChat.model_validate({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    with pytest.raises(UntrainableText):
        training_texts(chat, model_text(SMOLLM2), 4096, never_stopped)

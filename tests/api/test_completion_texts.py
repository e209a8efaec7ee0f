from __future__ import annotations

from dataclasses import replace
from typing import Any

from service.api.choice_text import ScoredToken
from service.api.completion_texts import CompletionTexts
from service.api.generation import CollectedChoice
from service.core.iteration_result import TokenLogprobs
from service.core.request import FinishReason
from tests.api.test_chunk_frames import CALL
from tests.api.test_generation import TOKENIZER

PROMPT = TOKENIZER.encode("hi", add_special_tokens=False)
(A,) = TOKENIZER.encode("a", add_special_tokens=False)
SCORE = TokenLogprobs(-1.0, ((A, -0.5),), rank=2)
CHOICE = CollectedChoice(
    0, 0, "a", [A], PROMPT, FinishReason.STOP, None, (), [ScoredToken(A, TokenLogprobs(-0.5, ()), 0)]
)


class Scored:
    """A generation whose prompt was scored."""

    def prompt_token_ids(self, prompt_index: int) -> list[int]:
        return PROMPT

    def prompt_logprobs(self, prompt_index: int) -> tuple[TokenLogprobs, ...]:
        return (SCORE,)


def texts_of(echoes: list[str] | None, **asked: int | None) -> CompletionTexts:
    generation: Any = Scored()
    return CompletionTexts(replace(CALL, **asked), generation, TOKENIZER, echoes)


def test_what_is_not_asked_for_is_not_there() -> None:
    shape = texts_of(None).choice(CHOICE)
    assert shape.text == "a"
    assert shape.logprobs is None
    assert "prompt_logprobs" not in shape.model_fields_set


def test_an_echoed_prompts_logprobs_stand_before_the_outputs() -> None:
    shape = texts_of(["hi"], logprobs=1).choice(CHOICE)
    assert shape.text == "hia"
    assert shape.logprobs is not None
    assert shape.logprobs.tokens == ["h", "i", "a"]
    assert shape.logprobs.token_logprobs == [None, -1.0, -0.5]
    assert shape.logprobs.text_offset == [0, 1, 2]


def test_prompt_logprobs_are_cut_to_what_was_asked_for() -> None:
    """The engine was asked for more, by an echo with logprobs."""
    shape = texts_of(["hi"], logprobs=1, prompt_logprobs=0).choice(CHOICE)
    assert shape.prompt_logprobs is not None
    assert shape.prompt_logprobs[0] is None
    assert list(shape.prompt_logprobs[1] or {}) == [str(PROMPT[1])]

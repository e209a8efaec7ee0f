"""Of a byte-level tokenizer and of one that puts a space before each text; more: tests/finetune/test_dataset.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.part_ids import PartEncoder
from service.finetune.training_text import TextPart, TrainingText
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZERS = {
    "byte-level": Tokenizer(tiny_tokenizers.byte_level()),
    "byte fallback": Tokenizer(tiny_tokenizers.byte_fallback()),
}
ENDS = {"byte-level": "<|im_end|>", "byte fallback": "</s>"}
some_text = st.lists(st.sampled_from(["hello", " world", " ", "is", "x", "\n", "é"]), min_size=1, max_size=4).map(
    "".join
)


def text_of(parts: list[str], **fields: object) -> TrainingText:
    """Every second part is learned."""
    return TrainingText([TextPart(part, at % 2 == 1) for at, part in enumerate(parts)], {}, **fields)


def whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.lists(some_text, min_size=2, max_size=6).filter(lambda parts: len(parts) % 2 == 0))
def test_what_is_learned_is_what_the_learned_parts_say(name: str, parts: list[str]):
    tokenizer = TOKENIZERS[name]
    parts = [part + ENDS[name] if at % 2 else part for at, part in enumerate(parts)]
    ids, learned = PartEncoder(tokenizer).encode(text_of(parts))
    assert len(ids) == len(learned)
    assert learned[-1]
    without_spaces = str.maketrans("", "", " ")
    assert whole(tokenizer, ids).translate(without_spaces) == "".join(parts).translate(without_spaces)
    said = "".join(whole(tokenizer, [each]) for each, is_learned in zip(ids, learned, strict=True) if is_learned)
    if name == "byte-level" and "é" not in "".join(parts):
        assert said == "".join(parts[1::2])
    assert said.count(ENDS[name]) == len(parts) // 2


@given(some_text, some_text)
def test_a_tokenizer_that_puts_a_space_first_puts_none_between_parts(first: str, second: str):
    tokenizer = TOKENIZERS["byte fallback"]
    ids, _ = PartEncoder(tokenizer).encode(text_of([first, second]))
    assert ids == tokenizer.encode(first + second, add_special_tokens=False)


def test_what_stands_behind_the_end_of_a_turn_is_not_learned():
    ids, learned = PartEncoder(TOKENIZERS["byte-level"]).encode(text_of(["a", "b<|im_end|>\n", "c", "d<|im_end|> e"]))
    said = [token_id for token_id, is_learned in zip(ids, learned, strict=True) if is_learned]
    assert whole(TOKENIZERS["byte-level"], said) == "b<|im_end|>d<|im_end|> e"


def test_a_prompts_own_special_tokens_come_first_and_its_end_last():
    text = TrainingText([TextPart("<|im_start|>a", False), TextPart("b", True)], None, 2)
    ids, learned = PartEncoder(TOKENIZERS["byte-level"]).encode(text)
    assert (ids[:2], ids[-1]) == ([0, 1], 2)
    assert learned == [False] * 3 + [True] * 2

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.special_text import LiteralEncoder, Shield, SpecialTexts
from tests.text import tiny_tokenizers

SPECIAL = SpecialTexts(["<|im_start|>", "<|im_end|>", "<s>"])
FRAGMENTS = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<s>", "<", "|", "im_", "end|>", "a", " "]), max_size=8
)


def special_texts_in(text: str) -> list[str]:
    found: list[str] = []
    SPECIAL.finder.replace(text, lambda each: found.append(each) or each)
    return found


@given(FRAGMENTS)
def test_covered_text_shows_no_special_text_and_can_be_revealed(fragments: list[str]) -> None:
    text, shield = "".join(fragments), Shield(SPECIAL)
    covered = shield.cover(text)
    assert isinstance(covered, str)
    assert not special_texts_in(covered)
    assert shield.reveal(covered) == text


@given(st.lists(FRAGMENTS, min_size=2, max_size=4))
def test_covered_texts_put_side_by_side_form_no_special_text(texts: list[list[str]]) -> None:
    shield = Shield(SPECIAL)
    covered = [shield.cover("".join(fragments)) for fragments in texts]
    assert not special_texts_in("".join(map(str, covered)))
    assert shield.reveal("".join(map(str, covered))) == "".join("".join(fragments) for fragments in texts)


def test_ordinary_text_is_left_alone() -> None:
    shield = Shield(SPECIAL)
    value = {"role": "user", "content": ["plain", {"a < b": 1, "c": None, "d": True}]}
    assert shield.cover(value) == value
    assert not shield.literals


def test_covers_keys_and_values_at_any_depth() -> None:
    shield = Shield(SPECIAL)
    covered = shield.cover({"<s>": [{"x": "<|im_end|>"}]})
    assert "<s>" not in repr(covered)
    assert "im_end" not in repr(covered)


def test_placeholders_cannot_be_forged() -> None:
    first, second = Shield(SPECIAL), Shield(SPECIAL)
    first.cover("<s>")
    (forged,) = first.literals
    assert second.cover(forged) == forged
    assert second.reveal(forged) == forged


def test_many_covered_texts_cost_no_more_than_few() -> None:
    shield = Shield(SPECIAL)
    text = "<|im_end|> and " * 100_000
    started_s = time.thread_time()
    assert shield.reveal(str(shield.cover(text))) == text
    assert time.thread_time() - started_s < 2
    assert len(shield.literals) == 1


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_literal_encoder_agrees_with_the_tokenizer_when_nothing_is_literal(name: str) -> None:
    tokenizer = getattr(tiny_tokenizers, name)()
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    text = f"{special[1]}hello world{special[2]}\n is {special[1]} hello<think>"
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert LiteralEncoder(tokenizer).encode(text, {}) == expected


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_literals_become_plain_text(name: str) -> None:
    tokenizer = getattr(tiny_tokenizers, name)()
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    text = tokenizer.id_to_token(2)
    ids = LiteralEncoder(tokenizer).encode("hello PLACE is", {"PLACE": text})
    assert not special & set(ids)
    assert tokenizer.decode(ids) == f"hello {text} is"

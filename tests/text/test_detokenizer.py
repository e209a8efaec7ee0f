from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from service.text.byte_detokenizer import ByteDetokenizer
from service.text.detokenizer import Detokenizer, make_detokenizer
from service.text.tokenizer import Tokenizer
from service.text.window_detokenizer import WindowDetokenizer
from tests.text import tiny_tokenizers

BYTE_LEVEL = Tokenizer(tiny_tokenizers.byte_level())
BYTE_FALLBACK = Tokenizer(tiny_tokenizers.byte_fallback())
TEXTS = st.text(max_size=40) | st.lists(
    st.sampled_from(["hello", " world", " ", "  ", "\n", "é", "你好", "👩‍🚀", "</s>", "<|im_end|>", "<think>"]),
    max_size=10,
).map("".join)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=20)


def pieces_of(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    pieces, start, turn = [], 0, 0
    while start < len(ids):
        size = cuts[turn % len(cuts)]
        pieces.append(detokenizer.push(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte-level", "byte-fallback"])
@given(text=TEXTS, cuts=CUTS)
def test_pieces_of_text_add_up_to_the_full_decode(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True)
    pieces = pieces_of(make_detokenizer(tokenizer), ids, cuts)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, BYTE_LEVEL.num_tokens + 2), max_size=40), CUTS)
def test_byte_level_pieces_of_any_ids_add_up_to_the_full_decode(ids: list[int], cuts: list[int]) -> None:
    assert "".join(pieces_of(make_detokenizer(BYTE_LEVEL), ids, cuts)) == BYTE_LEVEL.decode(ids)


@given(st.lists(st.integers(0, BYTE_FALLBACK.num_tokens - 1).filter(lambda i: not 3 <= i < 259), max_size=40), CUTS)
def test_window_pieces_of_any_ids_add_up_to_the_full_decode(ids: list[int], cuts: list[int]) -> None:
    assert "".join(pieces_of(WindowDetokenizer(BYTE_FALLBACK), ids, cuts)) == BYTE_FALLBACK.decode(ids)


@given(st.lists(st.integers(0, BYTE_FALLBACK.num_tokens - 1), max_size=60), CUTS)
def test_window_comes_through_bytes_that_are_no_text(ids: list[int], cuts: list[int]) -> None:
    """Not equal to the full decode (see the class), but words after the bad bytes come out whole."""
    word = BYTE_FALLBACK.encode("hello", add_special_tokens=False)
    text = "".join(pieces_of(WindowDetokenizer(BYTE_FALLBACK), [*ids, *word], cuts))
    assert text.endswith("hello")


@given(TEXTS, CUTS)
def test_both_kinds_agree(text: str, cuts: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=True)
    assert BYTE_LEVEL.token_bytes is not None
    quick, general = ByteDetokenizer(BYTE_LEVEL.token_bytes), WindowDetokenizer(BYTE_LEVEL)
    assert "".join(pieces_of(quick, ids, cuts)) == "".join(pieces_of(general, ids, cuts))


def test_a_character_comes_out_when_its_last_byte_is_there() -> None:
    ids = BYTE_LEVEL.encode("你", add_special_tokens=False)
    detokenizer = make_detokenizer(BYTE_LEVEL)
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "你"]


def test_half_a_character_at_the_end_is_replaced() -> None:
    ids = BYTE_LEVEL.encode("你", add_special_tokens=False)[:2]
    detokenizer = make_detokenizer(BYTE_LEVEL)
    assert detokenizer.push(ids) + detokenizer.flush() == "\ufffd"


def test_the_window_does_not_wait_for_ever_for_a_character() -> None:
    bad = [3 + 0xE4] * 50
    detokenizer = WindowDetokenizer(BYTE_FALLBACK)
    assert sum(len(detokenizer.push([token_id])) for token_id in bad) > 40


def test_kind_follows_the_decoder() -> None:
    assert isinstance(make_detokenizer(BYTE_LEVEL), ByteDetokenizer)
    assert isinstance(make_detokenizer(BYTE_FALLBACK), WindowDetokenizer)


def test_word_pieces() -> None:
    model = models.WordPiece({"[UNK]": 0, "head": 1, "##race": 2, "is": 3, ",": 4}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    ids = [1, 2, 3, 1, 4, 3, 2, 2]
    assert "".join(pieces_of(make_detokenizer(Tokenizer(tokenizer)), ids, [1])) == tokenizer.decode(ids)


def test_an_id_without_text_does_not_cost_the_next_word_its_space() -> None:
    """As the ids by which a model's vocabulary is padded: to them the next word would be the first one."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"▁head": 0, "▁race": 1}, unk_token="▁head"))
    tokenizer.decoder = decoders.Metaspace()
    beyond = 7
    detokenizer = WindowDetokenizer(Tokenizer(tokenizer))
    assert "".join(pieces_of(detokenizer, [0, beyond, 1, beyond, beyond, 1], [1])) == "head race race"


def test_special_tokens_are_shown_if_asked_for() -> None:
    for made in (tiny_tokenizers.byte_level(), tiny_tokenizers.byte_fallback()):
        tokenizer = Tokenizer(made)
        special = max(tokenizer.special_ids)
        name = tokenizer.token_text(special)
        ids = [special, *tokenizer.encode("ab", add_special_tokens=False)]
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=False)
        text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=False)
        assert name in text

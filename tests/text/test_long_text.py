from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from service.settings.quickstart import QUICKSTART_MODEL
from service.text import long_text
from service.text.long_text import PieceEncoder, UndividedTextTooLong, encode_unlocked
from tests.complexity.growth import MOST_GROWTH, Work, WorstInput, least_growth
from tests.text import tiny_tokenizers

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACES = [" ", "  ", "   \n  ", "\n\n", "\r\n", "\t", "\u00a0", "\u3000"]
WORDS = ["hello", "one two three", "1234567", " 42", "'s", "don't", "a_b", "x" * 50, "你好", "é", "e\u0301", "हिन्दी"]
MARKS = ["-", "\u3002", "\uff0c", "😀", ",", '"', "{", "}", "(", ")", ":", "!" * 9]
FRAGMENTS = [*SPACES, *WORDS, *MARKS, "<|im_end|>", "<|bos|>", "<think>", "END"]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), min_size=20, max_size=120).map("".join)


def llama_3() -> tokenizers.Tokenizer:
    """Its pattern, with the tiny vocabulary; NFC before it, as Qwen has."""
    inner = tiny_tokenizers.byte_level()
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return inner


def with_prefix_space() -> tokenizers.Tokenizer:
    inner = tiny_tokenizers.byte_level()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return inner


def with_added(content: str, **options: bool) -> tokenizers.Tokenizer:
    inner = tiny_tokenizers.byte_level()
    inner.add_tokens([AddedToken(content, **options)])
    return inner


TOKENIZERS = {
    "gpt-2": tiny_tokenizers.byte_level(),
    "llama 3": llama_3(),
    "digits": tokenizers.Tokenizer.from_file(str(QUICKSTART_MODEL / "tokenizer.json")),
    "sentencepiece": tiny_tokenizers.byte_fallback(),
    "prefix space": with_prefix_space(),
    "a token of two words": with_added("one two"),
    "a token that ends before a comma": with_added("hello,"),
    "a token that takes the space behind it": with_added("END", rstrip=True),
    "a token that is a word": with_added("hello", single_word=True),
}


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "PIECE_CHARACTERS", 100)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_have_the_ids_of_the_whole(kind: str, special: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    encoder = PieceEncoder(tokenizer)

    @given(texts)
    def check(text: str) -> None:
        whole = encode_unlocked(tokenizer, text, add_special_tokens=special)
        assert encoder.encode(text, add_special_tokens=special) == whole

    check()


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("kind", ["gpt-2", "llama 3", "digits", "a token of two words", "a token that is a word"])
def test_texts_of_these_are_read_in_pieces_and_can_be_stopped_between_them(kind: str) -> None:
    encoder = PieceEncoder(TOKENIZERS[kind])
    told: list[int] = []
    for text in ("hello world, " * 100, "你好\uff0c" * 500, '{"key":"value","other":17},' * 50):
        told.clear()
        ids = encoder.encode(text, add_special_tokens=False, check=told.append)
        assert len(told) >= 8
        assert told == sorted(told)
        assert told[-1] <= len(ids)

    class Enough(Exception):
        pass

    def stop(num_ids: int) -> None:
        told.append(num_ids)
        raise Enough

    told.clear()
    with pytest.raises(Enough):
        encoder.encode("hello world, " * 10_000, add_special_tokens=False, check=stop)
    assert len(told) == 1


def test_a_stretch_without_a_cut_is_read_whole_up_to_its_limit() -> None:
    encoder = PieceEncoder(tiny_tokenizers.byte_level())
    text = "x" * 300_000 + " and more words" * 20_000
    whole = encode_unlocked(tiny_tokenizers.byte_level(), text, add_special_tokens=True)
    assert encoder.encode(text, add_special_tokens=True) == whole
    with pytest.raises(UndividedTextTooLong, match=r"600000 characters .* the limit is 524288"):
        encoder.encode("x" * 600_000, add_special_tokens=False)


def test_where_no_text_can_be_cut_there_is_a_limit_too() -> None:
    with pytest.raises(UndividedTextTooLong, match="the limit is 1048576"):
        PieceEncoder(tiny_tokenizers.byte_fallback()).encode("is it " * 200_000, add_special_tokens=True)


def test_a_pre_tokenizer_that_does_not_part_words_is_found_out() -> None:
    inner = tokenizers.Tokenizer(models.BPE(byte_fallback=False))
    inner.add_tokens(["x"])
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated")
    inner.decoder = decoders.ByteLevel()
    text = "ab cd" * 60_000
    whole = encode_unlocked(inner, text, add_special_tokens=False)
    assert PieceEncoder(inner).encode(text, add_special_tokens=False) == whole


WORST = {
    "a word": "abcdefghij",
    "one letter": "a",
    "digits": "7",
    "white space": " ",
    "lines": " \n",
    "punctuation": "!",
}
WORST |= {
    "bytes": "é",
    "emoji": "😀",
    "no word": "a ",
    "accents": "a\u0301",
    "special": "<|im_end|>",
    "apostrophes": "'",
}


@pytest.mark.parametrize("kind", WORST)
@pytest.mark.parametrize("tokenizer", ["gpt-2", "llama 3", "digits"])
def test_the_time_grows_with_the_text_and_no_faster(tokenizer: str, kind: str) -> None:
    encoder = PieceEncoder(TOKENIZERS[tokenizer])

    def encode(num_characters: int) -> Work:
        text = WORST[kind] * (num_characters // len(WORST[kind]))
        return lambda: encoder.encode(text, add_special_tokens=False)

    assert least_growth(WorstInput(kind, (), encode, 15_000, 60_000, "pool")) < MOST_GROWTH

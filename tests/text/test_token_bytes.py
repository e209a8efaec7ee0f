from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.text.token_bytes import byte_level_token_bytes
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())


@given(st.text(max_size=60))
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    table = TOKENIZER.token_bytes
    assert table is not None
    ids = TOKENIZER.encode(text, add_special_tokens=True)
    assert b"".join(table[token_id] for token_id in ids) == text.encode()


def test_every_byte_has_a_token() -> None:
    table = TOKENIZER.token_bytes
    assert table is not None
    assert {table[token_id] for token_id in range(TOKENIZER.num_tokens)} >= {bytes([byte]) for byte in range(256)}


def test_special_and_unknown_ids_have_no_bytes() -> None:
    table = TOKENIZER.token_bytes
    assert table is not None
    assert table[0] == table[10**6] == b""


def test_added_tokens_are_their_text() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_tokens(["two words é"])
    table = byte_level_token_bytes(tokenizer, frozenset())
    assert table is not None
    assert table[tokenizer.token_to_id("two words é")] == "two words é".encode()


def test_other_decoders_have_no_table() -> None:
    assert byte_level_token_bytes(tiny_tokenizers.byte_fallback(), frozenset()) is None


def test_spelled_bytes_make_the_text_for_any_tokenizer() -> None:
    for made in (tiny_tokenizers.byte_level(), tiny_tokenizers.byte_fallback()):
        tokenizer = Tokenizer(made)
        ids = tokenizer.encode("a 你", add_special_tokens=False)
        assert b"".join(tokenizer.spelled_bytes[token_id] for token_id in ids).decode().strip() == "a 你"
        assert tokenizer.spelled_bytes[10**6] == b""
        for special in tokenizer.special_ids:
            assert tokenizer.spelled_bytes[special] == tokenizer.token_text(special).encode()

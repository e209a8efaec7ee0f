"""The bytes that each token id stands for."""

from __future__ import annotations

import re

import tokenizers
from tokenizers import decoders


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are themselves, the others are characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes(dict[int, bytes]):
    """For tokenizers that work on bytes (GPT-2's byte-level BPE): id -> bytes, filled on demand.

    Special tokens and ids without a token have no bytes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._byte_of_char = _byte_of_char()

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = value = self._bytes_of(token_id)
        return value

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special_ids:
            return b""
        try:
            return bytes([self._byte_of_char[char] for char in token])
        except KeyError:  # an added token, written literally
            return str(token).encode()


class SpelledBytes(dict[int, bytes]):
    """id -> bytes, for any tokenizer: special tokens as they are spelled, byte-fallback tokens as their byte.

    The mark of a leading space is a space. Ids without a token have no bytes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._of_bytes = byte_level_token_bytes(tokenizer, frozenset())

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = value = self._bytes_of(token_id)
        return value

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._added:
            return str(self._added[token_id].content).encode()
        if self._of_bytes is not None:
            return self._of_bytes[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        fallback = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
        return bytes([int(fallback[1], 16)]) if fallback else str(token).replace("\u2581", " ").encode()


def byte_level_token_bytes(tokenizer: tokenizers.Tokenizer, special_ids: frozenset[int]) -> TokenBytes | None:
    """The table for a tokenizer whose decoder only maps characters to bytes; None for any other decoder."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return TokenBytes(tokenizer, special_ids)
    return None

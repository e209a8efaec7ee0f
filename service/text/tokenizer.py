"""Text -> ids and ids -> text of one model, from its `tokenizer.json` or GPT-2's two files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, normalizers

from service.errors import ModelLoadError
from service.text.byte_level_bpe import MERGES, VOCABULARY, byte_level_bpe, has_byte_level_bpe
from service.text.long_text import PieceEncoder
from service.text.special_text import LiteralEncoder, SpecialTexts
from service.text.token_bytes import SpelledBytes, TokenBytes, byte_level_token_bytes

_DECODED_LOCKED = 1024
"""The most ids for which the library's `decode` is used: it holds the interpreter's lock, 0.6 s for a million.
`decode_batch` does not, and costs a few microseconds more."""


class Tokenizer:
    """One model's tokenizer. Its methods may be called from several threads at once.

    special_ids: ids of the special tokens (those that `decode` leaves out).
    special_texts: how they are spelled.
    token_bytes: the bytes of each id, if the tokenizer works on bytes; else None.
    spelled_bytes: the bytes of each id, special tokens as they are spelled.
    added_tokens: the text of each token that was added to the model's own, special or not.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        special = {token_id: token for token_id, token in added.items() if token.special}
        self._tokenizer = tokenizer
        self._pieces = PieceEncoder(tokenizer)
        self._literal_encoder: LiteralEncoder | None = None
        # A special token that is matched after normalization has more spellings than its own text.
        varies = tokenizer.normalizer is not None and any(token.normalized for token in special.values())
        self._special_text_varies = varies
        self.special_ids = frozenset(special)
        self.added_tokens = {token_id: str(token.content) for token_id, token in added.items()}
        self.special_texts = SpecialTexts(token.content for token in special.values())
        self.token_bytes: TokenBytes | None = byte_level_token_bytes(tokenizer, self.special_ids)
        self.spelled_bytes = SpelledBytes(tokenizer)
        self._most_characters_a_token = _most_characters_a_token(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read a model folder's `tokenizer.json`, else `vocab.json` and `merges.txt`.

        ModelLoadError if neither is there or one cannot be read.
        """
        file = folder / "tokenizer.json"
        if not file.is_file() and not has_byte_level_bpe(folder):
            raise ModelLoadError(f"{folder}: there is no tokenizer.json, nor {VOCABULARY} and {MERGES}")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file)) if file.is_file() else byte_level_bpe(folder)
            return cls(inner)
        except ModelLoadError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{file if file.is_file() else folder / VOCABULARY}: {error}") from error

    @property
    def works_on_bytes(self) -> bool:
        """Whether any text can be encoded: the tokenizer is byte-level, or has tokens for single bytes."""
        decoder = self._tokenizer.decoder
        return self.token_bytes is not None or (decoder is not None and b'"ByteFallback"' in decoder.__getstate__())

    @property
    def num_tokens(self) -> int:
        """The number of ids that have a text, with added tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def least_num_tokens(self, num_characters: int) -> int:
        """A lower bound on the tokens of a text of `num_characters`, without tokenizing it; 0 if none is known."""
        most = self._most_characters_a_token
        return 0 if most is None else -(-num_characters // most)

    def encode(self, text: str, *, add_special_tokens: bool, check: Callable[[int], None] | None = None) -> list[int]:
        """Ids of text whose author may write special tokens: a completion prompt, a rendered template.

        add_special_tokens: add the tokens of the tokenizer's post-processor (BOS and the like). check: called every
        100,000 characters or so with the number of ids so far; may raise. UndividedTextTooLong if a part of the text is
        too long to be tokenized at once and cannot be divided.
        """
        return self._pieces.encode(text, add_special_tokens=add_special_tokens, check=check)

    def encode_rendered(
        self, text: str, literals: Mapping[str, str], check: Callable[[int], None] | None = None
    ) -> list[int]:
        """Ids of a rendered chat template: its own special tokens are special, a client's are plain text.

        literals: placeholder -> the client's text that it stands for (see `Shield`). check, UndividedTextTooLong: see
        `encode`.
        """
        if not literals and not self._special_text_varies:
            return self.encode(text, add_special_tokens=False, check=check)
        if self._literal_encoder is None:
            # Made when first needed: it costs a second copy of the tokenizer, and most servers never need it.
            # Two threads may both make one; either is correct, and the later assignment wins.
            self._literal_encoder = LiteralEncoder(self._tokenizer)
        return self._literal_encoder.encode(text, literals, check)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids."""
        if len(token_ids) <= _DECODED_LOCKED:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))
        (text,) = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty if the id has none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def id_of(self, text: str) -> int | None:
        """The id of the token with this spelling; None if the vocabulary has none."""
        token_id = self._tokenizer.token_to_id(text)
        return None if token_id is None else int(token_id)


def _most_characters_a_token(tokenizer: tokenizers.Tokenizer) -> int | None:
    """The most characters of a text that one token can stand for; None if characters may be lost before the tokens are
    made.

    A token of a byte-level tokenizer is written with one character per byte, and a character has at least one byte. NFC
    composes up to four characters into one. Some special tokens swallow all white space beside them.
    """
    normalizer = tokenizer.normalizer
    is_plain = normalizer is None or isinstance(normalizer, normalizers.NFC)
    swallows = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if not is_plain or swallows or not isinstance(tokenizer.decoder, decoders.ByteLevel):
        return None
    return max(map(len, tokenizer.get_vocab())) * (1 if normalizer is None else 4)

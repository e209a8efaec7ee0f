"""Keeps a client's text from turning into special tokens.

A chat template writes special tokens (`<|im_end|>`) around the clients' text. If a client's text contains the same
characters, they must stay characters. While the template renders, such text is replaced by placeholders that cannot be
guessed (`Shield`), so that the only special tokens in the result are the template's own. `LiteralEncoder` turns the
placeholders back into plain text while tokenizing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

import tokenizers

from service.text.any_of import AnyOf
from service.text.long_text import PieceEncoder


class SpecialTexts:
    """How a model's special tokens are spelled; made once per model, immutable."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = tuple(texts)
        self.finder = AnyOf(texts)
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def beginning_at_end(self, text: str) -> int:
        """Length of the longest suffix of `text` that could become a special token with what follows it."""
        for length in range(min(self._longest_beginning, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return length
        return 0


class Shield:
    """The placeholders of one rendering, one per distinct text. `literals`: placeholder -> its text."""

    def __init__(self, special: SpecialTexts) -> None:
        self._special = special
        self._nonce = secrets.token_hex(8)
        self.literals: dict[str, str] = {}
        self._placeholders: dict[str, str] = {}

    def cover(self, value: object) -> object:
        """A copy of a JSON value with every special text in its strings replaced by a placeholder.

        The beginning of a special text at the end of a string is replaced too: what the template writes next, or
        another string of the client, might complete it.
        """
        if isinstance(value, str):
            return self._cover_text(value)
        if isinstance(value, list):
            return [self.cover(item) for item in value]
        if isinstance(value, dict):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        return value

    def reveal(self, text: str) -> str:
        """`text` with each placeholder replaced by its text."""
        return AnyOf(self.literals).replace(text, self.literals.__getitem__)

    def _cover_text(self, text: str) -> str:
        covered = self._special.finder.replace(text, self._placeholder)
        length = self._special.beginning_at_end(covered)
        return covered[:-length] + self._placeholder(covered[-length:]) if length else covered

    def _placeholder(self, literal: str) -> str:
        placeholder = self._placeholders.get(literal)
        if placeholder is None:
            placeholder = f"\ue000{self._nonce}.{len(self.literals)}\ue001"
            self._placeholders[literal], self.literals[placeholder] = placeholder, literal
        return placeholder


class LiteralEncoder:
    """Encodes rendered text in which some special texts are plain text.

    A second copy of the tokenizer treats every special text as plain text. The template's own special tokens
    are replaced by stand-ins that this copy knows as added tokens, so that one pass over the whole text
    gives the same ids as the first copy would, had the client's text not looked special. May be used from
    several threads.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True
        nonce = secrets.token_hex(8)
        self._stand_ins: dict[str, str] = {}
        self._special_ids: dict[int, int] = {}
        for special_id, token in tokenizer.get_added_tokens_decoder().items():
            if not token.special:
                continue
            stand_in = f"\ue002{nonce}.{special_id}\ue003"
            self._tokenizer.add_tokens([_like(token, stand_in)])
            self._stand_ins[token.content] = stand_in
            stand_in_id = self._tokenizer.token_to_id(stand_in)
            assert stand_in_id is not None
            self._special_ids[stand_in_id] = special_id
        self._pieces = PieceEncoder(self._tokenizer)

    def encode(self, text: str, literals: Mapping[str, str], check: Callable[[int], None] | None = None) -> list[int]:
        """The ids; `check` and errors: see `PieceEncoder.encode`."""
        replacements = {**self._stand_ins, **literals}
        text = AnyOf(replacements).replace(text, replacements.__getitem__)
        ids = self._pieces.encode(text, add_special_tokens=False, check=check)
        return [self._special_ids.get(token_id, token_id) for token_id in ids]


def _like(token: tokenizers.AddedToken, content: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )

"""Ids -> text for tokenizers whose ids do not stand for bytes: a short window of ids is decoded again and again."""

from __future__ import annotations

from collections.abc import Sequence

from service.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_BYTES_OF_A_CHARACTER = 4


class WindowDetokenizer:
    """A `Detokenizer` for any tokenizer. It decodes a short window of ids again with each new one, and returns what was
    added.

    The window begins with ids whose text was already returned, because decoders look at their left neighbour (spaces,
    byte-fallback runs): as few ids as have text of their own. An id without a token is left out. The library's
    DecodeStream is not used: it cannot flush, drops the space after a special token, and stops for good at an "invalid
    prefix", where this one resumes at the new ids. One exception to the contract: a run of byte-fallback tokens that is
    not UTF-8 as a whole decodes to one U+FFFD per byte at once; incrementally its valid beginning was already returned.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._num_out = 0  # ids of the window whose text was returned
        self._out = ""  # their text

    def push(self, token_ids: Sequence[int]) -> str:
        skipped_ids, text_of = self._skipped_ids, self._tokenizer.token_text
        ids = [token_id for token_id in token_ids if token_id not in skipped_ids and text_of(token_id)]
        return "".join([self._push_one(token_id) for token_id in ids])

    def flush(self) -> str:
        return self._advance(self._decode(self._window))

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) and len(self._window) - self._num_out < _MAX_BYTES_OF_A_CHARACTER:
            return ""
        return self._advance(text)

    def _advance(self, text: str) -> str:
        new_ids = self._window[self._num_out :]
        if not text.startswith(self._out):
            self._window, self._out = new_ids, ""
            text = self._decode(new_ids)
        added = text[len(self._out) :]
        self._out = text
        self._shorten(len(new_ids))
        self._num_out = len(self._window)
        return added

    def _shorten(self, num_new: int) -> None:
        """Keeps the window's new ids and, before them, the fewest older ones that have text: ids without text of their
        own, such as a first space, are a poor left neighbour."""
        for first in range(len(self._window) - num_new, 0, -1):
            text = self._decode(self._window[first:])
            if text:
                self._window, self._out = self._window[first:], text
                return

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

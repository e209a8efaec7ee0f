"""Ids -> text while they arrive. One detokenizer per choice; never used by two threads.

The contract: a piece of text never ends inside a character, and all pieces together, with that from `flush`, are what
`Tokenizer.decode` gives for all ids at once. Special tokens give no text unless they are to be shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

from service.text.tokenizer import Tokenizer
from service.text.window_detokenizer import WindowDetokenizer


class Detokenizer(Protocol):
    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids add and that no later id can change; often empty."""
        ...

    def flush(self) -> str:
        """The rest, after the last id: half a character becomes U+FFFD."""
        ...


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> Detokenizer:
    """The fast one if ids stand for bytes, else the general one."""
    if tokenizer.token_bytes is not None:
        return ByteDetokenizer(tokenizer.token_bytes if skip_special_tokens else tokenizer.spelled_bytes)
    return WindowDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)


class ByteDetokenizer:
    """For byte-level tokenizers: a table of bytes and an incremental UTF-8 decoder."""

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside = False  # inside a character

    def push(self, token_ids: Sequence[int]) -> str:
        table = self._token_bytes
        added = b"".join([table[token_id] for token_id in token_ids])
        if not self._is_inside:
            try:
                return added.decode()  # nearly always possible; the incremental decoder is written in Python
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(added)
        self._is_inside = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        self._is_inside = False
        return self._decoder.decode(b"", final=True)

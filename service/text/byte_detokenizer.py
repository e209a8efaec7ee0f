"""Ids -> text for byte-level tokenizers: a table of bytes and an incremental UTF-8 decoder."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence


class ByteDetokenizer:
    """A `Detokenizer`. token_bytes: the bytes of each id."""

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

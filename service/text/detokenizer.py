"""Ids -> text while they arrive. One detokenizer per choice; never used by two threads.

The contract: a piece of text never ends inside a character, and all pieces together, with that from `flush`, are what
`Tokenizer.decode` gives for all ids at once. Special tokens give no text unless they are to be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.text.byte_detokenizer import ByteDetokenizer
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
